"""rllm-gym train --dry-run: reports what a run would do, reads no weights, writes nothing, and fails where the run
would.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from echo_config import echo_config
from echo_env import EchoEnv

from rllm_gym.commands.errors import CommandError
from rllm_gym.core import EnvironmentFault, Outcome
from trainers import commands
from trainers.config import ConfigError, TrainConfig
from trainers.config.mapping import from_mapping, to_mapping
from trainers.config_loading import write_yaml
from trainers.dry_run import dry_run, estimate, fit_to_memory, report
from trainers.loop import train
from trainers.run.metrics import read_metrics
from trainers.sampler_backends.backend import CacheMemory
from trainers.sampler_backends.vllm import VLLM
from trainers.train_env import open_train_env


def command(tmp_path: Path, config: TrainConfig, *words: str) -> int:
    write_yaml(tmp_path / "options.yaml", config)
    return commands.train(["--dry-run", "--config", str(tmp_path / "options.yaml"), *words])


def test_the_output_contains_memory_plan_tasks_and_every_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = echo_config(tmp_path, algorithm={"name": "remax", "group_size": 2, "groups_per_step": 3})
    weights = tmp_path / "tiny" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])  # the weights are not read
    before = sorted(tmp_path.rglob("*"))
    assert command(tmp_path, config, "--steps", "7") == 0
    shown = capsys.readouterr().out
    memory, plan, options = shown.split("\n\n")
    for part in ("weights", "gradients", "optimizer states", "activations", "log-probs", "keys and values", "peak"):
        assert part in memory
    assert "adapters" not in memory
    assert "9 (3 tasks x 2 + 3 greedy), 2 turns each" in plan
    assert "at most 6 tokens per episode" in plan
    assert "30 for training, 30 for validation" in plan
    assert "7 steps, 21 tasks, 63 episodes" in plan
    resolved = yaml.safe_load(options.partition("\n")[2])
    expected = fit_to_memory(replace(config, steps=7))  # what is not given has its default on a CPU
    assert (expected.optimizer.tokens_per_microbatch, expected.model.gradient_checkpointing) == (16384, False)
    assert from_mapping(TrainConfig, resolved) == expected
    assert resolved == to_mapping(expected)
    assert sorted(path for path in tmp_path.rglob("*") if path.name != "options.yaml") == before


def test_the_estimate_matches_the_run(tmp_path: Path) -> None:
    """The same number of episodes, and no more tokens."""
    config = echo_config(tmp_path, steps=2, algorithm={"group_size": 4, "groups_per_step": 4})
    found = dry_run(config)
    train(config)
    rows = [row for row in read_metrics(tmp_path / "run") if "batch/padded_tokens" in row]
    for row in rows:
        assert row["episodes/count"] == found.plan.episodes == 16
        assert row["completions/total_tokens"] <= found.plan.reply * found.plan.episodes


@pytest.mark.parametrize("tokens", [40, 16384])
def test_the_largest_microbatch_has_the_longest_sequences_that_fit(tmp_path: Path, tokens: int) -> None:
    algorithm = {"group_size": 4, "groups_per_step": 4, "minibatches": 2}
    plan = dry_run(echo_config(tmp_path, algorithm=algorithm, optimizer={"tokens_per_microbatch": tokens})).plan
    assert plan.optimizer_steps == 2
    assert plan.largest.columns == plan.longest
    assert plan.largest.rows == min(tokens // plan.longest, 2 * 4)
    assert plan.largest.sampled == plan.largest.rows * plan.reply


def test_memory_saving_options_reduce_the_estimate(tmp_path: Path) -> None:
    model = {"path": str(echo_config(tmp_path).model.path)}
    full = dry_run(echo_config(tmp_path))
    lora = dry_run(echo_config(tmp_path, model={**model, "tuning": "lora", "lora": {"rank": 4}}))
    eight = dry_run(echo_config(tmp_path, optimizer={"name": "adamw8bit"}))
    kl = dry_run(echo_config(tmp_path, algorithm={"kl": 0.1}))
    elsewhere = {"backend": "openai", "url": "http://localhost:1/v1#x"}
    far = dry_run(echo_config(tmp_path, model={**model, "tuning": "lora", "lora": {"rank": 4}}, sampler=elsewhere))
    assert lora.memory.peak - far.memory.peak == sum(
        size for name, size in lora.memory.resident.items() if name.startswith("sampler's")
    )
    assert lora.memory.resident["gradients"] < 0.5 * full.memory.resident["gradients"]
    assert eight.memory.resident["optimizer states"] < 0.7 * full.memory.resident["optimizer states"]
    assert kl.memory.resident["reference"] == full.memory.resident["weights"]
    assert "reference" not in report(full).split("\n\n")[0]


def test_a_sampler_that_sleeps_leaves_its_memory_to_the_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(**changes: Any) -> Any:
        return dry_run(echo_config(tmp_path, sampler={"backend": "vllm"}, **changes)).memory

    for limit in (1, 1 << 40):  # less than the update needs, and more
        made = CacheMemory(limit, preallocated=True, can_sleep=True)
        backend = replace(VLLM, cache_memory=lambda options, gpu, available, made=made: made)
        monkeypatch.setattr("trainers.dry_run.estimate.find_backend", lambda name, backend=backend: backend)
        asleep, awake = found(), found(asynchrony={"steps_ahead": 1})
        assert asleep.resident == awake.resident
        sampler = sum(size for name, size in asleep.resident.items() if name.startswith("sampler's"))
        assert awake.resident["sampler's keys and values"] == limit
        assert asleep.peak == max(awake.peak - sampler, sum(asleep.resident.values())) < awake.peak


def test_a_run_that_does_not_fit_gives_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.dry_run.estimate._available", lambda device: 1 << 20)
    assert "WARNING" in report(dry_run(echo_config(tmp_path)))
    assert "gradient_checkpointing" in "".join(dry_run(echo_config(tmp_path)).warnings)


def test_options_that_are_not_given_are_chosen_by_the_free_memory_of_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first choice that fits, in the order of speed; with the least memory the one that needs least."""
    config = echo_config(tmp_path, sampling={"max_tokens": 500}, algorithm={"group_size": 8, "groups_per_step": 8})

    def with_choice(tokens: int | None, checkpointing: bool | None) -> TrainConfig:
        optimizer = replace(config.optimizer, tokens_per_microbatch=tokens)
        return replace(config, optimizer=optimizer, model=replace(config.model, gradient_checkpointing=checkpointing))

    monkeypatch.setattr(estimate, "on_gpu", lambda device: True)
    order = [(16384, False), (8192, False), (4096, False), *((16384 >> halved, True) for halved in range(5))]
    assert [
        (each.optimizer.tokens_per_microbatch, each.model.gradient_checkpointing)
        for each in estimate._candidates(config)
    ] == order
    peaks = {choice: dry_run(with_choice(*choice)).memory.peak for choice in order}
    for free in (*(1.12 * peak for peak in peaks.values()), 1.0):
        monkeypatch.setattr(estimate, "_free", lambda device, free=free: free)
        chosen = fit_to_memory(config)
        found = (chosen.optimizer.tokens_per_microbatch, chosen.model.gradient_checkpointing)
        assert found == next((choice for choice in order if peaks[choice] <= 0.9 * free), order[-1])
    assert "chosen by free memory: optimizer.tokens_per_microbatch=1024" in caplog.text
    given = fit_to_memory(with_choice(2048, None))
    assert (given.optimizer.tokens_per_microbatch, given.model.gradient_checkpointing) == (2048, True)
    monkeypatch.setenv("WORLD_SIZE", "2")  # the ranks must agree
    assert fit_to_memory(config).optimizer.tokens_per_microbatch == 16384


class NeverEnds(EchoEnv):
    """Ends no episode of empty replies."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.max_turns = 10**6

    def _act(self, action: str) -> Any:
        return Outcome("go on", {"echo": 0.0}) if not action else super()._act(action)


class FailsOnEmptyReplies(EchoEnv):
    def _act(self, action: str) -> Any:
        if not action:
            raise EnvironmentFault("division by zero", kind="reward_function")
        return super()._act(action)


def test_an_environment_that_cannot_be_played_with_empty_replies_trains_with_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(estimate, "on_gpu", lambda device: True)
    monkeypatch.setattr(estimate, "_free", lambda device: 1.0)
    config = echo_config(tmp_path)
    env = open_train_env(config.env, env=lambda **kwargs: FailsOnEmptyReplies(**kwargs))
    chosen = fit_to_memory(config, env)
    assert (chosen.optimizer.tokens_per_microbatch, chosen.model.gradient_checkpointing) == (16384, False)
    assert "ends with a fault" in caplog.text
    env = open_train_env(config.env, env=lambda **kwargs: NeverEnds(**kwargs))
    chosen = fit_to_memory(config, env)
    assert chosen.optimizer.tokens_per_microbatch == 1024
    # Nothing else is filled in: the run says which learning rate it chose.
    assert replace(chosen.optimizer, tokens_per_microbatch=None) == config.optimizer


def test_the_dry_run_fails_where_the_run_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = echo_config(tmp_path)
    for sections, named in (
        ({"env": {"id": "rllm/NoSuch-v0"}}, "NoSuch"),
        ({"env": {"kwargs": {"sise": 4}}}, "sise"),
        ({"model": {"path": str(tmp_path / "nowhere")}}, "nowhere"),
        ({"model": {"device": "cuda:99"}}, "cuda:99"),
        ({"model": {"tuning": "lora", "lora": {"targets": "no_such_layer"}}}, "no_such_layer"),
        ({"algorithm": {"group_size": 1}}, "group_size"),
    ):
        with pytest.raises(CommandError, match=named):
            command(tmp_path, echo_config(tmp_path, **sections))  # type: ignore[arg-type]

    with monkeypatch.context() as without:
        for name in ("bitsandbytes", "bitsandbytes.optim"):
            without.setitem(sys.modules, name, None)
        with pytest.raises(ConfigError, match="needs bitsandbytes"):
            dry_run(echo_config(tmp_path, optimizer={"name": "adamw8bit"}))
        with pytest.raises(ConfigError, match="needs bitsandbytes"):
            dry_run(echo_config(tmp_path, model={"tuning": "qlora"}))

    (tmp_path / "run" / "checkpoints" / "step-00000001").mkdir(parents=True)
    with pytest.raises(CommandError, match="already contains a run"):
        command(tmp_path, config)
    assert command(tmp_path, config, "--resume") == 0
    (tmp_path / "tiny" / "model.safetensors").unlink()
    with pytest.raises(CommandError, match="contains no weights"):
        command(tmp_path, config, "--resume")
