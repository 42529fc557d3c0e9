"""The arguments with which an environment selects built-in problems, or a user's tasks instead of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from rllm_gym.core import TaskError, TaskSource
from rllm_gym.data import Taskset, load_tasks
from rllm_gym.data.conversion import RowToTask

DIFFICULTIES = (1, 2, 3, 4, 5)


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


def difficulty_range(difficulty: Any) -> tuple[int, int]:
    """Return the lowest and the highest difficulty of ``1``, ``(1, 3)``, ``range(1, 4)`` or ``None`` (all).

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
        low, high = 0, 0
    if isinstance(difficulty, bool) or low not in DIFFICULTIES or high not in DIFFICULTIES or low > high:
        raise TaskError(f"difficulty={difficulty!r} must be 1 to 5, a pair (lowest, highest), or None")
    return int(low), int(high)


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
    if num_tasks is not None and (not isinstance(num_tasks, int) or isinstance(num_tasks, bool) or num_tasks < 1):
        raise ValueError(f"num_tasks={num_tasks!r} must be a whole number of at least 1, or None for all")
    if tasks is None:
        return built_in(families=families, difficulty=difficulty, split=split, seed=task_seed, size=num_tasks)
    for argument, value in (("families", families), ("difficulty", difficulty)):
        if value is not None:
            raise TaskError(f"{argument}={value!r} selects built-in problems; it cannot be combined with tasks=")
    prefix = None if isinstance(tasks, str | os.PathLike) else name
    source = load_tasks(tasks, name=prefix, split=split, convert=convert)
    if num_tasks is None:
        return source
    if not isinstance(source, Taskset):
        source = Taskset.from_rows(source, convert=convert)
    return source.take(num_tasks)
