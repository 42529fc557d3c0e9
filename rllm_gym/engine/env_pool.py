"""The workers of an engine's environments and calls, from worker pools that are created when they are needed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gymnasium.envs.registration import EnvSpec

from rllm_gym.engine.episode_env_worker import EpisodeEnvWorker
from rllm_gym.engine.spec import Deadlines
from rllm_gym.engine.stats import EngineStats
from rllm_gym.engine.task_env_host import TaskEnvHost
from rllm_gym.runtime import WorkerError, WorkerKind, WorkerPool
from rllm_gym.runtime.env_building import may_share_threads
from rllm_gym.runtime.env_worker import worker_faults


class EnvPool:
    """Creates workers for environments, and runs functions in workers.

    Args:
        workers: ``"thread"``, ``"process"`` or ``"ray"``.
        memory_mb: Memory limit in MB of each worker process or Ray actor; ``None`` for no limit.
        name: Name of the pool in messages.
        deadlines: Maximum duration of each phase, in seconds.
        reuse: Whether an environment is reused for further episodes after a clean end; ``None``: only those with an
            ``rllm/`` id are.
        stats: Counts lost workers.

    Attributes:
        env_made: Whether any environment was ever created.
    """

    def __init__(
        self,
        workers: WorkerKind,
        *,
        memory_mb: int | None,
        name: str,
        deadlines: Deadlines,
        reuse: bool | None,
        stats: EngineStats,
    ) -> None:
        self.env_made = threading.Event()
        self._kind = workers
        self._memory_mb = memory_mb
        self._name = name
        self._deadlines = deadlines
        self._reuse = reuse
        self._stats = stats
        self._lock = threading.Lock()
        self._pools: dict[bool, WorkerPool] = {}

    def new_env_worker(
        self,
        source: EnvSpec | str | Callable[..., Any],
        kwargs: Mapping[str, Any],
        *,
        env_id: str,
        host: Callable[..., Any] = TaskEnvHost,
    ) -> EpisodeEnvWorker:
        """Create the handle of a worker for one environment."""
        reuse = env_id.startswith("rllm/") if self._reuse is None else self._reuse
        return EpisodeEnvWorker(
            self._workers(own_threads=self._kind == "thread" and not may_share_threads(env_id)),
            source,
            kwargs,
            self._deadlines,
            reuse=reuse,
            env_made=self.env_made,
            stats=self._stats,
            host=host,
        )

    async def call(self, function: Callable[..., Any], args: tuple[Any, ...], *, name: str, timeout: float) -> Any:  # noqa: ASYNC109
        """Run ``function(*args)`` in a worker; ``name`` names it in messages.

        Raises:
            EnvironmentFault: The deadline passed (kind ``call_deadline``), the worker died (``worker_died``) or ran out
                of memory (``memory``).
            Exception: Any exception that the function raised.
        """
        self.env_made.set()  # a fault in a call must not be reported as EnvironmentUnavailable
        try:
            with worker_faults(name, "call_deadline", timeout, partial(self._stats.count_lost_worker, self._kind)):
                return await self._workers().arun(function, *args, timeout=timeout)
        except WorkerError as error:
            raise RuntimeError(f"{name}: {error}") from error

    async def aclose(self) -> None:
        """Stop every worker. Later calls create a new pool."""
        with self._lock:
            pools, self._pools = self._pools, {}
        await asyncio.gather(*(pool.aclose() for pool in pools.values()))

    # Private methods

    def _workers(self, *, own_threads: bool = False) -> WorkerPool:
        with self._lock:
            if own_threads not in self._pools:
                # n_parallel limits each run, so the pool itself needs no limit.
                self._pools[own_threads] = WorkerPool(
                    self._kind,
                    max_workers=1_000_000,
                    memory_mb=self._memory_mb,
                    name=self._name,
                    own_threads=own_threads,
                    preload=() if self._kind == "thread" else ("rllm_gym.engine.task_env_host",),
                )
            return self._pools[own_threads]
