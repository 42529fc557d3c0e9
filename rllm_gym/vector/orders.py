"""What the vector environment asks of a place, and what comes of it. A place is where one environment lives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from gymnasium.envs.registration import EnvSpec

from rllm_gym.core import EnvironmentFault, stream_seed

Begun = tuple[Any, dict[str, Any]]
"""What ``reset`` returns: observation and info."""
Stepped = tuple[Any, float, bool, bool, dict[str, Any]]
"""What ``step`` returns: observation, reward, terminated, truncated, info."""

ATTEMPTS = 3
"""How often a reset is tried, each time on a fresh environment, before the episode counts as one that never began."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one kind of environment is made: from a registered spec or by a callable, with what around it."""

    source: EnvSpec | Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Callable[[Any], Any], ...] = ()
    max_episode_steps: int | None = None


def checked_wrappers(given: Any) -> tuple[Callable[[Any], Any], ...]:
    """What is put around each environment.

    Raises:
        TypeError: It is no sequence, or one of them takes no environment.
    """
    if not isinstance(given, Sequence) or not all(callable(each) for each in given):
        raise TypeError(f"env_wrappers={given!r} must be a sequence of callables, such as [TransformReward]")
    return tuple(given)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds each call into an environment may take; every one is finite.

    Attributes:
        make: Constructing the environment.
        reset: ``reset``.
        step: ``step``, the reward included.
        close: ``close``.
    """

    make: float = 120.0
    reset: float = 120.0
    step: float = 60.0
    close: float = 10.0

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not (math.isfinite(value) and value > 0)
            ):
                raise ValueError(f"deadline {entry.name}={value!r} must be a finite number of seconds above 0")

    @classmethod
    def of(cls, given: Mapping[str, float] | Deadlines | None) -> Deadlines:
        """
        Raises:
            TypeError: It is neither.
            ValueError: A name is unknown, or a value is no finite number above 0.
        """
        if isinstance(given, Deadlines):
            return given
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"deadlines={given!r} must be a mapping, such as {{'step': 5.0}}, or a Deadlines")
        names = [entry.name for entry in fields(cls)]
        unknown = sorted(set(given or ()) - set(names))
        if unknown:
            raise ValueError(f"unknown deadline(s) {unknown}; there are {names}")
        return cls(**(given or {}))


@dataclass(slots=True)
class Order:
    """One thing for one place to do.

    Attributes:
        index: Which place.
        op: ``"make"``, ``"reset"``, ``"step"``, ``"call"`` (a method, or the value of an attribute), ``"set"`` or
            ``"close"``.
        member: Which environment of the place, for ``make`` and ``reset``.
        seed: For ``reset``; ``None`` lets the random numbers go on.
        root: What the seed of a fresh environment is drawn from when ``seed`` is ``None``: the last seed given, and how
            many environments were given up since.
        options: For ``reset``.
        action: For ``step``.
        again: Member and seed of the reset that follows at once when the step ends the episode, if one does.
        arguments: For ``call`` name, args and kwargs; for ``set`` name and value.
        final: The last step of the episode, once its reset is under way.
        lost: How many environments were given up over this order so far.
    """

    index: int
    op: str
    member: str = ""
    seed: int | None = None
    root: tuple[int, int] | None = None
    options: dict[str, Any] | None = None
    action: Any = None
    again: tuple[str, int | None] | None = None
    arguments: tuple[Any, ...] = ()
    final: Stepped | None = None
    lost: int = 0

    def effective_seed(self) -> int | None:
        """The seed of this attempt: also where a fresh environment must stand in, the same seed shows the same."""
        if self.seed is not None or self.root is None or self.lost == 0:
            return self.seed
        seed, lost = self.root
        return fresh_seed(seed, self.member, lost + self.lost)


def fresh_seed(seed: int, member: str, lost: int) -> int:
    """What to seed an environment with that takes the place of another, or joins it."""
    return stream_seed("vector", seed, member, lost) >> 64


@dataclass(slots=True)
class Outcome:
    """What came of an order.

    Attributes:
        index: Which place.
        stepped: The step's result, if there was a step and it came back.
        begun: The reset's result, if there was a reset and it came back.
        value: What a ``call`` returned, what a ``make`` found.
        fault: The world broke; the environment is gone and the place makes a fresh one for its next reset.
        lost: How many environments were given up on the way, those that a repeated reset made good included.
        error: The caller's mistake, to be raised at the caller.
    """

    index: int
    stepped: Stepped | None = None
    begun: Begun | None = None
    value: Any = None
    fault: EnvironmentFault | None = None
    lost: int = 0
    error: Exception | None = None
