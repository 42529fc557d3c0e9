"""Check what an environment returns, and convert what it raises, in the worker that runs it.

Results satisfy Gymnasium's interface, or an :class:`~rllm_gym.core.EnvironmentFault` says what is wrong.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np

from rllm_gym.core.errors import EnvironmentFault, TaskError

_LONGEST_MESSAGE = 2_000


def checked_reset(result: Any, space: gymnasium.Space[Any] | None) -> tuple[Any, dict[str, Any]]:
    """Check and return the result of ``reset``.

    Args:
        result: What ``reset`` returned.
        space: The observation space; without one, an observation must be a string.

    Raises:
        EnvironmentFault: Kind ``invalid_result``: the result is not ``(observation, info)``, the observation is outside
            the space, or info is not a dict.
    """
    if not (isinstance(result, tuple) and len(result) == 2):
        raise invalid_result("reset", f"returned {short_repr(result)}, not a pair (observation, info)")
    observation, info = result
    _check_observation_and_info("reset", observation, info, space)
    return observation, info


def checked_step(result: Any, space: gymnasium.Space[Any] | None) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    """Check and return the result of ``step``.

    Args:
        result: What ``step`` returned.
        space: The observation space; without one, an observation must be a string.

    Raises:
        EnvironmentFault: Kind ``invalid_result``: the result is not a 5-tuple, the reward is not a finite number, the
            observation is outside the space, a flag is not a bool, or info is not a dict.
    """
    if not (isinstance(result, tuple) and len(result) == 5):
        raise invalid_result(
            "step", f"returned {short_repr(result)}, not (observation, reward, terminated, truncated, info)"
        )
    observation, reward, terminated, truncated, info = result
    _check_observation_and_info("step", observation, info, space)
    if type(reward) is not float:
        reward = _as_float(reward)
    if not math.isfinite(reward):
        raise invalid_result("step", f"returned the reward {reward!r}, not a finite number")
    if type(terminated) is not bool or type(truncated) is not bool:
        if not (isinstance(terminated, bool | np.bool_) and isinstance(truncated, bool | np.bool_)):
            raise invalid_result(
                "step",
                f"returned terminated={short_repr(terminated)}, truncated={short_repr(truncated)}, not two bools",
            )
        terminated, truncated = bool(terminated), bool(truncated)
    return observation, reward, terminated, truncated, info


def invalid_result(where: str, what: str) -> EnvironmentFault:
    """Return the fault for a result that breaks the interface."""
    return EnvironmentFault(f"invalid result: {where} {what}", kind="invalid_result")


@contextmanager
def as_faults(where: str) -> Iterator[None]:
    """Convert exceptions of an environment as :func:`as_fault` does."""
    try:
        yield
    except BaseException as error:
        raise as_fault(error, where) from error


def as_fault(error: BaseException, where: str) -> BaseException:
    """Return the exception to raise for an exception of an environment: itself if it is specific, else a fault.

    ``BaseException`` is included: an environment that calls ``sys.exit()``, or a library whose timeout derives from
    it, must not end the worker.
    """
    if isinstance(error, EnvironmentFault | TaskError):
        return error
    if isinstance(error, MemoryError):
        return EnvironmentFault(f"{where} exceeded its memory limit: {error}", kind="memory")
    place = traceback.extract_tb(error.__traceback__)[-1]
    return EnvironmentFault(f"{where} raised {short_repr(error)} at {place.filename}:{place.lineno}", kind="exception")


def short_repr(value: Any) -> str:
    """Return a representation for a message, of bounded length. Exceptions are shown as ``Type: message``."""
    if isinstance(value, str) and len(value) > _LONGEST_MESSAGE:
        return f"{value[:_LONGEST_MESSAGE]!r}… ({len(value)} characters)"
    try:
        text = f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else repr(value)
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}… ({len(text)} characters)"


def _as_float(reward: Any) -> float:
    if isinstance(reward, int | float | np.integer | np.floating | np.bool_):
        try:
            return float(reward)
        except OverflowError:
            pass
    raise invalid_result("step", f"returned the reward {short_repr(reward)}, not a finite number")


def _check_observation_and_info(where: str, observation: Any, info: Any, space: gymnasium.Space[Any] | None) -> None:
    if not _fits(observation, space):
        expected = "a str" if space is None else f"in {space}"
        raise invalid_result(where, f"returned the observation {short_repr(observation)}, which is not {expected}")
    if not isinstance(info, dict):
        raise invalid_result(where, f"returned info of type {type(info).__name__}, not a dict")


def _fits(observation: Any, space: gymnasium.Space[Any] | None) -> bool:
    spaces = gymnasium.spaces
    if space is None or isinstance(space, spaces.Text):
        return isinstance(observation, str)
    if isinstance(space, spaces.Box) and isinstance(observation, np.ndarray):
        # Comparing every pixel of a screenshot with its bounds would cost milliseconds.
        return observation.shape == space.shape and np.can_cast(observation.dtype, space.dtype)
    if isinstance(space, spaces.Dict):
        return (
            isinstance(observation, dict)
            and observation.keys() == space.spaces.keys()
            and all(_fits(observation[name], inner) for name, inner in space.spaces.items())
        )
    return space.contains(observation)
