"""An update that does not fit into memory is repeated with smaller microbatches: same gradient, after saving."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from echo_config import echo_config
from test_denominators import batch

from trainers import ConfigError
from trainers.algorithms import algorithm_options, make_algorithm
from trainers.config import ModelConfig, OptimizerConfig
from trainers.learner import Learner
from trainers.loop import train
from trainers.model import Policy
from trainers.run.metrics import read_metrics
from trainers.tiny_model import make_tiny_model


class Memory:
    """Makes a loss raise what torch raises if a microbatch has more tokens than fit, after its backward pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tokens: int, since: int = 0) -> None:
        self.sizes: list[int] = []
        accumulate = Learner._accumulate

        def limited(learner: Learner, step: int, batch: Any, *rest: Any) -> float:
            self.sizes.append(batch.ids_BT.numel())
            loss = accumulate(learner, step, batch, *rest)  # the worst case: all gradients and statistics were added
            if batch.ids_BT.numel() > tokens and step >= since:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee the documentation")
            return loss

        monkeypatch.setattr(Learner, "_accumulate", limited)


def update(folder: Path, name: str) -> tuple[dict[str, torch.Tensor], Any]:
    """Return the gradients of an update, and its statistics."""
    if not folder.exists():
        make_tiny_model(folder, hidden_size=32, num_heads=1, num_layers=1, vocab_size=300)
    policy = Policy(ModelConfig(path=str(folder), tuning="full"))
    algorithm = make_algorithm(algorithm_options(name, kl=0.0), max_tokens=7)
    learner = Learner(policy, OptimizerConfig(lr=0.1), 10, algorithm.value)
    gradients: dict[str, torch.Tensor] = {}

    def keep(*args: Any, **kwargs: Any) -> None:
        for parameter_name, parameter in policy.parameters:
            if parameter.grad is not None:
                gradients.setdefault(parameter_name, parameter.grad.clone())

    learner.optimizer.step = keep  # type: ignore[method-assign]
    samples = batch()
    torch.manual_seed(0)
    targets = algorithm.targets(samples, learner.signals(samples, algorithm.required_signals))
    return gradients, learner.update(5, samples, targets, algorithm, 0.0)


@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_the_gradient_is_that_of_the_undisturbed_step(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole, expected = update(tmp_path / "tiny", name)
    memory = Memory(monkeypatch, tokens=30)
    halved, stats = update(tmp_path / "tiny", name)
    assert memory.sizes[0] > 60, "halved at least twice"
    assert memory.sizes[-1] <= 30
    assert caplog.text.count("does not fit into memory; continuing with optimizer.tokens_per_microbatch=") >= 2
    assert halved.keys() == whole.keys()
    for parameter, gradient in whole.items():
        torch.testing.assert_close(halved[parameter], gradient, rtol=1e-4, atol=1e-6)
    for field in ("loss", "entropy", "tokens", "first_tokens", "grad_norm", "value_loss", "importance_ratio_max"):
        assert getattr(stats, field) == pytest.approx(getattr(expected, field), rel=1e-4, abs=1e-6), field


def test_a_sequence_that_alone_does_not_fit_is_an_error_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Memory(monkeypatch, tokens=3)
    with pytest.raises(
        ConfigError, match=r"a sequence of \d+ tokens alone .*out of memory.*model.gradient_checkpointing"
    ):
        update(tmp_path / "tiny", "grpo")


def test_the_run_saves_before_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sections: dict[str, Any] = {"validation": None, "checkpoint": {"every": 100, "keep": 9}}
    train(echo_config(tmp_path, steps=3, **sections))
    undisturbed = read_metrics(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "first")
    memory = Memory(monkeypatch, tokens=150, since=2)
    train(echo_config(tmp_path, steps=3, **sections))
    assert max(memory.sizes) > 150
    assert [folder.name[-2:] for folder in sorted((tmp_path / "run" / "checkpoints").glob("step-*"))] == ["02", "03"]
    for row, expected in zip(read_metrics(tmp_path / "run"), undisturbed, strict=True):
        assert row["reward/mean"] == expected["reward/mean"]
        assert row["optim/grad_norm"] == pytest.approx(expected["optim/grad_norm"], rel=1e-4)
