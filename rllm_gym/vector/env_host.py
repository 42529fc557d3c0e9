"""Create, reset, step and close the environments of one slot, and check every result.

Results either satisfy Gymnasium's interface, or an :class:`~rllm_gym.core.EnvironmentFault` is raised.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker

from rllm_gym.core import EnvironmentFault, TaskError
from rllm_gym.vector.env_commands import EnvBuildSpec, ResetResult, StepResult

_LONGEST_MESSAGE = 2_000


@dataclass(frozen=True, slots=True)
class EnvDescription:
    """What the vector environment needs to know about an environment."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None

    @classmethod
    def of(cls, env: gymnasium.Env[Any, Any]) -> EnvDescription:
        return cls(env.observation_space, env.action_space, dict(env.metadata), env.render_mode)


def build(build_spec: EnvBuildSpec, *, limit_steps: bool = True) -> gymnasium.Env[Any, Any]:
    """Create the environment. Exceptions of its constructor are not converted: they are mostly the caller's mistake."""
    limit = build_spec.max_episode_steps if limit_steps else None
    if isinstance(build_spec.source, EnvSpec):
        # Results are checked in this module, once, for every environment.
        env = gymnasium.make(build_spec.source, limit, disable_env_checker=True, **build_spec.kwargs)
    else:
        env = build_spec.source(**build_spec.kwargs)
        if not isinstance(env, gymnasium.Env):
            raise TypeError(f"{build_spec.source!r} returned {type(env).__name__}, not a gymnasium.Env")
        if limit is not None:
            env = gymnasium.wrappers.TimeLimit(env, limit)
    for wrapper in build_spec.wrappers:
        env = wrapper(env)
    return env


class EnvHost:
    """The environments of one slot. One call at a time.

    Args:
        build_specs: By name; an environment is created on first use, and kept.
    """

    def __init__(self, build_specs: Mapping[str, EnvBuildSpec]) -> None:
        self._build_specs = build_specs
        self._envs: dict[str, gymnasium.Env[Any, Any]] = {}
        self._env: gymnasium.Env[Any, Any] | None = None
        self._text = False

    def has_env(self, member: str) -> bool:
        return member in self._envs

    def make(self, member: str) -> EnvDescription:
        env = self._envs.get(member)
        if env is None:
            env = self._envs[member] = build(self._build_specs[member])
        if self._env is None:
            self._use(env)
        return EnvDescription.of(env)

    def reset(self, member: str, seed: int | None, options: dict[str, Any] | None) -> ResetResult:
        """Reset an environment and use it from now on.

        Raises:
            TaskError: There is no such task.
            EnvironmentFault: The environment failed, or returned an invalid result.
        """
        env = self._envs[member]
        if env is not self._env:
            self._use(env)
        try:
            result = env.reset(seed=seed, options=options)
        except BaseException as error:
            raise as_fault(error, "reset") from error
        return checked_reset(result, env, self._text)

    def step(self, action: Any) -> StepResult:
        """Step the environment in use.

        Raises:
            EnvironmentFault: The environment failed, or returned an invalid result.
        """
        env = self._env
        assert env is not None
        try:
            result = env.step(action)
        except BaseException as error:
            raise as_fault(error, "step") from error
        return checked_step(result, env, self._text)

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a method's result, or an attribute's value, through the wrappers."""
        assert self._env is not None
        found = getattr(self._env, name) if name == "render" else self._env.get_wrapper_attr(name)
        return found(*args, **kwargs) if callable(found) else found

    def set(self, name: str, value: Any) -> None:
        for env in self._envs.values():
            env.set_wrapper_attr(name, value)

    def close(self) -> None:
        """Close every environment; after all were tried, raise the first exception."""
        envs, self._envs, self._env = self._envs, {}, None
        errors: list[BaseException] = []
        for env in envs.values():
            try:
                env.close()
            except BaseException as error:
                errors.append(error)
        if errors:
            raise as_fault(errors[0], "close") from errors[0]

    def _use(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self._text = isinstance(env.observation_space, gymnasium.spaces.Text)


def async_env(env: gymnasium.Env[Any, Any]) -> Any:
    """Return the unwrapped environment, whose coroutines can be awaited.

    Raises:
        TypeError: It has none, or a wrapper changes ``reset`` or ``step``, which coroutines would bypass.
    """
    base: Any = env.unwrapped
    if not all(callable(getattr(base, name, None)) for name in ("async_reset", "async_step", "async_close")):
        raise TypeError(
            f"workers='asyncio' awaits async_reset and async_step, which {type(base).__name__} does not have; "
            "use workers='thread'"
        )
    layer: Any = env
    while layer is not base:
        looks_on = isinstance(layer, OrderEnforcing | PassiveEnvChecker)
        passes = type(layer).reset is gymnasium.Wrapper.reset and type(layer).step is gymnasium.Wrapper.step
        if not (looks_on or passes):
            raise TypeError(
                f"workers='asyncio' awaits the coroutines of {type(base).__name__} directly and would skip the "
                f"wrapper {type(layer).__name__}, which changes reset or step; use workers='thread'"
            )
        layer = layer.env
    return base


def as_fault(error: BaseException, where: str) -> BaseException:
    """Return the exception that the vector environment sees: the exception itself if it is specific, else a fault."""
    if isinstance(error, EnvironmentFault | TaskError):
        return error
    if isinstance(error, MemoryError):
        return EnvironmentFault(f"{where} exceeded its memory limit: {error}", kind="memory")
    # Includes SystemExit and similar: an environment that calls sys.exit() must not end the worker.
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return EnvironmentFault(f"{where} raised {_short_repr(error)} at {frame.filename}:{frame.lineno}", kind="exception")


def checked_reset(result: Any, env: gymnasium.Env[Any, Any], text: bool) -> ResetResult:
    """Check the result of ``reset``.

    Raises:
        EnvironmentFault: ``garbage``: not ``(observation, info)``.
    """
    if not (type(result) is tuple and len(result) == 2):
        raise _invalid_result("reset", f"returned {_short_repr(result)}, not a pair (observation, info)")
    observation, info = result
    _check_common("reset", observation, info, env, text)
    return observation, info


def checked_step(result: Any, env: gymnasium.Env[Any, Any], text: bool) -> StepResult:
    """Check the result of ``step``.

    Raises:
        EnvironmentFault: ``garbage``: not a 5-tuple, a reward that is not a finite number, an observation outside the
            space, flags that are not true or false, or info that is not a dict.
    """
    if not (type(result) is tuple and len(result) == 5):
        raise _invalid_result(
            "step", f"returned {_short_repr(result)}, not (observation, reward, terminated, truncated, info)"
        )
    observation, reward, terminated, truncated, info = result
    _check_common("step", observation, info, env, text)
    if type(reward) is not float:
        if not isinstance(reward, int | float | np.integer | np.floating | np.bool_):
            raise _invalid_result("step", f"returned the reward {_short_repr(reward)}, not a finite number")
        reward = float(reward)
    if not math.isfinite(reward):
        raise _invalid_result("step", f"returned the reward {reward!r}, not a finite number")
    if type(terminated) is not bool or type(truncated) is not bool:
        if not (isinstance(terminated, bool | np.bool_) and isinstance(truncated, bool | np.bool_)):
            raise _invalid_result(
                "step",
                f"returned terminated={_short_repr(terminated)}, truncated={_short_repr(truncated)}, not two bools",
            )
        terminated, truncated = bool(terminated), bool(truncated)
    return observation, reward, terminated, truncated, info


def _check_common(where: str, observation: Any, info: Any, env: gymnasium.Env[Any, Any], text: bool) -> None:
    # Arrays are checked when they are batched; checking a screenshot against its space would cost milliseconds.
    fits = isinstance(observation, str) if text else _is_in_space(observation, env.observation_space)
    if not fits:
        raise _invalid_result(
            where, f"returned the observation {_short_repr(observation)}, which is not in {env.observation_space}"
        )
    if not isinstance(info, dict):
        raise _invalid_result(where, f"returned info of type {type(info).__name__}, not a dict")


def _is_in_space(observation: Any, space: gymnasium.Space[Any]) -> bool:
    return not isinstance(space, gymnasium.spaces.Dict) or space.contains(observation)


def _invalid_result(where: str, what: str) -> EnvironmentFault:
    return EnvironmentFault(f"invalid result: {where} {what}", kind="garbage")


def _short_repr(value: Any) -> str:
    try:
        text = f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else repr(value)
    except Exception:
        return f"<{type(value).__name__} that cannot be shown>"
    return text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}… ({len(text)} characters)"
