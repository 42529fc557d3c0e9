"""What two agents divide: things of a few kinds, what each is worth to whom, and which divisions are good. Exact."""

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
_MOST_DIVISIONS = 20_000


@dataclass(frozen=True)
class Division:
    """A problem of division. A division of it is written as what the first agent gets, a count a kind.

    Attributes:
        items: Names of the kinds, singular.
        counts: How many there are of each.
        values: Points of one thing of each kind, for the first and for the second agent.
    """

    items: tuple[str, ...]
    counts: tuple[int, ...]
    values: tuple[tuple[int, ...], tuple[int, ...]]

    def __post_init__(self) -> None:
        kinds = len(self.items)
        if not 1 <= kinds <= 8 or len(self.counts) != kinds or [len(v) for v in self.values] != [kinds, kinds]:
            raise TaskError("items, counts and the two lists of values need the same length, 1 to 8")
        if len(set(self.items)) < kinds or not all(name.isascii() and name.isalpha() for name in self.items):
            raise TaskError(f"items={self.items} must be different single words of letters a to z")
        for number in (*self.counts, *self.values[0], *self.values[1]):
            if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= 999:
                raise TaskError(f"counts and values are whole numbers from 0 to 999; got {number!r}")
        if math.prod(count + 1 for count in self.counts) > _MOST_DIVISIONS or not all(self.counts):
            raise TaskError(f"counts={self.counts} must be 1 or more, with at most {_MOST_DIVISIONS:,} divisions")
        if not self.worth(0) or not self.worth(1):
            raise TaskError(f"values={self.values}: everything together must be worth something to both")

    @classmethod
    def of(cls, task: Task) -> Division:
        """The problem that is the content of a task, as its data arrange it: the ``order`` of the kinds, and whether
        the agents are ``swapped``.

        Raises:
            TaskError: It is none; the task is named.
        """
        try:
            row = json.loads(task.content)
            order = task.data.get("order", range(len(row["counts"])))
            counts, first, second = (tuple(line[kind] for kind in order) for line in (row["counts"], *row["values"]))
            if len(counts) != len(row["counts"]):
                raise ValueError(f"its order is {order!r}")
            return cls(tuple(row["items"]), counts, (second, first) if task.data.get("swapped") else (first, second))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise TaskError(f"task {task.task_id!r} is no division: {error}") from error

    def content(self) -> str:
        """The problem as one line of JSON; :meth:`of` reads it."""
        return json.dumps({"items": self.items, "counts": self.counts, "values": self.values})

    def worth(self, agent: int) -> int:
        """Points of everything together, for one agent."""
        return sum(count * value for count, value in zip(self.counts, self.values[agent]))

    def rest(self, kept: Sequence[int]) -> tuple[int, ...]:
        """What is left when so much is taken."""
        return tuple(count - taken for count, taken in zip(self.counts, kept))

    def points(self, first_gets: Sequence[int]) -> tuple[int, int]:
        """Points of both agents."""
        mine, yours = self.values
        return (
            sum(n * value for n, value in zip(first_gets, mine)),
            sum(n * value for n, value in zip(self.rest(first_gets), yours)),
        )

    def divisions(self) -> list[tuple[int, ...]]:
        """All of them."""
        return list(product(*(range(count + 1) for count in self.counts)))

    def best_joint_points(self) -> int:
        """The largest sum of both agents' points."""
        return sum(count * max(a, b) for count, a, b in zip(self.counts, *self.values))

    def is_pareto_optimal(self, first_gets: Sequence[int]) -> bool:
        """Whether no division gives one agent more and the other not less."""
        mine, yours = self.points(first_gets)
        return not any(a >= mine and b >= yours and (a, b) != (mine, yours) for a, b in _outcomes(self).values())

    def nash(self) -> tuple[int, ...]:
        """The division with the largest product of points: Nash, *The Bargaining Problem* (1950), with nothing for both
        as the point of disagreement. Of several the one with the largest sum, then the last in order of counts."""
        return max(_outcomes(self).items(), key=lambda entry: (math.prod(entry[1]), sum(entry[1]), entry[0]))[0]

    def words(self, counts: Sequence[int]) -> str:
        """``"2 books, 1 hat and 0 balls"``."""
        parts = [f"{n} {name if n == 1 else name + 's'}" for n, name in zip(counts, self.items)]
        return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]

    def prices(self, agent: int) -> str:
        """``"1 a book, 3 a hat and 1 a ball"``."""
        parts = [f"{value} a {name}" for value, name in zip(self.values[agent], self.items)]
        return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]

    def canonical(self) -> Division:
        """One and the same for all problems that differ only in the order of the kinds and of the agents."""
        first, second = self.values
        kinds = min(sorted(zip(self.counts, one, other)) for one, other in ((first, second), (second, first)))
        counts, one, other = zip(*kinds)
        return Division(self.items, counts, (one, other))


@lru_cache(maxsize=256)
def _outcomes(division: Division) -> dict[tuple[int, ...], tuple[int, int]]:
    return {first_gets: division.points(first_gets) for first_gets in division.divisions()}


@dataclass(frozen=True)
class DrawDivision:
    """Draws the problems of one split; :class:`~rllm_gym.data.ProceduralTaskset` calls it.

    There are one to four things of a kind. Every kind is worth something to somebody, everything together is worth
    ``total`` to each, and the agents differ. The content is the canonical form, so that no other arrangement of a
    problem is in another split; how it is arranged is drawn too, so that it tells nothing.
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
        """A problem as text; the values are in it, so it is never shown to an agent.

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
        """Values drawn one kind after the other, in random order; ``None`` where the last one does not come out."""
        values, left = [0] * len(counts), self.total
        order = stream.sample(range(len(counts)), len(counts))
        for kind in order[:-1]:
            values[kind] = stream.randint(0, left // counts[kind])
            left -= values[kind] * counts[kind]
        values[order[-1]], over = divmod(left, counts[order[-1]])
        return None if over else tuple(values)


def row_to_division(row: Mapping[str, Any], task_id: str) -> Task:
    """A row ``{"items", "counts", "values"}`` as a task.

    Raises:
        TaskError: A key is missing or cannot be used.
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
