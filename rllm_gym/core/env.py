"""The base class of all environments: a Gymnasium environment whose observations and actions are text.

This module does the bookkeeping that is the same for every environment: choosing the task, counting turns,
distinguishing termination from truncation, filling ``info``, and copying the state of an environment. It uses no model
and no tokens, and does no I/O. The environments themselves are in ``rllm_gym.envs``.
"""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded

from rllm_gym.core.errors import TaskError
from rllm_gym.core.stop_reason import StopReason
from rllm_gym.core.task import Task, TaskSource
from rllm_gym.core.text_space import Text

_STATE_SCHEMA = 2
# Info holds plain strings. Reading .value of an enum member on every step would dominate the cost of a step.
_SUCCESS, _FAILURE = StopReason.SUCCESS.value, StopReason.FAILURE.value
_INVALID_ACTION, _MAX_TURNS = StopReason.INVALID_ACTION.value, StopReason.MAX_TURNS.value


class InvalidAction(Exception):
    """Raised by :meth:`TextEnv._act` for a reply that cannot be parsed. The message tells the model the reason."""


@dataclass(slots=True)
class Outcome:
    """The result of one valid action.

    Attributes:
        observation: The text that is new in this turn.
        rewards: Reward by component. The reward of the step is their sum.
        terminated: Whether the task is over: solved, failed or submitted.
        success: Whether the task is solved. Only meaningful with ``terminated``.
        info: Additional info keys of this environment. The value of a key always has the same Python type.
    """

    observation: str
    rewards: dict[str, float] = field(default_factory=dict)
    terminated: bool = False
    success: bool = False
    info: dict[str, Any] = field(default_factory=dict)


class TextEnv(gymnasium.Env[str, str]):
    """A Gymnasium environment whose observations and actions are text. Subclasses write :meth:`_begin`, :meth:`_act`.

    ## Action space
    The raw reply of the model, any Unicode string. The environment parses it. A reply that cannot be parsed is an
    ordinary turn: the observation says what was wrong, ``info["invalid_action"]`` is ``True`` and the state does not
    change. In a single-turn environment (``max_turns=1``) such a reply ends the episode with reward 0.

    ## Observation space
    The text that is new in this turn. The first observation contains everything that is needed to act.

    ## Episode end
    ``terminated``: solved, failed or submitted. ``truncated``: out of turns. Never both. A single-turn environment
    always terminates on its only step.

    ## Information
    Always: ``task_id: str``, ``turn: int``, ``invalid_action: bool``, ``success: bool``, ``stop_reason: str`` (``""``
    while the episode is running), ``reward_components: dict[str, float]``. From ``reset`` also ``tools: str``, a JSON
    list of OpenAI tool schemas (``"[]"`` if there are none).

    ## Error handling
    A failure of the environment itself raises :class:`~rllm_gym.core.EnvironmentFault` and is never a reward.

    Args:
        tasks: The tasks to choose from.
        max_turns: Turns before truncation, at least 1. Invalid actions count as turns.
        invalid_action_penalty: Subtracted from the reward on every turn whose reply cannot be parsed.
        max_observation_chars: Maximum length of an observation; the bound of the observation space.
        max_action_chars: Maximum length of a reply. A longer reply is an invalid action.
        render_mode: One of ``metadata["render_modes"]`` or ``None``.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"]}  # type: ignore[misc]

    _constructor: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Stored so that fork() can construct a copy of any subclass.
        self = super().__new__(cls)
        self._constructor = (args, kwargs)
        return self

    def __init__(
        self,
        *,
        tasks: TaskSource,
        max_turns: int,
        invalid_action_penalty: float = 0.0,
        max_observation_chars: int = 100_000,
        max_action_chars: int = 1_000_000,
        render_mode: str | None = None,
    ) -> None:
        if not isinstance(max_turns, int) or isinstance(max_turns, bool) or max_turns < 1:
            raise ValueError(f"max_turns={max_turns!r} must be a whole number of at least 1")
        if len(tasks) == 0:
            raise TaskError("the task set is empty; pass at least one task")
        if not (math.isfinite(invalid_action_penalty) and invalid_action_penalty >= 0):
            raise ValueError(f"invalid_action_penalty={invalid_action_penalty!r} must be a finite number, 0 or more")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode={render_mode!r} is not one of {self.metadata['render_modes']} (or None)")
        self.tasks = tasks
        self.max_turns = max_turns
        self.invalid_action_penalty = invalid_action_penalty
        self.observation_space = Text(max_observation_chars)
        self.action_space = Text(max_action_chars)
        self.render_mode = render_mode
        self._task: Task | None = None
        self._turn = 0
        self._done = True
        self._observation = ""

    # Methods for subclasses

    @abstractmethod
    def _begin(self, task: Task) -> str:
        """Set the environment up for ``task`` and return the first observation. Use ``self.np_random`` as RNG."""

    @abstractmethod
    def _act(self, action: str) -> Outcome:
        """Parse and execute one reply.

        Raises:
            InvalidAction: The reply cannot be parsed. The state must not have changed.
            EnvironmentFault: The environment failed.
        """

    def _tools(self) -> str:
        """Return the tools offered to the model, as a JSON list of OpenAI tool schemas."""
        return "[]"

    def _add_info(self, info: dict[str, Any]) -> None:
        """Add the keys of this environment to the info of every ``reset`` and ``step``, also for invalid actions."""

    def _env_state(self) -> dict[str, Any]:
        """Return the state as JSON types, for :meth:`get_state`. Not implemented if the state cannot be copied."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot copy its state, so get_state, set_state and fork are not supported"
        )

    def _restore_env_state(self, state: dict[str, Any]) -> None:
        """Restore a state returned by :meth:`_env_state`. ``self.task`` is already set."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot copy its state, so get_state, set_state and fork are not supported"
        )

    # Gymnasium API

    @property
    def task(self) -> Task:
        """The task of the current episode."""
        if self._task is None:
            raise ResetNeeded("no task yet: call reset() first")
        return self._task

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seed of ``np_random``. It also selects the task unless ``options`` names one; in that case it only
                seeds the dynamics.
            options: ``{"task": index | task_id | Task}``, or ``None``.

        Returns:
            The first observation and the info.

        Raises:
            TaskError: There is no such task, or an option is unknown.
            EnvironmentFault: The environment could not be set up.
        """
        return self._record_reset(self._begin(self._start_episode(seed, options)))

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Execute one reply of the model.

        Args:
            action: The raw reply.

        Returns:
            Observation, reward, terminated, truncated, info.

        Raises:
            TypeError: ``action`` is not a string.
            gymnasium.error.ResetNeeded: The episode is over or was never started.
            EnvironmentFault: The environment failed. After this, and after any other exception of the environment,
                the episode is over.
        """
        self._check_action(action)
        try:
            self._check_length(action)
            outcome = self._act(action)
        except InvalidAction as error:
            return self._record(action, error)
        except BaseException:  # the state of the environment is unknown
            self._done = True
            raise
        return self._record(action, outcome)

    def render(self) -> str | np.ndarray | None:
        """Return the latest observation if ``render_mode`` is ``"ansi"``, else ``None``."""
        return self._observation if self.render_mode == "ansi" else None

    # Saving and restoring state

    def get_state(self) -> bytes:
        """Return the whole state, including the random generator, as JSON bytes (never pickle).

        Raises:
            NotImplementedError: The state of this environment cannot be copied; the message gives the reason.
            gymnasium.error.ResetNeeded: No episode has been started.
        """
        return json.dumps(
            {
                "schema": _STATE_SCHEMA,
                "env": type(self).__name__,
                "task": self.task.to_json(),
                "turn": self._turn,
                "done": self._done,
                "observation": self._observation,
                "np_random": self.np_random.bit_generator.state,
                "env_state": self._env_state(),
            }
        ).encode()

    def set_state(self, state: bytes) -> None:
        """Restore a state that :meth:`get_state` of the same environment class returned.

        Raises:
            ValueError: The bytes are not such a state.
        """
        try:
            saved = json.loads(state)
            schema, name = saved["schema"], saved["env"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"not a saved environment state ({error}); use the bytes get_state() returned") from error
        if (schema, name) != (_STATE_SCHEMA, type(self).__name__):
            raise ValueError(
                f"this state was saved by {name!r} (schema {schema}); this environment is {type(self).__name__!r} "
                f"(schema {_STATE_SCHEMA})"
            )
        try:
            generator = np.random.Generator(np.random.PCG64())
            generator.bit_generator.state = saved["np_random"]
            task, turn, done = Task.from_json(saved["task"]), int(saved["turn"]), bool(saved["done"])
            observation, env_state = str(saved["observation"]), saved["env_state"]
            self._task, self._turn, self._done, self._observation = task, turn, done, observation
            self._restore_env_state(env_state)
            self.np_random = generator
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._done = True  # a partially restored state is unusable: the next step() raises ResetNeeded
            raise ValueError(f"the saved state of {name!r} is damaged ({type(error).__name__}: {error})") from error

    def fork(self) -> Self:
        """Return an independent copy of this environment in the same state."""
        args, kwargs = self._constructor
        copy = type(self)(*args, **kwargs)
        copy.set_state(self.get_state())
        return copy

    # Bookkeeping, shared with AsyncTextEnv

    def _start_episode(self, seed: int | None, options: Mapping[str, Any] | None) -> Task:
        super().reset(seed=seed)
        self._task = self._choose_task(options)
        self._turn = 0
        self._done = True  # until the environment is set up
        return self._task

    def _record_reset(self, observation: str) -> tuple[str, dict[str, Any]]:
        self._observation, self._done = observation, False
        info = self._info(False, False, "", {})
        info["tools"] = self._tools()
        return observation, info

    def _check_action(self, action: str) -> None:
        if self._done:
            raise ResetNeeded("the episode is over or was never started: call reset() before step()")
        if not isinstance(action, str):
            raise TypeError(f"an action must be a str (the model's raw reply); got {type(action).__name__}")

    def _check_length(self, action: str) -> None:
        longest = self.action_space.max_length  # type: ignore[attr-defined]
        if len(action) > longest:
            raise InvalidAction(f"The reply has {len(action)} characters; at most {longest} are read.")

    def _record(self, action: str, outcome: Outcome | InvalidAction) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Count the turn and return the result of ``step``."""
        invalid = isinstance(outcome, InvalidAction)
        if isinstance(outcome, InvalidAction):
            outcome = Outcome(str(outcome), {"invalid_action": 0.0 - self.invalid_action_penalty})
        self._turn += 1

        terminated, truncated, stop_reason = outcome.terminated, False, ""
        success = terminated and outcome.success
        if terminated:
            stop_reason = _SUCCESS if success else _FAILURE
        elif self._turn >= self.max_turns:
            if self.max_turns == 1:
                terminated = True
                stop_reason = _INVALID_ACTION if invalid else _FAILURE
            else:
                truncated = True
                stop_reason = _MAX_TURNS
        self._done = terminated or truncated
        self._observation = outcome.observation
        components = {name: float(value) for name, value in outcome.rewards.items()}
        info = self._info(invalid, success, stop_reason, components)
        if outcome.info:
            info.update(outcome.info)
        return outcome.observation, float(sum(components.values())), terminated, truncated, info

    def _choose_task(self, options: Mapping[str, Any] | None) -> Task:
        chosen: Any = None
        if options:
            unknown = sorted(set(options) - {"task"})
            if unknown:
                raise TaskError(f"unknown reset option(s) {unknown}; the only option is 'task'")
            chosen = options["task"]
        if chosen is None:
            return self.tasks[int(self.np_random.integers(len(self.tasks)))]
        if isinstance(chosen, Task):
            return chosen
        if isinstance(chosen, str):
            return self.tasks.find(chosen)
        if isinstance(chosen, int | np.integer) and not isinstance(chosen, bool):
            if not 0 <= chosen < len(self.tasks):
                raise TaskError(f"task index {chosen} is outside 0..{len(self.tasks) - 1}")
            return self.tasks[int(chosen)]
        raise TaskError(f"options['task'] must be an index, a task id or a Task; got {type(chosen).__name__}")

    def _info(self, invalid: bool, success: bool, stop_reason: str, components: dict[str, float]) -> dict[str, Any]:
        info = {
            "task_id": self.task.task_id,
            "turn": self._turn,
            "invalid_action": invalid,
            "success": success,
            "stop_reason": stop_reason,
            "reward_components": components,
        }
        self._add_info(info)
        return info
