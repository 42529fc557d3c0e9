"""Create, reset, step and close the environments of one slot, and check every result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium

from rllm_gym.runtime.env_building import EnvBuildSpec, build_env
from rllm_gym.runtime.env_checks import as_fault, checked_reset, checked_step
from rllm_gym.vector.env_commands import ResetResult, StepResult


@dataclass(frozen=True, slots=True)
class EnvDescription:
    """What the vector environment needs to know about an environment."""

    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    metadata: dict[str, Any]
    render_mode: str | None

    @classmethod
    def of(cls, env: gymnasium.Env[Any, Any]) -> EnvDescription:
        if not isinstance(env, gymnasium.Env):
            raise TypeError(f"a vector environment needs sub-environments that are a gymnasium.Env, not {env!r:.200}")
        return cls(env.observation_space, env.action_space, dict(env.metadata), env.render_mode)


class EnvHost:
    """The environments of one slot. One call at a time.

    Args:
        build_specs: By name; an environment is created on first use, and kept.
    """

    def __init__(self, build_specs: Mapping[str, EnvBuildSpec]) -> None:
        self._build_specs = build_specs
        self._envs: dict[str, gymnasium.Env[Any, Any]] = {}
        self._env: gymnasium.Env[Any, Any] | None = None
        self._space: gymnasium.Space[Any] | None = None

    def has_env(self, member: str) -> bool:
        return member in self._envs

    def make(self, member: str) -> EnvDescription:
        env = self._envs.get(member)
        if env is None:
            env = self._envs[member] = build_env(self._build_specs[member])
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
        return checked_reset(result, self._space)

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
        return checked_step(result, self._space)

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
        self._space = env.observation_space
