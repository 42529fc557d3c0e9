"""Exact value of positions of connect-four: alpha-beta over bitboards with a transposition table.

A column of ``rows`` cells takes ``rows + 1`` bits, the lowest cell first; the bit above each column stays empty, so
that lines do not run from one column into the next. ``mine`` are the stones of the player to move, ``all_`` those of
both. The representation and the two prunings (block the opponent's threats; do not play below one) are those of Allis,
*A Knowledge-based Approach of Connect-Four* (1988), and Tromp's and Pons's solvers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rllm_gym.core import RllmGymError

MAX_POSITIONS = 400_000
# Later in the game mirror images seldom both occur, and looking for them costs more than it saves.
_OFTEN_MIRRORED = 12


class TooManyPositions(RllmGymError):
    """A position cannot be solved within the limit; the message says what to do instead."""


@dataclass(frozen=True)
class Shape:
    """A board and the length of a winning line.

    Attributes:
        columns: 1 to 12.
        rows: 1 to 12.
        connect: Stones in a line that win.
    """

    columns: int
    rows: int
    connect: int
    bottom: int = field(init=False, repr=False, compare=False)
    full: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        bottom = sum(1 << column * (self.rows + 1) for column in range(self.columns))
        object.__setattr__(self, "bottom", bottom)
        object.__setattr__(self, "full", bottom * ((1 << self.rows) - 1))

    @property
    def directions(self) -> tuple[int, int, int, int]:
        """Bits from a cell to its neighbour: up, and to the right falling, level and rising."""
        return 1, self.rows, self.rows + 1, self.rows + 2

    def column(self, number: int) -> int:
        """Return the cells of a column, counted from 0, as bits."""
        return ((1 << self.rows) - 1) << number * (self.rows + 1)

    def mirrored(self, bits: int) -> int:
        """Return the bits with left and right exchanged, including those above the columns."""
        height = self.rows + 1
        one, turned = (1 << height) - 1, 0
        for column in range(self.columns):
            turned = turned << height | bits >> column * height & one
        return turned

    def wins(self, stones: int) -> bool:
        """Return whether these stones contain a winning line."""
        for step in self.directions:
            line = stones
            for distance in range(1, self.connect):
                line &= stones >> distance * step
                if not line:
                    break
            if line:
                return True
        return False

    def winning_cells(self, stones: int, all_: int) -> int:
        """Return the empty cells, reachable now or not, that complete a line of these stones."""
        cells = 0
        need = self.connect - 1
        for step in self.directions:
            before, after = [-1], [-1]  # stones in a row on either side of a cell: AND of 0, 1, 2 … shifts
            for distance in range(1, need + 1):
                before.append(before[-1] & stones << distance * step)
                after.append(after[-1] & stones >> distance * step)
            for count in range(need + 1):
                cells |= before[count] & after[need - count]
        return cells & (self.full & ~all_)


class Solver:
    """Solves positions of one shape, and caches the results.

    Args:
        shape: The board.
        max_positions: Maximum number of positions that one query may search. Results found on the way stay cached.
    """

    def __init__(self, shape: Shape, max_positions: int = MAX_POSITIONS) -> None:
        self.shape, self.max_positions = shape, max_positions
        self._bounds: dict[int, tuple[int, int]] = {}
        self._left = 0
        middle = (shape.columns - 1) / 2
        self._columns = [shape.column(c) for c in sorted(range(shape.columns), key=lambda c: (abs(c - middle), c))]

    def value(self, mine: int, all_: int) -> int:
        """Return 1, 0 or -1: the value for the player to move under optimal play, if nobody has won yet.

        Raises:
            TooManyPositions: It takes more positions than allowed.
        """
        if len(self._bounds) > 4 * self.max_positions:
            self._bounds.clear()
        self._left = self.max_positions
        return self._search(mine, all_, -1, 1)

    def _search(self, mine: int, all_: int, alpha: int, beta: int) -> int:
        shape = self.shape
        playable = (all_ + shape.bottom) & shape.full
        if not playable:
            return 0
        if shape.winning_cells(mine, all_) & playable:
            return 1
        threats = shape.winning_cells(all_ ^ mine, all_)
        parries = threats & playable
        if parries:
            if parries & (parries - 1):
                return -1  # two threats at once
            playable = parries
        playable &= ~(threats >> 1)  # playing below a threat lets the opponent carry it out
        if not playable:
            return -1
        key = mine + all_ + shape.bottom
        if all_.bit_count() < _OFTEN_MIRRORED:
            key = min(key, shape.mirrored(key))
        low, high = self._bounds.get(key, (-1, 1))
        alpha, beta = max(alpha, low), min(beta, high)
        if alpha >= beta:
            return alpha
        self._left -= 1
        if self._left < 0:
            raise TooManyPositions(
                f"this position of {shape.columns} x {shape.rows} takes more than {self.max_positions:,} "
                "positions to solve; query it later in the game, use a smaller board, or use "
                "minimax_player(depth)"
            )
        best = -1
        for move in self._ordered(mine, all_, playable):
            value = -self._search(all_ ^ mine, all_ | move, -beta, -max(alpha, best))
            best = max(best, value)
            if best >= beta:
                break
        if best <= alpha:
            high = best
        elif best >= beta:
            low = best
        else:
            low = high = best
        self._bounds[key] = (low, high)
        return best

    def _ordered(self, mine: int, all_: int, playable: int) -> list[int]:
        """Return the moves with the most threats first, then from the middle outwards."""
        moves = [move for cells in self._columns if (move := cells & playable)]
        if len(moves) > 1:
            winning = self.shape.winning_cells
            moves.sort(key=lambda move: -winning(mine | move, all_ | move).bit_count())
        return moves
