"""The worker of one episode's environment: reused by further episodes, and counted when it is lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gymnasium.envs.registration import EnvSpec

from rllm_gym.core import EnvironmentFault
from rllm_gym.engine.spec import Deadlines
from rllm_gym.engine.stats import EngineStats
from rllm_gym.engine.task_env_host import TaskEnvHost
from rllm_gym.runtime import WorkerPool
from rllm_gym.runtime.env_worker import EnvWorker

_log = logging.getLogger(__name__)


class EpisodeEnvWorker(EnvWorker):
    """A worker with an environment or a game. Used by one episode at a time, from one event loop at a time.

    Args:
        pool: Provides the worker.
        source: Creates the environment.
        kwargs: Keyword arguments of the environment.
        deadlines: Maximum duration of each phase, in seconds.
        reuse: Whether an environment is reused for further episodes after a clean end.
        env_made: Shared by the workers of an engine: whether any environment was ever created.
        stats: Counts lost workers and the faults that are not raised.
        host: Class that holds the environment in the worker.
    """

    def __init__(
        self,
        pool: WorkerPool,
        source: EnvSpec | str | Callable[..., Any],
        kwargs: Mapping[str, Any],
        deadlines: Deadlines,
        *,
        reuse: bool,
        env_made: threading.Event,
        stats: EngineStats,
        host: Callable[..., Any] = TaskEnvHost,
    ) -> None:
        super().__init__(pool, partial(host, source, kwargs), deadlines)
        self._reuse = reuse
        self._env_made = env_made
        self._stats = stats

    async def reset(self, seed: int | None, options: dict[str, Any] | None, env_name: str = "") -> Any:
        """As :meth:`EnvWorker.reset`; create the environment first if there is none."""
        if not self.has_env():
            await self.remake()
            self._env_made.set()
        return await super().reset(seed, options, env_name)

    async def end_episode(self) -> None:
        """End an episode without a fault: close the environment, or keep it for the next episode.

        Raises:
            EnvironmentFault: ``close`` raised or took too long.
        """
        if self._reuse and (self._host is None or not getattr(self._host.async_env(), "bound_to_loop", True)):
            return
        await self.close_envs()

    async def discard(self) -> None:
        """Close the environment after a fault, within the deadline. A fault in that is counted, not raised."""
        try:
            await self.close_envs()
        except EnvironmentFault as fault:
            self._count_fault(fault)

    async def aclose(self) -> None:
        """Close the environment and stop the worker. Faults are counted and logged."""
        try:
            await super().aclose()
        except EnvironmentFault as fault:
            self._count_fault(fault)

    def _count_fault(self, fault: EnvironmentFault) -> None:
        self._stats.faults[fault.kind] += 1
        _log.warning("fault (%s): %s", fault.kind, fault)

    def _on_lost_worker(self) -> None:
        self._stats.count_lost_worker(self._pool.kind)
        super()._on_lost_worker()
