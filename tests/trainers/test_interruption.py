"""SIGTERM, Ctrl-C, invalid gradients, a sampler that dies: the run ends in time with a checkpoint, or continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from echo_config import echo_config
from echo_env import EchoEnv
from termination import terminated_at

from rllm_gym.core import Episode
from rllm_gym.samplers import Completion, SamplerError, SamplingRequest, WeightUpdate
from tests.waiting import until
from trainers import commands, loop
from trainers.callbacks import Callback
from trainers.config import TrainConfig
from trainers.config_loading import write_yaml
from trainers.learner import TrainingDiverged
from trainers.loop import TrainResult, train
from trainers.rollouts.sampler_factory import make_sampler
from trainers.run.checkpoint import load_checkpoint
from trainers.run.metrics import read_metrics
from trainers.train_env import TrainEnv, open_train_env

HERE = Path(__file__).resolve().parent


class StuckEnv(EchoEnv):
    """Runs a number of turns, then hangs until the test ends."""

    turns = 0
    stuck = threading.Event()
    released = threading.Event()

    def _act(self, action: str) -> Any:
        StuckEnv.turns -= 1
        if StuckEnv.turns < 0:
            StuckEnv.stuck.set()
            StuckEnv.released.wait()
        return super()._act(action)


@pytest.fixture
def stuck_env(tmp_path: Path) -> Any:
    """An environment that hangs after that many turns, and a watcher that then sends SIGTERM."""

    def terminate() -> None:
        if StuckEnv.stuck.wait(250):
            os.kill(os.getpid(), signal.SIGTERM)

    def train_env(config: TrainConfig, turns: int) -> TrainEnv:
        StuckEnv.turns = turns
        StuckEnv.stuck.clear()
        StuckEnv.released.clear()
        threading.Thread(target=terminate, daemon=True).start()
        return open_train_env(config.env, env=StuckEnv)

    yield train_env
    StuckEnv.released.set()


def test_sigterm_during_a_rollout_saves_the_last_complete_step(tmp_path: Path, stuck_env: Any) -> None:
    """An environment whose step takes ten minutes must not keep a run alive for ten minutes."""
    config = echo_config(
        tmp_path,
        steps=5,
        deterministic=True,
        env={"step_timeout": 600.0},
        validation=None,
        checkpoint={"every": 100},
        curriculum={"replay_fraction": 0.25},
    )
    uninterrupted = replace(config, output=str(tmp_path / "uninterrupted"))
    train(uninterrupted)

    # If the run waited for it, this would take ten minutes.
    result = train(config, env=stuck_env(config, turns=2 * 4 * 4 * 2 + 5))
    assert (result.interrupted, result.model, result.steps) == (True, None, 2)
    loaded = load_checkpoint(tmp_path / "run" / "checkpoints")
    assert loaded is not None
    assert loaded.step == 2

    StuckEnv.released.set()
    StuckEnv.turns = 1 << 30
    resumed = train(replace(config, resume=True), env=open_train_env(config.env, env=StuckEnv))
    assert resumed.steps == 5
    rows, again = read_metrics(tmp_path / "uninterrupted"), read_metrics(tmp_path / "run")
    assert [(row["step"], row["tasks"], row["reward/mean"]) for row in rows] == [
        (row["step"], row["tasks"], row["reward/mean"]) for row in again
    ]
    mine, theirs = (tmp_path / name / "model" / "model.safetensors" for name in ("run", "uninterrupted"))
    assert mine.read_bytes() == theirs.read_bytes(), "what was left of the abandoned rollout shows in the weights"


def test_a_validation_interrupted_by_sigterm_is_repeated_after_resume(tmp_path: Path, stuck_env: Any) -> None:
    turns_of_a_step, turns_of_a_validation = 2 * 4 * 4, 2 * 6 * 2
    config = echo_config(tmp_path, steps=4, env={"step_timeout": 600.0}, validation={"every": 2})
    train_env = stuck_env(config, turns=turns_of_a_validation + 2 * turns_of_a_step + 5)
    result = train(config, env=train_env)
    assert (result.interrupted, result.steps) == (True, 2)
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [0, 1]
    StuckEnv.released.set()
    StuckEnv.turns = 1 << 30
    train(replace(config, resume=True), env=open_train_env(config.env, env=StuckEnv))
    rows = read_metrics(tmp_path / "run")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["step"] for row in rows if "validation/success" in row] == [0, 2, 4]
    assert all("reward/mean" in row for row in rows[1:]), "the step's own numbers are lost"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)])
def test_a_second_signal_ends_the_process_at_once(number: signal.Signals, status: int) -> None:
    program = (
        "from trainers.run.stop_signals import on_stop_signal; import time\n"
        "with on_stop_signal(lambda: print('asked', flush=True)):\n"
        "    print('ready', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.readline() == "asked\n"
    process.send_signal(number)
    assert process.wait(200) == status
    process.stdout.close()


def test_a_script_with_several_runs_stops_at_ctrl_c(tmp_path: Path) -> None:
    config = echo_config(tmp_path, steps=400, checkpoint={"every": 1000}, validation=None)
    with pytest.raises(KeyboardInterrupt), terminated_at(2, signal.SIGINT):
        train(config)
    loaded = load_checkpoint(tmp_path / "run" / "checkpoints")
    assert loaded is not None
    assert 2 <= loaded.step < 400
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "the signal handler outlived the run"


@pytest.mark.parametrize(
    ("number", "status"), [pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long), (signal.SIGINT, 130)]
)
def test_the_command_saves_and_prints_how_to_resume(tmp_path: Path, number: signal.Signals, status: int) -> None:
    config = echo_config(tmp_path, steps=100_000, validation=None, checkpoint={"every": 100_000})
    write_yaml(tmp_path / "run.yaml", config)
    command = [sys.executable, "-m", "rllm_gym", "train", "--config", str(tmp_path / "run.yaml")]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    # Three steps, or the end of the run.
    assert until(lambda: process.poll() is not None or (metrics.exists() and len(metrics.read_text().splitlines()) > 2))
    process.send_signal(number)
    out, error = process.communicate(timeout=200)
    assert process.returncode == status, error[-2000:]
    loaded = load_checkpoint(tmp_path / "run" / "checkpoints")
    assert loaded is not None
    assert "--resume" in (out if number == signal.SIGTERM else error)
    if number == signal.SIGTERM:
        assert f"stopped after step {loaded.step}" in out


def test_a_run_that_diverges_stops_with_its_last_good_state_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = echo_config(
        tmp_path,
        steps=9,
        checkpoint={"every": 100},
        algorithm={"drop_zero_variance": False},
        validation=None,
    )
    good = torch.nn.utils.clip_grad_norm_
    calls = iter(range(100))
    monkeypatch.setattr("trainers.learner.learner.MAX_BAD_STEPS", 2)

    def broken_from_the_fourth(parameters: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        parameters = list(parameters)
        if parameters and next(calls) >= 3:
            parameters[0].grad = torch.full_like(parameters[0], float("nan"))
        return good(parameters, *args, **kwargs)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", broken_from_the_fourth)
    with pytest.raises(TrainingDiverged, match="2 optimizer steps in a row"):
        train(config)
    monkeypatch.undo()
    loaded = load_checkpoint(tmp_path / "run" / "checkpoints")
    assert loaded is not None
    assert loaded.step == 4, "steps 1 to 3 were good, the fourth was skipped, the fifth ended the run"
    assert all(value.isfinite().all() for value in loaded.state["learner"]["parameters"].values())
    assert train(replace(config, resume=True)).steps == 9


def test_a_short_run_in_which_every_update_is_skipped_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer steps than ``MAX_BAD_STEPS`` it ended without an error, and saved an untrained model."""
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *args, **kwargs: torch.tensor(float("nan")))
    config = echo_config(tmp_path, steps=2, validation=None, algorithm={"drop_zero_variance": False})
    with pytest.raises(TrainingDiverged, match="2 optimizer steps in a row"):
        train(config)
    assert not (tmp_path / "run" / "model").exists()


PARALLEL = {"id": "echo_env:test/Echo-v0", "parallel": 4}


class FailingSampler:
    """A real sampler that fails at a given call of ``sample`` and all later ones."""

    returns_tokens = True

    def __init__(self, inside: Any, calls_before_failure: int) -> None:
        self._inside, self._calls_left = inside, calls_before_failure
        self.context_length = inside.context_length

    @property
    def weight_version(self) -> int:
        return int(self._inside.weight_version)

    async def sample(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        self._calls_left -= 1
        if self._calls_left < 0:
            raise SamplerError("the engine died")
        result: list[Completion] = await self._inside.sample(requests)
        return result

    async def sync_weights(self, update: WeightUpdate) -> int:
        if self._calls_left < 0:
            raise SamplerError("the engine is dead")
        return int(await self._inside.sync_weights(update))

    async def release(self, conversation: str) -> None:
        await self._inside.release(conversation)

    async def close(self) -> None:
        await self._inside.close()


def failing_sampler(calls_before_failure: Sequence[int]) -> Callable[..., Any]:
    """Return a replacement for ``make_sampler`` whose samplers each survive the given numbers of calls."""
    left = iter(calls_before_failure)
    return lambda policy, config: FailingSampler(make_sampler(policy, config), next(left))


def test_a_sampler_that_dies_in_a_step_is_replaced_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = echo_config(tmp_path, steps=4, deterministic=True)
    syncs, sample = [], loop._sample

    def noted(run: Any, step: int) -> Any:
        batch, samples = sample(run, step)
        syncs.append(set(batch.weight_syncs))
        return batch, samples

    monkeypatch.setattr(loop, "_sample", noted)
    train(replace(config, output=str(tmp_path / "uninterrupted")))
    monkeypatch.setattr("trainers.run.setup.make_sampler", failing_sampler([5, 2, 1 << 30]))
    train(config)
    assert syncs == [{1}, {2}, {3}, {4}] * 2, "all ranks count the same syncs, whichever of them replaced its sampler"
    rows, again = read_metrics(tmp_path / "uninterrupted"), read_metrics(tmp_path / "run")
    assert [(row["step"], row.get("tasks"), row.get("reward/mean")) for row in rows] == [
        (row["step"], row.get("tasks"), row.get("reward/mean")) for row in again
    ]
    mine, theirs = (tmp_path / name / "model" / "model.safetensors" for name in ("run", "uninterrupted"))
    assert mine.read_bytes() == theirs.read_bytes()


class SleepingSampler(FailingSampler):
    """A sampler whose memory can be freed; one that is asleep serves nothing."""

    can_sleep = True

    def __init__(self, inside: Any, wakes: int) -> None:
        super().__init__(inside, 1 << 30)
        self.asleep, self._wakes = False, wakes

    async def sleep(self) -> None:
        assert not self.asleep
        self.asleep = True

    async def wake(self) -> None:
        assert self.asleep
        self._wakes -= 1
        if self._wakes < 0:
            raise SamplerError("too little memory")
        self.asleep = False

    async def sample(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        assert not self.asleep
        return await super().sample(requests)

    async def sync_weights(self, update: WeightUpdate) -> int:
        assert not self.asleep
        return await super().sync_weights(update)


class Asleep(Callback):
    """Notes whether the newest sampler was asleep when the episodes of a step were there, and when it was complete."""

    def __init__(self, made: list[SleepingSampler]) -> None:
        self.made = made
        self.noted: list[tuple[bool, bool]] = []

    def on_episodes(self, step: int, episodes: Sequence[Episode]) -> None:
        self.before = self.made[-1].asleep

    def on_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        if step:
            self.noted.append((self.before, self.made[-1].asleep))


@pytest.mark.parametrize(("steps_ahead", "wakes"), [(0, [1 << 30]), (0, [1, 0, 1 << 30]), (1, [1 << 30])])
def test_the_samplers_memory_is_freed_in_updates_if_nothing_is_sampled_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_ahead: int, wakes: list[int]
) -> None:
    """A sampler that does not wake is replaced, and nothing is lost."""
    config = echo_config(
        tmp_path, steps=4, deterministic=not steps_ahead, asynchrony={"steps_ahead": steps_ahead}, env=PARALLEL
    )
    if not steps_ahead:
        train(replace(config, output=str(tmp_path / "awake")))
    made: list[SleepingSampler] = []
    left = iter(wakes)

    def make(policy: Any, config: TrainConfig) -> Any:
        made.append(SleepingSampler(make_sampler(policy, config), next(left)))
        return made[-1]

    monkeypatch.setattr("trainers.run.setup.make_sampler", make)
    asleep = Asleep(made)
    train(config, callbacks=[asleep])
    assert asleep.noted == [(not steps_ahead, False)] * 4
    assert len(made) == len(wakes)
    if not steps_ahead:
        mine, theirs = (tmp_path / name / "model" / "model.safetensors" for name in ("run", "awake"))
        assert mine.read_bytes() == theirs.read_bytes()


def test_a_sampler_that_dies_with_several_steps_in_progress_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, although all steps in progress meet it; their episodes are sampled again."""
    made = []
    make = failing_sampler([30, 1 << 30])

    def counted(policy: Any, config: TrainConfig) -> Any:
        made.append(make(policy, config))
        return made[-1]

    monkeypatch.setattr("trainers.run.setup.make_sampler", counted)
    train(echo_config(tmp_path, steps=6, validation=None, asynchrony={"steps_ahead": 3}, env=PARALLEL))
    rows = read_metrics(tmp_path / "run")
    assert len(made) == 2
    assert [row["episodes/count"] for row in rows] == [16] * 6
    assert [row["sampling/stale_episodes"] for row in rows] == [0] * 6


def test_samplers_that_keep_dying_end_the_run_with_a_checkpoint_of_the_last_complete_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = echo_config(tmp_path, steps=4, deterministic=True)
    monkeypatch.setattr("trainers.run.setup.make_sampler", failing_sampler([6, 0, 0]))
    with pytest.raises(SamplerError, match="the engine died"):
        train(config)
    steps = [row["step"] for row in read_metrics(tmp_path / "run")]
    loaded = load_checkpoint(tmp_path / "run" / "checkpoints")
    assert loaded is not None
    assert loaded.step == steps[-1] >= 1


@pytest.mark.parametrize(("options", "suggested"), [([], True), (["--checkpoint", "none"], False)])
def test_without_checkpoints_no_resume_is_suggested(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    suggested: bool,
) -> None:
    interrupted = TrainResult(tmp_path, None, 1, {}, interrupted=True)
    monkeypatch.setattr("trainers.loop.train", lambda config: interrupted)
    write_yaml(tmp_path / "run.yaml", echo_config(tmp_path))
    commands.train(["--config", str(tmp_path / "run.yaml"), *options])
    out = capsys.readouterr().out
    assert "stopped after step 1" in out
    assert ("--resume" in out) == suggested
