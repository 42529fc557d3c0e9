"""The state that the agents and environments of one workflow attempt share: time, tokens, the task, and the error that
ended it."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Mapping
from typing import Any

from rllm_gym.core import Task
from rllm_gym.engine.attempt import AgentError
from rllm_gym.engine.sampler_client import SamplerClient
from rllm_gym.engine.spec import EpisodeSpec
from rllm_gym.engine.task_cancellation import cancel_tasks
from rllm_gym.engine.token_budget import TokenBudget, Truncated

_MAX_REFUSALS = 1_000  # number of refusals after which code that catches every exception is ended


class AttemptState:
    """The state of one attempt at an episode of a workflow.

    Args:
        spec: The episode to run.
        sampler_client: Where its agents request replies.
        token_budget: The tokens and turns that its agents together have left.
        env_made: Set by an error of the workflow's own, which does not mean that no environment can be made.
        close_timeout: Maximum duration of the cancellation of its tasks, in seconds.

    Attributes:
        seconds: Waiting time in seconds by phase.
        task_id, task_row: The task, as in the spec or as the first environment reported it.
        error: The error after which the attempt cannot continue.
        aborted: Done when there is such an error.
    """

    def __init__(
        self,
        spec: EpisodeSpec,
        *,
        sampler_client: SamplerClient,
        token_budget: TokenBudget,
        env_made: threading.Event,
        close_timeout: float,
    ) -> None:
        self.spec = spec
        self.seed = spec.seed or 0
        self.sampler_client = sampler_client
        self.token_budget = token_budget
        self.close_timeout = close_timeout
        self.seconds = {"env": 0.0, "sample": 0.0, "render": 0.0, "agent": 0.0}
        self.task_row = _row(spec.task)
        self.task_id = str((self.task_row or {}).get("task_id", ""))
        self.error: Exception | None = None
        self.aborted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._env_made = env_made
        self._refused = 0
        self._closed = False
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

    async def check_running(self) -> None:
        """Register the current task before it waits, and refuse if the episode is over or has failed.

        Raises:
            RuntimeError: The episode is over.
            EnvironmentFault, SamplerError, AgentError: The error that ended the episode before.
        """
        if self._closed or self.error is not None:
            await self._refuse()
        if self._closed:
            raise RuntimeError(f"episode {self.spec.episode_id!r} is over: its context can no longer be used")
        if self.error is not None:
            raise self.error
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)

    async def refuse_truncated(self, cut: Truncated) -> None:
        """Count a request to an agent that a limit has stopped, to end code that repeats such requests forever."""
        if self._refused == _MAX_REFUSALS:
            self.fail(
                AgentError(
                    f"{cut}; the workflow requested a reply {_MAX_REFUSALS} times nevertheless: end the loop, or "
                    "do not catch Truncated"
                )
            )
        await self._refuse()

    async def _refuse(self) -> None:
        """Let other tasks run before the refusal. A task that ignores too many refusals waits until it is cancelled."""
        self._refused += 1
        if self._refused > 2 * _MAX_REFUSALS:
            await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)

    def abort(self, error: Exception) -> None:
        """Record that the attempt cannot continue. Only the first error is kept."""
        self.error = self.error or error
        if not self.aborted.done():
            self.aborted.set_result(None)

    def fail(self, error: Exception) -> None:
        """Call :meth:`abort` for an error of the workflow, which does not mean that no environment can be made."""
        self._env_made.set()
        self.abort(error)

    def set_task(self, task_id: str, row: dict[str, Any] | None) -> None:
        """Record the task that an environment reported. The first report is used if the spec does not name a task."""
        self.task_id = self.task_id or task_id
        self.task_row = self.task_row or row

    async def aclose(self, work: asyncio.Task[Any]) -> None:
        """Cancel the workflow and all of its tasks that still request something. Nothing continues afterwards."""
        self._closed = True
        await cancel_tasks([*({*self._tasks} - {work, asyncio.current_task()}), work], self.close_timeout)


def _row(task: Any) -> dict[str, Any] | None:
    if isinstance(task, Task):
        return task.to_json()
    return dict(task) if isinstance(task, Mapping) else None
