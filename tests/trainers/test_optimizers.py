"""Optimizers by name: weight decay, learning rates of parameter groups, and exact restoring of the state."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from trainers.config import ConfigError, LoraConfig, LoraModelConfig, ModelConfig, OptimizerConfig
from trainers.learner.optimizers import learning_rate, make_optimizer, parameter_groups, rate_warning, set_learning_rate
from trainers.model import Policy
from trainers.run.checkpoint import load_checkpoint, save_checkpoint
from trainers.tiny_model import make_tiny_model

NAMES = ("adamw", "adamw8bit", "paged_adamw", "paged_adamw8bit")
pytestmark = pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("optimizers") / "tiny")


def step(policy: Policy, optimizer: torch.optim.Optimizer, number: int) -> None:
    """Take a step with gradients that depend only on its number."""
    for index, (_, parameter) in enumerate(policy.parameters):
        generator = torch.Generator().manual_seed(1000 * number + index)
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    set_learning_rate(optimizer, 1e-3)
    optimizer.step()


@pytest.mark.parametrize("name", NAMES)
def test_the_state_is_restored_bit_for_bit(folder: Path, tmp_path: Path, name: Any) -> None:
    config = OptimizerConfig(name=name, weight_decay=0.01)
    policy = Policy(ModelConfig(str(folder), "full"))
    optimizer = make_optimizer(policy.model, config)
    for number in range(3):
        step(policy, optimizer, number)
    weights = {key: parameter.detach().clone() for key, parameter in policy.parameters}
    save_checkpoint(tmp_path, 3, {"optimizer": optimizer.state_dict(), "weights": weights}, keep=1)
    for number in range(3, 6):
        step(policy, optimizer, number)

    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    other = Policy(ModelConfig(str(folder), "full"))
    with torch.no_grad():
        for key, parameter in other.parameters:
            parameter.copy_(loaded.state["weights"][key])
    resumed = make_optimizer(other.model, config)
    resumed.load_state_dict(loaded.state["optimizer"])
    for number in range(3, 6):
        step(other, resumed, number)
    for (key, one), (_, two) in zip(policy.parameters, other.parameters, strict=True):
        assert torch.equal(one, two), key


def test_eight_bit_adamw_takes_a_quarter_of_the_memory_and_follows_adamw(folder: Path) -> None:
    sizes, weights = {}, {}
    for name in ("adamw", "adamw8bit"):
        policy = Policy(ModelConfig(str(folder), "full"))
        optimizer = make_optimizer(policy.model, OptimizerConfig(name=name))  # type: ignore[arg-type]
        for number in range(5):
            step(policy, optimizer, number)
        sizes[name] = sum(
            value.numel() * value.itemsize
            for key, state in ((p, optimizer.state[p]) for _, p in policy.parameters)
            for tensor, value in state.items()
            if isinstance(value, torch.Tensor) and "qmap" not in tensor and key.numel() >= 4096
        )
        weights[name] = torch.cat([parameter.detach().flatten() for _, parameter in policy.parameters])
    assert sizes["adamw8bit"] < 0.27 * sizes["adamw"]
    before = torch.cat([p.detach().flatten() for _, p in Policy(ModelConfig(str(folder), "full")).parameters])
    one, two = weights["adamw"] - before, weights["adamw8bit"] - before
    assert torch.cosine_similarity(one, two, dim=0) > 0.98


def test_norms_biases_and_embeddings_are_not_decayed(folder: Path) -> None:
    model = Policy(ModelConfig(str(folder), "full")).model
    groups = parameter_groups(model, OptimizerConfig(weight_decay=0.1))
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        assert (id(parameter) in decayed) == (name.endswith("proj.weight")), name


def test_parameters_outside_the_model_follow_the_schedule_at_their_own_rate(folder: Path) -> None:
    policy = Policy(LoraModelConfig(str(folder), lora=LoraConfig(rank=2)))
    head = torch.nn.Parameter(torch.zeros(3))
    optimizer = make_optimizer(policy.model, OptimizerConfig(), [{"params": [head], "lr_scale": 5.0}])
    set_learning_rate(optimizer, 1e-3)
    assert [group["lr"] for group in optimizer.param_groups] == [1e-3, 5e-3]


def test_schedules() -> None:
    def rates(schedule: Any) -> list[float]:
        config = OptimizerConfig(lr=2.0, warmup_steps=4, schedule=schedule)
        return [learning_rate(config, number, 101) for number in range(101)]

    linear, cosine, constant = rates("linear"), rates("cosine"), rates("constant")
    for shape in (linear, cosine, constant):
        assert shape[:4] == sorted(shape[:4])
        assert shape[0] < 0.21 * 2.0
    assert constant[4:] == [2.0] * 97
    assert linear[50] == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))
    assert cosine[25] == pytest.approx(2.0 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4))))
    assert linear[-1] == pytest.approx(0.2)
    assert cosine[-1] == pytest.approx(0.2)


def test_a_learning_rate_too_high_for_full_fine_tuning_or_too_low_for_lora_gives_a_warning(folder: Path) -> None:
    with torch.device("meta"):
        real = torch.nn.Linear(8000, 8000)
    assert "64 M weights" in str(rate_warning(real, OptimizerConfig(lr=2e-4)))
    assert rate_warning(real, OptimizerConfig(lr=1e-5)) is None
    assert rate_warning(Policy(ModelConfig(str(folder), "full")).model, OptimizerConfig(lr=5e-4)) is None
    real.weight.requires_grad_(False)  # adapters: only a part is trained
    assert rate_warning(real, OptimizerConfig(lr=2e-4)) is None
    assert "5e-07 with LoRA" in str(rate_warning(real, OptimizerConfig(lr=5e-7)))


def test_without_bitsandbytes_the_install_command_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Policy(ModelConfig(str(folder), "full")).model
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(ConfigError, match="adamw8bit needs bitsandbytes"):
        make_optimizer(model, OptimizerConfig(name="adamw8bit"))
    make_optimizer(model, OptimizerConfig())
