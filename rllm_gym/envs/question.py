"""The base class of environments that ask one question and grade the replies to it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from rllm_gym.core import InvalidAction, Outcome, Task, TaskError, TextEnv
from rllm_gym.envs.transcript import transcript


class QuestionEnv(TextEnv):
    """An environment that asks one question and grades the replies to it. Subclasses write :meth:`_act`.

    Math, Code and ToolMath are such environments. The base class records the replies for :meth:`render`, rejects a
    question that does not fit into the observation space, and copies the state. An environment whose grader is a
    coroutine is ``class MyEnv(QuestionEnv, AsyncTextEnv)`` and writes ``_async_act`` instead of ``_act``.

    The arguments are those of :class:`~rllm_gym.core.TextEnv`; ``max_turns=1`` allows a single reply.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["ansi"], "render_fps": 4}  # type: ignore[misc]

    _replies: list[tuple[str, str]]

    def _question(self, task: Task) -> str:
        """Prepare for grading the replies to ``task``; return the question with the answer format.

        Also called to restore a state, so the result must depend on nothing but the task. A subclass that keeps more
        than the task determines overrides ``_env_state`` and ``_restore_env_state`` as well.
        """
        return task.content

    def _begin(self, task: Task) -> str:
        return self._question(task)

    async def _async_begin(self, task: Task) -> str:  # of an environment that is an AsyncTextEnv as well
        return self._question(task)

    def _turns_left(self, advice: str) -> str:
        """Return how many turns are left after this one, and what to do with them."""
        left = self.max_turns - self._turn - 1
        return f"You have {left} turn{'s' * (left > 1)} left: {advice}" if left else "No turns are left."

    def _record_reset(self, observation: str) -> tuple[str, dict[str, Any]]:
        longest = self.observation_space.max_length  # type: ignore[attr-defined]
        if len(observation) > longest:
            raise TaskError(
                f"task {self.task.task_id!r} needs an observation of {len(observation)} characters, which exceeds "
                f"max_observation_chars={longest}; increase it"
            )
        self._replies = []
        return super()._record_reset(observation)

    def _record(self, action: str, outcome: Outcome | InvalidAction) -> tuple[str, float, bool, bool, dict[str, Any]]:
        result = super()._record(action, outcome)
        self._replies.append((action, result[0]))
        return result

    def render(self) -> str | np.ndarray | None:
        """Return the question and each reply with its result, for ``render_mode="ansi"``."""
        if self.render_mode != "ansi":
            return None
        return transcript(self.task.task_id, self.task.content, self._replies)

    def _env_state(self) -> dict[str, Any]:
        return {"replies": [list(entry) for entry in self._replies]}

    def _restore_env_state(self, state: dict[str, Any]) -> None:
        self._question(self.task)
        self._replies = [(str(reply), str(observation)) for reply, observation in state["replies"]]
