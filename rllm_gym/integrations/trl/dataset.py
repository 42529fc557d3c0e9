"""Tasks of an environment as a dataset for TRL's trainers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gymnasium.envs.registration import EnvSpec

from rllm_gym.core import Task
from rllm_gym.runtime.env_building import EnvBuildSpec, build_env

Tasks = int | Iterable[int | str]

_MAX_TASKS = 1000


def tasks_of(source: EnvSpec | Callable[..., Any], kwargs: Mapping[str, Any], wanted: Tasks | None) -> list[Task]:
    """Return the selected tasks of an environment.

    Args:
        source: Callable or spec that creates the environment.
        kwargs: Its keyword arguments.
        wanted: How many, from the first, or which, by index or id; ``None``: all, at most 1000.

    Raises:
        TaskError: There is no such task.
        ValueError: The environment has no task set, or no task is selected.
    """
    env = build_env(EnvBuildSpec(source, kwargs))
    try:
        tasks = getattr(env.unwrapped, "tasks", None)
        if tasks is None:
            raise ValueError(
                f"{type(env.unwrapped).__name__} has no task set for a dataset; derive it from rllm_gym.TextEnv"
            )
        if wanted is None:
            wanted = min(len(tasks), _MAX_TASKS)
        if isinstance(wanted, int):
            if not 1 <= wanted <= len(tasks):
                raise ValueError(f"tasks={wanted!r} must be between 1 and {len(tasks)}, the size of the task set")
            return [tasks[index] for index in range(wanted)]
        found = [tasks.find(task) if isinstance(task, str) else tasks[task] for task in wanted]
    finally:
        env.close()
    if not found:
        raise ValueError("tasks is empty; give at least one task")
    return found


def dataset_of(rows: list[dict[str, Any]]) -> Any:
    """Return the rows as a ``datasets.Dataset``.

    Raises:
        ModuleNotFoundError: ``pip install 'rllm-gym[trl]'``.
    """
    try:
        datasets = importlib.import_module("datasets")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"TRL's datasets need {error.name}: pip install 'rllm-gym[trl]'", name=error.name
        ) from error
    return datasets.Dataset.from_list(rows)
