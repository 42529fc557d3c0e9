"""The arguments with which an environment selects built-in problems, or a user's tasks instead of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rllm_gym.argument_checks import check_int
from rllm_gym.core import TaskError, TaskSource
from rllm_gym.data import Taskset, load_tasks
from rllm_gym.data.conversion import RowToTask

DIFFICULTIES = (1, 2, 3, 4, 5)
"""Difficulties that ``None`` selects. Mathematics and programming also have 6 to 8, and mathematics 0, which have to be
asked for."""
HIGHEST_DIFFICULTY = 8

LevelTable = tuple[int, int, Mapping[str, Any]]
"""The lowest and the highest difficulty of the families in a table, and the families by name."""


def select_families(families: str | Iterable[str] | None, known: Iterable[str]) -> tuple[str, ...]:
    """Return the selected families in the order of ``known``, so that the order in which they are given has no effect.

    Raises:
        TaskError: A family does not exist; the message names those that do.
    """
    known = tuple(known)
    chosen = known if families is None else (families,) if isinstance(families, str) else tuple(families)
    if not chosen or not set(chosen) <= set(known):
        raise TaskError(f"families={families!r}: choose from {', '.join(known)} (or None for all)")
    return tuple(family for family in known if family in chosen)


def difficulty_range(difficulty: Any, highest: int = DIFFICULTIES[-1], lowest: int = 1) -> tuple[int, int]:
    """Return the lowest and the highest difficulty of ``1``, ``(1, 3)``, ``range(1, 4)`` or ``None`` (1 to 5).

    Args:
        difficulty: One of these.
        highest: The highest that exists.
        lowest: The lowest that exists.

    Raises:
        TaskError: It is none of these.
    """
    if difficulty is None:
        return DIFFICULTIES[0], DIFFICULTIES[-1]
    if isinstance(difficulty, range):
        difficulty = (difficulty[0], difficulty[-1]) if len(difficulty) else ()
    try:
        low, high = (difficulty, difficulty) if isinstance(difficulty, int) else difficulty
    except (TypeError, ValueError):
        low, high = -1, -1
    known = range(lowest, highest + 1)
    if isinstance(difficulty, bool) or low not in known or high not in known or low > high:
        raise TaskError(f"difficulty={difficulty!r} must be {lowest} to {highest}, a pair (lowest, highest), or None")
    return int(low), int(high)


def families_at(
    families: str | Iterable[str] | None, levels: tuple[int, int], tables: tuple[LevelTable, ...]
) -> tuple[str, ...]:
    """Return the selected families in a fixed order; ``None`` selects those that have problems of these difficulties.

    Args:
        families: The families, as in :func:`select_families`.
        levels: The lowest and the highest difficulty.
        tables: All families, by difficulty.

    Raises:
        TaskError: A family does not exist, or none of them has problems of one of the difficulties.
    """
    used = [table for table in tables if levels[0] <= table[1] and levels[1] >= table[0]]
    chosen = select_families(
        families, dict.fromkeys(name for *_, table in (used if families is None else tables) for name in table)
    )
    for low, high, table in used:
        if table.keys().isdisjoint(chosen):
            raise TaskError(
                f"families={families!r} have no problems of difficulty {low if low == high else f'{low} to {high}'}; "
                f"those that do are {', '.join(table)}"
            )
    return chosen


def choose_tasks(
    built_in: Callable[..., TaskSource],
    convert: RowToTask,
    name: str,
    tasks: Any,
    families: Any,
    difficulty: Any,
    split: str | None,
    task_seed: int,
    num_tasks: int | None,
) -> TaskSource:
    """Return the task set described by an environment's arguments of these names.

    Args:
        built_in: Returns the built-in problems, used if ``tasks`` is ``None``.
        convert: Converts a row of ``tasks`` to a task.
        name: Prefix of the ids of rows that have none.

    Raises:
        TaskError: The arguments are unusable, alone or together.
        ValueError: ``num_tasks`` is out of range.
    """
    if num_tasks is not None:
        check_int("num_tasks", num_tasks, otherwise="None for all")
    if tasks is None:
        return built_in(families=families, difficulty=difficulty, split=split, seed=task_seed, size=num_tasks)
    for argument, value in (("families", families), ("difficulty", difficulty)):
        if value is not None:
            raise TaskError(f"{argument}={value!r} selects built-in problems; it cannot be combined with tasks=")
    prefix = None if isinstance(tasks, str | os.PathLike) else name
    source = load_tasks(tasks, name=prefix, split=split, convert=convert, envs=name)
    if num_tasks is None:
        return source
    if not isinstance(source, Taskset):
        source = Taskset.from_rows(source, convert=convert)
    return source.take(num_tasks)
