"""The types of a built-in tool task: the state of a simulated system, a goal, the required end state, a solution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllm_gym.mcp.servers import InProcessServer


class DomainState(ABC):
    """The state behind the tools of one episode: Python objects, and files in the episode's workspace if it has any.

    It is a function of its seed and difficulty: two equal states answer the same calls with the same text.
    """

    @abstractmethod
    def servers(self, workspace: Path) -> Sequence[InProcessServer]:
        """Return the servers whose tools the model may use. They act on this state and, at most, on ``workspace``."""

    @abstractmethod
    def facts(self, workspace: Path) -> Any:
        """Return all that is compared, as JSON types: two states are the same if their facts are equal. Changes caused
        by reading only are not included."""

    def prepare(self, workspace: Path) -> None:  # noqa: B027 - most domains have no files
        """Write the episode's initial files into the empty ``workspace``. Called once, before anything else."""


# Reference solutions


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call: the tool's name, and the server's name if two servers offer a tool of this name."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    server: str = ""


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """The final answer, which ends the episode. If the task requires no answer, any text is accepted."""

    text: str = "Done."


@dataclass(frozen=True, slots=True)
class InfeasibleReport:
    """The statement that the goal cannot be reached, which ends the episode."""

    reason: str


SolutionStep = Call | FinalAnswer | InfeasibleReport


@dataclass(frozen=True)
class ToolTask:
    """A built-in task.

    Attributes:
        goal: The request, complete and unambiguous.
        calls: A solution, starting from the initial state; ends with :class:`FinalAnswer` or :class:`InfeasibleReport`.
        outcome: ``outcome(state, workspace)`` changes a copy of the initial state to the requested one; the
            episode's state must end with the same facts, which detects every side effect. ``None`` if nothing may
            change.
        answer: The required final answer, as :mod:`rllm_gym.grading.answers` reads it (``{"type": "number",
            "value": 12.5}``), or ``None`` if none is required.
        infeasible: Whether the goal cannot be reached: then reporting that is right, with nothing changed.
    """

    goal: str
    calls: tuple[SolutionStep, ...]
    outcome: Callable[[Any, Path], object] | None = None
    answer: Mapping[str, Any] | None = None
    infeasible: bool = False


def called(calls: Iterable[Call], tools: Callable[[Any], Any] = lambda state: state) -> Callable[[Any, Path], None]:
    """Return the outcome in which these calls were made; ``tools(state)`` is the object that has the tools."""

    def outcome(state: Any, workspace: Path) -> None:
        for call in calls:
            getattr(tools(state), call.tool)(**call.arguments)

    return outcome


@dataclass(frozen=True)
class ToolTaskTemplate:
    """A family of tasks.

    Attributes:
        name: ``"sqlite/count"``: the domain, and the kind of task.
        build: ``build(seed, difficulty) -> DomainState``: the initial state; the same for the same arguments.
            Difficulty 1 to 3: size of the data, number of steps.
        make_task: ``make_task(state, rng, difficulty) -> ToolTask``; ``rng`` is ``random.Random(seed)`` of the same
            seed. It must not change the state.
        difficulties: The levels at which the template exists.
    """

    name: str
    build: Callable[[int, int], DomainState]
    make_task: Callable[[Any, Any, int], ToolTask]
    difficulties: tuple[int, ...] = (1, 2, 3)


def wanted_facts(template: ToolTaskTemplate, task: ToolTask, seed: int, difficulty: int, workspace: Path) -> Any:
    """Return the facts of the end state that ``task`` requires, from a copy of the initial state.

    Args:
        workspace: An empty folder for the copy's files.
    """
    copy = template.build(seed, difficulty)
    copy.prepare(workspace)
    if task.outcome is not None:
        task.outcome(copy, workspace)
    return copy.facts(workspace)
