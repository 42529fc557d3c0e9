"""Start positions of board games: the usual one, drawn ones in splits that share no position, or the user's own."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, Self

from rllm_gym.core import Task, TaskError, TaskSource, split_of
from rllm_gym.data import ProceduralTaskset, Taskset, load_tasks
from rllm_gym.multiagent.board_game import Board

_ATTEMPTS = 10_000


class Opening(Board, Protocol):
    """A board that knows its mirror images."""

    def canonical(self) -> Self:
        """One and the same of all positions that are this one turned or mirrored."""


@dataclass(frozen=True)
class DrawOpening:
    """Draws positions of one split; :class:`~rllm_gym.data.ProceduralTaskset` calls it.

    Positions are given in their canonical form, so that nothing learned in training is asked again in a mirror.
    """

    start: Opening
    fewest: int
    most: int
    split: str

    def __call__(self, stream: random.Random) -> tuple[str, dict[str, Any]]:
        """A position as text, and the number of moves that led to it.

        Raises:
            TaskError: No position of the split was found.
        """
        for _ in range(_ATTEMPTS):
            board, moves = self.start, stream.randint(self.fewest, self.most)
            for _ in range(moves):
                legal = board.moves()
                if not legal:
                    break
                board = board.after(legal[stream.randrange(len(legal))])
            if not board.over and split_of(text := board.canonical().text()) == self.split:
                return text, {"opening_moves": moves}
        raise TaskError(
            f"no start position of the split {self.split!r} after {self.fewest} to {self.most} moves was found in "
            f"{_ATTEMPTS} draws; allow more opening_moves"
        )


def opening_tasks(
    name: str,
    start: Opening,
    *,
    split: str | None,
    opening_moves: int | tuple[int, int] | None,
    task_seed: int,
    num_tasks: int,
    tasks: Iterable[Any] | TaskSource | str | None,
) -> TaskSource:
    """The tasks that a board game's arguments of these names mean.

    Args:
        name: What task ids begin with.
        start: The usual start position.
        split: ``None`` for that one alone; else the split that positions are drawn from.
        opening_moves: How many random moves lead to drawn positions: a number or a pair; 1 to 4 by default.
        task_seed: Another seed draws other positions.
        num_tasks: How many.
        tasks: Positions (as text), tasks or a task set instead; ``split`` then keeps those of one split.

    Raises:
        TaskError: The arguments cannot be used, alone or together.
    """
    drawn = (opening_moves, task_seed, num_tasks)
    if tasks is not None or split is None:
        if drawn != (None, 0, 10_000):
            raise TaskError(
                "opening_moves, task_seed and num_tasks are of start positions that are drawn: give a split for them, "
                "and no tasks"
            )
        if tasks is None:
            return Taskset.from_rows([Task(f"{name}/start", start.text())], name=name)
        if isinstance(tasks, list | tuple):
            tasks = [{"content": task} if isinstance(task, str) else task for task in tasks]
        return load_tasks(tasks, name=name, split=split)
    bounds = (1, 4) if opening_moves is None else opening_moves
    fewest, most = (bounds, bounds) if isinstance(bounds, int) else bounds
    if not 1 <= fewest <= most:
        raise TaskError(f"opening_moves={opening_moves!r} must be 1 or more, or a pair (fewest, most) of such numbers")
    return ProceduralTaskset(
        DrawOpening(start, fewest, most, split), name=name, split=split, seed=task_seed, size=num_tasks
    )
