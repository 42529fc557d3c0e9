"""What a task on the built-in sites is: a goal in words, the end it must come to, and the way a person would go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rllm_gym.sites.http import Handler


class World(Protocol):
    """The state behind the sites of one episode: plain Python, a function of its seed."""

    def handlers(self) -> Mapping[str, Handler]:
        """The sites, by origin: ``{"http://shop.test": …}``."""
        ...

    def facts(self) -> Any:
        """Everything that counts, as JSON types: two worlds are in the same state when their facts are equal. What
        merely looking around changes (last page seen, sort order chosen) is not among them."""
        ...


# How a person goes about it ----------------------------------------------------------------------------------------
#
# A move names what is seen: the element's role and its name, and, where several look alike, a text that stands in the
# same row or card. `rllm_gym.envs.web.demonstrate` turns moves into replies with the numbers on the page at hand.


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
class Press:
    key: str


@dataclass(frozen=True, slots=True)
class Goto:
    url: str


@dataclass(frozen=True, slots=True)
class Answer:
    text: str


@dataclass(frozen=True, slots=True)
class ReportInfeasible:
    reason: str


Move = Click | Fill | Select | Press | Goto | Answer | ReportInfeasible


@dataclass(frozen=True)
class Errand:
    """One task on one world.

    Attributes:
        goal: What is asked for, in words that leave nothing open.
        start: URL of the first page.
        outcome: Brings a twin of the untouched world to the state that is asked for; the episode's world must come
            to the same facts, which catches every side effect. ``None`` where nothing may change.
        answer: What ``answer("…")`` must say, as :mod:`rllm_gym.grading.answers` reads it (``{"type": "number",
            "value": 12.5}``), or ``None`` where no answer is asked for.
        infeasible: The goal cannot be reached: ``report_infeasible`` is right, with nothing changed.
        moves: The way a person would go, from the first page on, seen from the untouched world.
        wrong_moves: A way that looks alike and does harm or stops short: it must not be rewarded.
    """

    goal: str
    start: str
    moves: tuple[Move, ...]
    wrong_moves: tuple[Move, ...]
    outcome: Callable[[Any], None] | None = None
    answer: Mapping[str, Any] | None = None
    infeasible: bool = False


@dataclass(frozen=True)
class Template:
    """A family of errands.

    Attributes:
        name: ``"shop/buy-one"``: the site, and what is done there.
        build: ``build(seed, difficulty) -> World``: the world as it is before the episode; the same for the same
            arguments. Difficulty 1 to 5: size of the world, distractors, pages.
        errand: ``errand(world, rng, difficulty) -> Errand``. ``rng`` is a ``random.Random`` of the same seed.
        difficulties: The levels it exists at.
    """

    name: str
    build: Callable[[int, int], World]
    errand: Callable[[Any, Any, int], Errand]
    difficulties: Iterable[int] = (1, 2, 3)
