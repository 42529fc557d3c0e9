"""Tasks of FrozenLake: maps generated from (split, seed, index), or given by the user. Content decides the split."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rllm_gym.core import Task, TaskError, TaskSource, split_of
from rllm_gym.data import ProceduralTaskset, load_tasks
from rllm_gym.envs.frozen_lake.lake import Lake, OptimalValues, optimal_values, parse_map, read_map

Placement = Literal["random", "corner"]
DIFFICULTIES = ("easy", "medium", "hard")
SMALLEST, LARGEST = 2, 10
# An episode that even optimal play mostly loses is useless for training: see ``check_winnable``.
LEAST_OPTIMUM = 0.5
_ATTEMPTS = 20_000


def difficulty_bounds(size: int, difficulty: str) -> tuple[int, int]:
    """Return the fewest and most moves of the shortest path for a named difficulty on a ``size`` × ``size`` lake.

    ``easy`` is shorter than a side, ``hard`` is one and a half sides or more, ``medium`` is in between.

    >>> [difficulty_bounds(4, name) for name in DIFFICULTIES]
    [(2, 3), (4, 5), (6, 15)]
    """
    longest = size * size - 1
    hard = size + size // 2
    bounds = {"easy": (min(2, size - 1), size - 1), "medium": (size, hard - 1), "hard": (hard, longest)}
    if difficulty not in bounds:
        raise ValueError(f"difficulty={difficulty!r} is not one of {DIFFICULTIES} (or None)")
    low, high = bounds[difficulty]
    return low, max(low, high)


def default_max_turns(size: int, slip_probability: float) -> int:
    """Return two and a half times the side, plus turns for slipping: 10 on a 4 × 4 lake that is not slippery."""
    return math.ceil(2.5 * size / max(0.2, 1.0 - slip_probability))


@dataclass(frozen=True)
class LakeRules:
    """Conditions that a map has to meet to be a task.

    Attributes:
        size: Side of the square map, 2 to 10.
        p_frozen: Probabilities that a cell is frozen, each in (0, 1]; one of them is drawn for every map.
        start: ``"random"`` or ``"corner"`` (top left).
        goal: ``"random"`` or ``"corner"`` (bottom right).
        min_path: Fewest moves of the shortest path.
        max_path: Most moves of the shortest path.
        slip_probability: Probability that a move goes to a perpendicular direction.
        max_turns: Length of an episode.
    """

    size: int
    p_frozen: tuple[float, ...]
    start: Placement
    goal: Placement
    min_path: int
    max_path: int
    slip_probability: float
    max_turns: int

    def __post_init__(self) -> None:
        if not (isinstance(self.size, int) and SMALLEST <= self.size <= LARGEST):
            raise ValueError(f"size={self.size!r} must be a whole number from {SMALLEST} to {LARGEST}")
        if not self.p_frozen or not all(0 < p <= 1 for p in self.p_frozen):
            raise ValueError(f"p_frozen={self.p_frozen!r}: each probability of a frozen cell must be > 0 and <= 1")
        for name, place in (("start", self.start), ("goal", self.goal)):
            if place not in ("random", "corner"):
                raise ValueError(f"{name}={place!r} is not 'random' or 'corner'")
        if not 1 <= self.min_path <= self.max_path:
            raise ValueError(
                f"min_path={self.min_path} and max_path={self.max_path} must satisfy 1 <= min_path <= max_path"
            )
        if self.min_path > self.max_turns:
            raise ValueError(
                f"every map needs at least {self.min_path} moves, but max_turns={self.max_turns}; increase max_turns"
            )


def best_success(lake: Lake, slip_probability: float, max_turns: int) -> float:
    """Return the probability that optimal play reaches the goal within the episode."""
    return OptimalValues(lake, slip_probability, max_turns).success(lake.start, max_turns)


@dataclass(frozen=True)
class LakeGenerator:
    """Generator of the maps of one split, called by :class:`~rllm_gym.data.ProceduralTaskset`.

    Both the map *and* the map without its start must belong to the split. So not even a position in the middle of a
    training episode is the start of a test episode. (If the start is in a fixed corner, or the lake has only 2 × 2
    cells and therefore only a few dozen maps, only the complete map is checked.)
    """

    rules: LakeRules
    split: str

    def __call__(self, stream: random.Random) -> tuple[str, dict[str, Any]]:
        """Return one map as text, and its properties.

        Raises:
            TaskError: No map of the split meets the conditions.
        """
        rules, size, draw = self.rules, self.rules.size, stream.random
        for _ in range(_ATTEMPTS):
            p = rules.p_frozen[stream.randrange(len(rules.p_frozen))]
            cells = ["F" if draw() < p else "H" for _ in range(size * size)]
            goal = size * size - 1 if rules.goal == "corner" else stream.randrange(size * size)
            cells[goal] = "G"
            starts = [0]
            if rules.start == "random":
                if size > SMALLEST and split_of(_text("".join(cells), size)) != self.split:
                    continue
                starts = [cell for cell, letter in enumerate(cells) if letter == "F"]
            # Only some start cells put the map into the split, so several are tried before another map is drawn.
            for _ in starts:
                start = starts[stream.randrange(len(starts))]
                placed = "".join(cells[:start]) + "S" + "".join(cells[start + 1 :])
                path_length = self._path_length(placed)
                if path_length:
                    return _text(placed, size), {"path_length": path_length, "p_frozen": p}
        raise TaskError(
            f"no map of the split {self.split!r} was found in {_ATTEMPTS} attempts with {rules}; widen min_path and "
            "max_path, increase p_frozen or max_turns, or decrease slip_probability"
        )

    def _path_length(self, cells: str) -> int:
        """Return the length of the shortest path if the map belongs to the split and meets the conditions, else 0."""
        rules, content = self.rules, _text(cells, self.rules.size)
        if split_of(content) != self.split:
            return 0
        try:
            lake = read_map(content)
        except TaskError:  # no path to the goal, or the start replaced the goal
            return 0
        if not rules.min_path <= lake.path_length <= min(rules.max_path, rules.max_turns):
            return 0
        return lake.path_length if best_success(lake, rules.slip_probability, rules.max_turns) > LEAST_OPTIMUM else 0


def _text(cells: str, width: int) -> str:
    return "\n".join(cells[i : i + width] for i in range(0, len(cells), width))


def generated_tasks(rules: LakeRules, *, split: str | None, seed: int, size: int) -> ProceduralTaskset:
    """Return a task set whose maps are generated on access."""
    split = "train" if split is None else split
    return ProceduralTaskset(LakeGenerator(rules, split), name="frozen_lake", split=split, seed=seed, size=size)


def tasks_from_maps(source: Any, *, split: str | None) -> TaskSource:
    """Return a task source of user-provided maps: rows ``{"map": [...]}``, bare maps, tasks, a file, or a task set.

    Raises:
        TaskError: A map is unusable; the message names the row.
    """
    if isinstance(source, list | tuple):
        source = [row if isinstance(row, Mapping | Task) else {"map": row} for row in source]
    return load_tasks(source, name="frozen_lake", split=split, convert=_lake_task)


def _lake_task(row: Mapping[str, Any], task_id: str) -> Task:
    rows = row.get("map", row.get("content"))
    if rows is None:
        raise TaskError(f"the key 'map' is missing (keys: {sorted(map(str, row))})")
    lake = parse_map(rows, name=task_id)
    return Task(task_id, "\n".join(lake.rows), {"path_length": lake.path_length})


def lake_of(task: Task) -> Lake:
    """Return the map of a task, parsed from its content.

    Raises:
        TaskError: The content is not a solvable map.
    """
    return parse_map(task.content, name=f"task {task.task_id!r}")


def check_winnable(lake: Lake, slip_probability: float, max_turns: int, name: str) -> None:
    """Reject a map on which even optimal play mostly fails within the episode.

    Raises:
        TaskError: The best success probability is one half or less.
    """
    best = optimal_values(lake, slip_probability, max_turns).success(lake.start, max_turns)
    if best <= LEAST_OPTIMUM:
        raise TaskError(
            f"{name}: within max_turns={max_turns} and with slip_probability={slip_probability} even an optimal policy "
            f"reaches the goal with probability {best:.2f}, which must be above {LEAST_OPTIMUM}; the shortest path "
            f"has {lake.path_length} moves: increase max_turns or decrease slip_probability"
        )
