"""Options of the entropy bonus."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.option_checks import NonNegativeFloat, PositiveFloat


@dataclass(frozen=True)
class EntropyConfig:
    """Entropy bonus against early collapse of the policy: fixed, or controlled towards a target."""

    bonus: NonNegativeFloat = 0.0
    """Weight of the mean token entropy in the objective; with a target, the initial weight, and 0 stands for 0.003."""
    target: PositiveFloat | None = None
    """Target for the mean entropy per sampled token, in nats. It decreases linearly to 0 over the first 70 % of the
    steps. The weight grows by 15 % per step while the entropy is below the target, up to 0.1 (or ``bonus``, if that
    is larger), and shrinks while it is above. None for a fixed weight."""


MAX_BONUS = 0.1
"""Upper limit of the weight if a target is set, unless the initial weight is larger."""
INITIAL_BONUS = 0.003
"""Initial weight if a target is set and no bonus."""
