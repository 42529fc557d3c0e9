"""What an episode is about, and when it is solved: an errand by its exact end state, a page of one's own by a check."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import random
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rllm_gym.core import EnvironmentFault, TaskError
from rllm_gym.envs.web.page_state import PageState
from rllm_gym.envs.web.rows import ErrandRow, PageRow
from rllm_gym.grading.answers import matches
from rllm_gym.sites.errand import Errand, Template, World
from rllm_gym.sites.http import Handler, Request, Response
from rllm_gym.workers import DeadlineExceeded, WorkerPool

WORLD_DEADLINE_S = 60.0
"""Seconds that making a world, or comparing it at the end, may take."""

Check = Callable[[PageState, str | None], Any]


@dataclass(frozen=True, slots=True)
class Ending:
    """How the model ended the episode.

    Attributes:
        answer: What ``answer("…")`` said; ``None`` where the turns ran out or the task was reported infeasible.
        infeasible: The reason that ``report_infeasible`` gave, else ``None``.
    """

    answer: str | None = None
    infeasible: str | None = None

    @property
    def said(self) -> bool:
        """Whether the model ended it at all."""
        return self.answer is not None or self.infeasible is not None


class Case(Protocol):
    """One task, set up."""

    goal: str
    start: str
    sites: Mapping[str, Handler]
    origins: tuple[str, ...]

    async def solved(self, ending: Ending, state: Callable[[], Awaitable[PageState]]) -> bool:
        """Whether the end is the one that was asked for.

        Args:
            ending: What the model said.
            state: Looks at the browser; asked only where it matters.

        Raises:
            EnvironmentFault: It cannot be told; kind ``"check"``.
        """
        ...


# Errands -----------------------------------------------------------------------------------------------------------


class ErrandCase:
    """An errand on sites of this process. The world of the episode is its own.

    Raises:
        TaskError: The template does not exist at this difficulty, or asks for nothing.
    """

    def __init__(self, template: Template, row: ErrandRow) -> None:
        if row.difficulty not in template.difficulties:
            levels = ", ".join(map(str, template.difficulties))
            raise TaskError(f"the template {template.name!r} has no difficulty {row.difficulty}; it has {levels}")
        self._lock = threading.Lock()
        self.world: World = template.build(row.seed, row.difficulty)
        self.errand: Errand = template.errand(self.world, random.Random(row.seed), row.difficulty)
        if self.errand.outcome is None and self.errand.answer is None and not self.errand.infeasible:
            raise TaskError(f"the template {template.name!r} asks for no change and no answer: nothing could fail it")
        # Now, while the episode's world is untouched: an outcome may have been told in its terms.
        twin = template.build(row.seed, row.difficulty)
        if self.errand.outcome is not None:
            self.errand.outcome(twin)
        self._twin = twin
        self.goal, self.start = self.errand.goal, self.errand.start
        self.sites: Mapping[str, Handler] = {
            origin: self._alone(handler) for origin, handler in self.world.handlers().items()
        }
        self.origins: tuple[str, ...] = ()

    def _alone(self, handler: Handler) -> Handler:
        """One request or comparison at a time: the browser asks from a thread of its own."""

        def answer(request: Request) -> Response:
            with self._lock:
                return handler(request)

        return answer

    async def solved(self, ending: Ending, state: Callable[[], Awaitable[PageState]]) -> bool:
        try:
            return bool(await aside(self.is_solved, ending, timeout=WORLD_DEADLINE_S))
        except Exception as error:
            raise _fault(f"the world of the errand {self.errand.goal!r:.200} cannot be compared", error) from error

    def is_solved(self, ending: Ending) -> bool:
        """Whether the world is exactly as it should be, and the right thing was said. Blocks for milliseconds."""
        errand = self.errand
        if errand.infeasible != (ending.infeasible is not None):
            return False
        if errand.answer is not None and (ending.answer is None or not matches(errand.answer, ending.answer)):
            return False
        with self._lock:
            return bool(self.world.facts() == self._twin.facts())


async def set_up_errand(template: Template, row: ErrandRow) -> ErrandCase:
    """An :class:`ErrandCase`, made beside the event loop.

    Raises:
        TaskError: As :class:`ErrandCase`.
        EnvironmentFault: The template's own functions raise or take too long; kind ``"check"``.
    """
    try:
        return await aside(ErrandCase, template, row, timeout=WORLD_DEADLINE_S)  # type: ignore[no-any-return]
    except TaskError:
        raise
    except Exception as error:
        raise _fault(f"the template {template.name!r} cannot be set up with seed {row.seed}", error) from error


def _fault(what: str, error: Exception) -> EnvironmentFault:
    if isinstance(error, EnvironmentFault):
        return error
    return EnvironmentFault(f"{what}: {type(error).__name__}: {error}", kind="check")


# Pages of one's own ------------------------------------------------------------------------------------------------


class PageCase:
    """A page of a server, judged by a function, a typed answer, or both.

    Raises:
        TaskError: The function cannot be found, or is no check.
    """

    def __init__(self, row: PageRow, *, check_timeout_s: float) -> None:
        self._row, self._timeout_s = row, check_timeout_s
        self._check = None if row.check is None else find_check(row.check)
        self.goal, self.start, self.origins = row.goal, row.url, row.origins
        self.sites: Mapping[str, Handler] = {}

    async def solved(self, ending: Ending, state: Callable[[], Awaitable[PageState]]) -> bool:
        row = self._row
        if row.infeasible != (ending.infeasible is not None):
            return False
        if row.answer is not None and (ending.answer is None or not matches(row.answer, ending.answer)):
            return False
        if self._check is None:
            return True
        seen = await state()
        try:
            verdict = await aside(_run_check, self._check, seen, ending.answer, timeout=self._timeout_s)
        except Exception as error:
            raise _fault(f"the check {row.check!r} raised", error) from error
        if not isinstance(verdict, bool):
            raise EnvironmentFault(
                f"the check {row.check!r} returned {verdict!r:.80}; a check returns True or False", kind="check"
            )
        return verdict


def find_check(name: str) -> Check:
    """The function that ``"module:function"`` names.

    Raises:
        TaskError: It cannot be imported, or is not a function of that module that takes (state, answer). Functions
            that merely pass through a module, such as ``os:system``, are refused: rows are data.
    """
    module_name, _, attribute = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # whatever its top level raises
        raise TaskError(
            f"the check {name!r} cannot be imported ({type(error).__name__}: {error}); its module must lie on the "
            "Python path (PYTHONPATH, or beside the script)"
        ) from error
    function = getattr(module, attribute, None)
    if not inspect.isfunction(function) or function.__module__ != module.__name__:
        raise TaskError(f"the check {name!r} is no function that {module_name} defines")
    try:
        inspect.signature(function).bind(None, None)
    except TypeError as error:
        raise TaskError(f"the check {name!r} does not take (state, answer): {error}") from error
    return function


def _run_check(check: Check, state: PageState, answer: str | None) -> Any:
    verdict = check(state, answer)
    if inspect.iscoroutine(verdict):
        return asyncio.run(verdict)
    return verdict


# Beside the event loop ---------------------------------------------------------------------------------------------

_MOST_ASIDE = 32
_pool: WorkerPool | None = None


def _forget_pool() -> None:
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)


async def aside(function: Callable[..., Any], *arguments: Any, timeout: float) -> Any:  # noqa: ASYNC109
    """``function(*arguments)`` in a thread, with a deadline in seconds.

    Raises:
        EnvironmentFault: It was late; kind ``"check"``.
        Exception: What it raised.
    """
    global _pool
    if _pool is None:
        _pool = WorkerPool("thread", max_workers=_MOST_ASIDE, name="web-checks")
    try:
        return await _pool.arun(function, *arguments, timeout=timeout)
    except DeadlineExceeded as error:
        name = getattr(function, "__qualname__", repr(function))
        raise EnvironmentFault(f"{name} was not done within {timeout:g} s", kind="check") from error
