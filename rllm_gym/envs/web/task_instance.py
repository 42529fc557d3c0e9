"""The task of an episode and its grading: a built-in task by its exact end state, a user-provided page by a check."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from rllm_gym.core import EnvironmentFault, TaskError
from rllm_gym.envs.task_templates import TemplateTaskRow, build_template_task
from rllm_gym.envs.web.browser.storage_state import StorageState, read_storage_state
from rllm_gym.envs.web.page_server import PageServer
from rllm_gym.envs.web.page_state import PageState
from rllm_gym.envs.web.rows import PageRow
from rllm_gym.envs.web.sites.http import Handler, Request, Response
from rllm_gym.envs.web.sites.task import SiteState, WebTask, WebTaskTemplate
from rllm_gym.grading.answers import matches
from rllm_gym.grading.user_checks import (
    FAILED,
    PASSED,
    TRIAL_ANSWER,
    CheckResult,
    find_function,
    run_check,
    run_function,
    run_in_thread,
    start_of,
)

SITE_DEADLINE_S = 60.0
"""Deadline in seconds for creating a site's data, or comparing it at the end."""


@dataclass(frozen=True, slots=True)
class WebEpisodeEnd:
    """How the model ended the episode.

    Attributes:
        answer: The argument of ``answer("…")``; ``None`` if no turns were left or the task was reported infeasible.
        infeasible: The reason given to ``report_infeasible``, else ``None``.
    """

    answer: str | None = None
    infeasible: str | None = None

    @property
    def ended_by_model(self) -> bool:
        """Whether the model ended the episode itself."""
        return self.answer is not None or self.infeasible is not None


ReadState = Callable[[WebEpisodeEnd], Awaitable[PageState]]


class WebTaskInstance(Protocol):
    """One task, set up for an episode."""

    goal: str
    start: str
    sites: Mapping[str, Handler]
    origins: tuple[str, ...]
    files: Mapping[str, bytes]

    async def set_up(self, seed: Callable[[], int], server: PageServer | None) -> StorageState:
        """Prepare the episode; return what the browser's storage starts with.

        Args:
            seed: Returns the seed of the episode.
            server: The server of the row, if it has one.

        Raises:
            EnvironmentFault: It cannot be prepared; kind ``"setup"``.
        """
        ...

    async def try_check(self, task_id: str, state: ReadState) -> None:
        """Call the check before the first action.

        Raises:
            EnvironmentFault: It is broken; kind ``"check"``.
        """
        ...

    async def graded(
        self, end: WebEpisodeEnd, state: ReadState, can_be_caused_by_model: Callable[[], Awaitable[bool]]
    ) -> CheckResult:
        """Return whether, or how far, the end state and answer are as requested.

        Args:
            end: How the model ended the episode.
            state: Reads the state of the browser; called only if it is needed.
            can_be_caused_by_model: Whether a failure of the browser may be an effect of what the model did.

        Raises:
            EnvironmentFault: This cannot be determined, and not because of the model; kind ``"check"``.
        """
        ...


# Built-in tasks


class SiteTaskInstance:
    """A task on sites of this process. Each episode has its own copy of their data.

    Raises:
        TaskError: The template does not exist at this difficulty, or requests neither a change nor an answer.
    """

    def __init__(self, template: WebTaskTemplate, row: TemplateTaskRow) -> None:
        self._lock = threading.Lock()
        self.app: SiteState
        self.task: WebTask
        self.app, self.task = build_template_task(template, row)
        # Done now, while the episode's own data is unchanged, because an outcome may refer to it.
        expected = template.build(row.seed, row.difficulty)
        if self.task.outcome is not None:
            self.task.outcome(expected)
        self._expected = expected
        self.goal, self.start = self.task.goal, self.task.start
        self.sites: Mapping[str, Handler] = {
            origin: self._locked(handler) for origin, handler in self.app.handlers().items()
        }
        self.origins: tuple[str, ...] = ()
        self.files: Mapping[str, bytes] = self.task.files

    def _locked(self, handler: Handler) -> Handler:
        """Return a handler that serves one request or comparison at a time; the browser calls it from its thread."""

        def answer(request: Request) -> Response:
            with self._lock:
                return handler(request)

        return answer

    async def try_check(self, task_id: str, state: ReadState) -> None:
        """Do nothing: the comparison of a built-in task raises a fault at the end."""

    async def graded(
        self, end: WebEpisodeEnd, state: ReadState, can_be_caused_by_model: Callable[[], Awaitable[bool]]
    ) -> CheckResult:
        try:
            solved = await run_in_thread(self.is_solved, end, timeout=SITE_DEADLINE_S)
        except Exception as error:
            raise _fault(f"the site state of the task {self.task.goal!r:.200} cannot be compared", error) from error
        return PASSED if solved else FAILED

    async def set_up(self, seed: Callable[[], int], server: PageServer | None) -> StorageState:
        return StorageState()

    def is_solved(self, end: WebEpisodeEnd) -> bool:
        """Return whether the state is exactly as requested and the answer is right. Blocks for milliseconds."""
        web_task = self.task
        if web_task.infeasible != (end.infeasible is not None):
            return False
        if web_task.answer is not None and (end.answer is None or not matches(web_task.answer, end.answer)):
            return False
        with self._lock:
            return bool(self.app.facts() == self._expected.facts())


async def make_site_task_instance(template: WebTaskTemplate, row: TemplateTaskRow) -> SiteTaskInstance:
    """Create an :class:`SiteTaskInstance` in a thread, without blocking the event loop.

    Raises:
        TaskError: As :class:`SiteTaskInstance`.
        EnvironmentFault: The template's own functions raise or take too long; kind ``"check"``.
    """
    try:
        return await run_in_thread(SiteTaskInstance, template, row, timeout=SITE_DEADLINE_S)  # type: ignore[no-any-return]
    except TaskError:
        raise
    except Exception as error:
        raise _fault(f"the template {template.name!r} cannot be set up with seed {row.seed}", error) from error


def _fault(what: str, error: Exception) -> EnvironmentFault:
    if isinstance(error, EnvironmentFault):
        return error
    return EnvironmentFault(f"{what}: {type(error).__name__}: {error}", kind="check")


# User-provided pages


class PageTaskInstance:
    """A page of a server, graded by a function, a typed answer, or both.

    Raises:
        TaskError: The function was not found, or is not a check.
    """

    def __init__(self, row: PageRow, *, check_timeout: float) -> None:
        self.row, self._timeout = row, check_timeout
        self._check = None if row.check is None else find_function(row.check, "state", "answer")
        names = ("url", "seed", "data") if row.server is None else ("url", "seed", "data", "workspace")
        self._setup = None if row.setup is None else find_function(row.setup, *names)
        self.goal, self.start, self.origins, self.files = row.goal, row.url, row.origins, row.files
        self.sites: Mapping[str, Handler] = {}

    async def set_up(self, seed: Callable[[], int], server: PageServer | None) -> StorageState:
        if self._setup is None:
            return StorageState()
        row = self.row
        arguments = (row.url, seed(), row.data) if server is None else (server.url, seed(), row.data, server.workspace)
        try:
            result = await run_in_thread(run_function, self._setup, *arguments, timeout=self._timeout)
        except Exception as error:
            words = f"the setup {row.setup} failed: {type(error).__name__}: {error}"
            raise EnvironmentFault(words, kind="setup") from error
        try:
            return read_storage_state(result, row.origins)
        except ValueError as error:
            words = "must return None, cookies by name, or a storage_state of Playwright"
            raise EnvironmentFault(f"the setup {row.setup} {words}: {error}", kind="setup") from error

    async def try_check(self, task_id: str, state: ReadState) -> None:
        if self._check is not None:
            end = WebEpisodeEnd(*((None, TRIAL_ANSWER) if self.row.infeasible else (TRIAL_ANSWER, None)))
            page, blamed = await state(end), start_of(task_id)
            await run_check(self._check, page, end.answer, timeout=self._timeout, fault_of=blamed, is_trial=True)

    async def graded(
        self, end: WebEpisodeEnd, state: ReadState, can_be_caused_by_model: Callable[[], Awaitable[bool]]
    ) -> CheckResult:
        row = self.row
        if row.infeasible != (end.infeasible is not None):
            return FAILED
        if row.answer is not None and (end.answer is None or not matches(row.answer, end.answer)):
            return FAILED
        if self._check is None:
            return PASSED
        try:
            return await run_check(self._check, await state(end), end.answer, timeout=self._timeout)
        except EnvironmentFault as fault:
            from rllm_gym.envs.web.browser.errors import BrowserFault

            if not isinstance(fault, BrowserFault) or not await can_be_caused_by_model():
                raise
            return CheckResult(0.0, error=str(fault)[:1000])
