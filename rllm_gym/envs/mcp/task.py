"""The types of a built-in tool task: a simulated backend, a goal, the required end state, and a reference solution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllm_gym.mcp.servers import InProcessServer


class ToolWorld(ABC):
    """The state behind the tools of one episode: Python objects, and files in the episode's workspace if it has any.

    It is a function of its seed and difficulty: two equal backends answer the same calls with the same text.
    """

    @abstractmethod
    def servers(self, workspace: Path) -> Sequence[InProcessServer]:
        """Return the servers whose tools the model may use. They act on this backend and, at most, on ``workspace``."""

    @abstractmethod
    def facts(self, workspace: Path) -> Any:
        """Return the complete state that is compared, as JSON types: two backends are in the same state if their facts
        are equal. Changes caused by reading only are not included."""

    def prepare(self, workspace: Path) -> None:  # noqa: B027 - most worlds have no files
        """Write the episode's initial files into the empty ``workspace``. Called once, before anything else."""


# Reference solutions


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call: the tool's name, and the server's name if two servers offer a tool of this name."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    server: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The final answer, which ends the episode. If the task requires no answer, any text is accepted."""

    text: str = "Done."


@dataclass(frozen=True, slots=True)
class ReportInfeasible:
    """The statement that the goal cannot be reached, which ends the episode."""

    reason: str


Move = Call | Answer | ReportInfeasible


@dataclass(frozen=True)
class ToolTask:
    """One task on one backend.

    Attributes:
        goal: The request, complete and unambiguous.
        calls: A solution, starting from the initial state; ends with :class:`Answer` or :class:`ReportInfeasible`.
        outcome: ``outcome(world, workspace)`` brings a copy of the initial backend to the requested state; the
            episode's backend must end with the same facts, which detects every side effect. ``None`` if nothing may
            change.
        answer: The required final answer, as :mod:`rllm_gym.grading.answers` reads it (``{"type": "number",
            "value": 12.5}``), or ``None`` if none is required.
        infeasible: Whether the goal cannot be reached: then reporting that is right, with nothing changed.
    """

    goal: str
    calls: tuple[Move, ...]
    outcome: Callable[[Any, Path], object] | None = None
    answer: Mapping[str, Any] | None = None
    infeasible: bool = False


def called(calls: Iterable[Call], tools: Callable[[Any], Any] = lambda world: world) -> Callable[[Any, Path], None]:
    """Return the outcome in which these calls were made; ``tools(world)`` is the object that has the tools."""

    def outcome(world: Any, workspace: Path) -> None:
        for call in calls:
            getattr(tools(world), call.tool)(**call.arguments)

    return outcome


@dataclass(frozen=True)
class ToolTaskTemplate:
    """A family of tasks.

    Attributes:
        name: ``"sqlite/count"``: the backend, and the kind of task.
        build: ``build(seed, difficulty) -> ToolWorld``: the initial backend; the same for the same arguments.
            Difficulty 1 to 3: size of the data, number of steps.
        make_task: ``make_task(world, rng, difficulty) -> ToolTask``; ``rng`` is ``random.Random(seed)`` of the same
            seed. It must not change the backend.
        difficulties: The levels at which the template exists.
    """

    name: str
    build: Callable[[int, int], ToolWorld]
    make_task: Callable[[Any, Any, int], ToolTask]
    difficulties: tuple[int, ...] = (1, 2, 3)


def wanted_facts(template: ToolTaskTemplate, task: ToolTask, seed: int, difficulty: int, workspace: Path) -> Any:
    """Return the facts of the end state that ``task`` requires, from a copy of the initial backend.

    Args:
        workspace: An empty folder for the copy's files.
    """
    copy = template.build(seed, difficulty)
    copy.prepare(workspace)
    if task.outcome is not None:
        task.outcome(copy, workspace)
    return copy.facts(workspace)
