"""Division problems for two agents: items of a few kinds, their values, and the quality of a division. Exact."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

from rllm_gym.core import Task, TaskError, split_of

NAMES = ("book", "hat", "ball", "pen", "cup")
_ATTEMPTS = 50_000
_MAX_DIVISIONS = 20_000


@dataclass(frozen=True)
class Division:
    """A division problem. A division is represented by what the first agent gets, a count per kind.

    Attributes:
        items: Names of the kinds, singular.
        counts: Number of items of each kind.
        values: Points of one item of each kind, for the first and for the second agent.
    """

    items: tuple[str, ...]
    counts: tuple[int, ...]
    values: tuple[tuple[int, ...], tuple[int, ...]]

    def __post_init__(self) -> None:
        kinds = len(self.items)
        if not 1 <= kinds <= 8 or len(self.counts) != kinds or [len(v) for v in self.values] != [kinds, kinds]:
            raise TaskError("items, counts and the two lists of values must have the same length, 1 to 8")
        if len(set(self.items)) < kinds or not all(name.isascii() and name.isalpha() for name in self.items):
            raise TaskError(f"items={self.items} must be different single words of letters a to z")
        for number in (*self.counts, *self.values[0], *self.values[1]):
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= 999:
                raise TaskError(f"counts and values are whole numbers from 0 to 999; got {number!r}")
        if math.prod(count + 1 for count in self.counts) > _MAX_DIVISIONS or not all(self.counts):
            raise TaskError(f"counts={self.counts} must be 1 or more, with at most {_MAX_DIVISIONS:,} divisions")
        if not self.worth(0) or not self.worth(1):
            raise TaskError(f"values={self.values}: everything together must be worth something to both")

    @classmethod
    def of(cls, task: Task) -> Division:
        """Return the problem in the content of a task.

        The task's data arrange it: the ``order`` of the kinds, and whether the agents are ``swapped``.

        Raises:
            TaskError: It is not a division problem; the message names the task.
        """
        try:
            row = json.loads(task.content)
            order = task.data.get("order", range(len(row["counts"])))
            counts, first, second = (tuple(line[kind] for kind in order) for line in (row["counts"], *row["values"]))
            if len(counts) != len(row["counts"]):
                raise ValueError(f"its order is {order!r}")
            return cls(tuple(row["items"]), counts, (second, first) if task.data.get("swapped") else (first, second))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise TaskError(f"task {task.task_id!r} is not a division: {error}") from error

    def content(self) -> str:
        """Return the problem as one line of JSON; :meth:`of` reads it."""
        return json.dumps({"items": self.items, "counts": self.counts, "values": self.values})

    def worth(self, agent: int) -> int:
        """Return the points of all items together, for one agent."""
        return sum(count * value for count, value in zip(self.counts, self.values[agent]))

    def rest(self, kept: Sequence[int]) -> tuple[int, ...]:
        """Return what is left after these counts are taken."""
        return tuple(count - taken for count, taken in zip(self.counts, kept))

    def points(self, first_gets: Sequence[int]) -> tuple[int, int]:
        """Return the points of both agents."""
        mine, yours = self.values
        return (
            sum(n * value for n, value in zip(first_gets, mine)),
            sum(n * value for n, value in zip(self.rest(first_gets), yours)),
        )

    def divisions(self) -> list[tuple[int, ...]]:
        """Return all divisions."""
        return list(product(*(range(count + 1) for count in self.counts)))

    def best_joint_points(self) -> int:
        """Return the largest sum of both agents' points."""
        return sum(count * max(a, b) for count, a, b in zip(self.counts, *self.values))

    def is_pareto_optimal(self, first_gets: Sequence[int]) -> bool:
        """Return whether no division gives one agent more and the other not less."""
        mine, yours = self.points(first_gets)
        return not any(a >= mine and b >= yours and (a, b) != (mine, yours) for a, b in _outcomes(self).values())

    def nash(self) -> tuple[int, ...]:
        """Return the division with the largest product of points.

        This is the solution of Nash, *The Bargaining Problem* (1950), with nothing for both as the disagreement point.
        Of several, the one with the largest sum, then the last in order of counts.
        """
        return max(_outcomes(self).items(), key=lambda entry: (math.prod(entry[1]), sum(entry[1]), entry[0]))[0]

    def words(self, counts: Sequence[int]) -> str:
        """Return text such as ``"2 books, 1 hat and 0 balls"``."""
        parts = [f"{n} {name if n == 1 else name + 's'}" for n, name in zip(counts, self.items)]
        return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]

    def prices(self, agent: int) -> str:
        """Return text such as ``"1 a book, 3 a hat and 1 a ball"``."""
        parts = [f"{value} a {name}" for value, name in zip(self.values[agent], self.items)]
        return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]

    def canonical(self) -> Division:
        """Return the same problem for all that differ only in the order of the kinds and of the agents."""
        first, second = self.values
        kinds = min(sorted(zip(self.counts, one, other)) for one, other in ((first, second), (second, first)))
        counts, one, other = zip(*kinds)
        return Division(self.items, counts, (one, other))


@lru_cache(maxsize=256)
def _outcomes(division: Division) -> dict[tuple[int, ...], tuple[int, int]]:
    return {first_gets: division.points(first_gets) for first_gets in division.divisions()}


@dataclass(frozen=True)
class DivisionGenerator:
    """Generates the problems of one split; called by :class:`~rllm_gym.data.ProceduralTaskset`.

    There are one to four items of a kind. Every kind has a value for at least one agent, all items together are worth
    ``total`` to each, and the agents' values differ. The content is the canonical form, so that no other arrangement of
    a problem is in another split; the arrangement is random, so that it carries no information.
    """

    kinds: int
    total: int
    split: str

    def __post_init__(self) -> None:
        if not isinstance(self.kinds, int) or not 2 <= self.kinds <= len(NAMES):
            raise TaskError(f"kinds={self.kinds!r} must be a whole number from 2 to {len(NAMES)}")
        if not isinstance(self.total, int) or not 4 <= self.total <= 100:
            raise TaskError(f"total={self.total!r} must be a whole number from 4 to 100")

    def __call__(self, stream: random.Random) -> tuple[str, dict[str, Any]]:
        """Return a problem as text; it contains the values, so it is never shown to an agent.

        Raises:
            TaskError: No problem of the split was found.
        """
        for _ in range(_ATTEMPTS):
            counts = tuple(stream.randint(1, 4) for _ in range(self.kinds))
            values = [self._values(stream, counts) for _ in range(2)]
            first, second = values
            if first is None or second is None or first == second or not all(map(max, first, second)):
                continue
            division = Division(NAMES[: self.kinds], counts, (first, second))
            if split_of(content := division.canonical().content()) == self.split:
                order = stream.sample(range(self.kinds), self.kinds)
                return content, {"order": order, "swapped": stream.random() < 0.5}
        raise TaskError(f"no division of {self.kinds} kinds worth {self.total} was found in {_ATTEMPTS} draws")

    def _values(self, stream: random.Random, counts: Sequence[int]) -> tuple[int, ...] | None:
        """Sample values one kind after the other, in random order; ``None`` if the last one is not an integer."""
        values, left = [0] * len(counts), self.total
        order = stream.sample(range(len(counts)), len(counts))
        for kind in order[:-1]:
            values[kind] = stream.randint(0, left // counts[kind])
            left -= values[kind] * counts[kind]
        values[order[-1]], over = divmod(left, counts[order[-1]])
        return None if over else tuple(values)


def row_to_division(row: Mapping[str, Any], task_id: str) -> Task:
    """Convert a row ``{"items", "counts", "values"}`` to a task.

    Raises:
        TaskError: A key is missing or invalid.
    """
    if isinstance(row.get("content"), str):
        task = Task(task_id, row["content"])
        Division.of(task)
        return task
    missing = [key for key in ("items", "counts", "values") if key not in row]
    if missing:
        raise TaskError(f"the keys {missing} are missing (there are {sorted(map(str, row))})")
    task = Task(task_id, json.dumps({key: row[key] for key in ("items", "counts", "values")}))
    return Task(task_id, Division.of(task).content())
