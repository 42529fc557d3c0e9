"""A frozen lake as data: the map, the result of each move, every cell's distance to the goal, and optimal play.

This module contains no text for a model, no randomness and no episode state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from rllm_gym.core import TaskError
from rllm_gym.parsing.moves import Move

LONGEST_SIDE = 20
_LETTERS = frozenset("SFHG")
# (row, column) by Move: left, down, right, up.
_OFFSETS = ((0, -1), (1, 0), (0, 1), (-1, 0))


@dataclass(frozen=True)
class Lake:
    """A map. Cells are numbered row by row from the top left.

    Attributes:
        cells: One letter per cell: ``S`` start, ``F`` frozen, ``H`` hole, ``G`` goal.
        width: Number of columns.
        start: The start cell.
        goal: The goal cell.
        after: ``after[cell][move]`` is the cell that a move leads to; at the edge it is the cell itself.
        distances: Fewest moves to the goal without slipping, -1 if there is no path (and for holes).
    """

    cells: str
    width: int
    start: int = field(init=False)
    goal: int = field(init=False)
    after: tuple[tuple[int, int, int, int], ...] = field(init=False, repr=False, compare=False)
    distances: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "start", self.cells.index("S"))
        object.__setattr__(self, "goal", self.cells.index("G"))
        object.__setattr__(self, "after", _moves(self.width, self.height))
        object.__setattr__(self, "distances", _distances(self.cells, self.after, self.goal))

    @property
    def height(self) -> int:
        """The number of rows."""
        return len(self.cells) // self.width

    @property
    def rows(self) -> tuple[str, ...]:
        """The map row by row, in Gymnasium's notation."""
        return tuple(self.cells[i : i + self.width] for i in range(0, len(self.cells), self.width))

    @property
    def path_length(self) -> int:
        """Fewest moves from start to goal, -1 if there is no path. Exact: breadth-first search with no depth limit."""
        return self.distances[self.start]


def parse_map(rows: object, *, name: str = "map") -> Lake:
    r"""Parse a map from rows of ``S``, ``F``, ``H`` and ``G``, or from one text with one row per line.

    >>> parse_map(["SF", "HG"]).path_length
    2

    Raises:
        TaskError: The map is ragged, has other letters, not exactly one start and one goal, or no path between them.
    """
    text = rows
    if not isinstance(text, str):
        if not isinstance(rows, Sequence) or not all(isinstance(line, str) for line in rows):
            raise TaskError(
                f'{name}: a map must be a list of rows such as ["SFF", "FHF", "FFG"]; got {type(rows).__name__}'
            )
        text = "\n".join(rows)
    try:
        return read_map(text)
    except TaskError as error:
        raise TaskError(f"{name}: {error}") from None


@lru_cache(maxsize=4096)
def read_map(text: str) -> Lake:
    """Parse a map from a text with one row per line. Results are cached.

    Raises:
        TaskError: As :func:`parse_map`, without a name.
    """
    lines = text.split("\n")
    widths = sorted({len(line) for line in lines})
    if len(widths) != 1 or widths == [0]:
        raise TaskError(f"all rows must have the same number of cells, at least 1; the rows have {widths}")
    if max(len(lines), widths[0]) > LONGEST_SIDE:
        raise TaskError(f"{len(lines)} rows of {widths[0]} cells; the maximum is {LONGEST_SIDE} per side")
    cells = "".join(lines)
    unknown = sorted(set(cells) - _LETTERS)
    if unknown:
        raise TaskError(f"unknown cell(s) {unknown}; S is the start, F frozen, H a hole, G the goal")
    for letter, what in (("S", "start"), ("G", "goal")):
        if cells.count(letter) != 1:
            raise TaskError(f"a map must have exactly one {what} {letter!r}; this one has {cells.count(letter)}")
    lake = Lake(cells, widths[0])
    if lake.path_length < 0:
        raise TaskError(f"there is no path from S to G ({' '.join(lake.rows)}); remove a hole or move S or G")
    return lake


@lru_cache(maxsize=256)
def _moves(width: int, height: int) -> tuple[tuple[int, int, int, int], ...]:
    def step(cell: int, move: int) -> int:
        row, column = divmod(cell, width)
        row, column = row + _OFFSETS[move][0], column + _OFFSETS[move][1]
        return row * width + column if 0 <= row < height and 0 <= column < width else cell

    return tuple((step(c, 0), step(c, 1), step(c, 2), step(c, 3)) for c in range(width * height))


def _distances(cells: str, after: tuple[tuple[int, int, int, int], ...], goal: int) -> tuple[int, ...]:
    # Moves are reversible away from edges, so breadth-first search from the goal over the same table is exact.
    distances = [-1] * len(cells)
    distances[goal] = 0
    queue = deque([goal])
    while queue:
        cell = queue.popleft()
        for neighbour in after[cell]:
            if distances[neighbour] < 0 and cells[neighbour] != "H":
                distances[neighbour] = distances[cell] + 1
                queue.append(neighbour)
    return tuple(distances)


class OptimalValues:
    """Success probabilities under optimal play: finite-horizon value iteration on one lake.

    With ``V_0 = 0``, ``V_h(goal) = 1`` and ``V_h(hole) = 0``:
    ``Q_h(s, a) = Σ_m P(m | a) · V_{h-1}(after(s, m))`` and ``V_h(s) = max_a Q_h(s, a)`` (Puterman 1994, §4.3),
    where the move m is a with probability ``1 - slip`` and each perpendicular one with ``slip / 2``. Without
    slipping, ``V_h(s) = 1`` where the distance is at most h, and no table is computed.

    Args:
        lake: The map.
        slip_probability: Probability that a move goes to a perpendicular direction.
        horizon: Largest number of remaining turns.
    """

    def __init__(self, lake: Lake, slip_probability: float, horizon: int) -> None:
        self.lake, self.slip_probability = lake, slip_probability
        self._values_HS: np.ndarray | None = None
        self._rows = 0
        if slip_probability > 0:
            self._values_HS = _value_iteration(lake, slip_probability, horizon)
            self._rows = len(self._values_HS)

    def success(self, cell: int, turns_left: int) -> float:
        """Return the probability of reaching the goal from ``cell`` under optimal play."""
        if self._values_HS is None:
            return 1.0 if 0 <= self.lake.distances[cell] <= turns_left else 0.0
        return float(self._values_HS.item(min(turns_left, self._rows - 1), cell))

    def after_move(self, cell: int, turns_left: int, move: int) -> float:
        """Return the same probability if the next move is ``move``. Needs at least one remaining turn."""
        after, left = self.lake.after[cell], turns_left - 1
        slip = self.slip_probability
        straight = self.success(after[move], left)
        if not slip:
            return straight
        # The moves are in circular order (left, down, right, up): a move's neighbours are its perpendicular moves.
        sideways = self.success(after[move - 1], left) + self.success(after[(move + 1) % 4], left)
        return (1.0 - slip) * straight + slip / 2 * sideways

    def best_move(self, cell: int, turns_left: int) -> Move:
        """Return the move with the highest success probability; ties go to the move that shortens the path most."""
        far = len(self.lake.cells)

        def merit(move: Move) -> tuple[float, int]:
            distance = self.lake.distances[self.lake.after[cell][move]]
            return round(self.after_move(cell, turns_left, move), 12), -(distance if distance >= 0 else far)

        return max(Move, key=merit)


def _value_iteration(lake: Lake, slip: float, horizon: int) -> np.ndarray:
    """Return ``V_h`` for h = 0, 1, … as rows; the table ends early once it no longer changes."""
    cells = np.frombuffer(lake.cells.encode(), dtype=np.uint8)
    goal_S = (cells == ord("G")).astype(float)
    over_S = (cells == ord("G")) | (cells == ord("H"))
    after_SA = np.array(lake.after)
    rows = [goal_S]
    for _ in range(min(horizon, _LONGEST_TABLE)):
        next_SA = rows[-1][after_SA]
        sideways_SA = next_SA[:, _BEFORE] + next_SA[:, _BEHIND]
        best_S = ((1.0 - slip) * next_SA + slip / 2 * sideways_SA).max(axis=1)
        rows.append(np.where(over_S, goal_S, best_S))
        if np.abs(rows[-1] - rows[-2]).max() < 1e-13:
            break
    return np.stack(rows)


_LONGEST_TABLE = 2_000
_BEFORE, _BEHIND = np.array([3, 0, 1, 2]), np.array([1, 2, 3, 0])


@lru_cache(maxsize=128)
def optimal_values(lake: Lake, slip_probability: float, horizon: int) -> OptimalValues:
    """Return cached :class:`OptimalValues`, which the episodes of a group share."""
    return OptimalValues(lake, slip_probability, horizon)
