"""Options of PPO's value head: how it is trained, and whether its loss also trains the policy."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.config.algorithm import AlgorithmConfig
from trainers.config.checks import idle, positive


@dataclass(frozen=True)
class ValueConfig:
    """A linear layer on the model's last hidden states that predicts the return (``algorithm.name=ppo``)."""

    lr: float = 1e-3
    """Peak learning rate of the value head; warm-up and decay are the optimizer's. One step of Adam changes a value
    by about this rate times the hidden size of the model. If it is too high, ``value/explained_variance`` is far below
    0."""
    detach: bool = True
    """Detach the hidden states, so that the value loss trains only the head; otherwise it trains the model as well."""
    weight: float = 0.5
    """Weight of the value loss relative to the policy loss, if both train the model (``detach=False``)."""
    clip: float = 0.2
    """How far a value may move from its value before the update until it gets no gradient; 0 for no limit. It has an
    effect only if a batch is used for several steps."""
    extra_steps: int = 10
    """Additional optimizer steps of the head alone on each batch, on the hidden states that the update has computed
    anyway. They cost almost nothing; with only one step per batch the head lags behind a policy that is learning."""
    warmup_steps: int = 5
    """Number of steps at the beginning in which only the value head is trained."""


def check_value(value: ValueConfig, algorithm: AlgorithmConfig, problems: list[str]) -> None:
    if algorithm.name != "ppo":
        names = tuple(ValueConfig.__dataclass_fields__)
        idle(value, "value.", names, f"with algorithm.name={algorithm.name}, which has no value head", problems)
        return
    positive(value, "value.", ("lr", "weight"), problems)
    if value.detach:
        idle(
            value,
            "value.",
            ("weight",),
            "with value.detach=True, with which the value loss trains only the head",
            problems,
        )
    if algorithm.epochs * algorithm.minibatches == 1 and value.extra_steps == 0:
        reason = "with one optimizer step per batch (epochs=1, minibatches=1, value.extra_steps=0)"
        idle(value, "value.", ("clip",), reason, problems)
    for name in ("clip", "extra_steps", "warmup_steps"):
        if not getattr(value, name) >= 0:
            problems.append(f"value.{name}={getattr(value, name)!r} must be 0 or more")
