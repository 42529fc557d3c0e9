"""Procedural task sets: task *i* is a pure function of (split, seed, i), and splits share no content."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rllm_gym.core import Task, TaskError, split_of, stream_seed
from rllm_gym.data.taskset import Taskset, check_split

Generate = Callable[[random.Random], tuple[str, Mapping[str, Any]]]
"""Generates one problem: its content, and the data that the environment needs in addition (JSON types)."""

_MAX_ATTEMPTS = 2_000
"""Attempts to generate a task of a split. A split holds at least a tenth of a large space of contents, so this many
failures mean that the generator has no content in the split."""


@dataclass(frozen=True)
class _GeneratedTasks:
    generate: Generate
    name: str
    split: str
    seed: int
    size: int

    def __len__(self) -> int:
        return self.size

    def task(self, position: int) -> Task:
        rng = random.Random(stream_seed(self.split, self.seed, position))
        for _ in range(_MAX_ATTEMPTS):
            content, data = self.generate(rng)
            if split_of(content) == self.split:
                return Task(f"{self.name}/{self.split}/{self.seed}/{position}", content, data)
        raise TaskError(
            f"the generator of {self.name!r} returned {_MAX_ATTEMPTS} problems, none of which is in the "
            f"split {self.split!r}; it needs more distinct contents"
        )

    def position(self, task_id: str) -> int | None:
        prefix = f"{self.name}/{self.split}/{self.seed}/"
        number = task_id.removeprefix(prefix)
        if not task_id.startswith(prefix) or not number.isascii() or not number.isdecimal() or len(number) > 19:
            return None
        position = int(number)
        return position if position < self.size and number == str(position) else None

    def split_positions(self, split: str) -> np.ndarray | None:
        raise TaskError(
            f"every task of {self.name!r} is generated for the split {self.split!r}; for another split "
            f"create ProceduralTaskset(..., split={split!r})"
        )


class ProceduralTaskset(Taskset):
    """A task set over a generator, of any size and without storage.

    Task *i* comes from a random generator seeded by SHA-256 of (split, seed, i): tasks are independent of each
    other, and different seeds share no sequences. The generator is called again until the content falls into the
    split, so that two splits never share a problem, whatever their seeds. Within a split, problems may repeat.

    Args:
        generate: Called as ``generate(rng: random.Random)``; returns the content (text) and the data (a mapping of
            JSON types) of one problem. It must not use other randomness. Use a module-level function, not a lambda,
            if the task set is sent to worker processes.
        name: Prefix of the task ids: ``<name>/<split>/<seed>/<i>``.
        split: ``"train"``, ``"validation"``, ``"test"``, or ``None`` for ``"train"``.
        seed: Another seed gives another sequence of the same kind of problem.
        size: Number of tasks.

    Raises:
        TaskError: An argument is out of range. Indexing raises it if the generator has no content in the split.

    >>> def sums(rng):
    ...     a, b = rng.randrange(1000), rng.randrange(1000)
    ...     return f"{a} + {b}?", {"gold": str(a + b)}
    >>> tasks = ProceduralTaskset(sums, name="sums", split="test", seed=7, size=100)
    >>> tasks[3] == tasks.find("sums/test/7/3")
    True
    """

    __slots__ = ()

    _store: _GeneratedTasks

    def __init__(
        self, generate: Generate, *, name: str, split: str | None = "train", seed: int = 0, size: int = 1_000_000
    ) -> None:
        split = check_split("train" if split is None else split)
        if not isinstance(seed, int | np.integer) or isinstance(seed, bool):
            raise TaskError(f"seed={seed!r} must be a whole number")
        if not isinstance(size, int | np.integer) or isinstance(size, bool) or not 1 <= size < 2**62:
            raise TaskError(f"size={size!r} must be a whole number from 1 to 2**62")
        super().__init__(_GeneratedTasks(generate, name, split, int(seed), int(size)))

    @property
    def seed(self) -> int:
        return self._store.seed

    def split(self, name: str) -> Taskset:
        """Return this set if ``name`` is its split, else raise :class:`~rllm_gym.core.TaskError`."""
        return self if check_split(name) == self._store.split else super().split(name)
