"""The base class of workflows: episodes with several agents, written as plain Python coroutines."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from rllm_gym.core import Episode, Task
from rllm_gym.engine.workflow_context import WorkflowContext

WorkflowTask = Task | Mapping[str, Any] | int | str | None


class Workflow(ABC):
    """An episode, written as a coroutine. Subclasses write :meth:`run`.

    >>> class Echo(Workflow):
    ...     async def run(self, task, context):
    ...         session = context.agent("agent_0", system="Repeat what you hear.")
    ...         reply = await session.generate(task["text"])
    ...         session.add_reward(float(reply.text == task["text"]))

    If the engine is given a class or a factory, each object runs one episode at a time. A single object given to the
    engine runs all episodes concurrently and must not store anything on itself.
    """

    roles: ClassVar[tuple[str, ...]] = ("agent",)
    """The roles that its agents can have. An instance may override them."""

    @abstractmethod
    async def run(self, task: WorkflowTask, context: WorkflowContext) -> Episode | None:
        """Run one episode.

        The coroutine may start its own tasks (``asyncio.gather``, ``asyncio.TaskGroup``). Tasks that have used
        ``context`` and are not done when it returns are cancelled. An exception of its own ends the episode as
        ``StopReason.AGENT_ERROR``. Run blocking work with ``await context.call(function, …)``.

        Args:
            task: The task as in the spec: a :class:`~rllm_gym.core.Task` or row, an index or id of the environment's
                tasks, or ``None``.
            context: Gives access to agents, environments, games and worker calls.

        Returns:
            The result of ``context.finish(…)``; ``None`` means ``context.finish()``.
        """
