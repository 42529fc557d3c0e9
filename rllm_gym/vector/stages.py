"""The executor for each kind of worker."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from gymnasium.envs.registration import EnvSpec

from rllm_gym.vector.inbox import Inbox
from rllm_gym.vector.loop import CoroutinePlace, LoopStage, WorkerPlace
from rllm_gym.vector.orders import Deadlines, Order, Recipe
from rllm_gym.vector.threads import ThreadStage
from rllm_gym.workers import WorkerPool

WORKERS = ("thread", "process", "asyncio", "ray")


class Stage(Protocol):
    """Executes commands; results go to the inbox that it was created with."""

    @property
    def abandoned(self) -> int: ...

    def submit(self, orders: Sequence[Order]) -> None: ...

    def close(self) -> None: ...


def open_stage(workers: str, recipes: Mapping[str, Recipe], count: int, deadlines: Deadlines, inbox: Inbox) -> Stage:
    """Return an executor for a kind of worker.

    Raises:
        ValueError: There is no such kind.
    """
    if workers not in WORKERS:
        raise ValueError(f"workers={workers!r} must be one of {', '.join(map(repr, WORKERS))}")
    if workers == "thread":
        return ThreadStage(recipes, count, deadlines, inbox)
    if workers == "asyncio":
        pool = WorkerPool("thread", max_workers=count, name="vector-make")
        return LoopStage(partial(CoroutinePlace, recipes, deadlines, pool), count, deadlines, inbox, pool)
    preload = ("rllm_gym.vector", *_modules(recipes)) if workers == "process" else ()
    pool = WorkerPool(workers, max_workers=count, name="vector", preload=preload)  # type: ignore[arg-type]
    return LoopStage(partial(WorkerPlace, recipes, deadlines, pool), count, deadlines, inbox, pool)


def _modules(recipes: Mapping[str, Recipe]) -> list[str]:
    """Return the modules of this package's environments, to be imported once, before the workers are forked."""
    points = [recipe.source.entry_point for recipe in recipes.values() if isinstance(recipe.source, EnvSpec)]
    modules = [point.partition(":")[0] for point in points if isinstance(point, str)]
    return [module for module in dict.fromkeys(modules) if module.startswith("rllm_gym.") and _importable(module)]


def _importable(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False  # creating the environment will report what is missing
    return True
