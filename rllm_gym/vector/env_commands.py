"""Commands from the vector environment to its slots, and their results. A slot holds one sub-environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rllm_gym.core import EnvironmentFault, stream_seed
from rllm_gym.runtime.env_host import StepResult

ResetResult = tuple[Any, dict[str, Any]]
"""Result of ``reset``: observation and info."""

MAX_ATTEMPTS = 3
"""Number of attempts at a reset, each on a new environment, before the episode counts as not begun."""


def checked_wrappers(wrappers: Any) -> tuple[Callable[[Any], Any], ...]:
    """Return the wrappers of each environment as a tuple.

    Raises:
        TypeError: It is not a sequence, or an element is not callable.
    """
    if not isinstance(wrappers, Sequence) or not all(callable(item) for item in wrappers):
        raise TypeError(f"env_wrappers={wrappers!r} must be a sequence of callables, such as [TransformReward]")
    return tuple(wrappers)


@dataclass(slots=True)
class EnvCommand:
    """One operation for one slot.

    Attributes:
        index: Which slot.
        op: ``"make"``, ``"reset"``, ``"step"``, ``"call"`` (a method, or the value of an attribute) or ``"set"``.
        env_name: Which environment of the slot, for ``make`` and ``reset``.
        seed: For ``reset``; ``None`` continues the random numbers.
        root: Source of the seed of a new environment when ``seed`` is ``None``: the last seed given, and the number of
            environments replaced since.
        options: For ``reset``.
        action: For ``step``.
        autoreset: Name of the environment and seed of the reset that follows at once if the step ends the episode.
        arguments: For ``call`` name, args and kwargs; for ``set`` name and value.
        final: The last step of the episode, once its reset is in progress.
        replacements: Number of environments replaced for this command so far.
    """

    index: int
    op: str
    env_name: str = ""
    seed: int | None = None
    root: tuple[int, int] | None = None
    options: dict[str, Any] | None = None
    action: Any = None
    autoreset: tuple[str, int | None] | None = None
    arguments: tuple[Any, ...] = ()
    final: StepResult | None = None
    replacements: int = 0

    def after(self, value: Any) -> EnvResult | EnvCommand:
        """Return the result of a reset or a step that returned ``value``, or the reset that follows a step at once."""
        if self.op == "reset":
            return EnvResult(self.index, self.final, value, replacements=self.replacements)
        if self.autoreset is None or not (value[2] or value[3]):
            return EnvResult(self.index, value)
        env_name, seed = self.autoreset
        return replace(self, op="reset", env_name=env_name, seed=seed, final=value)

    def effective_seed(self) -> int | None:
        """Return the seed of this attempt: a given seed also gives the same episode on a replaced environment."""
        if self.seed is not None or self.root is None or self.replacements == 0:
            return self.seed
        seed, lost = self.root
        return fresh_seed(seed, self.env_name, lost + self.replacements)


def fresh_seed(seed: int, env_name: str, replacements: int) -> int:
    """Return the seed of an environment that replaces another, or is added."""
    return stream_seed("vector", seed, env_name, replacements) >> 64


@dataclass(slots=True)
class EnvResult:
    """The result of a command.

    Attributes:
        index: Which slot.
        step: The step's result, if there was a step and it returned.
        reset: The reset's result, if there was a reset and it returned.
        value: Result of a ``call`` or a ``make``.
        fault: The environment failed and was closed; the slot creates a new one for its next reset.
        replacements: Number of environments replaced meanwhile, including those that a repeated reset made up for.
        error: The caller's mistake, to be raised at the caller.
    """

    index: int
    step: StepResult | None = None
    reset: ResetResult | None = None
    value: Any = None
    fault: EnvironmentFault | None = None
    replacements: int = 0
    error: Exception | None = None
