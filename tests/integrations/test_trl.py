"""TRL's GRPOTrainer trains on our ids: tokens, rewards, seeds and tasks are those of the environments."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="TRL is not installed (tests/integrations/requirements/trl.txt)")
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from words import Words

from rllm_gym.agents import ChatAgent
from rllm_gym.integrations.trl import environment_factory, rollout_func
from rllm_gym.samplers import TorchSampler
from trainers.tiny_model import make_tiny_model

torch.set_num_threads(1)

TOOL_TEMPLATE = (
    "{%- if tools -%}<|system|>{%- for tool in tools -%}{{- tool | tojson -}}{%- endfor -%}<|end|>{%- endif -%}"
    "{%- for message in messages -%}{{- '<|' + message['role'] + '|>' + (message['content'] or '') -}}"
    "{%- for call in message.tool_calls or [] -%}"
    "{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' -}}{%- endfor -%}{{- '<|end|>' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

LORA = LoraConfig(r=4, lora_alpha=64, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


@pytest.fixture(autouse=True)
def fresh_words() -> None:
    Words.closed, Words.seen, Words.breaks = 0, [], set()


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden_size=32, num_layers=1, num_heads=2)


def trainer_of(model_path: Path, output: Path, *, steps: int = 2, batch: int = 4, **arguments: Any) -> GRPOTrainer:
    settings = {
        "output_dir": str(output),
        "per_device_train_batch_size": batch,
        "num_generations": 2,
        "max_completion_length": 24,
        "learning_rate": 1e-3,
        "use_cpu": True,
        "bf16": False,
        "max_steps": steps,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    } | arguments.pop("config", {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32),
            processing_class=arguments.pop("tokenizer", None) or AutoTokenizer.from_pretrained(model_path),
            args=GRPOConfig(**settings),
            **arguments,
        )


def rollout_trainer(rollout: Any, model: Path, output: Path, *, tasks: Any = None, **arguments: Any) -> GRPOTrainer:
    """Return a trainer whose completions and rewards are those of the rollout."""
    dataset = rollout.dataset() if tasks is None else rollout.dataset(tasks)
    given = {"reward_funcs": rollout.reward, "rollout_func": rollout, "train_dataset": dataset}
    return trainer_of(model, output, **given, **arguments)


def logged(trainer: GRPOTrainer, name: str) -> list[float]:
    return [row[name] for row in trainer.state.log_history if name in row]


@pytest.mark.parametrize("env_id", ["rllm/FrozenLake-v0", "rllm/Math-v0"])
def test_trains_on_an_id(env_id: str, model_path: Path, tmp_path: Path) -> None:
    """A tiny model takes GRPO steps on our environment, and TRL's rewards are the environment's."""
    with rollout_func(env_id, max_reply_tokens=4 if "Lake" in env_id else None) as rollout:
        trainer = rollout_trainer(rollout, model_path, tmp_path, tasks=6)
        means = []

        def remembered(prompts: list[Any], trainer: GRPOTrainer) -> dict[str, Any]:
            output = rollout(prompts, trainer)
            means.append(sum(episode.reward for episode in rollout.episodes) / len(rollout.episodes))
            assert trainer.model.training
            return output

        trainer.rollout_func = remembered
        trainer.train()
        assert logged(trainer, "reward") == pytest.approx(means, abs=1e-5)
        assert all(math.isfinite(loss) for loss in logged(trainer, "loss"))
        assert len(rollout.episodes) == 4
        assert all(episode.env_id == env_id and episode.trainable for episode in rollout.episodes)
        assert rollout.stats.episodes == 8


def test_the_policy_learns_from_the_rewards(model_path: Path, tmp_path: Path) -> None:
    """Weights change, and so does what is sampled: the embedded sampler uses the current weights."""
    with rollout_func(Words, max_reply_tokens=6) as rollout:
        trainer = rollout_trainer(rollout, model_path, tmp_path, steps=3)
        before = trainer.model.get_input_embeddings().weight.detach().clone()
        trainer.train()
        assert not torch.equal(before, trainer.model.get_input_embeddings().weight)
        prompts = [row["prompt"] for row in trainer.train_dataset.select(range(2))]
        output = rollout(prompts, trainer)
        check_logprobs(trainer.model, output)


def check_logprobs(model: Any, output: dict[str, Any]) -> None:
    """Check that the rollout's log-probs are those of the trained model for the same ids."""
    model.eval()
    for prompt, completion, logprobs, mask in zip(
        output["prompt_ids"], output["completion_ids"], output["logprobs"], output["env_mask"], strict=True
    ):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + completion])).logits[0].log_softmax(-1)
        for place, (token, logprob, sampled) in enumerate(
            zip(completion, logprobs, mask, strict=True), len(prompt) - 1
        ):
            if sampled:
                assert logits[place, token].item() == pytest.approx(logprob, abs=1e-4)
            else:
                assert logprob == 0.0
    model.train()


def test_tokens_are_the_sampled_ones(model_path: Path, tmp_path: Path) -> None:
    """Sampled tokens have mask 1 and the sampler's log-probs; environment tokens have mask 0; all in order."""
    with rollout_func(Words, max_reply_tokens=6) as rollout:
        trainer = rollout_trainer(rollout, model_path, tmp_path)
        prompts = [row["prompt"] for row in trainer.train_dataset]
        output = rollout(prompts, trainer)
        check_logprobs(trainer.model, output)
        several_turns = 0
        for index, episode in enumerate(rollout.episodes):
            steps = episode.trajectories[0].steps
            several_turns += len(steps) > 1
            sampled = [t for step in steps for t in step.tokens.ids]
            mask, completion = output["env_mask"][index], output["completion_ids"][index]
            assert [t for t, one in zip(completion, mask, strict=True) if one] == sampled
            assert sum(mask) <= trainer.max_completion_length
            complete = output["prompt_ids"][index] + completion
            replies = trainer.processing_class.decode(complete, skip_special_tokens=True)
            assert steps[0].observation in replies
            assert output["env_reward"][index] == pytest.approx(sum(len(s.action) / 100 for s in steps))
        assert several_turns


def test_tasks_and_seeds(model_path: Path, tmp_path: Path) -> None:
    """The repeats of a prompt share its task and have different dynamics; the same run gives the same result again."""

    def scenario(seed: int) -> list[tuple[str, int]]:
        Words.seen = []
        with rollout_func(Words, seed=seed, max_reply_tokens=6, n_parallel=1) as rollout:
            trainer = rollout_trainer(rollout, model_path, tmp_path, tasks=[4, "words-2"])
            trainer.train()
        return Words.seen

    seen = scenario(0)
    assert len(seen) == 8
    assert [task for task, _ in seen[::2]] == [task for task, _ in seen[1::2]]
    assert {task for task, _ in seen} == {"words-4", "words-2"}
    assert len({rng for _, rng in seen}) == 8
    assert scenario(0) == seen
    assert {rng for _, rng in scenario(1)}.isdisjoint({rng for _, rng in seen})


def test_an_environment_fault_gives_no_reward(model_path: Path, tmp_path: Path) -> None:
    """TRL leaves out episodes with a fault: no reward, no advantage, and not in the mean of the others."""
    Words.breaks = {"words-1"}
    with rollout_func(Words, retries=1) as rollout:
        trainer = rollout_trainer(rollout, model_path, tmp_path, tasks=[0, 1])
        output = rollout([row["prompt"] for row in trainer.train_dataset for _ in range(2)], trainer)
        assert all(reward > 0 for reward in output["env_reward"][:2])
        assert output["env_reward"][2:] == [None, None]
        assert not any(map(any, output["env_mask"][2:]))
        assert rollout.stats.faults["test"] == 4
        trainer.train()
        kept = [episode.reward for episode in rollout.episodes if episode.trainable]
        assert logged(trainer, "reward")[-1] == pytest.approx(sum(kept) / len(kept), abs=1e-5)
        Words.breaks = {f"words-{index}" for index in range(6)}
        trainer.train()
        assert all(math.isfinite(loss) for loss in logged(trainer, "loss"))


def test_environments_are_closed(model_path: Path, tmp_path: Path) -> None:
    with rollout_func(Words, n_parallel=3) as rollout:
        trainer = rollout_trainer(rollout, model_path, tmp_path, steps=1)
        trainer.train()
        opened_for_dataset = 1
    assert Words.closed >= opened_for_dataset + 3


def test_a_program_that_closes_nothing_exits(model_path: Path, tmp_path: Path) -> None:
    """An open decoding thread, worker or loop does not keep the program alive or change its exit status."""
    code = f"""
import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[2])!r}]
from pathlib import Path
import test_trl as tests
rollout = tests.rollout_func("rllm/FrozenLake-v0", max_reply_tokens=4, workers="process")
trainer = tests.trainer_of(Path({str(model_path)!r}), Path({str(tmp_path)!r}), steps=1, reward_funcs=rollout.reward,
                           rollout_func=rollout, train_dataset=rollout.dataset(4))
trainer.train()
environment = tests.environment_factory(tests.Words)()
environment.reset()
print("played", rollout.stats.episodes, environment.act("abc"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "played 4 go on" in done.stdout


def test_lora_with_a_custom_sampler(model_path: Path, tmp_path: Path) -> None:
    """A sampler passed from outside gets the adapter after each of TRL's steps."""
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    sampler = TorchSampler(AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32), tokenizer)
    with rollout_func(Words, sampler=sampler) as rollout:
        trainer = rollout_trainer(rollout, model_path, tmp_path, peft_config=LORA, config={"learning_rate": 0.05})
        trainer.train()
        assert sampler.weight_version == 2
        check_logprobs(
            trainer.model, rollout([row["prompt"] for row in trainer.train_dataset.select(range(2))], trainer)
        )
        assert sampler.weight_version == 3


def test_lora_sampled_where_it_is_trained(model_path: Path, tmp_path: Path) -> None:
    with rollout_func(Words, max_reply_tokens=6) as rollout:
        trainer = rollout_trainer(rollout, model_path, tmp_path, peft_config=LORA, config={"learning_rate": 0.05})
        trainer.train()
        check_logprobs(
            trainer.model, rollout([row["prompt"] for row in trainer.train_dataset.select(range(2))], trainer)
        )


class Forgetful(ChatAgent):
    def __init__(self) -> None:
        super().__init__(history="latest")


@pytest.mark.parametrize(
    ("settings", "config", "message"),
    [
        ({}, {"min_p": 0.1}, "min_p=0.1 has no effect"),
        ({}, {"repetition_penalty": 1.2}, "repetition_penalty=1.2 has no effect"),
        ({"agent": Forgetful}, {}, "rewrote its history"),
    ],
)
def test_options_without_effect_are_errors(
    settings: dict[str, Any], config: dict[str, Any], message: str, model_path: Path, tmp_path: Path
) -> None:
    with rollout_func(Words, max_reply_tokens=6, **settings) as rollout:
        trainer = rollout_trainer(rollout, model_path, tmp_path, config=config)
        with pytest.raises(ValueError, match=message):
            rollout([row["prompt"] for row in trainer.train_dataset], trainer)


def test_a_prompt_without_a_task_is_an_error_that_names_it(model_path: Path, tmp_path: Path) -> None:
    with rollout_func(Words, max_reply_tokens=6) as rollout:
        trainer = rollout_trainer(rollout, model_path, tmp_path)
        with pytest.raises(ValueError, match="names no task"):
            rollout([[{"role": "user", "content": "hello"}]], trainer)


# environment_factory


class ScriptedModel:
    """Replaces the model that TRL trains by scripted replies."""

    def __init__(self, trainer: GRPOTrainer, *rounds: list[str]) -> None:
        self.tokenizer = trainer.processing_class
        self.rounds = list(rounds)
        trainer.model.generate = self.generate

    def generate(self, input_ids: torch.Tensor, **_: Any) -> torch.Tensor:
        replies = self.rounds.pop(0)
        assert len(replies) == len(input_ids)
        ids = [self.tokenizer.encode(reply + "<|end|>", add_special_tokens=False) for reply in replies]
        longest = max(map(len, ids))
        padded = [row + [self.tokenizer.pad_token_id] * (longest - len(row)) for row in ids]
        return torch.cat([input_ids, torch.tensor(padded)], dim=1)


def tool_tokenizer(model_path: Path) -> Any:
    """The tiny tokenizer with a template that renders tool calls, and a parser for them."""
    tokenizer = AutoTokenizer.from_pretrained(model_path)
    tokenizer.chat_template = TOOL_TEMPLATE
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|assistant|>",
        "fields": {
            "tool_calls": {
                "open": "<tool_call>",
                "close_pattern": r"</tool_call>\s*",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": r"<\|end\|>\s*", "content": "text"},
        },
    }
    return tokenizer


def act(reply: str) -> str:
    return '<tool_call>{"name": "act", "arguments": {"reply": "' + reply + '"}}</tool_call>'


def factory_trainer(factory: Any, model_path: Path, output: Path, **arguments: Any) -> GRPOTrainer:
    return trainer_of(
        model_path,
        output,
        tokenizer=tool_tokenizer(model_path),
        environment_factory=factory,
        train_dataset=factory.dataset(arguments.pop("tasks", 2)),
        config={"max_completion_length": 400},
        **arguments,
    )


def test_the_model_plays_by_calling_the_tool(model_path: Path, tmp_path: Path) -> None:
    """TRL's own loop of tool calls runs several turns, and its reward is the sum of the environment's."""
    with environment_factory(Words) as factory:
        trainer = factory_trainer(factory, model_path, tmp_path, steps=1)
        ScriptedModel(
            trainer,
            [act("abc"), act("stop"), "I say nothing.", act("abcdef")],
            [act("abcd"), "done", act("stop it")],
            ["done", "done"],
        )
        trainer.train()
        expected = [0.03 + 0.04, 0.04, 0.0, 0.06 + 0.07]
        assert logged(trainer, "rewards/TRLToolEnvironment/mean") == pytest.approx([sum(expected) / 4], abs=1e-5)
        assert math.isfinite(logged(trainer, "loss")[0])
        assert logged(trainer, "tools/failure_frequency") == [0.0]
        assert [environment.get_reward() for environment in trainer.environments] == pytest.approx(expected)
        tasks = [task for task, _ in Words.seen]
        assert tasks[0] == tasks[1]
        assert tasks[2] == tasks[3]
        assert len({rng for _, rng in Words.seen}) == 4
    assert Words.closed == 4 + 1  # and the one from which the data set was made


@pytest.mark.parametrize("env_id", ["rllm/FrozenLake-v0", "rllm/ToolMath-v0"])
def test_ids_as_tools(env_id: str, model_path: Path, tmp_path: Path) -> None:
    with environment_factory(env_id) as factory:
        trainer = factory_trainer(factory, model_path, tmp_path, steps=1)
        ScriptedModel(trainer, [act("Up")] * 4, ["done"] * 4)
        trainer.train()
        assert math.isfinite(logged(trainer, "loss")[0])
        (environment, *_) = trainer.environments
        first = environment.reset(task_id=factory.dataset(1)[0]["task_id"])
        assert ("Tools, to be called" in first) == ("ToolMath" in env_id)


def test_an_environment_fault_gives_the_tool_no_reward(model_path: Path, tmp_path: Path) -> None:
    """The reward of a broken environment is None, which TRL leaves out; after a reset it serves again."""
    Words.breaks = {"words-1"}
    with environment_factory(Words) as factory:
        environment = factory()
        assert "say word 1" in environment.reset(task_id="words-1")
        assert "broke" in environment.act("abc")
        assert environment.get_reward() is None
        assert "nothing left" in environment.act("abc")
        assert "say word 2" in environment.reset(task_id="words-2")
        assert environment.act("abcd") == "go on"
        assert environment.get_reward() == pytest.approx(0.04)
        assert factory.stats.faults["test"] == 1
        trainer = factory_trainer(factory, model_path, tmp_path, steps=1)
        ScriptedModel(trainer, [act("abc")] * 4, ["done"] * 4)
        trainer.train()
        assert math.isfinite(logged(trainer, "loss")[0])
        assert logged(trainer, "rewards/TRLToolEnvironment/mean") == pytest.approx([0.03], abs=1e-5)


def test_the_environment_has_exactly_one_public_tool() -> None:
    """TRL offers every public function of an environment to the model."""
    with environment_factory(Words) as factory:
        kind = type(factory())
        assert {name for name in vars(kind) if not name.startswith("_")} == {"reset", "act", "get_reward"}
