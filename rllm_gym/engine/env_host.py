"""The worker side of an environment: make, reset, step and close, with a check of everything it returns.

Everything that leaves this module satisfies the Gymnasium API, or is an :class:`~rllm_gym.core.EnvironmentFault` that
says what failed.
"""

from __future__ import annotations

import importlib
import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from rllm_gym.core import EnvironmentFault, Task, TaskError

ResetResult = tuple[Any, dict[str, Any], dict[str, Any] | None]
"""Observation, info, and the task as JSON types if the environment provides it."""
StepResult = tuple[Any, float, bool, bool, dict[str, Any]]

_LONGEST_MESSAGE = 2_000


def resolve(env: str | EnvSpec | Callable[..., Any]) -> EnvSpec | Callable[..., Any]:
    """Return the registered spec of an id (``"module:id"`` imports the module first), or the callable itself.

    Raises:
        gymnasium.error.Error: There is no such id; Gymnasium's message names the nearest one.
        TypeError: ``env`` is neither an id, nor a spec, nor callable.
    """
    if isinstance(env, str):
        importlib.import_module("rllm_gym")  # registers the rllm/ ids
        module, colon, env_id = env.partition(":")
        if colon:
            importlib.import_module(module)
        return gymnasium.spec(env_id if colon else env)
    if isinstance(env, EnvSpec) or callable(env):
        return env
    raise TypeError(
        f"env must be an id, an EnvSpec or a callable that returns an environment; got {type(env).__name__}"
    )


def build(source: EnvSpec | Callable[..., Any], kwargs: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """Create the environment. Runs in the worker."""
    if isinstance(source, EnvSpec):
        # The host checks every result itself, so Gymnasium's checker is not needed.
        return gymnasium.make(source, disable_env_checker=True, **kwargs)
    env = source(**kwargs)
    if not (callable(getattr(env, "reset", None)) and callable(getattr(env, "step", None))):
        raise TypeError(f"{source!r} returned {type(env).__name__}, which has no reset() and step()")
    return env  # type: ignore[no-any-return]


class ActionTypeError(Exception):
    """Raised for an action of a type that the environment does not accept. Not a fault of the environment."""


class EnvironmentHost:
    """Holds the environment in a worker. Handles one call at a time."""

    def __init__(self, source: EnvSpec | Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
        self._source = source
        self._kwargs = kwargs
        self._env: gymnasium.Env[Any, Any] | None = None

    def make(self) -> None:
        """Construct the environment. Exceptions pass through unchanged, since most are mistakes of the caller."""
        self._env = build(self._source, self._kwargs)

    def reset(self, seed: int, options: dict[str, Any] | None) -> ResetResult:
        env = self._require_env()
        with as_faults("reset"):
            result = env.reset(seed=seed, options=options)
        return checked_reset(result, env)

    def step(self, action: Any) -> StepResult:
        env = self._require_env()
        if not isinstance(action, str) and isinstance(getattr(env, "action_space", None), gymnasium.spaces.Text):
            raise ActionTypeError(f"the action must be a str; got {type(action).__name__}")
        with as_faults("step"):
            result = env.step(action)
        return checked_step(result, env)

    def close(self) -> None:
        """Close the environment if there is one. The worker keeps running."""
        env, self._env = self._env, None
        if env is not None:
            with as_faults("close"):
                env.close()

    def detach(self) -> None:
        """Drop the reference to the environment, which the caller closes."""
        self._env = None

    def async_env(self) -> Any:
        """Return the environment if it has coroutines and no wrapper changes ``reset`` or ``step``, else ``None``."""
        env: Any = self._require_env()
        # Gymnasium's checkers do not change any value.
        while isinstance(env, OrderEnforcing | PassiveEnvChecker):
            env = env.env
        base = env.unwrapped
        if not all(callable(getattr(base, name, None)) for name in ("async_reset", "async_step", "async_close")):
            return None
        while env is not base:
            if type(env).reset is not gymnasium.Wrapper.reset or type(env).step is not gymnasium.Wrapper.step:
                return None
            env = env.env
        return base

    def _require_env(self) -> gymnasium.Env[Any, Any]:
        if self._env is None:
            raise EnvironmentFault("the environment was closed", kind="closed")
        return self._env


def checked_reset(result: Any, env: gymnasium.Env[Any, Any]) -> ResetResult:
    """Check and return the result of ``reset``, with the task.

    Raises:
        EnvironmentFault: Kind ``garbage``: the result is not ``(observation, info)``.
    """
    if not (isinstance(result, tuple) and len(result) == 2):
        raise invalid_result("reset", f"returned {short_repr(result)}, not a pair (observation, info)")
    observation, info = result
    _check_observation("reset", observation, env)
    if not isinstance(info, dict):
        raise invalid_result("reset", f"returned info of type {type(info).__name__}, not a dict")
    task = getattr(env.unwrapped, "task", None)
    if isinstance(task, Task):
        task = task.to_json()
    return observation, info, task if isinstance(task, dict) else None


def checked_step(result: Any, env: gymnasium.Env[Any, Any]) -> StepResult:
    """Check and return the result of ``step``.

    Raises:
        EnvironmentFault: Kind ``garbage``: the result is not a 5-tuple, the reward is not a finite number, the
            observation is outside the space, a flag is not a bool, or info is not a dict.
    """
    if not (isinstance(result, tuple) and len(result) == 5):
        raise invalid_result(
            "step", f"returned {short_repr(result)}, not (observation, reward, terminated, truncated, info)"
        )
    observation, reward, terminated, truncated, info = result
    _check_observation("step", observation, env)
    if not isinstance(reward, int | float | np.integer | np.floating | np.bool_) or not math.isfinite(reward):
        raise invalid_result("step", f"returned the reward {short_repr(reward)}, not a finite number")
    if not (isinstance(terminated, bool | np.bool_) and isinstance(truncated, bool | np.bool_)):
        raise invalid_result(
            "step", f"returned terminated={short_repr(terminated)}, truncated={short_repr(truncated)}, not two bools"
        )
    if not isinstance(info, dict):
        raise invalid_result("step", f"returned info of type {type(info).__name__}, not a dict")
    return observation, float(reward), bool(terminated), bool(truncated), info


def _check_observation(where: str, observation: Any, env: gymnasium.Env[Any, Any]) -> None:
    if isinstance(observation, str):
        return
    space = getattr(env, "observation_space", None)
    if space is None or isinstance(space, gymnasium.spaces.Text) or not space.contains(observation):
        raise invalid_result(where, f"returned the observation {short_repr(observation)}, not a str (nor in {space})")


def invalid_result(where: str, what: str) -> EnvironmentFault:
    return EnvironmentFault(f"invalid result: {where} {what}", kind="garbage")


@contextmanager
def as_faults(where: str) -> Iterator[None]:
    try:
        yield
    except (EnvironmentFault, TaskError, MemoryError):
        raise
    # BaseException: an environment that calls sys.exit(), or a library whose timeout derives from BaseException,
    # must not end the worker.
    except BaseException as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise EnvironmentFault(
            f"{where} raised {short_repr(error)} at {frame.filename}:{frame.lineno}", kind="exception"
        ) from error


def short_repr(value: Any) -> str:
    if isinstance(value, str) and len(value) > _LONGEST_MESSAGE:
        return f"{value[:_LONGEST_MESSAGE]!r}… ({len(value)} characters)"
    try:
        text = f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else repr(value)
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}… ({len(text)} characters)"
