"""Options of the entropy bonus."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EntropyConfig:
    """Entropy bonus against early collapse of the policy: fixed, or controlled towards a target."""

    bonus: float = 0.0
    """Weight of the mean token entropy in the objective; with a target, the initial weight, and 0 stands for 0.003."""
    target: float | None = None
    """Target for the mean entropy per sampled token, in nats. It decreases linearly to 0 over the first 70 % of the
    steps. The weight grows by 15 % per step while the entropy is below the target, up to 0.1 (or ``bonus``, if that
    is larger), and shrinks while it is above. None for a fixed weight."""


MAX_BONUS = 0.1
"""Upper limit of the weight if a target is set, unless the initial weight is larger."""
INITIAL_BONUS = 0.003
"""Initial weight if a target is set and no bonus."""


def check_entropy(entropy: EntropyConfig, problems: list[str]) -> None:
    if not entropy.bonus >= 0:
        problems.append(f"entropy.bonus={entropy.bonus} must be 0 or more")
    if entropy.target is not None and not entropy.target > 0:
        problems.append(f"entropy.target={entropy.target} must be above 0; remove it for a fixed weight")
