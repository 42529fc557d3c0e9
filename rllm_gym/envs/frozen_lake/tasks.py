"""Where lakes come from: drawn from (split, seed, index) alone, or given by the user. Splits are by content."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from rllm_gym.core import SPLITS, Task, TaskError, split_of, stream_seed
from rllm_gym.envs.frozen_lake.lake import Lake, Prospects, parse_map, prospects

Place = Literal["random", "corner"]
DIFFICULTIES = ("easy", "medium", "hard")
SMALLEST, LARGEST = 2, 10
# An episode in which even the best play mostly fails teaches nothing: see ``winnable``.
LEAST_OPTIMUM = 0.5
_ATTEMPTS = 20_000


def difficulty_bounds(size: int, difficulty: str) -> tuple[int, int]:
    """Fewest and most moves of the shortest path for a named difficulty on a ``size`` × ``size`` lake.

    ``easy`` is shorter than a side, ``hard`` is one and a half sides or more, ``medium`` lies between.

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
    """Two and a half sides, and as many more as slipping costs: 10 on a 4 × 4 lake that is not slippery."""
    return math.ceil(2.5 * size / max(0.2, 1.0 - slip_probability))


@dataclass(frozen=True)
class LakeRules:
    """Which maps count as a task.

    Attributes:
        size: Side of the square map, 2 to 10.
        p_frozen: Chance of a cell to be frozen, each in (0, 1]; one of them is drawn for every map.
        start: ``"random"`` or ``"corner"`` (top left).
        goal: ``"random"`` or ``"corner"`` (bottom right).
        min_path: Fewest moves of the shortest path.
        max_path: Most moves of the shortest path.
        slip_probability: Chance of a move to go sideways.
        max_turns: Length of an episode.
    """

    size: int
    p_frozen: tuple[float, ...]
    start: Place
    goal: Place
    min_path: int
    max_path: int
    slip_probability: float
    max_turns: int

    def __post_init__(self) -> None:
        if not (isinstance(self.size, int) and SMALLEST <= self.size <= LARGEST):
            raise ValueError(f"size={self.size!r} must be a whole number from {SMALLEST} to {LARGEST}")
        if not self.p_frozen or not all(0 < p <= 1 for p in self.p_frozen):
            raise ValueError(f"p_frozen={self.p_frozen!r}: each chance of a frozen cell must be above 0 and at most 1")
        for name, place in (("start", self.start), ("goal", self.goal)):
            if place not in ("random", "corner"):
                raise ValueError(f"{name}={place!r} is not 'random' or 'corner'")
        if not 1 <= self.min_path <= self.max_path:
            raise ValueError(
                f"the shortest path is to have {self.min_path} to {self.max_path} moves; give 1 <= min_path <= max_path"
            )
        if self.min_path > self.max_turns:
            raise ValueError(
                f"every map needs at least {self.min_path} moves but max_turns={self.max_turns}; raise max_turns"
            )


def winnable(lake: Lake, slip_probability: float, max_turns: int) -> bool:
    """Whether optimal play reaches the goal within the episode with a probability above one half."""
    if not 0 < lake.path_length <= max_turns:
        return False
    if slip_probability == 0:
        return True
    return Prospects(lake, slip_probability, max_turns).success(lake.start, max_turns) > LEAST_OPTIMUM


def draw_lake(rules: LakeRules, split: str, seed: int, index: int) -> Task:
    """The ``index``-th map of a split: a pure function of its arguments.

    Both the map *and* the map without its start belong to the split. So not even a position in the middle of a
    training episode is the beginning of a test episode. (With the start in a fixed corner, the map alone decides.)

    Raises:
        TaskError: No map of the split keeps the rules.
    """
    stream = random.Random(stream_seed("frozen_lake", split, seed, index))
    size = rules.size
    for _ in range(_ATTEMPTS):
        p = rules.p_frozen[stream.randrange(len(rules.p_frozen))]
        draw = stream.random
        cells = ["F" if draw() < p else "H" for _ in range(size * size)]
        goal = size * size - 1 if rules.goal == "corner" else stream.randrange(size * size)
        cells[goal] = "G"
        if rules.start == "random":
            if split_of(_text(cells, size)) != split:
                continue
            starts = [cell for cell, letter in enumerate(cells) if letter == "F"]
            stream.shuffle(starts)
        else:
            starts = [0]
        for start in starts:
            if start == goal:
                continue
            task = _task_at(rules, tuple(cells), start, split)
            if task is not None:
                content, path_length = task
                return Task(f"frozen_lake/{split}/{seed}/{index}", content, {"path_length": path_length, "p_frozen": p})
    raise TaskError(
        f"no map of the split {split!r} was found in {_ATTEMPTS} draws with {rules}; widen min_path and max_path, "
        "raise p_frozen or max_turns, or lower slip_probability"
    )


def _task_at(rules: LakeRules, cells: tuple[str, ...], start: int, split: str) -> tuple[str, int] | None:
    """The map with its start put at a cell, if it is of the split and keeps the rules."""
    placed = "".join(cells[:start]) + "S" + "".join(cells[start + 1 :])
    content = _text(placed, rules.size)
    if split_of(content) != split:
        return None
    lake = Lake(placed, rules.size)
    if not rules.min_path <= lake.path_length <= rules.max_path:
        return None
    if not winnable(lake, rules.slip_probability, rules.max_turns):
        return None
    return content, lake.path_length


def _text(cells: str | list[str], width: int) -> str:
    joined = "".join(cells)
    return "\n".join(joined[i : i + width] for i in range(0, len(joined), width))


class DrawnLakes:
    """A task set of drawn maps, made when they are asked for.

    Args:
        rules: Which maps count.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        seed: Another seed gives an independent task set of the same split.
        size: How many tasks there are.
    """

    def __init__(self, rules: LakeRules, *, split: str, seed: int, size: int) -> None:
        check_split(split)
        if size < 1:
            raise ValueError(f"num_tasks={size!r} must be at least 1")
        self.rules, self.split, self.seed, self.size = rules, split, seed, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < self.size:
            raise TaskError(f"task index {index} is outside 0..{self.size - 1}")
        return _remembered(self.rules, self.split, self.seed, index)

    def __iter__(self) -> Iterator[Task]:
        return (self[index] for index in range(self.size))

    def find(self, task_id: str) -> Task:
        prefix, _, number = task_id.rpartition("/")
        if prefix == f"frozen_lake/{self.split}/{self.seed}" and number.isascii() and number.isdigit():
            index = int(number) if len(number) < 20 else self.size
            if index < self.size and str(index) == number:
                return self[index]
        raise TaskError(
            f"no task {task_id!r} here; ids run from 'frozen_lake/{self.split}/{self.seed}/0' to '.../{self.size - 1}'"
        )


@lru_cache(maxsize=8192)
def _remembered(rules: LakeRules, split: str, seed: int, index: int) -> Task:
    return draw_lake(rules, split, seed, index)


class GivenLakes:
    """A task set of the user's own maps, checked one by one when it is made.

    Args:
        maps: Rows ``{"map": ["SF", "HG"]}`` (with ``"task_id"`` if wanted), bare maps, or tasks.
        split: Keep only the maps whose content is of this split; ``None`` keeps all.
    """

    def __init__(self, maps: Iterable[Any], *, split: str | None) -> None:
        if split is not None:
            check_split(split)
        self.tasks = [_given_task(row, number) for number, row in enumerate(maps)]
        self.lakes = [lake_of(task) for task in self.tasks]
        if split is not None:
            kept = [(t, lake) for t, lake in zip(self.tasks, self.lakes) if t.split == split]
            self.tasks, self.lakes = [t for t, _ in kept], [lake for _, lake in kept]
        if not self.tasks:
            raise TaskError("there is no map" + (f" of the split {split!r} among the given ones" if split else ""))
        self._by_id = {task.task_id: task for task in self.tasks}
        if len(self._by_id) < len(self.tasks):
            seen: set[str] = set()
            twice = next(t.task_id for t in self.tasks if t.task_id in seen or seen.add(t.task_id))  # type: ignore[func-returns-value]
            raise TaskError(f"two maps have the task_id {twice!r}; ids must differ")

    def __len__(self) -> int:
        return len(self.tasks)

    def __getitem__(self, index: int) -> Task:
        return self.tasks[index]

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def find(self, task_id: str) -> Task:
        if task_id not in self._by_id:
            raise TaskError(f"no task {task_id!r} among the {len(self.tasks)} given maps")
        return self._by_id[task_id]


def _given_task(row: Any, number: int) -> Task:
    if isinstance(row, Task):
        lake_of(row)
        return row
    task_id: object = f"frozen_lake/given/{number}"
    rows = row
    if isinstance(row, Mapping):
        if "map" not in row:
            raise TaskError(f"task {number}: a row needs the key 'map'; it has {sorted(map(str, row))}")
        task_id, rows = row.get("task_id", task_id), row["map"]
    if not isinstance(task_id, str):
        raise TaskError(f"task {number}: task_id is a string; got {task_id!r}")
    lake = parse_map(rows, name=f"task {number} ({task_id})")
    return Task(task_id, "\n".join(lake.rows), {"path_length": lake.path_length})


def lake_of(task: Task) -> Lake:
    """The map of a task: its content.

    Raises:
        TaskError: The content is no solvable map.
    """
    return parse_map(task.content, name=f"task {task.task_id!r}")


def check_winnable(lake: Lake, slip_probability: float, max_turns: int, name: str) -> None:
    """Refuse a map that even optimal play mostly loses within the episode.

    Raises:
        TaskError: The best success probability is one half or less.
    """
    best = prospects(lake, slip_probability, max_turns).success(lake.start, max_turns)
    if best <= LEAST_OPTIMUM:
        raise TaskError(
            f"{name}: within max_turns={max_turns} and with slip_probability={slip_probability} even optimal play "
            f"reaches the goal with probability {best:.2f}, which must be above {LEAST_OPTIMUM}; the shortest path "
            f"has {lake.path_length} moves: raise max_turns or lower slip_probability"
        )


def check_split(split: str) -> None:
    if split not in SPLITS:
        raise ValueError(f"split={split!r} is not one of {SPLITS}")
