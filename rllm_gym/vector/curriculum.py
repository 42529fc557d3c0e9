"""Curricula: sampling weights for the environments of a suite, from the results of their episodes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class EnvCurriculum(Protocol):
    """Updates the weights of a suite's environments after every episode. Its state is saved in checkpoints."""

    def weights(self, names: Sequence[str]) -> Mapping[str, float]:
        """Return a finite weight of 0 or more for each, not all 0; multiplied with the suite's own."""

    def update(self, name: str, success: bool) -> None:
        """Record that an episode of ``name`` ended by itself."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class SuccessCurriculum:
    """Prefers environments whose success rate is close to ``target``: neither too hard nor mastered.

    The weight of an environment decreases from 1, at a success rate of ``target``, to ``floor`` at the farther of 0 and
    1. The rate is that of its last ``window`` episodes, with one success and one failure added, so that an environment
    without episodes has a rate of one half.

    Args:
        target: The desired success rate, between 0 and 1.
        window: Number of recent episodes that count.
        floor: Minimum weight, so that no environment is forgotten.
    """

    def __init__(self, target: float = 0.5, *, window: int = 100, floor: float = 0.05) -> None:
        if not 0 < target < 1:
            raise ValueError(f"target={target!r} must be between 0 and 1")
        if window < 1:
            raise ValueError(f"window={window!r} must be at least 1")
        if not 0 <= floor <= 1:
            raise ValueError(f"floor={floor!r} must be from 0 to 1")
        self.target, self.window, self.floor = target, window, floor
        self._results: dict[str, deque[bool]] = {}

    def success_rate(self, name: str) -> float:
        results = self._results.get(name, ())
        return (sum(results) + 1) / (len(results) + 2)

    def weights(self, names: Sequence[str]) -> dict[str, float]:
        farthest = max(self.target, 1 - self.target)
        return {
            name: self.floor + (1 - self.floor) * (1 - abs(self.success_rate(name) - self.target) / farthest)
            for name in names
        }

    def update(self, name: str, success: bool) -> None:
        self._results.setdefault(name, deque(maxlen=self.window)).append(bool(success))

    def state_dict(self) -> dict[str, Any]:
        return {"results": {name: [int(item) for item in results] for name, results in self._results.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._results = {
            name: deque(map(bool, results), maxlen=self.window) for name, results in state["results"].items()
        }


class LevelCurriculum:
    """Goes through levels in order: promotes once the last ``window`` episodes of the current level went well enough.

    Args:
        levels: Names of the environments, the easiest first.
        promote_at: Success rate at which the next level starts.
        window: Number of recent episodes of a level that count.
        review: Fraction of episodes at levels already passed.
    """

    def __init__(
        self, levels: Sequence[str], *, promote_at: float = 0.8, window: int = 50, review: float = 0.2
    ) -> None:
        if not levels or len(set(levels)) < len(levels):
            raise ValueError(f"levels={list(levels)} must be at least one name, each once")
        if not 0 < promote_at <= 1:
            raise ValueError(f"promote_at={promote_at!r} must be above 0 and at most 1")
        if window < 1:
            raise ValueError(f"window={window!r} must be at least 1")
        if not 0 <= review < 1:
            raise ValueError(f"review={review!r} must be at least 0 and below 1")
        self.levels = tuple(levels)
        self.promote_at, self.window, self.review = promote_at, window, review
        self.level = 0
        """The current level, from 0."""
        self._results: deque[bool] = deque(maxlen=window)

    def weights(self, names: Sequence[str]) -> dict[str, float]:
        """Return the weights for the current level.

        Raises:
            ValueError: The suite's names differ from the levels.
        """
        if set(names) != set(self.levels):
            raise ValueError(f"the levels {list(self.levels)} must be the names of envs={list(names)}")
        review = self.review / self.level if self.level else 0.0
        return {
            name: review if position < self.level else float(position == self.level) * (1 - review * self.level)
            for position, name in enumerate(self.levels)
        }

    def update(self, name: str, success: bool) -> None:
        if name != self.levels[self.level]:
            return
        self._results.append(bool(success))
        full = len(self._results) == self.window
        if full and sum(self._results) >= self.promote_at * self.window and self.level < len(self.levels) - 1:
            self.level += 1
            self._results.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"level": self.level, "results": [int(item) for item in self._results]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state.

        Raises:
            ValueError: There is no such level.
        """
        if not 0 <= state["level"] < len(self.levels):
            raise ValueError(f"the saved level {state['level']} is outside 0..{len(self.levels) - 1}")
        self.level = state["level"]
        self._results = deque(map(bool, state["results"]), maxlen=self.window)


def checked_weights(weights: Mapping[str, float], owner: str) -> dict[str, float]:
    """Return the weights as a dictionary.

    Raises:
        ValueError: A weight is not a finite number of 0 or more, or all are 0.
    """
    for name, weight in weights.items():
        if isinstance(weight, bool) or not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"{owner}: the weight of {name!r} is {weight!r}, not a finite number of 0 or more")
    if not any(weights.values()):
        raise ValueError(f"{owner}: every weight is 0, so none of {list(weights)} can be sampled")
    return dict(weights)
