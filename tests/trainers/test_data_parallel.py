"""One run on several processes: the same episodes, the same loss curve, the same model; if one dies, all end."""

from __future__ import annotations

import json
import math
import os
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from echo_config import echo_config
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch.testing import assert_close

from tests.waiting import until
from trainers.config import TrainConfig
from trainers.config_loading import write_yaml
from trainers.loop import train
from trainers.process_group import ProcessGroup
from trainers.run.metrics import read_metrics

HERE = Path(__file__).resolve().parent

# Two processes add the same float32 numbers in another order: a gradient differs in its last bits, 6e-8 relative, and
# Adam, which divides by its size, carries that into the weights at the same relative size. The tolerance of ten times
# the float32 spacing per step allows only that.
ORDER_OF_SUMS = 1e-6


# The same two fine-tunings for any number of processes, then the command with the remaining arguments.
FINE_TUNING = """
import json, sys
from pathlib import Path
from trainers import DpoConfig, SftConfig
from trainers.config import DemonstrationConfig, HeldOutConfig, ModelConfig
from trainers.config import OptimizerConfig, PreferenceConfig, TinyConfig
from trainers.fine_tuning.dpo import dpo
from trainers.fine_tuning.sft import sft

folder = Path(sys.argv[1])
adam = OptimizerConfig(lr=1e-3, warmup_steps=0)
held_out = HeldOutConfig(fraction=0.25, every=2)
tiny = TinyConfig(vocab_size=300, hidden_size=32, num_heads=1, num_layers=1)
base = sft(
    SftConfig(
        str(folder / "sft"), steps=3, tiny=tiny, optimizer=adam, validation=held_out, progress=False,
        model=ModelConfig(tuning="full"),
        demonstrations=DemonstrationConfig("chats.jsonl"), demonstrations_per_step=5,
    )
)
dpo(
    DpoConfig(
        str(folder / "dpo"), steps=3, pairs_per_step=3, optimizer=adam, validation=held_out, progress=False,
        model=ModelConfig(str(base.model), tuning="full"), preferences=PreferenceConfig("pairs.jsonl"),
    )
)
if sys.argv[2:]:
    from rllm_gym.commands.main import main

    sys.exit(main(sys.argv[2:]))
"""


def begin(config: TrainConfig, folder: Path, *options: str, program: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start ``torchrun --nproc-per-node 2 -m rllm_gym train``, or another program."""
    write_yaml(folder / "ranks.yaml", config)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    command += [*(program or ("-m", "rllm_gym")), "train", "--config", str(folder / "ranks.yaml")]
    path = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=folder
    )


def run_on_two(config: TrainConfig, folder: Path, *options: str, program: Sequence[str] = ()) -> str:
    out, error = (process := begin(config, folder, *options, program=program)).communicate(timeout=1100)
    assert process.returncode == 0, error[-4000:]
    return out


def assert_same_curve(one: Path, two: Path) -> None:
    rows, again = read_metrics(one), read_metrics(two)
    assert [row["step"] for row in again] == [row["step"] for row in rows]
    for row, copy in zip(rows, again, strict=True):
        assert {key for key in row.keys() ^ copy.keys() if not key.startswith("time/")} == set()
        for key in (
            "tasks",
            "reward/mean",
            "episodes/count",
            "completions/total_tokens",
            "validation/success",
            "optim/trained_tokens",
        ):
            assert row.get(key) == copy.get(key), (row["step"], key)
        for key in (
            "loss",
            "value/loss",
            "policy/entropy",
            "policy/kl",
            "optim/grad_norm",
            "policy/clip_fraction/low",
            "policy/clip_fraction/high",
            "sampling/importance_ratio/mean",
            "sampling/logprob_difference/mean",
        ):
            if key in row:
                assert math.isclose(row[key], copy[key], rel_tol=ORDER_OF_SUMS, abs_tol=ORDER_OF_SUMS), (
                    row["step"],
                    key,
                )


def assert_same_fine_tuning(one: Path, two: Path) -> None:
    for kind in ("sft", "dpo"):
        alone, together = read_metrics(one / kind), read_metrics(two / kind)
        assert [row["step"] for row in together] == [0, 1, 2, 3]
        for row, other in zip(alone, together, strict=True):
            numbers = [
                key for key in row if key in ("loss", "policy/entropy", "optim/grad_norm", "optim/trained_tokens")
            ]
            numbers += [key for key in row if key.startswith(("validation/", "rewards/", "logps/"))]
            for key in numbers:
                assert other[key] == pytest.approx(row[key], rel=1e-4, abs=1e-5), (kind, row["step"], key)
        weights = [load_file(folder / kind / "model" / "model.safetensors") for folder in (one, two)]
        for key in weights[0]:
            # Adam divides by the size of a gradient: where that is almost zero, only its last bits matter.
            assert_close(weights[0][key], weights[1][key], rtol=1e-4, atol=2e-4)


@pytest.mark.long
def test_two_processes_give_the_same_run_and_fine_tuning_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same losses, same model, one log. Both runs share one start of two processes."""
    chats = [{"prompt": f"{n}: say it", "completion": "yes " * (1 + n % 5)} for n in range(16)]
    pairs = [{"prompt": f"{n}: say it", "chosen": "yes " * (1 + n % 3), "rejected": "no"} for n in range(16)]
    (tmp_path / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    (tmp_path / "fine_tuning.py").write_text(FINE_TUNING)
    with monkeypatch.context() as here:
        here.chdir(tmp_path)
        here.setattr(sys, "argv", ["fine_tuning.py", "tuned-by-one"])
        runpy.run_path("fine_tuning.py")
    config = echo_config(
        tmp_path,
        steps=4,
        deterministic=True,
        algorithm={"groups_per_step": 5, "kl": 0.05},
        entropy={"bonus": 0.01},
        curriculum={"replay_fraction": 0.25},
        validation={"every": 2},
        checkpoint={"every": 2},
    )
    train(config)
    two = replace(config, output=str(tmp_path / "two"))
    out = run_on_two(two, tmp_path, program=("fine_tuning.py", "tuned-by-two"))
    assert_same_fine_tuning(tmp_path / "tuned-by-one", tmp_path / "tuned-by-two")
    assert out.count("metrics  ") == 1, "every process reports"
    assert_same_curve(tmp_path / "run", tmp_path / "two")

    shutil.rmtree(tmp_path / "two" / "checkpoints" / "step-00000004")
    train(replace(two, resume=True))  # a run of two processes can be finished by one
    assert_same_curve(tmp_path / "run", tmp_path / "two")


@pytest.mark.long
def test_two_processes_resume_the_checkpoint_of_one(tmp_path: Path) -> None:
    """With a value head, whose values all ranks compute for each other before the update."""
    config = echo_config(
        tmp_path,
        steps=4,
        deterministic=True,
        algorithm={"name": "ppo", "groups_per_step": 5, "minibatches": 2},
        validation=None,
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
def test_roles_are_distributed_too(tmp_path: Path, opponent: str) -> None:
    """One adapter per role, or one role and a pool of its copies: every rank syncs, saves and uses the same ones."""
    sections: dict[str, Any] = {"roles": {"player": {"adapter": "own"}, "opponent": {"adapter": "own"}}}
    if opponent == "frozen":
        sections = {"roles": {"opponent": {"copies": {"pool": 2, "every": 1}}}}
    config = echo_config(
        tmp_path,
        steps=3,
        deterministic=True,
        env={"id": "echo_env:test/Echo-v0", "agent": "echo_workflow:Duel"},
        model={"tuning": "lora", "lora": {"rank": 4, "alpha": 4.0}},
        algorithm={"group_size": 4, "groups_per_step": 3, "kl": 0.01},
        validation=None,
        checkpoint={"every": 2},
        **sections,
    )
    train(config)
    two = replace(config, output=str(tmp_path / "two"))
    run_on_two(two, tmp_path)
    assert_same_curve(tmp_path / "run", tmp_path / "two")


@pytest.mark.long
def test_a_process_that_dies_ends_the_others_with_a_message(tmp_path: Path) -> None:
    config = echo_config(tmp_path, steps=100_000, validation=None)
    launcher = begin(config, tmp_path)
    metrics = tmp_path / "run" / "metrics.jsonl"
    # Three steps, or the end of the run.
    assert until(
        lambda: launcher.poll() is not None or (metrics.exists() and len(metrics.read_text().splitlines()) > 2)
    )
    ranks = {int(child.environ()["RANK"]): child for child in psutil.Process(launcher.pid).children()}
    ranks[1].send_signal(signal.SIGKILL)
    _, error = launcher.communicate(timeout=250)
    assert launcher.returncode != 0
    assert not ranks[0].is_running()
    assert "rank 0 of 2 lost another rank" in error, error[-3000:]


# The sampler of rank 1 dies in the second step.
FAILING_SAMPLER = """
import os, sys
from pathlib import Path
import trainers.run.setup
from rllm_gym.commands.main import main
from test_interruption import failing_sampler

make, made = failing_sampler([5, 1 << 30]), []

def counted(policy, config):
    made.append(make(policy, config))
    Path("samplers").write_text(str(len(made)))
    return made[-1]

if os.environ["RANK"] == "1":
    trainers.run.setup.make_sampler = counted
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.long
def test_a_rank_that_replaces_its_sampler_takes_part_in_the_same_messages(tmp_path: Path) -> None:
    """With three signals of all ranks: old log-probs, those of the reference, and values."""
    config = echo_config(
        tmp_path,
        steps=4,
        deterministic=True,
        algorithm={"name": "ppo", "groups_per_step": 5, "minibatches": 2, "kl": 0.05, "old_logprobs": "trainer"},
    )
    train(config)
    (tmp_path / "failing.py").write_text(FAILING_SAMPLER)
    run_on_two(replace(config, output=str(tmp_path / "two")), tmp_path, program=("failing.py",))
    assert_same_curve(tmp_path / "run", tmp_path / "two")
    assert (tmp_path / "samplers").read_text() == "2"


@pytest.mark.parametrize("size", [1, 40, 1 << 28])
def test_gradients_are_summed_in_messages_of_limited_size(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    sent = []

    def other_rank_has_the_same(flat: torch.Tensor) -> None:
        sent.append(flat.nbytes)
        flat *= 2

    monkeypatch.setattr("torch.distributed.all_reduce", other_rank_has_the_same)
    monkeypatch.setattr("trainers.process_group._MESSAGE_BYTES", size)
    shapes = [(3,), (2, 3), (), (20,), (1,)]
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    before = [torch.randn(shape) for shape in shapes]
    for parameter, gradient in zip(parameters[:-1], before, strict=False):
        parameter.grad = gradient.clone()
    ProcessGroup(0, 2).all_reduce_gradients(parameters)
    before[-1] = torch.zeros(1)
    assert all(
        torch.equal(parameter.grad, 2 * gradient)
        for parameter, gradient in zip(parameters, before, strict=True)
        if parameter.grad is not None
    )
    assert all(parameter.grad is not None for parameter in parameters)
    assert sent == {1: [12, 24, 4, 80, 4], 40: [40, 80, 4], 1 << 28: [124]}[size]


@given(costs=st.lists(st.integers(1, 1000), max_size=40), size=st.integers(1, 5))
def test_work_is_distributed_evenly_without_duplicates(costs: list[int], size: int) -> None:
    things = list(range(len(costs)))
    parts = [ProcessGroup(rank, size).partition(things, costs) for rank in range(size)]
    assert sorted(thing for part in parts for thing in part) == things
    assert all(part == sorted(part) for part in parts)
    loads = [sum(costs[thing] for thing in part) for part in parts]
    assert max(loads) - min(loads) <= max(costs, default=0)
    spans = [ProcessGroup(rank, size).local_range(len(costs)) for rank in range(size)]
    assert [index for span in spans for index in span] == things
    assert max(map(len, spans)) - min(map(len, spans)) <= 1


def test_a_single_process_has_no_communication(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a run of one process spoke to others")

    for name in ("all_gather_object", "all_reduce", "broadcast"):
        monkeypatch.setattr(f"torch.distributed.{name}", forbidden)
    alone = ProcessGroup()
    assert alone.all_gather(3) == [3]
    alone.all_reduce_gradients([])
    alone.broadcast([])
