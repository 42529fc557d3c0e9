"""The types of tasks on the built-in sites: a goal in words, the requested end state, and a solution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from rllm_gym.envs.web.sites.http import Handler
from rllm_gym.envs.web.sites.moves import Answer, Move, ReportInfeasible


class SiteState(Protocol):
    """The state behind the sites of one episode: plain Python, determined by its seed."""

    def handlers(self) -> Mapping[str, Handler]:
        """Return the sites by origin: ``{"http://shop.test": …}``."""
        ...

    def facts(self) -> Any:
        """Return the state that is compared, as JSON types: two states are equal if their facts are equal.

        Facts exclude what browsing alone changes (last page seen, sort order chosen).
        """
        ...


@dataclass(frozen=True)
class WebTask:
    """One task on one state of the sites.

    Attributes:
        goal: The task in unambiguous words.
        start: URL of the first page.
        outcome: Changes a copy of the initial state to the requested state; the episode's state must end with the same
            facts, which detects every side effect. ``None`` if nothing may change.
        answer: The answer that ``answer("…")`` must give, in the format of :mod:`rllm_gym.grading.answers` (``{"type":
            "number", "value": 12.5}``), or ``None`` if no answer is requested.
        infeasible: Whether the goal cannot be reached; then ``report_infeasible`` with nothing changed is correct.
        moves: A solution from the first page on, starting from the initial state.
        files: What can be uploaded, by name.
    """

    goal: str
    start: str
    moves: tuple[Move, ...]
    outcome: Callable[[Any], object] | None = None
    answer: Mapping[str, Any] | None = None
    infeasible: bool = False
    files: Mapping[str, bytes] = field(default_factory=dict)


def question_task(goal: str, start: str, moves: Iterable[Move], text: str, answer: Mapping[str, Any]) -> WebTask:
    """Return a task that asks for ``answer``; its solution makes the moves and answers with ``text``."""
    return WebTask(goal, start, (*moves, Answer(text)), answer=answer)


def change_task(goal: str, start: str, moves: Iterable[Move], outcome: Callable[[Any], object]) -> WebTask:
    """Return a task that asks for a change; its solution makes the moves and answers that it is done."""
    return WebTask(goal, start, (*moves, Answer("done")), outcome)


def infeasible_task(goal: str, start: str, moves: Iterable[Move], reason: str) -> WebTask:
    """Return a task that cannot be done; its solution makes the moves, which show the reason, and reports it."""
    return WebTask(goal, start, (*moves, ReportInfeasible(reason)), infeasible=True)


@dataclass(frozen=True)
class WebTaskTemplate:
    """A family of tasks.

    Attributes:
        name: The site and what is done there, such as ``"shop/buy"``.
        build: ``build(seed, difficulty) -> SiteState``: returns the initial state, the same for the same arguments.
            Difficulty 1 to 5 determines the size of the state, the number of distractors and of pages.
        make_task: ``make_task(state, rng, difficulty) -> WebTask``. ``state`` is the result of ``build``, ``rng`` a
            ``random.Random`` of the same seed.
        difficulties: The supported difficulties.
    """

    name: str
    build: Callable[[int, int], SiteState]
    make_task: Callable[[Any, Any, int], WebTask]
    difficulties: Iterable[int] = (1, 2, 3)
