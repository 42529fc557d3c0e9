"""This trainer's side of ``vs_trl.py``: ``Learner.update``, and the loop of ``trainers.train`` with its sampler."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

# Imported first, because it reserves standard output for the answers.
from protocol import answer, load_adapters, next_command, reward, serve  # isort: skip

import torch
import transformers

from rllm_gym.agents import ChatAgent
from rllm_gym.core import Outcome, Task, TextEnv, TokenSequence
from rllm_gym.data import Taskset
from rllm_gym.samplers import Completion, SamplingRequest, TorchSampler, WeightUpdate
from trainers.algorithms import algorithm_options, make_algorithm
from trainers.batching import make_micro_batches, rows_of
from trainers.config import (
    EnvConfig,
    LoraConfig,
    LoraModelConfig,
    OptimizerConfig,
    SamplingConfig,
    TrainConfig,
)
from trainers.learner import Learner
from trainers.loop import train
from trainers.model import Policy, load_causal_lm, load_tokenizer
from trainers.samples import Sample
from trainers.train_env import TrainEnv


def config_of(data: dict[str, Any], steps: int, output: str) -> TrainConfig:
    case, settings = data["case"], data["settings"]
    lora = settings["lora"]
    return TrainConfig(
        output=output,
        steps=steps,
        env=EnvConfig(id="given", parallel=case["prompts"] * case["group"]),
        model=LoraModelConfig(
            path=data["model"],
            lora=LoraConfig(rank=lora["rank"], alpha=float(lora["alpha"]), targets=lora["targets"]),
            device="cpu",
        ),
        sampling=SamplingConfig(max_tokens=case["completion"][1]),
        algorithm=algorithm_options(
            "grpo",
            group_size=case["group"],
            groups_per_step=case["prompts"],
            clip_low=settings["clip_low"],
            clip_high=settings["clip_high"],
        ),
        optimizer=OptimizerConfig(lr=settings["lr"], max_grad_norm=settings["max_grad_norm"]),
        validation=None,
        checkpoint=None,
        progress=False,
    )


def describe(data: dict[str, Any]) -> str:
    config = config_of(data, 1, "")
    algorithm, optimizer = config.algorithm, config.optimizer
    model = replace(config.model, path="the same folder")
    return (
        f"transformers {transformers.__version__}, torch {torch.__version__}, {torch.get_num_threads()} thread; "
        f"{algorithm}; {optimizer}; {model}; everything else as rllm-gym sets it"
    )


class Update:
    """The update alone: from samples and rewards to new weights."""

    def __init__(self, data: dict[str, Any]) -> None:
        config = config_of(data, 1000, "")
        self.config = config
        self.policy = Policy(config.model)
        self.learner = Learner(self.policy, config.optimizer, config.steps)
        self.algorithm = make_algorithm(config.algorithm)
        self.parameters = dict(self.policy.parameters)
        load_adapters(self.parameters, data["adapters"])
        self.samples = samples_of(data)
        if data["case"]["kind"] == "update":  # a forward pass before memory is measured would hide some of it
            self.samples = self._with_logprobs(self.samples)
        self._steps = 0

    def step(self) -> float:
        targets = self.algorithm.targets(self.samples, {})
        stats = self.learner.update(self._steps, self.samples, targets, self.algorithm, 0.0)
        self._steps += 1
        return stats.loss

    @torch.no_grad()
    def _with_logprobs(self, samples: list[Sample]) -> list[Sample]:
        """Return the same samples with the log-probs that the sampler would have returned."""
        rows = rows_of(samples, {})
        logprobs: list[list[float]] = [[] for _ in rows]
        batches = make_micro_batches(rows, tokens_per_microbatch=self.learner.tokens_per_microbatch)
        for batch in batches:
            logp_N = self.policy.outputs(batch).logp_N
            for row, logp in zip(batch.sequence_N.tolist(), logp_N.tolist(), strict=True):
                logprobs[row].append(logp)
        reported = []
        for sample, values in zip(samples, logprobs, strict=True):
            [sequence] = sample.sequences
            prompt = len(sequence) - len(values)
            reported.append(_sample(sample.episode_id, sample.group_id, sample.reward, sequence.ids, prompt, values))
        return reported


def samples_of(data: dict[str, Any]) -> list[Sample]:
    samples = []
    for group, (prompt, completions, rewards) in enumerate(
        zip(data["prompts"], data["completions"], data["rewards"], strict=True)
    ):
        for member, (completion, value) in enumerate(zip(completions, rewards, strict=True)):
            ids = (*prompt, *completion)
            samples.append(_sample(f"{group}.{member}", str(group), value, ids, len(prompt), [0.0] * len(completion)))
    return samples


def _sample(name: str, group: str, value: float, ids: Sequence[int], prompt: int, logprobs: Sequence[float]) -> Sample:
    sampled = len(ids) - prompt
    sequence = TokenSequence(
        ids=tuple(ids),
        mask=(0,) * prompt + (1,) * sampled,
        logprobs=(0.0,) * prompt + tuple(logprobs),
        versions=(-1,) * prompt + (0,) * sampled,
        rewards=(0.0,) * (len(ids) - 1) + (value,),
        turns=(-1,) * prompt + (0,) * sampled,
    )
    return Sample(name, group, value, (sequence,))


class Prompts(TextEnv):
    """Shows its task's text and rewards one reply like the reward function of the other side."""

    def __init__(self, *, tasks: Any) -> None:
        super().__init__(tasks=tasks, max_turns=1)

    def _begin(self, task: Task) -> str:
        return task.content

    def _act(self, action: str) -> Outcome:
        return Outcome("", {"reward": reward(action)}, terminated=True)


class OneAtATime:
    """The embedded sampler; it lets the trainer's own loop take a step only on request and reports its CPU time.

    A step ends with the sync of its weights.
    """

    returns_tokens = True

    def __init__(self, sampler: TorchSampler) -> None:
        self._sampler = sampler
        self._began: float | None = None
        self._tokens = 0
        self.context_length = sampler.context_length

    @property
    def weight_version(self) -> int:
        return self._sampler.weight_version

    async def sample(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        completions = await self._sampler.sample(requests)
        self._tokens += sum(len(completion.ids) for completion in completions)
        return completions

    async def sync_weights(self, update: WeightUpdate) -> int:
        version = await self._sampler.sync_weights(update)
        if self._began is None:
            answer(ready=True)
        else:
            answer(cpu=time.process_time() - self._began, tokens=self._tokens)
        self._tokens = 0
        next_command()
        self._began = time.process_time()
        return version

    async def release(self, conversation: str) -> None:
        await self._sampler.release(conversation)

    async def close(self) -> None:
        await self._sampler.close()


def begin(data: dict[str, Any], steps: int) -> None:
    tasks = Taskset.from_rows([{"question": text, "answer": ""} for text in data["texts"]])
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(data, steps, str(Path(folder) / "run"))
        model = load_causal_lm(data["model"], dtype=torch.float32).eval()
        sampler = OneAtATime(
            TorchSampler(model, load_tokenizer(data["model"]), max_batch=config.env.parallel, num_threads=1)
        )
        train_env = TrainEnv(Prompts, lambda: ChatAgent(""), tasks, train_kwargs={"tasks": tasks})
        train(config, env=train_env, sampler=sampler)


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(Update, describe, begin)
