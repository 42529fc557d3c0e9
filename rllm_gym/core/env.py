"""The base class of all environments: a Gymnasium environment whose observations and actions are text.

This module does the bookkeeping that is the same for every environment: choosing the task, counting turns,
distinguishing termination from truncation, and filling ``info``. It uses no model and no tokens, and does no I/O.
Saved states are in ``rllm_gym.core.saved_state``, the environments themselves in ``rllm_gym.envs``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded

from rllm_gym.argument_checks import check_int, check_type
from rllm_gym.core.errors import TaskError
from rllm_gym.core.saved_state import SavedState
from rllm_gym.core.stop_reason import StopReason
from rllm_gym.core.task import Task, TaskSource, select_task
from rllm_gym.core.text_space import Text

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


class TextEnv(SavedState, gymnasium.Env[str, str]):
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
    reply_tokens: ClassVar[int] = 512
    """Length of a reply in tokens that is enough for most tasks, with reasoning: a trainer's default limit."""
    max_step_s: float = 0.0
    """Seconds that a step can take because of the model, whose programs and calls the environment itself ends: engines
    and vector environments add them to the deadline of a step, since a step that is late is a fault."""
    _state_key = "env"

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
        check_int("max_turns", max_turns)
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

    # Saving and restoring state, see SavedState

    def _episode_state(self) -> dict[str, Any]:
        return {"turn": self._turn, "done": self._done, "observation": self._observation}

    def _restore_episode(self, saved: dict[str, Any]) -> None:
        self._turn, self._done = int(saved["turn"]), bool(saved["done"])
        self._observation = str(saved["observation"])

    def _end_episode(self) -> None:
        self._done = True

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
        if options is not None:
            check_type("options", options, Mapping, "a dictionary such as {'task': 0}, or None")
        unknown = sorted(set(options or ()) - {"task"})
        if unknown:
            raise TaskError(f"unknown reset option(s) {unknown}; the only option is 'task'")
        return select_task(self.tasks, (options or {}).get("task"), self.np_random)

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
