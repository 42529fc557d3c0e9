"""Options of the entropy bonus."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.option_checks import idle


@dataclass(frozen=True)
class EntropyConfig:
    """Entropy bonus against early collapse of the policy: fixed, or controlled towards a target."""

    bonus: float = 0.0
    """Weight of the mean token entropy in the objective; with a target, the initial weight."""
    target: float | None = None
    """Target for the mean entropy per sampled token, in nats. The weight grows by ``rate`` per step while the entropy
    is below the target and shrinks while it is above. None for a fixed weight."""
    target_until: float = 0.7
    """The target decreases linearly to 0 over this fraction of the steps."""
    rate: float = 0.15
    """Relative change of the weight per step."""
    max_bonus: float = 0.1
    """Upper limit of the weight if a target is set."""


def check_entropy(entropy: EntropyConfig, problems: list[str]) -> None:
    if not entropy.bonus >= 0:
        problems.append(f"entropy.bonus={entropy.bonus} must be 0 or more")
    if entropy.target is None:
        idle(entropy, "entropy.", ("target_until", "rate", "max_bonus"), "without entropy.target", problems)
    else:
        if not entropy.target > 0:
            problems.append(f"entropy.target={entropy.target} must be above 0; remove it for a fixed weight")
        if not 0 < entropy.target_until <= 1:
            problems.append(f"entropy.target_until={entropy.target_until} must be in (0, 1]: a fraction of the steps")
        if not 0 < entropy.rate < 1:
            problems.append(f"entropy.rate={entropy.rate} must be in (0, 1): a relative change per step")
        if not 0 < entropy.bonus <= entropy.max_bonus:
            problems.append(
                f"entropy.bonus={entropy.bonus} must be in (0, entropy.max_bonus={entropy.max_bonus}] if "
                "entropy.target is set, since it is the initial weight; for example 0.003"
            )
