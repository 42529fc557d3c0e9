"""The worker side of an environment of the engine, which also reports the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from rllm_gym.core import Task
from rllm_gym.runtime.env_building import EnvBuildSpec
from rllm_gym.runtime.env_host import EnvHost, StepResult

TaskResetResult = tuple[Any, dict[str, Any], dict[str, Any] | None]
"""Observation, info, and the task as JSON types if the environment provides it."""


class ActionTypeError(Exception):
    """Raised for an action of a type that the environment does not accept. Not a fault of the environment."""


class TaskEnvHost(EnvHost):
    """Holds one environment in a worker."""

    def __init__(self, source: EnvSpec | Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
        super().__init__({"": EnvBuildSpec(source, kwargs)})

    def step(self, action: Any) -> StepResult:
        if not isinstance(action, str) and isinstance(self._space, gymnasium.spaces.Text):
            raise ActionTypeError(f"the action must be a str; got {type(action).__name__}")
        return super().step(action)

    def checked_reset(self, result: Any) -> TaskResetResult:
        """Check the result of ``reset`` and add the task."""
        observation, info = super().checked_reset(result)
        task = getattr(self._in_use().unwrapped, "task", None)
        if isinstance(task, Task):
            task = task.to_json()
        return observation, info, task if isinstance(task, dict) else None
