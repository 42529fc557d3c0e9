"""Connect-four on a board of any size: the game and its positions. The exact solver is in ``connect_four_solver``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from rllm_gym.core import TaskError, TaskSource
from rllm_gym.multiagent.board import MARKS
from rllm_gym.multiagent.board_game import BoardGame
from rllm_gym.multiagent.connect_four_solver import Shape, Solver
from rllm_gym.multiagent.openings import opening_tasks

LARGEST = 12
_TEXT = re.compile(r"connect-([0-9]{1,2}) ([XO.]{1,12}(?:/[XO.]{1,12}){0,11})")


@dataclass(frozen=True, slots=True)
class ConnectFourBoard:
    """A position.

    Attributes:
        shape: Columns, rows and the length of a winning line.
        mine: Stones of the player to move, as bits; see :mod:`~rllm_gym.multiagent.connect_four_solver`.
        all_: Stones of both.
    """

    shape: Shape
    mine: int = 0
    all_: int = 0

    @classmethod
    def parse(cls, text: str) -> ConnectFourBoard:
        """Parse the result of :meth:`text`.

        Raises:
            TaskError: It is not such a text, or the position is unreachable by legal play.
        """
        found = _TEXT.fullmatch(text)
        rows = found[2].split("/") if found else []
        if found is None or len({len(row) for row in rows}) != 1:
            raise TaskError(f"{text[:80]!r} is not a position of connect-four, such as 'connect-4 ...../..O../.XX..'")
        shape = make_shape(len(rows[0]), len(rows), int(found[1]))
        stones = [0, 0]
        for height, row in enumerate(reversed(rows)):
            for column, mark in enumerate(row):
                if mark != ".":
                    stones[MARKS.index(mark)] |= 1 << column * (shape.rows + 1) + height
        x, o = stones
        to_move = x.bit_count() - o.bit_count()
        won = [shape.wins(x), shape.wins(o)]
        floating = (x | o) & ~((x | o) << 1 | shape.bottom)
        if to_move not in (0, 1) or floating or all(won) or won[to_move]:
            raise TaskError(f"{text!r} cannot be reached by legal moves (X begins; stones are stacked without gaps)")
        return cls(shape, stones[to_move], x | o)

    @property
    def to_move(self) -> int:
        return self.all_.bit_count() % 2

    @property
    def winner(self) -> int | None:
        return 1 - self.to_move if self.shape.wins(self.all_ ^ self.mine) else None

    @property
    def is_over(self) -> bool:
        return self.all_ == self.shape.full or self.winner is not None

    def moves(self) -> tuple[int, ...]:
        if self.winner is not None:
            return ()
        free = (self.all_ + self.shape.bottom) & self.shape.full
        return tuple(c + 1 for c in range(self.shape.columns) if free & self.shape.column(c))

    def after(self, move: int) -> ConnectFourBoard:
        cell = (self.all_ + self.shape.bottom) & self.shape.column(move - 1)
        return ConnectFourBoard(self.shape, self.all_ ^ self.mine, self.all_ | cell)

    def text(self) -> str:
        return f"connect-{self.shape.connect} {'/'.join(self._rows())}"

    def shown(self) -> str:
        numbers = [str(c + 1) for c in range(self.shape.columns)]
        width = len(numbers[-1])
        return "\n".join(" ".join(f"{cell:>{width}}" for cell in row) for row in [*self._rows(), numbers])

    def value(self) -> int:
        if self.is_over:
            return 0 if self.winner is None else -1  # the winner has just moved
        return solver_of(self.shape).value(self.mine, self.all_)

    def canonical(self) -> ConnectFourBoard:
        """Return the position or its mirror image, whichever text comes first."""
        shape = self.shape
        turned = ConnectFourBoard(shape, shape.mirrored(self.mine), shape.mirrored(self.all_))
        return min(self, turned, key=lambda board: board.text())

    def _rows(self) -> list[str]:
        x = self.all_ ^ self.mine if self.to_move else self.mine
        height = self.shape.rows + 1

        def mark(column: int, row: int) -> str:
            cell = 1 << column * height + row
            return "." if not self.all_ & cell else MARKS[0] if x & cell else MARKS[1]

        columns = range(self.shape.columns)
        return ["".join(mark(column, row) for column in columns) for row in reversed(range(self.shape.rows))]


@lru_cache(maxsize=8)
def solver_of(shape: Shape) -> Solver:
    """Return the solver of a shape; its results are cached in this process."""
    return Solver(shape)


def make_shape(columns: int, rows: int, connect: int) -> Shape:
    """Return the shape of a board.

    Raises:
        TaskError: It is too large or too small, or no line of ``connect`` fits.
    """
    for name, value in (("columns", columns), ("rows", rows), ("connect", connect)):
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= LARGEST:
            raise TaskError(f"{name}={value!r} must be a whole number from 1 to {LARGEST}")
    if connect < 2 or connect > max(columns, rows):
        raise TaskError(
            f"connect={connect!r}: no line of this length fits on a board of {columns} columns and {rows} rows"
        )
    return Shape(columns, rows, connect)


class ConnectFour(BoardGame):
    """Four in a line, for two players who drop stones into columns.

    ## Description
    Players drop a stone into a column in turn; it falls on the stones below. The first with ``connect`` in a row,
    column or diagonal wins. ``player_0`` plays ``X`` and begins. The board has 5 columns and 4 rows, on which the game
    is a draw and optimal play is known at once (the first query in a process takes a second); ``columns=7, rows=6`` is
    the usual board, on which it is known only late in the game.

    ## Action space
    Any text. The last fenced block or ``<action>``, ``<answer>`` or ``<move>`` tag is parsed, or else the entire reply:
    the number of a column that is not full, 1 on the left. ``<think>`` sections are ignored. Anything else, including a
    full column, changes nothing: the player gets an error message and moves again, up to twice in a row; after that it
    loses.

    ## Observation space
    Text under ``"text"``. First the rules and the board, with column numbers below; then the opponent's move and the
    board.

    ## Starting state
    The empty board. With ``split``, a position after a few random moves (``opening_moves``): no position, mirrored ones
    included, is in two splits, and ``player_1`` is to move in some.

    ## Rewards
    At the end 1 for the winner, -1 for the loser, 0 each for a draw (component ``result``); ``invalid_action_penalty``
    is subtracted for each reply that is not a legal move.

    ## Episode end
    Terminated by a line, a full board or a forfeit; truncated after ``max_turns`` turns if that is given.

    ## Information
    In addition to the keys of :class:`~rllm_gym.multiagent.TextGame`: ``position: str`` (``"connect-4
    ...../..O../.XX.."``) and ``legal_moves: str`` (the numbers, separated by spaces; empty for the player who is not to
    move). ``success`` means winning. :meth:`oracle` returns an optimal move; on larger boards early positions cannot be
    solved, and it raises.

    ## Arguments
    Args:
        columns: Columns of the board, up to 12.
        rows: Rows of the board, up to 12.
        connect: Stones in a line that win.
        split: ``None`` for the empty board; ``"train"``, ``"validation"`` or ``"test"`` for start positions.
        opening_moves: Number of moves that lead to a start position, or a pair (minimum, maximum); 1 to 4 by default.
        task_seed: Another seed gives other start positions of the split.
        num_tasks: Number of start positions to sample from.
        tasks: Custom start positions instead: texts such as ``"connect-4 ...../..O../.XX.."``, tasks, a task set or a
            file of rows. They must be of this board.
        illegal: Consequence of a reply that is not a legal move: ``"retry"``, or ``"lose"`` at once.
        max_invalid: Number of such replies in a row that are allowed.
        invalid_action_penalty: Subtracted from the reward for each of them.
        max_turns: Turns of both players before truncation.
        max_cycles: Turns per player before truncation.
        render_mode: ``"ansi"``, ``"human"`` or ``None``.

    ## Version history
    v0: first release.
    """

    metadata: ClassVar[dict[str, Any]] = {**BoardGame.metadata, "name": "rllm_connect_four_v0"}
    choice = "a column"

    def __init__(
        self,
        *,
        columns: int = 5,
        rows: int = 4,
        connect: int = 4,
        split: str | None = None,
        opening_moves: int | tuple[int, int] | None = None,
        task_seed: int = 0,
        num_tasks: int = 10_000,
        tasks: TaskSource | Iterable[Any] | str | None = None,
        **arguments: Any,
    ) -> None:
        self.shape = make_shape(columns, rows, connect)
        source = opening_tasks(
            "connect_four",
            ConnectFourBoard(self.shape),
            split=split,
            opening_moves=opening_moves,
            task_seed=task_seed,
            num_tasks=num_tasks,
            tasks=tasks,
        )
        super().__init__(tasks=source, **arguments)

    def _parse(self, text: str) -> ConnectFourBoard:
        board = ConnectFourBoard.parse(text)
        if board.shape != self.shape:
            raise TaskError(
                f"{text!r} does not have the board shape {self.shape}; pass matching columns, rows and connect"
            )
        return board

    def _choices(self) -> tuple[str, ...]:
        return tuple(str(column + 1) for column in range(self.shape.columns))

    def _illegal(self, move: int) -> str:
        return f"column {move} is full."

    def _rules(self) -> str:
        return (
            f"Drop stones into columns; {self.shape.connect} of yours in a row, column or diagonal win. X begins; the "
            "last line numbers the columns.\nAnswer with the number of a column, such as ```3```."
        )
