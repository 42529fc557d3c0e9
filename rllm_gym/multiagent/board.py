"""The interface of positions of two-player board games, and optimal moves in them."""

from __future__ import annotations

from typing import Protocol, Self

MARKS = ("X", "O")


class Board(Protocol):
    """A position of a deterministic two-player game with perfect information. Immutable."""

    @property
    def to_move(self) -> int:
        """The player to move, 0 (``X``, who begins) or 1 (``O``); after the end, the player who would be next."""

    @property
    def winner(self) -> int | None: ...

    @property
    def is_over(self) -> bool: ...

    def moves(self) -> tuple[int, ...]:
        """Return the legal moves, counted from 1; none if the game is over."""

    def after(self, move: int) -> Self:
        """Return the position after a legal move."""

    def text(self) -> str:
        """Return one line with the name of the game and the rows; ``parse`` of the class reads it."""

    def shown(self) -> str:
        """Return the rows, for models and people."""

    def value(self) -> int:
        """Return the exact value for the player to move under optimal play: 1 win, 0 draw, -1 loss."""


def best_moves(board: Board) -> tuple[int, ...]:
    """Return every move that keeps the value of the position. Exact.

    Raises:
        TooManyPositions: The position is too early on too large a board of connect-four.
    """
    values = {move: -board.after(move).value() for move in board.moves()}
    best = max(values.values(), default=0)
    return tuple(move for move, value in values.items() if value == best)
