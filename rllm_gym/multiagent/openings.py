"""Start positions of board games: the usual one, generated ones in disjoint splits, or custom ones."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, Self

from rllm_gym.core import Task, TaskError, TaskSource, split_of
from rllm_gym.data import ProceduralTaskset, Taskset, load_tasks
from rllm_gym.multiagent.board import Board

_ATTEMPTS = 10_000


class OpeningBoard(Board, Protocol):
    """A board with symmetries."""

    def canonical(self) -> Self:
        """Return the same position for all rotations and reflections of this one."""


@dataclass(frozen=True)
class OpeningGenerator:
    """Generates positions of one split; called by :class:`~rllm_gym.data.ProceduralTaskset`.

    Positions are in their canonical form, so that no mirrored training position occurs in another split.
    """

    start: OpeningBoard
    min_moves: int
    max_moves: int
    split: str

    def __call__(self, stream: random.Random) -> tuple[str, dict[str, Any]]:
        """Return a position as text, and the number of moves that led to it.

        Raises:
            TaskError: No position of the split was found.
        """
        for _ in range(_ATTEMPTS):
            board, moves = self.start, stream.randint(self.min_moves, self.max_moves)
            for _ in range(moves):
                legal = board.moves()
                if not legal:
                    break
                board = board.after(legal[stream.randrange(len(legal))])
            if not board.is_over and split_of(text := board.canonical().text()) == self.split:
                return text, {"opening_moves": moves}
        raise TaskError(
            f"no start position of the split {self.split!r} after {self.min_moves} to {self.max_moves} moves "
            f"was found in {_ATTEMPTS} samples; increase opening_moves"
        )


def opening_tasks(
    name: str,
    start: OpeningBoard,
    *,
    split: str | None,
    opening_moves: int | tuple[int, int] | None,
    task_seed: int,
    num_tasks: int,
    tasks: Iterable[Any] | TaskSource | str | None,
) -> TaskSource:
    """Return the tasks for a board game's arguments of these names.

    Args:
        name: Prefix of task ids.
        start: The usual start position.
        split: ``None`` for that one alone; else the split of generated positions.
        opening_moves: Number of random moves that lead to generated positions: a number or a pair; 1 to 4 by default.
        task_seed: Another seed gives other positions.
        num_tasks: Number of positions.
        tasks: Positions (as text), tasks or a task set instead; ``split`` then keeps those of one split.

    Raises:
        TaskError: The arguments are invalid, alone or together.
    """
    drawn = (opening_moves, task_seed, num_tasks)
    if tasks is not None or split is None:
        if drawn != (None, 0, 10_000):
            raise TaskError(
                "opening_moves, task_seed and num_tasks only apply to random start positions: pass a split, and "
                "no tasks"
            )
        if tasks is None:
            return Taskset.from_rows([Task(f"{name}/start", start.text())], name=name)
        if isinstance(tasks, list | tuple):
            tasks = [{"content": task} if isinstance(task, str) else task for task in tasks]
        return load_tasks(tasks, name=name, split=split)
    bounds = (1, 4) if opening_moves is None else opening_moves
    min_moves, max_moves = (bounds, bounds) if isinstance(bounds, int) else bounds
    if not 1 <= min_moves <= max_moves:
        raise TaskError(f"opening_moves={opening_moves!r} must be 1 or more, or a pair (min, max) of such numbers")
    return ProceduralTaskset(
        OpeningGenerator(start, min_moves, max_moves, split), name=name, split=split, seed=task_seed, size=num_tasks
    )
