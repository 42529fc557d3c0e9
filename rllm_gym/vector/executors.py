"""The executor for each kind of worker."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial

from gymnasium.envs.registration import EnvSpec

from rllm_gym.runtime import WorkerPool
from rllm_gym.runtime.env_building import EnvBuildSpec, may_share_threads
from rllm_gym.runtime.env_worker import EnvDeadlines
from rllm_gym.vector.async_executor import AsyncExecutor, CoroutineEnvWorker, VectorEnvWorker
from rllm_gym.vector.process_executor import ProcessExecutor
from rllm_gym.vector.thread_executor import ThreadEnvWorker, ThreadExecutor

WORKERS = ("thread", "process", "asyncio", "ray")


def open_executor(
    workers: str, specs: Mapping[str, EnvBuildSpec], count: int, deadlines: EnvDeadlines
) -> AsyncExecutor:
    """Return an executor for a kind of worker.

    Raises:
        ValueError: There is no such kind.
    """
    if workers not in WORKERS:
        raise ValueError(f"workers={workers!r} must be one of {', '.join(map(repr, WORKERS))}")
    if workers == "asyncio":
        pool = WorkerPool("thread", max_workers=count, name="vector-make")
        return AsyncExecutor(partial(CoroutineEnvWorker, specs, deadlines, pool), count, deadlines, pool)
    if workers == "thread":
        sources = [build_spec.source for build_spec in specs.values()]
        shared = all(isinstance(source, EnvSpec) and may_share_threads(source.id) for source in sources)
        pool = WorkerPool("thread", max_workers=count, name="vector", own_threads=not shared)
        return ThreadExecutor(partial(ThreadEnvWorker, specs, deadlines, pool), count, deadlines, pool)
    preload = ("rllm_gym.vector", *_modules(specs)) if workers == "process" else ()
    pool = WorkerPool(workers, max_workers=count, name="vector", preload=preload)  # type: ignore[arg-type]
    executor = ProcessExecutor if workers == "process" else AsyncExecutor
    return executor(partial(VectorEnvWorker, specs, deadlines, pool), count, deadlines, pool)


def _modules(specs: Mapping[str, EnvBuildSpec]) -> list[str]:
    """Return the modules of this package's environments, to be imported once, before the workers are forked."""
    points = [build_spec.source.entry_point for build_spec in specs.values() if isinstance(build_spec.source, EnvSpec)]
    modules = [point.partition(":")[0] for point in points if isinstance(point, str)]
    return [module for module in dict.fromkeys(modules) if module.startswith("rllm_gym.") and _importable(module)]


def _importable(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False  # creating the environment will report what is missing
    return True
