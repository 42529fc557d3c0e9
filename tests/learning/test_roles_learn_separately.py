"""Roles with adapters of their own learn different things at once, and only those that are trained learn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trainers.loop import train
from trainers.run.metrics import read_metrics
from trainers.run.training_run import TrainResult
from trainers.tiny_model import make_tiny_model

TRAINERS = Path(__file__).parents[1] / "trainers"


@pytest.fixture(autouse=True)
def train_envs() -> Iterator[None]:
    sys.path.insert(0, str(TRAINERS))
    yield
    sys.path.remove(str(TRAINERS))


def learn(folder: Path, **roles: dict[str, Any]) -> TrainResult:
    from echo_config import echo_config

    # Adapters cannot make the logits of a model larger than its head lets them be, so it begins with a larger one.
    make_tiny_model(folder / "tiny", hidden_size=32, num_heads=1, num_layers=1, vocab_size=300, init_std=0.3)
    return train(
        echo_config(
            folder,
            steps=28,
            env={"id": "echo_world:test/Echo-v0", "workflow": "echo_team:EchoTeam"},
            roles=roles,
            model={"tuning": "lora", "lora": {"rank": 8, "alpha": 16.0}},
            algorithm={"group_size": 8, "groups_per_step": 4},
            optimizer={"lr": 0.03},
            validation={"every": 0, "tasks": 64, "samples": 1},
            checkpoint={"every": 0},
        )
    )


def rewards(result: TrainResult, role: str) -> tuple[float, float]:
    """Of a reply of the role, in the first two and in the last three steps; a solver speaks twice."""
    per_turn = [row[f"reward/mean/{role}"] / (2 if role == "solver" else 1) for row in read_metrics(result.output)]
    return sum(per_turn[:2]) / 2, sum(per_turn[-3:]) / 3


def test_one_adapter_a_role_learns_what_that_role_is_rewarded_for(tmp_path: Path) -> None:
    """Words of the first half of the alphabet for solvers, of the second for the judge: no weights could do both
    without telling the roles apart."""
    result = learn(tmp_path, solver={"adapter": "own"}, judge={"adapter": "own"})
    for role in ("solver", "judge"):
        before, after = rewards(result, role)
        assert before < 0.5
        assert after > 0.75, role


@pytest.mark.long
def test_a_frozen_role_learns_nothing_while_the_other_does(tmp_path: Path) -> None:
    result = learn(tmp_path, solver={"adapter": "base"}, judge={"adapter": "own"})
    before, after = rewards(result, "judge")
    assert after > 0.75 > 0.5 > before
    before, after = rewards(result, "solver")
    assert abs(after - before) < 0.15
    assert result.model is not None
    assert [path.name for path in result.model.iterdir() if path.is_dir()] == ["judge"]
    weights = load_file(result.model / "judge" / "adapter_model.safetensors")
    assert any(float(torch.linalg.norm(tensor)) > 0.1 for name, tensor in weights.items() if ".lora_B." in name)
