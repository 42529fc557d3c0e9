"""The weight of the entropy bonus: fixed, or controlled so that the policy's entropy follows a decreasing target."""

from __future__ import annotations

from collections.abc import Mapping

from trainers.config import EntropyConfig
from trainers.config.entropy import INITIAL_BONUS, MAX_BONUS

# Below this value the weight could not grow back within a run.
_MIN_WEIGHT = 1e-5
# Relative change of the weight per step.
_RATE = 0.15
# The target decreases to 0 over this fraction of the steps.
_TARGET_UNTIL = 0.7


class EntropyBonus:
    """The current weight. It is stored in checkpoints.

    Args:
        config: Options of the entropy bonus.
        steps: Number of steps of the run; the target decreases to 0 over a fraction of them.
    """

    def __init__(self, config: EntropyConfig, steps: int) -> None:
        self._config = config
        self._steps = steps
        self._initial = config.bonus or (0.0 if config.target is None else INITIAL_BONUS)
        self.weight = self._initial
        self._max_weight = max(self.weight, MAX_BONUS)

    def target(self, step: int) -> float | None:
        """Return the target entropy of a step, in nats per token; ``None`` for a fixed weight."""
        if self._config.target is None:
            return None
        return self._config.target * max(0.0, 1.0 - step / (_TARGET_UNTIL * self._steps))

    def observe(self, step: int, entropy: float) -> None:
        """Change the weight by 15 %: up while the measured entropy is below the target, otherwise down."""
        target = self.target(step)
        if target is None:
            return
        factor = 1.0 + _RATE
        self.weight = self.weight * factor if entropy < target else self.weight / factor
        self.weight = min(max(self.weight, _MIN_WEIGHT), self._max_weight)

    def state_dict(self) -> dict[str, float]:
        return {"weight": self.weight, "initial": self._initial}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore a controlled weight, unless the options give another initial or a fixed one."""
        if self._config.target is not None and state["initial"] == self._initial:
            self.weight = state["weight"]
