"""The environments in a worker: create, reset, step and close them, and check every result."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import gymnasium

from rllm_gym.core.errors import EnvironmentFault
from rllm_gym.runtime.env_building import EnvBuildSpec, async_env, build_env
from rllm_gym.runtime.env_checks import as_fault, checked_reset, checked_step

StepResult = tuple[Any, float, bool, bool, dict[str, Any]]
"""Result of ``step``: observation, reward, terminated, truncated, info."""


@dataclass(frozen=True, slots=True)
class EnvDescription:
    """What a vector environment needs to know about an environment."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None


class EnvHost:
    """Environments by name, one of them in use. One call at a time.

    Args:
        build_specs: By name; an environment is created on first use, and kept.
        limit_steps: Whether to apply the specs' ``max_episode_steps``.
    """

    def __init__(self, build_specs: Mapping[str, EnvBuildSpec], *, limit_steps: bool = True) -> None:
        self._build_specs = build_specs
        self._limit_steps = limit_steps
        self._envs: dict[str, gymnasium.Env[Any, Any]] = {}
        self._env: gymnasium.Env[Any, Any] | None = None
        self._space: gymnasium.Space[Any] | None = None

    def has_env(self, env_name: str) -> bool:
        return env_name in self._envs

    def make(self, env_name: str = "") -> float:
        """Create an environment, unless it exists. Exceptions of its constructor are mostly the caller's mistake.

        Returns:
            Its :attr:`~rllm_gym.core.TextEnv.max_step_s`.
        """
        env = self._envs.get(env_name)
        if env is None:
            env = self._envs[env_name] = build_env(self._build_specs[env_name], limit_steps=self._limit_steps)
        if self._env is None:
            self._use(env)
        return float(getattr(getattr(env, "unwrapped", env), "max_step_s", 0.0))

    def describe(self, env_name: str = "") -> EnvDescription:
        env = self._envs[env_name]
        if not isinstance(env, gymnasium.Env):
            raise TypeError(f"a vector environment needs sub-environments that are a gymnasium.Env, not {env!r:.200}")
        return EnvDescription(env.observation_space, env.action_space, dict(env.metadata), env.render_mode)

    def reset(self, seed: int | None, options: dict[str, Any] | None, env_name: str = "") -> Any:
        """Reset an environment and use it from now on.

        Returns:
            What :meth:`checked_reset` returns.

        Raises:
            TaskError: There is no such task.
            EnvironmentFault: The environment failed, or returned an invalid result.
        """
        env = self.use(env_name)
        try:
            result = env.reset(seed=seed, options=options)
        except BaseException as error:
            raise as_fault(error, "reset") from error
        return self.checked_reset(result)

    def step(self, action: Any) -> StepResult:
        """Step the environment in use.

        Raises:
            EnvironmentFault: The environment failed, or returned an invalid result.
        """
        env = self._in_use()
        try:
            result = env.step(action)
        except BaseException as error:
            raise as_fault(error, "step") from error
        return checked_step(result, self._space)

    def checked_reset(self, result: Any) -> Any:
        """Return the observation and info of a reset of the environment in use.

        Raises:
            EnvironmentFault: Kind ``invalid_result``: the result breaks Gymnasium's interface.
        """
        return checked_reset(result, self._space)

    def checked_step(self, result: Any) -> StepResult:
        """Return the result of a step of the environment in use. Raises the same error as :meth:`checked_reset`."""
        return checked_step(result, self._space)

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a method's result, or an attribute's value, through the wrappers."""
        env = self._in_use()
        found = getattr(env, name) if name == "render" else env.get_wrapper_attr(name)
        return found(*args, **kwargs) if callable(found) else found

    def set(self, name: str, value: Any) -> None:
        for env in self._envs.values():
            env.set_wrapper_attr(name, value)

    def close(self) -> None:
        """Close every environment; after all were tried, raise the first exception. The host can be used again."""
        errors: list[BaseException] = []
        for env in self.detach():
            try:
                env.close()
            except BaseException as error:
                errors.append(error)
        if errors:
            raise as_fault(errors[0], "close") from errors[0]

    # In the process of the owner

    def use(self, env_name: str = "") -> gymnasium.Env[Any, Any]:
        """Use an environment from now on, and return it."""
        env = self._envs.get(env_name)
        if env is None:
            raise EnvironmentFault("the environment was closed", kind="closed")
        self._use(env)
        return env

    def async_env(self) -> Any:
        """Return the environment in use without its wrappers, if its coroutines can be awaited instead.

        Raises:
            TypeError: It has no coroutines, or a wrapper changes ``reset`` or ``step``.
        """
        return async_env(self._in_use())

    def detach(self) -> list[gymnasium.Env[Any, Any]]:
        """Drop the references to the environments, and return them."""
        envs, self._envs, self._env = self._envs, {}, None
        return list(envs.values())

    def moved(self) -> Self:
        """Return a host with these environments, of which this one keeps none."""
        other = copy.copy(self)
        self.detach()
        return other

    def _in_use(self) -> gymnasium.Env[Any, Any]:
        if self._env is None:
            raise EnvironmentFault("the environment was closed", kind="closed")
        return self._env

    def _use(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self._space = getattr(env, "observation_space", None)
