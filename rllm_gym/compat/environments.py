"""rLLM's environment base classes, and an adapter that runs such environments in the engine."""

from __future__ import annotations

import hashlib
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import gymnasium

from rllm_gym.agents import Action
from rllm_gym.compat.rewards import RewardFunction, zero_reward
from rllm_gym.core import EnvironmentFault, TaskError


class BaseEnv(ABC):
    """rLLM's environment: ``reset() -> (observation, info)``, ``step(action) -> (observation, reward, done, info)``
    and ``from_dict(row)``. New environments should derive from :class:`rllm_gym.core.TextEnv` instead.
    """

    idx: Any = None

    @abstractmethod
    def reset(self) -> tuple[Any, dict[str, Any]]: ...

    @abstractmethod
    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]: ...

    def close(self) -> None:
        return

    @staticmethod
    @abstractmethod
    def from_dict(info: dict[str, Any]) -> BaseEnv:
        """Create the environment for one task row."""

    @staticmethod
    def is_multithread_safe() -> bool:
        return True


class MultiTurnEnvironment(BaseEnv):
    """Calls :meth:`get_reward_and_next_obs` after every reply, up to ``max_turns`` times."""

    def __init__(self, task: dict[str, Any] | None = None, max_turns: int = 3, **kwargs: Any) -> None:
        self.task = task
        self.max_turns = max_turns
        self.current_turn = 0
        self.done = False
        self.history: list[Any] = []

    def reset(self, task: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if task is not None:
            self.task = task
        self.current_turn, self.done, self.history = 0, False, []
        return self.task, {}

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        if self.task is None:
            raise TaskError("this environment has no task: pass one to the constructor or to reset()")
        self.history.append(action)
        reward, observation = self.get_reward_and_next_obs(self.task, action)
        self.current_turn += 1
        self.done = self.current_turn >= self.max_turns
        return {} if self.done else observation, reward, self.done, dict(self.task)

    @abstractmethod
    def get_reward_and_next_obs(self, task: dict[str, Any], action: Any) -> tuple[float, dict[str, Any]]: ...


class SingleTurnEnvironment(MultiTurnEnvironment):
    """One question, one reply, graded by ``reward_fn(task_info=, action=)``."""

    def __init__(
        self, task: dict[str, Any] | None = None, reward_fn: RewardFunction | None = None, **kwargs: Any
    ) -> None:
        super().__init__(task=task, max_turns=1, **kwargs)
        if reward_fn is None:
            warnings.warn("No reward function specified, will get 0 reward.", stacklevel=2)
        self.reward_fn = reward_fn or zero_reward

    def get_reward_and_next_obs(self, task: dict[str, Any], action: Any) -> tuple[float, dict[str, Any]]:
        return reward_of(self.reward_fn(task_info=task, action=action)), {}

    @staticmethod
    def from_dict(env_args: dict[str, Any]) -> SingleTurnEnvironment:
        env_args = dict(env_args)
        reward_fn = env_args.pop("reward_fn", None)
        return SingleTurnEnvironment(task=env_args.get("task", env_args), reward_fn=reward_fn)


def reward_of(output: Any) -> float:
    """Return the reward in the result of a reward function: a ``RewardOutput`` or a plain number."""
    return float(getattr(output, "reward", output))


class AnySpace(gymnasium.Space[Any]):
    """A space that contains everything, for rLLM environments."""

    def contains(self, x: Any) -> bool:
        return True

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        return ""


class LegacyEnvAdapter(gymnasium.Env[Any, Any]):
    """A Gymnasium environment that runs ``env_class.from_dict({**row, **env_args})`` for each task row.

    Args:
        env_class: Has ``from_dict``, ``reset`` and a ``step`` that returns 4 values (or Gymnasium's 5).
        env_args: Added to every row.
        max_steps: Replies after which the episode is truncated. At the end of an episode, also of a truncated one,
            ``compute_final_reward`` is called if the environment has it.
        constructor_errors: Exceptions of ``from_dict`` other than environment faults are appended here.
    """

    def __init__(
        self,
        env_class: type,
        env_args: Mapping[str, Any] | None = None,
        max_steps: int | None = None,
        constructor_errors: list[Exception] | None = None,
    ) -> None:
        self.observation_space = AnySpace()
        self.action_space = AnySpace()
        self._env_class = env_class
        self._env_args = dict(env_args or {})
        self._max_steps = max_steps
        self._constructor_errors = [] if constructor_errors is None else constructor_errors
        self._env: Any = None
        self._steps = 0
        self.task: dict[str, Any] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        row = (options or {}).get("task")
        if not isinstance(row, Mapping):
            raise TaskError(
                f"an rLLM environment is created from a task row, which must be a dict; got {type(row).__name__}"
            )
        self.close()
        self.task = dict(row)
        self._steps = 0
        try:
            self._env = self._env_class.from_dict({**row, **self._env_args})  # type: ignore[attr-defined]
        except EnvironmentFault:
            raise
        except Exception as error:
            self._constructor_errors.append(error)
            raise
        result = self._env.reset()
        observation, info = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        return observation, {**(info or {}), "task_id": row_id(row)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = self._env.step(action.action if isinstance(action, Action) else action)
        if len(result) == 5:
            observation, reward, terminated, truncated, info = result
        else:
            observation, reward, terminated, info = result
            truncated = False
        self._steps += 1
        if not (terminated or truncated) and self._max_steps is not None:
            truncated = self._steps >= self._max_steps
        if (terminated or truncated) and hasattr(self._env, "compute_final_reward"):
            reward = self._env.compute_final_reward()
        return observation, reward, bool(terminated), bool(truncated), dict(info or {})

    def close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()


def row_id(row: Mapping[str, Any]) -> str:
    """Return the id of a task row: its own id, or a hash of the whole row."""
    for key in ("task_id", "uid", "id"):
        if isinstance(row.get(key), str | int):
            return str(row[key])
    return hashlib.sha256(json.dumps(dict(row), sort_keys=True, default=repr).encode()).hexdigest()[:16]
