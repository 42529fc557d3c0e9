"""Tic-tac-toe: the game, its positions, and optimal play by exhaustive search."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from rllm_gym.core import TaskError, TaskSource
from rllm_gym.multiagent.board import MARKS
from rllm_gym.multiagent.board_game import BoardGame
from rllm_gym.multiagent.openings import opening_tasks

_LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
_TEXT = re.compile(r"tic-tac-toe ([XO.]{3})/([XO.]{3})/([XO.]{3})")
# Source of each square when the board is rotated by a quarter, and when it is mirrored.
_TURN = (6, 3, 0, 7, 4, 1, 8, 5, 2)
_MIRROR = (2, 1, 0, 5, 4, 3, 8, 7, 6)


@dataclass(frozen=True, slots=True)
class TicTacToeBoard:
    """A position.

    Attributes:
        cells: Nine characters ``X``, ``O`` or ``.``, row by row; square 1 is the first.
    """

    cells: str = "........."

    @classmethod
    def parse(cls, text: str) -> TicTacToeBoard:
        """Parse the result of :meth:`text`.

        Raises:
            TaskError: It is not such a text, or the position is unreachable by legal play.
        """
        found = _TEXT.fullmatch(text)
        board = cls("".join(found.groups())) if found else None
        if board is None or not board._reachable():
            raise TaskError(f"{text[:80]!r} is not a position of tic-tac-toe, such as 'tic-tac-toe X../.O./...'")
        return board

    @property
    def to_move(self) -> int:
        return 1 if self.cells.count("X") > self.cells.count("O") else 0

    @property
    def winner(self) -> int | None:
        return _winner(self.cells)

    @property
    def is_over(self) -> bool:
        return _winner(self.cells) is not None or "." not in self.cells

    def moves(self) -> tuple[int, ...]:
        if _winner(self.cells) is not None:
            return ()
        return tuple(square + 1 for square, mark in enumerate(self.cells) if mark == ".")

    def after(self, move: int) -> TicTacToeBoard:
        return TicTacToeBoard(f"{self.cells[: move - 1]}{MARKS[self.to_move]}{self.cells[move:]}")

    def text(self) -> str:
        return f"tic-tac-toe {self.cells[:3]}/{self.cells[3:6]}/{self.cells[6:]}"

    def shown(self) -> str:
        squares = [str(i + 1) if mark == "." else mark for i, mark in enumerate(self.cells)]
        return "\n".join(" ".join(squares[row : row + 3]) for row in (0, 3, 6))

    def value(self) -> int:
        return _value(self.cells)

    def canonical(self) -> TicTacToeBoard:
        """Return the one of the eight rotated and mirrored positions that comes first in alphabetical order."""
        turned, looks = self.cells, []
        for _ in range(4):
            turned = "".join(turned[i] for i in _TURN)
            looks += [turned, "".join(turned[i] for i in _MIRROR)]
        return TicTacToeBoard(min(looks))

    def _reachable(self) -> bool:
        cells = self.cells
        more_x = cells.count("X") - cells.count("O")
        wins = {cells[a] for a, b, c in _LINES if cells[a] != "." and cells[a] == cells[b] == cells[c]}
        return more_x in (0, 1) and len(wins) < 2 and (not wins or wins == {MARKS[more_x == 0]})


@lru_cache(maxsize=8192)
def _winner(cells: str) -> int | None:
    for a, b, c in _LINES:
        if cells[a] != "." and cells[a] == cells[b] == cells[c]:
            return MARKS.index(cells[a])
    return None


@lru_cache(maxsize=8192)
def _value(cells: str) -> int:
    # Full minimax: there are 5,478 positions.
    board = TicTacToeBoard(cells)
    if board.is_over:
        return 0 if board.winner is None else -1  # the winner has just moved
    return max(-_value(board.after(move).cells) for move in board.moves())


class TicTacToe(BoardGame):
    """Three in a row, for two players.

    ## Description
    Players put their marks on a board of three by three squares in turn; the first with three in a row, column or
    diagonal wins. ``player_0`` plays ``X`` and begins.

    ## Action space
    Any text. The last fenced block or ``<action>``, ``<answer>`` or ``<move>`` tag is parsed, or else the entire reply:
    the number of a free square, 1 to 9 row by row. ``<think>`` sections are ignored. Anything else, including an
    occupied square, changes nothing: the player gets an error message and moves again, up to twice in a row; after that
    it loses.

    ## Observation space
    Text under ``"text"``. First the rules and the board (free squares show their numbers), then the opponent's move and
    the board.

    ## Starting state
    The empty board. With ``split``, a position after a few random moves (``opening_moves``): no position, rotated and
    mirrored ones included, is in two splits, and ``player_1`` is to move in some.

    ## Rewards
    At the end 1 for the winner, -1 for the loser, 0 each for a draw (component ``result``); ``invalid_action_penalty``
    is subtracted for each reply that is not a legal move.

    ## Episode end
    Terminated by three in a row, a full board or a forfeit; truncated after ``max_turns`` turns if that is given.

    ## Information
    In addition to the keys of :class:`~rllm_gym.multiagent.TextGame`: ``position: str`` (``"tic-tac-toe X../.O./..."``)
    and ``legal_moves: str`` (the numbers, separated by spaces; empty for the player who is not to move). ``success``
    means winning. :meth:`oracle` returns an optimal move.

    ## Arguments
    Args:
        split: ``None`` for the empty board; ``"train"``, ``"validation"`` or ``"test"`` for start positions.
        opening_moves: Number of moves that lead to a start position, or a pair (minimum, maximum); 1 to 4 by default.
        task_seed: Another seed gives other start positions of the split.
        num_tasks: Number of start positions to sample from.
        tasks: Custom start positions instead: texts such as ``"tic-tac-toe X../.O./..."``, tasks, a task set or a file
            of rows.
        illegal: Consequence of a reply that is not a legal move: ``"retry"``, or ``"lose"`` at once.
        max_invalid: Number of such replies in a row that are allowed.
        invalid_action_penalty: Subtracted from the reward for each of them.
        max_turns: Turns of both players before truncation.
        max_cycles: Turns per player before truncation.
        render_mode: ``"ansi"``, ``"human"`` or ``None``.

    ## Version history
    v0: first release.
    """

    metadata: ClassVar[dict[str, Any]] = {**BoardGame.metadata, "name": "rllm_tic_tac_toe_v0"}
    choice = "a square"

    def __init__(
        self,
        *,
        split: str | None = None,
        opening_moves: int | tuple[int, int] | None = None,
        task_seed: int = 0,
        num_tasks: int = 10_000,
        tasks: TaskSource | Iterable[Any] | str | None = None,
        **arguments: Any,
    ) -> None:
        source = opening_tasks(
            "tic_tac_toe",
            TicTacToeBoard(),
            split=split,
            opening_moves=opening_moves,
            task_seed=task_seed,
            num_tasks=num_tasks,
            tasks=tasks,
        )
        super().__init__(tasks=source, **arguments)

    def _parse(self, text: str) -> TicTacToeBoard:
        return TicTacToeBoard.parse(text)

    def _choices(self) -> tuple[str, ...]:
        return tuple("123456789")

    def _illegal(self, move: int) -> str:
        return f"square {move} is taken."

    def _rules(self) -> str:
        return (
            "Three of your marks in a row, column or diagonal win. X begins; free squares show their numbers.\n"
            "Answer with the number of a free square, such as ```5```."
        )
