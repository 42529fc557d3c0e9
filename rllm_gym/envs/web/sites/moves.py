"""The moves of a solution.

A move identifies an element by its role and name and, if several look alike, by a text in the same row or card.
:mod:`rllm_gym.envs.web.demonstrations` converts moves to replies with the element numbers of the current page.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Click:
    role: str
    name: str
    within: str | None = None


@dataclass(frozen=True, slots=True)
class Fill:
    name: str
    text: str
    within: str | None = None


@dataclass(frozen=True, slots=True)
class Select:
    name: str
    option: str
    within: str | None = None


@dataclass(frozen=True, slots=True)
class Upload:
    """Choose a file of the task in a file field."""

    name: str
    file: str


@dataclass(frozen=True, slots=True)
class Goto:
    url: str


@dataclass(frozen=True, slots=True)
class Answer:
    text: str


@dataclass(frozen=True, slots=True)
class ReportInfeasible:
    reason: str


Move = Click | Fill | Select | Upload | Goto | Answer | ReportInfeasible
Moves = tuple[Move, ...]


def page_of(index: int, per_page: int) -> Moves:
    """Return the move from the first page of a list to the page with an item, unless it is on the first."""
    page = index // per_page + 1
    return (Click("link", f"Page {page}"),) if page > 1 else ()
