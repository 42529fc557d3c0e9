"""Supervised fine-tuning on demonstrations: the loss covers the replies, not their prompts.

Optionally training stops early by a success rate on validation tasks; test tasks are never used for this.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from rllm_gym.chat import ChatRenderer
from trainers.batching import MicroBatch, make_micro_batches
from trainers.config import (
    ConfigError,
    HeldOutFilesConfig,
    PolicyDemonstrationConfig,
    SftConfig,
    StopConfig,
    TrainConfig,
    validate_sft,
)
from trainers.fine_tuning.offline_run import OfflineRun
from trainers.fine_tuning.sft_dataset import FileSftDataset, PolicySftDataset, SftExample, read_examples
from trainers.fine_tuning.tokenized import LengthLimit
from trainers.learner import Learner, UpdateStats
from trainers.model import Policy, TokenOutputs
from trainers.model.size_defaults import context_length, size_note, with_max_tokens
from trainers.process_group import limit_threads, open_process_group
from trainers.rollouts.collector import RolloutCollector
from trainers.rollouts.sampler_factory import make_sampler
from trainers.run.metrics import validation_metrics
from trainers.run.run_folder import RunResult, open_folder
from trainers.tiny_model import make_tiny_model
from trainers.train_env import TrainEnv, open_train_env, sandbox_tier_of

# Number of demonstrations whose texts a tiny model's tokenizer is trained on.
_CORPUS = 64

# Maximum number of optimizer steps if the options do not limit them.
_STEPS = 250
# Subfolder of the run with the initial tiny model.
_UNTRAINED = "untrained"

_COLUMNS = {
    "loss": "loss",
    "validation/loss": "validation loss",
    "validation/success": "validation success",
    "optim/grad_norm": "gradient norm",
    "time/step": "seconds per step",
}


@dataclass(frozen=True, slots=True)
class SftResult(RunResult):
    """Result of a fine-tuning run.

    Attributes:
        stopped: Whether the early stopping rule was met.
    """

    stopped: bool = False


def sft(config: SftConfig, *, env: TrainEnv | None = None) -> SftResult:
    """Fine-tune a model on demonstrations.

    Args:
        config: All options.
        env: The environment as objects, instead of ``config.env.id``.

    Raises:
        ConfigError: The configuration or a demonstration is invalid.
        CheckpointError: There are checkpoints to resume from but none is complete, or one cannot be written.
        TrainingDiverged: Loss or gradient were not finite in several consecutive steps, or the loss exploded in the
            first ones.
    """
    if env is not None:
        config = replace(config, env=replace(config.env, id=config.env.id or "given"))
    validate_sft(config)
    with contextlib.ExitStack() as closing:
        ranks = closing.enter_context(open_process_group(_collective_timeout(config)))
        closing.enter_context(open_folder(config, ranks))
        output = Path(config.output)
        closing.enter_context(limit_threads())
        from_policy = isinstance(config.demonstrations, PolicyDemonstrationConfig)
        if env is None and (from_policy or config.stop is not None):
            env = open_train_env(config.env)
        dataset: FileSftDataset | PolicySftDataset
        if from_policy:
            assert env is not None
            dataset = PolicySftDataset(config, env)
            closing.callback(dataset.close)
        else:
            dataset = FileSftDataset(config)

        model = config.model
        if config.tiny is not None:
            if ranks.is_main_process:
                make_tiny_model(output / _UNTRAINED, corpus=dataset.texts(_CORPUS), **vars(config.tiny))
            ranks.all_gather(None)  # no rank reads it before it is written
            model = replace(model, path=str(output / _UNTRAINED))
        policy = Policy(model, seed=config.seed)
        renderer = ChatRenderer(policy.tokenizer)
        limit = LengthLimit(config.length, context_length(policy.model))
        dataset.tokenize(renderer, limit)
        held_out = dataset.held_out
        if isinstance(config.validation, HeldOutFilesConfig):
            held_out = read_examples(config.validation.file, config, renderer, limit)
        limits = [config.steps] if config.steps is not None else []
        if config.epochs is not None:
            limits.append(math.ceil(config.epochs * dataset.size / config.demonstrations_per_step))
        steps = min(limits, default=_STEPS)
        learner = Learner(policy, config.optimizer, steps, ranks=ranks)
        rule = None
        if config.stop is not None and env is not None and ranks.is_main_process:
            rule = _StopRule(config, config.stop, policy, env)
            closing.callback(rule.close)
        run = closing.enter_context(
            OfflineRun(
                config,
                learner,
                steps=steps,
                title="fine-tuning",
                columns=_COLUMNS,
                fingerprints={"the demonstrations": dataset.fingerprint},
                sandbox_tier="none" if env is None else sandbox_tier_of(env),
            )
        )
        size = size_note(policy.model, {} if config.optimizer.lr else {"optimizer.lr": learner.peak_lr})
        for line in [*size, *dataset.notes, limit.note()]:
            run.note(line)
        return _run(config, run, learner, dataset, held_out, rule)


def _run(
    config: SftConfig,
    run: OfflineRun,
    learner: Learner,
    examples: FileSftDataset | PolicySftDataset,
    held_out: Sequence[SftExample],
    rule: _StopRule | None,
) -> SftResult:
    if held_out:
        run.validate_start(lambda: _measure(learner, held_out))
    stopped = bool(run.memory.get("stopped", False))
    # Position in the data: number of demonstrations considered so far, including those left out.
    examples.position = run.memory.get("position", 0)
    while run.step < run.steps and not stopped:
        with run.clock("demonstrations"):
            wanted = config.demonstrations_per_step
            if config.epochs is not None:
                wanted = min(wanted, config.epochs * examples.size - run.step * wanted)
            chosen = examples.next(wanted)
        with run.clock("update"):
            update = sft_step(learner, run.step, chosen)
        run.step += 1
        row = run.update_row(update)
        if held_out:
            row |= run.validate(lambda: _measure(learner, held_out))
        if config.stop is not None and (run.step % config.stop.every == 0 or run.step == run.steps):
            with run.clock("validation"):  # on the first rank only; the others wait
                (measured, stopped), *_ = learner.ranks.all_gather(rule.measure(run.step) if rule else ({}, False))
            run.validation |= measured
            row |= measured
        run.memory = {"position": examples.position, "stopped": stopped}
        run.log(row)
        run.keep(last=stopped)
        if run.stopping and run.step < run.steps and not stopped:
            return SftResult(run.output, None, run.step, run.validation, interrupted=True)
    return SftResult(run.output, run.save_model(), run.step, run.validation, stopped=stopped)


def sft_step(learner: Learner, step: int, examples: Sequence[SftExample]) -> UpdateStats:
    """Take one optimizer step of maximum likelihood: the weighted mean over all tokens of the replies."""
    batches, norm = _batches(learner, examples)
    return learner.optimizer_step(step, batches, lambda outputs, batch: _loss(outputs, batch) / norm)


@torch.no_grad()
def _measure(learner: Learner, examples: Sequence[SftExample]) -> dict[str, float]:
    """Compute the loss on held-out examples, and its exponential."""
    batches, norm = _batches(learner, examples)
    loss = 0.0
    for batch in batches:
        batch = batch.to(learner.policy.device)
        loss += _loss(learner.policy.outputs(batch), batch).item() / norm
    return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}


def _loss(outputs: TokenOutputs, batch: MicroBatch) -> Tensor:
    return -(batch.weight_N * batch.targets["weight"] * outputs.logp_N).sum()


def _batches(learner: Learner, examples: Sequence[SftExample]) -> tuple[list[MicroBatch], float]:
    """Return the microbatches and the mean weight of their tokens."""
    rows = [tokens.row() for example in examples for tokens in example]
    batches = make_micro_batches(
        rows,
        tokens_per_microbatch=learner.microbatch_tokens(sum(len(row.sequence) for row in rows)),
        share_prompts=learner.policy.shares_prompts,
        costs=learner.policy.costs,
    )
    total = sum(row.num_sampled for row in rows)
    return batches, sum(float(row.targets["weight"].sum()) for row in rows) / total


class _StopRule:
    """Early stopping: measures the success rate on validation tasks."""

    def __init__(self, config: SftConfig, stop: StopConfig, policy: Policy, env: TrainEnv) -> None:
        if env.validation is None:
            raise ConfigError("stop needs validation tasks, but the environment has none; set env.validation_kwargs")
        if env.workflow is not None:
            raise ConfigError(
                f"env.agent={config.env.agent!r} is a workflow: stop runs a single agent; name an agent, or remove stop"
            )
        sampling = with_max_tokens(stop.sampling, policy.model, env.reply_tokens)
        self._stop = stop
        self._policy = policy
        self._collector = RolloutCollector(
            env,
            make_sampler(policy, TrainConfig(env=config.env, model=policy.config, sampling=sampling)),
            policy.tokenizer,
            env=config.env,
            sampling=sampling,
            seed=config.seed,
            deterministic=False,
        )

    def measure(self, step: int) -> tuple[dict[str, float], bool]:
        """Return the metrics, and whether training can stop."""
        self._collector.sync_weights([self._policy.weight_update()])
        greedy = self._stop.metric == "greedy_success"
        episodes = self._collector.validate(step, self._stop.tasks, 1, greedy=greedy)
        measured = validation_metrics(episodes, 1)
        key = "validation/greedy_success" if greedy else "validation/success"
        return measured, measured[key] >= self._stop.at_least

    def close(self) -> None:
        self._collector.close()


def _collective_timeout(config: SftConfig) -> float:
    """Return the timeout in seconds between ranks: the validation in consecutive waves, plus time for the start."""
    waves = -(-2 * config.stop.tasks // config.env.parallel) if config.stop is not None else 0
    return 600.0 + waves * config.env.episode_timeout
