"""Several processes that are one run: the same episodes, the same loss curve, the same model; a death ends them all."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from echo_options import echo_config
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from trainers.config import TrainConfig
from trainers.loop import train
from trainers.run.metrics import read_metrics
from trainers.run.parallel import Ranks
from trainers.settings import write_yaml

HERE = Path(__file__).resolve().parent

# Two processes add up the same float32 numbers in another order: a gradient differs in its last bits, 6e-8 relative,
# and Adam, which divides by its size, carries that into the weights at the same relative size. Ten times the spacing
# of float32 per step leaves room for nothing but that.
ORDER_OF_SUMS = 1e-6


def begin(config: TrainConfig, folder: Path, *options: str) -> subprocess.Popen[str]:
    """``torchrun --nproc-per-node 2 -m rllm_gym.commands.main train``."""
    write_yaml(folder / "ranks.yaml", config)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command += ["-m", "rllm_gym.commands.main", "train", "--config", str(folder / "ranks.yaml"), *options]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=folder
    )


def run_on_two(config: TrainConfig, folder: Path, *options: str) -> str:
    out, error = (process := begin(config, folder, *options)).communicate(timeout=240)
    assert process.returncode == 0, error[-4000:]
    return out


def assert_same_curve(one: Path, two: Path) -> None:
    rows, again = read_metrics(one), read_metrics(two)
    assert [row["step"] for row in again] == [row["step"] for row in rows]
    for row, twin in zip(rows, again, strict=True):
        assert {key for key in row.keys() ^ twin.keys() if not key.startswith("seconds/")} == set()
        for key in ("tasks", "reward", "episodes", "sampled_tokens", "validation/success", "trained_tokens"):
            assert row.get(key) == twin.get(key), (row["step"], key)
        for key in ("loss", "value/loss", "entropy", "kl_reference", "grad_norm", "clip_fraction", "sampler_gap/mean"):
            if key in row:
                assert math.isclose(row[key], twin[key], rel_tol=ORDER_OF_SUMS, abs_tol=ORDER_OF_SUMS), (
                    row["step"],
                    key,
                )


def test_two_processes_are_one_run(tmp_path: Path) -> None:
    config = echo_config(
        tmp_path,
        steps=6,
        deterministic=True,
        algorithm={"groups_per_step": 5, "kl": 0.05},
        entropy={"bonus": 0.01},
        curriculum={"replay_fraction": 0.25},
        validation={"every": 3},
        checkpoint={"every": 3},
    )
    train(config)
    two = replace(config, output=str(tmp_path / "two"))
    out = run_on_two(two, tmp_path)
    assert out.count("metrics  ") == 1, "every process reports"
    assert_same_curve(tmp_path / "run", tmp_path / "two")

    shutil.rmtree(tmp_path / "two" / "checkpoints" / "step-00000006")
    train(replace(two, resume=True))  # what two began, one can finish
    assert_same_curve(tmp_path / "run", tmp_path / "two")


@pytest.mark.long
def test_two_processes_go_on_from_the_checkpoint_of_one(tmp_path: Path) -> None:
    """With a value head, whose values all ranks measure for each other before the update."""
    config = echo_config(
        tmp_path,
        steps=4,
        deterministic=True,
        algorithm={"name": "ppo", "groups_per_step": 5, "minibatches": 2},
        validation={"every": 0, "tasks": 64, "samples": 1},
        checkpoint={"every": 2},
    )
    train(config)
    shutil.copytree(tmp_path / "run", tmp_path / "two")
    shutil.rmtree(tmp_path / "two" / "checkpoints" / "step-00000004")
    run_on_two(replace(config, output=str(tmp_path / "two")), tmp_path, "--resume")
    assert_same_curve(tmp_path / "run", tmp_path / "two")
    mine, theirs = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("run", "two"))
    assert max((mine[name] - theirs[name]).abs().max() for name in mine) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("opponent", ["own", "frozen"])
def test_roles_are_shared_out_as_well(tmp_path: Path, opponent: str) -> None:
    """An adapter a role, or one role and a pool of what it was: every rank pushes, saves and meets the same ones."""
    sections: dict[str, Any] = {"roles": {"player": {"adapter": "own"}, "opponent": {"adapter": "own"}}}
    if opponent == "frozen":
        sections = {"opponents": {"role": "opponent", "pool": 2, "every": 1}}
    config = echo_config(
        tmp_path,
        steps=3,
        deterministic=True,
        env={"id": "echo_world:test/Echo-v0", "workflow": "echo_team:Duel"},
        model={"tuning": "lora", "lora": {"rank": 4, "alpha": 4.0}},
        algorithm={"group_size": 4, "groups_per_step": 3, "kl": 0.01},
        validation={"every": 0, "tasks": 64, "samples": 1},
        checkpoint={"every": 2},
        **sections,
    )
    train(config)
    two = replace(config, output=str(tmp_path / "two"))
    run_on_two(two, tmp_path)
    assert_same_curve(tmp_path / "run", tmp_path / "two")


@pytest.mark.long
def test_a_process_that_dies_ends_the_others_with_a_message(tmp_path: Path) -> None:
    config = echo_config(tmp_path, steps=100_000, validation={"every": 0, "tasks": 64, "samples": 1})
    launcher = begin(config, tmp_path)
    metrics, tick = tmp_path / "run" / "metrics.jsonl", threading.Event()
    for _ in range(6000):
        if launcher.poll() is not None or (metrics.exists() and len(metrics.read_text().splitlines()) > 2):
            break
        tick.wait(0.02)
    ranks = {int(child.environ()["RANK"]): child for child in psutil.Process(launcher.pid).children()}
    ranks[1].send_signal(signal.SIGKILL)
    began = time.monotonic()
    _, error = launcher.communicate(timeout=60)
    assert time.monotonic() - began < 45
    assert launcher.returncode != 0
    assert not ranks[0].is_running()
    assert "rank 0 of 2 lost another one" in error, error[-3000:]


@given(costs=st.lists(st.integers(1, 1000), max_size=40), size=st.integers(1, 5))
def test_everything_is_shared_out_once_and_evenly(costs: list[int], size: int) -> None:
    things = list(range(len(costs)))
    parts = [Ranks(rank, size).share(things, costs) for rank in range(size)]
    assert sorted(thing for part in parts for thing in part) == things
    assert all(part == sorted(part) for part in parts)
    loads = [sum(costs[thing] for thing in part) for part in parts]
    assert max(loads) - min(loads) <= max(costs, default=0)
    spans = [Ranks(rank, size).span(len(costs)) for rank in range(size)]
    assert [index for span in spans for index in span] == things
    assert max(map(len, spans)) - min(map(len, spans)) <= 1


def test_one_process_alone_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a run of one process spoke to others")

    for name in ("all_gather_object", "all_reduce", "broadcast"):
        monkeypatch.setattr(f"torch.distributed.{name}", forbidden)
    alone = Ranks()
    assert alone.gather(3) == [3]
    alone.sum_gradients([])
    alone.copy_from_first([])
