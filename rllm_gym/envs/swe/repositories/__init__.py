"""The built-in tasks of ``rllm/SWE-v0``: small repositories with a bug or a missing feature, and renamings of them.

A task is a repository, a change to it (a hand-written bug or missing feature, or a mutation that breaks tests), and a
renaming of its identifiers. It is created on access, from text only: nothing is run or written to disk. A change
belongs to one split with all its renamings, so that no bug is both trained on and tested on.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from rllm_gym.core import Task, TaskError, split_of, stream_seed
from rllm_gym.data.taskset import Taskset, check_split
from rllm_gym.envs.swe.repositories.catalog import NAMES, RENAMINGS, RepoChange, Repository, load_repository

__all__ = ["NAMES", "base_tasks", "gold_patch", "repository_files", "swe_tasks"]

PREFIX = "builtin:"
_REFERENCE = re.compile(r"builtin:([a-z]+)/([a-z0-9-]+)@(\d{1,3})")
_MAX_ATTEMPTS = 2_000


def swe_tasks(
    *, repositories: Iterable[str] | None = None, split: str | None = "train", seed: int = 0, size: int | None = None
) -> Taskset:
    """Return the built-in tasks: the hand-written ones, the mutations, and, beyond those, renamed versions of all.

    ``Task.data`` is a row as described in ``docs/swe.md``; its ``repo`` is a name for :func:`repository_files`.

    Args:
        repositories: Names of built-in repositories (see :data:`NAMES`), all by default.
        split: ``"train"`` (the default, and ``None``), ``"validation"`` or ``"test"``.
        seed: A different seed gives different variants in a different order.
        size: Number of tasks. By default the number of changes in the split, each with its original names; more tasks
            are changes with other names, drawn at random. If there are fewer variants, tasks repeat.

    Raises:
        TaskError: An argument is out of range, or the repositories have no task in the split.
    """
    split = check_split("train" if split is None else split)
    if size is not None and (not isinstance(size, int | np.integer) or isinstance(size, bool) or not 1 <= size < 2**62):
        raise TaskError(f"size={size!r} must be a whole number from 1 to 2**62")
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool):
        raise TaskError(f"seed={seed!r} must be a whole number")
    if isinstance(repositories, str):
        raise TaskError(f"repositories={repositories!r} must be a list of names, such as [{repositories!r}]")
    names = NAMES if repositories is None else tuple(dict.fromkeys(repositories))
    if not names:
        raise TaskError(f"repositories is empty; choose from {', '.join(NAMES)}, or None for all")
    return Taskset(_GeneratedTasks(names, split, int(seed), None if size is None else int(size)))


def base_tasks(repositories: Iterable[str] = NAMES) -> list[Task]:
    """Return every hand-written task with its original names, of all splits."""
    return [
        _task(f"swe/{name}/{change.key}", load_repository(name), change, 0)
        for name in repositories
        for change in load_repository(name).changes.values()
        if change.kind != "mutation"
    ]


def repository_files(reference: str) -> dict[str, str]:
    """Return the tree an agent starts from: text by path.

    Args:
        reference: The ``repo`` of a built-in task, such as ``"builtin:ledger/until-inclusive@17"``.

    Raises:
        TaskError: There is no such repository, change or renaming.
    """
    repository, change, number = _resolve(reference)
    renaming = repository.renaming(number)
    files = repository.broken_files(change)
    return {repository.renamed(path, renaming): repository.renamed(text, renaming) for path, text in files.items()}


def gold_patch(task: Task) -> dict[str, str]:
    """Return the reference solution of a built-in task: the fixed text of each file it changes, by path.

    Raises:
        TaskError: It is not a built-in task.
    """
    repository, change, number = _resolve(task.data.get("repo"))
    renaming = repository.renaming(number)
    paths = dict.fromkeys(edit.path for edit in change.edits)
    return {repository.renamed(path, renaming): repository.renamed(repository.files[path], renaming) for path in paths}


def _resolve(reference: object) -> tuple[Repository, RepoChange, int]:
    match = _REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
    if match is None:
        raise TaskError(
            f"{reference!r:.80} is not a built-in repository reference such as builtin:ledger/split-money@0"
        )
    repository, number = load_repository(match[1]), int(match[3])
    if match[2] not in repository.changes or number >= RENAMINGS:
        raise TaskError(f"{reference!r}: the repository {match[1]!r} has no such variant in this version of rllm-gym")
    return repository, repository.changes[match[2]], number


def _task(task_id: str, repository: Repository, change: RepoChange, number: int) -> Task:
    tests, hidden, trace = _rendered_tests(repository.name, number)
    failing = set(change.fail_to_pass)
    data = {
        "repo": f"{PREFIX}{repository.name}/{change.key}@{number}",
        "hidden_tests": hidden,
        "trace": trace,
        "fail_to_pass": [tests[test] for test in change.fail_to_pass],
        "pass_to_pass": [tests[test] for test in repository.tests if test not in failing],
        "family": repository.name,
        "variant": change.kind,
    }
    return Task(task_id, repository.statement(change, number), data)


@functools.lru_cache(maxsize=1024)
def _rendered_tests(name: str, number: int) -> tuple[Mapping[str, str], Mapping[str, str], str]:
    """Return the renamed ids of the tests, the test files and their trace; shared by all tasks of this renaming."""
    repository = load_repository(name)
    renaming = repository.renaming(number)
    tests = {test: repository.renamed(test, renaming) for test in repository.tests}
    return tests, repository.hidden_tests(renaming), repository.renamed(repository.trace, renaming)


@dataclass(frozen=True)
class _GeneratedTasks:
    """Task *i* as a pure function of (repositories, split, seed, i)."""

    names: tuple[str, ...]
    split: str
    seed: int
    size: int | None

    name = "swe"

    def __post_init__(self) -> None:
        if not self._changes:
            raise TaskError(
                f"repositories={list(self.names)} have no task in the split {self.split!r}; select more repositories"
            )

    def __len__(self) -> int:
        return len(self._changes) if self.size is None else self.size

    @functools.cached_property
    def _changes(self) -> list[tuple[str, str]]:
        """(repository, change) pairs of the split, decided by the original issue, also for renamed versions."""
        return [
            (name, change.key)
            for name in self.names
            for change in load_repository(name).changes.values()
            if split_of(change.statement) == self.split
        ]

    @functools.cached_property
    def _in_order(self) -> list[tuple[str, str]]:
        """The changes: hand-written ones, alternating between the repositories, then mutations in an order by seed."""
        by_hand = [(name, key) for name, key in self._changes if load_repository(name).changes[key].kind != "mutation"]
        turn = {pair: sum(other[0] == pair[0] for other in by_hand[:place]) for place, pair in enumerate(by_hand)}
        mutations = [pair for pair in self._changes if pair not in turn]
        random.Random(stream_seed("swe order", self.split, self.seed)).shuffle(mutations)
        return sorted(by_hand, key=lambda pair: (turn[pair], pair)) + mutations

    def task(self, position: int) -> Task:
        task_id = f"{self._prefix}{position}"
        if position < len(self._in_order):
            name, key = self._in_order[position]
            repository = load_repository(name)
            return _task(task_id, repository, repository.changes[key], 0)
        rng = random.Random(stream_seed("swe", self.split, self.seed, position))
        for _ in range(_MAX_ATTEMPTS):
            name, key = rng.choice(self._changes)
            repository, number = load_repository(name), rng.randrange(RENAMINGS)
            change = repository.changes[key]
            if split_of(repository.statement(change, number)) == self.split:
                return _task(task_id, repository, change, number)
        raise TaskError(
            f"repositories={list(self.names)} have too few tasks in the split {self.split!r}; select more repositories"
        )

    def position(self, task_id: str) -> int | None:
        number = task_id.removeprefix(self._prefix)
        if not task_id.startswith(self._prefix) or not number.isascii() or not number.isdecimal() or len(number) > 19:
            return None
        position = int(number)
        return position if position < len(self) and number == str(position) else None

    def split_positions(self, split: str) -> np.ndarray | None:
        raise TaskError(f"all tasks belong to the split {self.split!r}; create another source with split={split!r}")

    @property
    def _prefix(self) -> str:
        chosen = "" if self.names == NAMES else "+".join(self.names) + "/"
        return f"swe/{chosen}{self.split}/{self.seed}/"
