"""The task of an episode and its grading: a built-in task by its exact end state, a row by its check."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rllm_gym.core import EnvironmentFault, TaskError
from rllm_gym.envs.mcp.domains import DomainState, ToolTask, ToolTaskTemplate, wanted_facts
from rllm_gym.envs.mcp.rows import ServerTaskRow
from rllm_gym.envs.mcp.user import PolicyUser, ScriptedUser, SimulatedUser, UserFactory, UserTools
from rllm_gym.envs.task_templates import TemplateTaskRow, build_template_task
from rllm_gym.envs.workspace_files import write_workspace
from rllm_gym.grading.answers import matches
from rllm_gym.grading.user_checks import (
    FAILED,
    PASSED,
    TRIAL_ANSWER,
    CheckResult,
    run_check,
    run_function,
    run_in_thread,
    start_of,
)
from rllm_gym.mcp import InProcessServer, Server, ToolResult, ToolSession
from rllm_gym.runtime.scratch import scratch_root

STATE_DEADLINE_S = 60.0
"""Deadline in seconds for creating the state of a built-in task, or comparing it at the end."""

KEPT_CHARS = 32_000_000
"""Limit of the call results kept for an episode's check: characters, and bytes of images."""

_CUT_CHARS = 1_000


@dataclass(frozen=True, slots=True)
class ToolCallRecord:
    """A call that was sent, and its result.

    Attributes:
        name: The tool name that the model used.
        arguments: The arguments that were sent.
        result: The server's result.
        turn: How many messages of the user came before.
        by_user: Whether the user made it, not the model.
    """

    name: str
    arguments: Mapping[str, Any]
    result: ToolResult
    turn: int = 0
    by_user: bool = False


class ToolCallLog:
    """The calls and messages of an episode. A result that no longer fits into :data:`KEPT_CHARS` loses its middle, its
    images and its structured content."""

    def __init__(self) -> None:
        self.calls: list[ToolCallRecord] = []
        self.messages: list[Mapping[str, str]] = []
        self._chars_left = KEPT_CHARS

    def add(self, name: str, arguments: Mapping[str, Any], result: ToolResult, *, by_user: bool = False) -> None:
        """Record a call that was answered."""
        size = len(result.text) + sum(map(len, result.images))
        if result.structured is not None:
            size += len(json.dumps(result.structured))
        if size > self._chars_left:
            result = ToolResult(result.shortened(_CUT_CHARS), result.is_error)
        else:
            self._chars_left -= size
        turn = sum(message["role"] == "user" for message in self.messages)
        self.calls.append(ToolCallRecord(name, arguments, result, turn, by_user))


@dataclass(frozen=True, slots=True)
class ToolEpisodeEnd:
    """How the model ended the episode: with an answer, or with a reason why the task cannot be done."""

    answer: str | None = None
    infeasible: str | None = None


@dataclass(frozen=True, slots=True)
class ToolState:
    """The end of an episode, passed to a check.

    Attributes:
        workspace: The episode's directory.
        answer: The final answer; ``None`` if the task was reported infeasible.
        infeasible: The reason given, or ``None``.
        calls: Every call of the episode, in order; if the results exceed 32 MB, some of them are cut.
        data: ``"data"`` of the row.
        session: The episode's tools, still open.
        messages: The conversation with the user, ``{"role": "user" | "assistant", "content"}``; empty without a user.
        timeout: Deadline of the check in seconds: ``check_timeout`` of the environment.
    """

    workspace: Path
    answer: str | None
    infeasible: str | None
    calls: tuple[ToolCallRecord, ...]
    data: Any
    session: ToolSession
    messages: tuple[Mapping[str, str], ...] = ()
    timeout: float = 30.0

    def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> ToolResult:
        """Query a server's state with any of its tools, including those that were not offered to the model. A check
        that is a coroutine awaits ``session.call`` instead. Returns and raises as
        :meth:`~rllm_gym.mcp.ToolSession.call`: the result of a server that breaks is an error.
        """
        return asyncio.run(self.session.call(name, dict(arguments or {})))


class ToolTaskInstance(Protocol):
    """One task, set up for an episode."""

    goal: str
    servers: tuple[Server, ...]
    """The servers that do not depend on the workspace."""
    tools: tuple[str, ...] | None
    user_tools: tuple[str, ...]
    """The tools of the user, which the model is not offered."""
    seed: int | None

    def user(self, model: UserFactory | None, seed: Callable[[], int], tools: UserTools | None) -> SimulatedUser | None:
        """Return the user of the conversation, or ``None`` if the task has none.

        Raises:
            TaskError: It needs a model, and there is none.
        """
        ...

    async def prepare(self, workspace: Path, seed: int) -> Sequence[Server]:
        """Create the episode's initial state; return the servers to connect to."""
        ...

    async def try_check(self, task_id: str, session: ToolSession) -> None:
        """Call the check before the first action.

        Raises:
            EnvironmentFault: It is broken, or ends a server; kind ``"check"``.
        """
        ...

    async def graded(self, end: ToolEpisodeEnd, session: ToolSession, log: ToolCallLog) -> CheckResult:
        """Return whether, or how far, the end state and answer are as requested.

        Raises:
            EnvironmentFault: This cannot be determined, without the model's doing.
        """
        ...


def _answered_correctly(infeasible: bool, answer: Mapping[str, Any] | None, end: ToolEpisodeEnd) -> bool:
    if infeasible or end.infeasible is not None:
        return infeasible and end.infeasible is not None
    return answer is None or (end.answer is not None and matches(answer, end.answer))


class BuiltinTaskInstance:
    """A built-in task. Each episode has its own state.

    Raises:
        TaskError: The template does not exist at this difficulty, or requests neither a change nor an answer.
    """

    def __init__(self, template: ToolTaskTemplate, row: TemplateTaskRow) -> None:
        self._template, self._row = template, row
        self.state: DomainState
        self.task: ToolTask
        self.state, self.task = build_template_task(template, row)
        self.goal = self.task.goal
        self.servers: tuple[Server, ...] = ()
        self.tools: tuple[str, ...] | None = None
        self.user_tools: tuple[str, ...] = ()
        self.seed: int | None = row.seed

    @classmethod
    async def make(cls, template: ToolTaskTemplate, row: TemplateTaskRow) -> BuiltinTaskInstance:
        """Create the case in a thread: it takes milliseconds, for which an event loop must not be blocked."""
        return await run_in_thread(cls, template, row, timeout=STATE_DEADLINE_S)  # type: ignore[no-any-return]

    def user(self, model: UserFactory | None, seed: Callable[[], int], tools: UserTools | None) -> SimulatedUser | None:
        return None

    async def prepare(self, workspace: Path, seed: int) -> Sequence[InProcessServer]:
        await run_in_thread(self.state.prepare, workspace, timeout=STATE_DEADLINE_S)
        return self.state.servers(workspace)

    async def try_check(self, task_id: str, session: ToolSession) -> None:
        """Do nothing: the comparison of a built-in task raises a fault at the end."""

    async def graded(self, end: ToolEpisodeEnd, session: ToolSession, log: ToolCallLog) -> CheckResult:
        if not _answered_correctly(self.task.infeasible, self.task.answer, end):
            return FAILED
        where, blamed = session.workspace, f"template {self._row.template!r}"
        return await run_check(self._has_expected_state, where, timeout=STATE_DEADLINE_S, fault_of=blamed)

    def _has_expected_state(self, workspace: Path) -> bool:
        row = self._row
        with tempfile.TemporaryDirectory(prefix="copy-", dir=scratch_root()) as folder:
            wanted = wanted_facts(self._template, self.task, row.seed, row.difficulty, Path(folder))
        return bool(self.state.facts(workspace) == wanted)


class ServerTaskInstance:
    """A row with its own servers, graded by a function, a typed answer, or both."""

    def __init__(self, row: ServerTaskRow, *, check_timeout: float) -> None:
        self._row, self._timeout = row, check_timeout
        self.goal, self.servers, self.tools = row.prompt, row.servers, row.tools
        self.user_tools = row.user_tools
        self.seed: int | None = None

    def user(self, model: UserFactory | None, seed: Callable[[], int], tools: UserTools | None) -> SimulatedUser | None:
        user = self._row.user
        if user is None or isinstance(user, tuple):
            return None if user is None else ScriptedUser(user)
        if not isinstance(user, str):
            return PolicyUser(user, self._row.data, self._timeout)
        if model is None:
            raise TaskError(
                "its user has a scenario, which a model plays; pass user_model=rllm_gym.user_model.UserModel(model, "
                "base_url) to the environment"
            )
        return model.user(user, seed()) if tools is None else model.user(user, seed(), tools)

    async def prepare(self, workspace: Path, seed: int) -> Sequence[Server]:
        row = self._row
        if row.workspace:
            await run_in_thread(write_workspace, workspace, row.workspace, timeout=STATE_DEADLINE_S)
        if row.setup is not None:
            try:
                await run_in_thread(run_function, row.setup, workspace, seed, row.data, timeout=STATE_DEADLINE_S)
            except Exception as error:
                words = f"the setup of {row.prompt!r:.80} failed: {type(error).__name__}: {error}"
                raise EnvironmentFault(words, kind="setup") from error
        return self.servers

    async def try_check(self, task_id: str, session: ToolSession) -> None:
        row = self._row
        if row.check is not None:
            answer, reason = (None, TRIAL_ANSWER) if row.infeasible else (TRIAL_ANSWER, None)
            state = self._state(ToolEpisodeEnd(answer, reason), session, ToolCallLog())
            await run_check(row.check, state, timeout=self._timeout, fault_of=start_of(task_id), is_trial=True)
            session.end_of_trial()

    async def graded(self, end: ToolEpisodeEnd, session: ToolSession, log: ToolCallLog) -> CheckResult:
        row = self._row
        if not _answered_correctly(row.infeasible, row.answer, end):
            return FAILED
        if row.check is None:
            return PASSED
        result = await run_check(row.check, self._state(end, session, log), timeout=self._timeout)
        # A model could have made a server end during the check, and forget what the check looks for.
        return FAILED if session.lost else result

    def _state(self, end: ToolEpisodeEnd, session: ToolSession, log: ToolCallLog) -> ToolState:
        calls, messages = tuple(log.calls), tuple(log.messages)
        data, timeout = self._row.data, self._timeout
        return ToolState(session.workspace, end.answer, end.infeasible, calls, data, session, messages, timeout)
