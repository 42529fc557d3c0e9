"""The weight of the entropy bonus: fixed, or steered so that the policy's entropy follows a falling target."""

from __future__ import annotations

from trainers.config import EntropyConfig

# Below this the weight could not grow back within a run.
_LEAST = 1e-5


class EntropyBonus:
    """Holds the weight; its state goes into checkpoints.

    Args:
        config: The options.
        steps: Length of the run, over a share of which the target falls to 0.
    """

    def __init__(self, config: EntropyConfig, steps: int) -> None:
        self._config = config
        self._steps = steps
        self.weight = config.bonus

    def target(self, step: int) -> float | None:
        """The entropy to hold in a step, in nats per token; ``None`` for a fixed weight."""
        if self._config.target is None:
            return None
        return self._config.target * max(0.0, 1.0 - step / (self._config.target_until * self._steps))

    def observe(self, step: int, entropy: float) -> None:
        """Move the weight by ``rate``: up while the measured entropy is below the target, else down."""
        target = self.target(step)
        if target is None:
            return
        factor = 1.0 + self._config.rate
        self.weight = self.weight * factor if entropy < target else self.weight / factor
        self.weight = min(max(self.weight, _LEAST), self._config.max_bonus)
