"""The contract every environment keeps: a Gymnasium environment whose observations and actions are text.

What lives here is bookkeeping that must be the same everywhere: choosing the task, counting turns, telling
termination from truncation, the keys of ``info``, copying an environment's state. What a world *is* lives in
``rllm_gym.envs``; no model, no tokens and no I/O live here.
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

_STATE_SCHEMA = 1
# Info carries plain strings; reading .value of an enum on every step would cost more than the rest of it.
_SUCCESS, _FAILURE = StopReason.SUCCESS.value, StopReason.FAILURE.value
_INVALID_ACTION, _MAX_TURNS = StopReason.INVALID_ACTION.value, StopReason.MAX_TURNS.value


class InvalidAction(Exception):
    """Raised by :meth:`TextEnv._act` for a reply that cannot be parsed; its message tells the model exactly why."""


@dataclass(slots=True)
class Outcome:
    """What one valid action did to the world.

    Attributes:
        observation: The text that is new this turn.
        rewards: Reward by component; their sum is the reward of the step.
        terminated: The task is over: solved, failed or submitted.
        success: The task is solved. Only meaningful with ``terminated``.
        info: Further info keys of this environment. Each key keeps one Python type for ever.
    """

    observation: str
    rewards: dict[str, float] = field(default_factory=dict)
    terminated: bool = False
    success: bool = False
    info: dict[str, Any] = field(default_factory=dict)


class TextEnv(gymnasium.Env[str, str]):
    """A Gymnasium environment of text. Subclass it and write :meth:`_begin` and :meth:`_act`.

    **Observation**: the text that is new this turn; the first one alone suffices to act.
    **Action**: the model's raw reply, any Unicode string. The environment parses it. A reply that cannot be
    parsed is an ordinary turn: an observation that says what was wrong, ``info["invalid_action"]``, no change of
    state. In a single-turn environment (``max_turns=1``) it ends the episode with reward 0.
    **Episode end**: solved, failed or submitted is ``terminated``; out of turns is ``truncated``; never both. A
    single-turn environment always terminates on its one step.
    **Info**, always: ``task_id: str``, ``turn: int``, ``invalid_action: bool``, ``success: bool``,
    ``stop_reason: str`` (``""`` while the episode goes on), ``reward_components: dict[str, float]``; from ``reset``
    also ``tools: str``, a JSON list of OpenAI tool schemas (``"[]"`` where there are none).
    **Faults**: a broken world raises :class:`~rllm_gym.core.EnvironmentFault` and is never a reward.

    Args:
        tasks: The tasks to draw from.
        max_turns: Turns before truncation, at least 1. Invalid actions count.
        invalid_action_penalty: Taken from the reward on every turn whose reply could not be parsed.
        max_observation_chars: Longest observation; the space's bound.
        max_action_chars: Longest reply that is read; a longer one is an invalid action.
        render_mode: One of ``metadata["render_modes"]`` or ``None``.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"]}  # type: ignore[misc]

    _constructor: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        # Remembered so that fork() can build a twin of any subclass.
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
            raise TaskError("the task set is empty: there is nothing to reset to; give at least one task")
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
        self._over = True
        self._observation = ""

    # What a subclass writes -------------------------------------------------------------------------------

    @abstractmethod
    def _begin(self, task: Task) -> str:
        """Set the world up for ``task`` and return the first observation. Randomness is ``self.np_random``."""

    @abstractmethod
    def _act(self, action: str) -> Outcome:
        """Parse and carry out one reply.

        Raises:
            InvalidAction: The reply cannot be parsed; nothing may have changed.
            EnvironmentFault: The world broke.
        """

    def _tools(self) -> str:
        """The tools offered to the model, as a JSON list of OpenAI tool schemas."""
        return "[]"

    def _add_info(self, info: dict[str, Any]) -> None:
        """Put this environment's own keys into the info of every ``reset`` and ``step``, invalid actions included."""

    def _world_state(self) -> dict[str, Any]:
        """The world as JSON types, for :meth:`get_state`. Environments that cannot be copied leave this out."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot copy its world, so it has no get_state, set_state or fork"
        )

    def _restore_world(self, state: dict[str, Any]) -> None:
        """The inverse of :meth:`_world_state`; ``self.task`` is already set."""
        raise NotImplementedError(
            f"{type(self).__name__} cannot copy its world, so it has no get_state, set_state or fork"
        )

    # Gymnasium --------------------------------------------------------------------------------------------

    @property
    def task(self) -> Task:
        """The task of the current episode."""
        if self._task is None:
            raise ResetNeeded("no task yet: call reset() first")
        return self._task

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Seeds ``np_random``. It picks the task too, unless ``options`` names one; then it drives the
                dynamics alone.
            options: ``{"task": index | task_id | Task}`` or nothing.

        Raises:
            TaskError: There is no such task, or an option is unknown.
            EnvironmentFault: The world could not be set up.
        """
        super().reset(seed=seed)
        self._task = self._choose_task(options)
        self._turn = 0
        self._over = True  # until the world stands
        self._observation = self._begin(self._task)
        self._over = False
        info = self._info(False, False, "", {})
        info["tools"] = self._tools()
        return self._observation, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Give the model's raw reply to the environment.

        Raises:
            TypeError: ``action`` is not a string.
            gymnasium.error.ResetNeeded: The episode is over or never began.
            EnvironmentFault: The world broke; after this, as after any other error of the world, the episode is over.
        """
        if self._over:
            raise ResetNeeded("the episode is over (or never began): call reset() before step()")
        if not isinstance(action, str):
            raise TypeError(f"an action is a str, the model's raw reply; got {type(action).__name__}")
        invalid = False
        try:
            if len(action) > self.action_space.max_length:  # type: ignore[attr-defined]
                raise InvalidAction(
                    f"The reply has {len(action)} characters; at most {self.action_space.max_length} are read."  # type: ignore[attr-defined]
                )
            outcome = self._act(action)
        except InvalidAction as error:
            invalid = True
            outcome = Outcome(str(error), {"invalid_action": 0.0 - self.invalid_action_penalty})
        except BaseException:  # nobody knows how far the world got
            self._over = True
            raise
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
        self._over = terminated or truncated
        self._observation = outcome.observation
        components = {name: float(value) for name, value in outcome.rewards.items()}
        info = self._info(invalid, success, stop_reason, components)
        if outcome.info:
            info.update(outcome.info)
        return outcome.observation, float(sum(components.values())), terminated, truncated, info

    def render(self) -> str | np.ndarray | None:
        """The latest observation, for ``render_mode="ansi"``."""
        return self._observation if self.render_mode == "ansi" else None

    # State ------------------------------------------------------------------------------------------------

    def get_state(self) -> bytes:
        """The whole state, random generator included, as JSON bytes (never pickle).

        Raises:
            NotImplementedError: The world cannot be copied; the message says why.
            gymnasium.error.ResetNeeded: No episode has begun.
        """
        return json.dumps(
            {
                "schema": _STATE_SCHEMA,
                "env": type(self).__name__,
                "task": self.task.to_json(),
                "turn": self._turn,
                "over": self._over,
                "observation": self._observation,
                "np_random": self.np_random.bit_generator.state,
                "world": self._world_state(),
            }
        ).encode()

    def set_state(self, state: bytes) -> None:
        """Go back to a state that :meth:`get_state` of the same kind of environment gave.

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
                f"this state is of {name!r} (schema {schema}), not of {type(self).__name__!r} ({_STATE_SCHEMA})"
            )
        try:
            generator = np.random.Generator(np.random.PCG64())
            generator.bit_generator.state = saved["np_random"]
            task, turn, over = Task.from_json(saved["task"]), int(saved["turn"]), bool(saved["over"])
            observation, world = str(saved["observation"]), saved["world"]
            self._task, self._turn, self._over, self._observation = task, turn, over, observation
            self._restore_world(world)
            self.np_random = generator
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._over = True  # half a state is none: the next step() asks for reset()
            raise ValueError(f"the saved state of {name!r} is damaged ({type(error).__name__}: {error})") from error

    def fork(self) -> Self:
        """An independent twin in the same state: what happens to one never shows in the other."""
        args, kwargs = self._constructor
        twin = type(self)(*args, **kwargs)
        twin.set_state(self.get_state())
        return twin

    # ------------------------------------------------------------------------------------------------------

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
        raise TaskError(f"options['task'] is an index, a task id or a Task; got {type(chosen).__name__}")

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
