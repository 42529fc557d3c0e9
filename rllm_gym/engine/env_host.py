"""The worker side of an environment of the engine: make, reset, step and close, with a check of all results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from rllm_gym.core import EnvironmentFault, Task
from rllm_gym.runtime.env_building import EnvBuildSpec, async_env, build_env
from rllm_gym.runtime.env_checks import as_faults, checked_reset, checked_step

ResetResult = tuple[Any, dict[str, Any], dict[str, Any] | None]
"""Observation, info, and the task as JSON types if the environment provides it."""
StepResult = tuple[Any, float, bool, bool, dict[str, Any]]


class ActionTypeError(Exception):
    """Raised for an action of a type that the environment does not accept. Not a fault of the environment."""


class EnvironmentHost:
    """Holds the environment in a worker. Handles one call at a time."""

    def __init__(self, source: EnvSpec | Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
        self._spec = EnvBuildSpec(source, kwargs)
        self._env: gymnasium.Env[Any, Any] | None = None

    def make(self) -> None:
        """Construct the environment. Exceptions pass through unchanged, since most are mistakes of the caller."""
        self._env = build_env(self._spec)

    def reset(self, seed: int, options: dict[str, Any] | None) -> ResetResult:
        env = self._require_env()
        with as_faults("reset"):
            result = env.reset(seed=seed, options=options)
        return self.checked_reset(result, env)

    def step(self, action: Any) -> StepResult:
        env = self._require_env()
        if not isinstance(action, str) and isinstance(getattr(env, "action_space", None), gymnasium.spaces.Text):
            raise ActionTypeError(f"the action must be a str; got {type(action).__name__}")
        with as_faults("step"):
            result = env.step(action)
        return self.checked_step(result, env)

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
        try:
            return async_env(self._require_env())
        except TypeError:
            return None

    @staticmethod
    def checked_reset(result: Any, env: gymnasium.Env[Any, Any]) -> ResetResult:
        """Check the result of ``reset`` and add the task.

        Raises:
            EnvironmentFault: Kind ``invalid_result``: the result breaks Gymnasium's interface.
        """
        observation, info = checked_reset(result, getattr(env, "observation_space", None))
        task = getattr(env.unwrapped, "task", None)
        if isinstance(task, Task):
            task = task.to_json()
        return observation, info, task if isinstance(task, dict) else None

    @staticmethod
    def checked_step(result: Any, env: gymnasium.Env[Any, Any]) -> StepResult:
        """Check the result of ``step``.

        Raises:
            EnvironmentFault: Kind ``invalid_result``: the result breaks Gymnasium's interface.
        """
        return checked_step(result, getattr(env, "observation_space", None))

    def _require_env(self) -> gymnasium.Env[Any, Any]:
        if self._env is None:
            raise EnvironmentFault("the environment was closed", kind="closed")
        return self._env
