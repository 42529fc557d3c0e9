"""Roles with their own adapters learn different things at once, and only trained roles learn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trainers.loop import TrainResult, train
from trainers.run.metrics import read_metrics
from trainers.tiny_model import make_tiny_model

TRAINERS = Path(__file__).parents[1] / "trainers"


@pytest.fixture(autouse=True)
def train_envs() -> Iterator[None]:
    sys.path.insert(0, str(TRAINERS))
    yield
    sys.path.remove(str(TRAINERS))


def learn(folder: Path, **roles: dict[str, Any]) -> TrainResult:
    from echo_config import echo_config

    # The head limits how large adapters can make the logits, so the initial head is larger.
    make_tiny_model(folder / "tiny", hidden_size=32, num_heads=1, num_layers=1, vocab_size=300, init_std=0.3)
    return train(
        echo_config(
            folder,
            steps=28,
            env={"id": "echo_env:test/Echo-v0", "agent": "echo_workflow:EchoTeam"},
            roles=roles,
            model={"tuning": "lora", "lora": {"rank": 8, "alpha": 16.0}},
            algorithm={"group_size": 8, "groups_per_step": 4},
            optimizer={"lr": 0.03},
            validation=None,
            checkpoint=None,
        )
    )


def rewards(result: TrainResult, role: str) -> tuple[float, float]:
    """Return the role's reward per reply in the first two and the last three steps; a solver replies twice."""
    per_turn = [row[f"reward/mean/{role}"] / (2 if role == "solver" else 1) for row in read_metrics(result.output)]
    return sum(per_turn[:2]) / 2, sum(per_turn[-3:]) / 3


@pytest.mark.long
def test_with_one_adapter_per_role_each_role_learns_its_own_reward(tmp_path: Path) -> None:
    """Words of the first half of the alphabet for solvers, of the second for the judge: weights that ignore the role
    cannot do both.
    """
    result = learn(tmp_path, solver={"adapter": "own"}, judge={"adapter": "own"})
    for role in ("solver", "judge"):
        before, after = rewards(result, role)
        assert before < 0.5
        assert after > 0.75, role


@pytest.mark.long
def test_a_frozen_role_does_not_change_while_the_other_learns(tmp_path: Path) -> None:
    result = learn(tmp_path, solver={"adapter": "base"}, judge={"adapter": "own"})
    before, after = rewards(result, "judge")
    assert after > 0.75 > 0.5 > before
    before, after = rewards(result, "solver")
    assert abs(after - before) < 0.15
    assert result.model is not None
    assert [path.name for path in result.model.iterdir() if path.is_dir()] == ["judge"]
    weights = load_file(result.model / "judge" / "adapter_model.safetensors")
    assert any(float(torch.linalg.norm(tensor)) > 0.1 for name, tensor in weights.items() if ".lora_B." in name)
