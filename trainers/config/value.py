"""PPO's value head: how it learns, and how much of that the policy feels."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.config.algorithm import AlgorithmConfig
from trainers.config.checks import idle, positive


@dataclass(frozen=True)
class ValueConfig:
    """A linear layer on the model's last hidden states that foretells the return (`algorithm.name=ppo`)."""

    lr: float = 1e-3
    """Its own peak learning rate; warm-up and decay are the optimizer's. One step of Adam moves a value by about this
    times the width of the model: what is too high shows in `value/explained_variance` far below 0."""
    detach: bool = True
    """Leave the hidden states as the policy made them; if not, the value loss shapes the model as well."""
    weight: float = 0.5
    """Weight of the value loss beside the policy's, where both shape the model (`detach=False`)."""
    clip: float = 0.2
    """How far a value may move from what it was before the update until it gets no gradient; 0 for no limit. It counts
    where a batch is used for several steps."""
    extra_steps: int = 10
    """Further optimizer steps of the head alone on each batch, from the hidden states that the update has computed
    anyway: they cost next to nothing, and one step a batch lags behind a policy that learns."""
    warmup_steps: int = 5
    """Steps at the beginning in which only the value head learns."""


def check_value(value: ValueConfig, algorithm: AlgorithmConfig, problems: list[str]) -> None:
    if algorithm.name != "ppo":
        names = tuple(ValueConfig.__dataclass_fields__)
        idle(value, "value.", names, f"with algorithm.name={algorithm.name}, which has no value head", problems)
        return
    positive(value, "value.", ("lr", "weight"), problems)
    if value.detach:
        idle(value, "value.", ("weight",), "with value.detach: nothing but the head feels the value loss", problems)
    if algorithm.epochs * algorithm.minibatches == 1 and value.extra_steps == 0:
        why = "with one optimizer step a batch (epochs=1, minibatches=1, value.extra_steps=0): no value has moved yet"
        idle(value, "value.", ("clip",), why, problems)
    for name in ("clip", "extra_steps", "warmup_steps"):
        if not getattr(value, name) >= 0:
            problems.append(f"value.{name}={getattr(value, name)!r} must be 0 or more")
