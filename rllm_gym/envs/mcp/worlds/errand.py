"""What a task with tools is: a world behind servers, a goal in words, the end it must come to, and a way there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllm_gym.mcp.servers import InProcessServer


class ToolWorld(ABC):
    """The state behind the tools of one episode: plain Python, and files in the episode's workspace where it has any.

    A function of its seed and difficulty: two worlds built alike answer the same calls with the same words.
    """

    @abstractmethod
    def servers(self, workspace: Path) -> Sequence[InProcessServer]:
        """The servers whose tools the model is offered. They act on this world and, at most, on ``workspace``."""

    @abstractmethod
    def facts(self, workspace: Path) -> Any:
        """Everything that counts, as JSON types: two worlds are in the same state when their facts are equal. What
        merely looking around changes is not among them."""

    def prepare(self, workspace: Path) -> None:  # noqa: B027 - most worlds have no files
        """Write the files that the episode begins with into the empty ``workspace``. Called once, before anything
        else."""


# The way there -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """A tool by the name its server gives it, and that server's name where two of them offer one of this name."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    server: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The final answer: ends the episode. Where no answer is asked for, any text does."""

    text: str = "Done."


@dataclass(frozen=True, slots=True)
class ReportInfeasible:
    """The statement that the goal cannot be reached: ends the episode."""

    reason: str


Move = Call | Answer | ReportInfeasible


@dataclass(frozen=True)
class ToolErrand:
    """One task on one world.

    Attributes:
        goal: What is asked for, in words that leave nothing open.
        calls: A way that solves it, from the untouched world on; ends with :class:`Answer` or
            :class:`ReportInfeasible`.
        wrong_calls: A way that looks alike and does harm or stops short: it must not be rewarded.
        outcome: ``outcome(world, workspace)`` brings a twin of the untouched world to the state that is asked for; the
            episode's world must come to the same facts, which catches every side effect. ``None`` where nothing may
            change.
        answer: What the final answer must say, as :mod:`rllm_gym.grading.answers` reads it (``{"type": "number",
            "value": 12.5}``), or ``None`` where none is asked for.
        infeasible: The goal cannot be reached: saying so is right, with nothing changed.
    """

    goal: str
    calls: tuple[Move, ...]
    wrong_calls: tuple[Move, ...]
    outcome: Callable[[Any, Path], None] | None = None
    answer: Mapping[str, Any] | None = None
    infeasible: bool = False


@dataclass(frozen=True)
class ToolTemplate:
    """A family of errands.

    Attributes:
        name: ``"sqlite/count"``: the world, and what is done there.
        build: ``build(seed, difficulty) -> ToolWorld``: the world as it is before the episode; the same for the same
            arguments. Difficulty 1 to 3: size of the world, number of steps.
        errand: ``errand(world, rng, difficulty) -> ToolErrand``; ``rng`` is ``random.Random(seed)`` of the same seed.
            It leaves the world untouched.
        difficulties: The levels it exists at.
    """

    name: str
    build: Callable[[int, int], ToolWorld]
    errand: Callable[[Any, Any, int], ToolErrand]
    difficulties: tuple[int, ...] = (1, 2, 3)


def wanted_facts(template: ToolTemplate, errand: ToolErrand, seed: int, difficulty: int, workspace: Path) -> Any:
    """The facts at the end that ``errand`` asks for, from a twin of the untouched world.

    Args:
        workspace: An empty folder for the twin's files.
    """
    twin = template.build(seed, difficulty)
    twin.prepare(workspace)
    if errand.outcome is not None:
        errand.outcome(twin, workspace)
    return twin.facts(workspace)
