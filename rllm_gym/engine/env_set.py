"""The environments and games of one running workflow episode, which are kept for reuse by the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from gymnasium.envs.registration import EnvSpec

from rllm_gym.engine.env_pool import EnvPool
from rllm_gym.engine.episode_env_worker import EpisodeEnvWorker

_MAX_IDLE = 16  # maximum number of idle environments


class EnvSet:
    """The environments of one episode at a time.

    Args:
        pool: Provides the workers.
    """

    def __init__(self, pool: EnvPool) -> None:
        self._pool = pool
        self._in_use: list[tuple[tuple[Any, ...], EpisodeEnvWorker]] = []  # in use by this episode
        self._idle: list[tuple[tuple[Any, ...], EpisodeEnvWorker]] = []  # most recently used first

    def acquire(
        self, source: EnvSpec | Callable[..., Any] | str, kwargs: Mapping[str, Any], *, name: str, host: Any
    ) -> EpisodeEnvWorker:
        """Return a worker for this environment: an idle one with the same arguments if there is one, else a new one."""
        kind = (host, source, dict(kwargs))
        for position, (arguments, idle) in enumerate(self._idle):
            if _same_arguments(arguments, kind):
                worker = idle
                del self._idle[position]
                break
        else:
            worker = self._pool.new_env_worker(source, kwargs, env_id=name, host=host)
        self._in_use.append((kind, worker))
        return worker

    async def end_episode(self) -> None:
        """End an episode without a fault: close its environments, or keep them for the next episode.

        Raises:
            EnvironmentFault: Closing one of them raised or took too long.
        """
        await _gather_all(worker.end_episode() for _, worker in self._in_use)
        await self._close_unused()

    async def discard(self) -> None:
        await _gather_all(worker.discard() for _, worker in self._in_use)
        await self._close_unused()

    async def aclose(self) -> None:
        workers = [worker for _, worker in (*self._in_use, *self._idle)]
        self._in_use, self._idle = [], []
        await _gather_all(worker.aclose() for worker in workers)

    async def _close_unused(self) -> None:
        kept = [*self._in_use, *self._idle]
        self._in_use, self._idle = [], kept[:_MAX_IDLE]
        await _gather_all(worker.aclose() for _, worker in kept[_MAX_IDLE:])


async def _gather_all(awaitables: Iterable[Awaitable[None]]) -> None:
    """Wait for all awaitables, then raise the first error."""
    waiting = list(awaitables)
    if len(waiting) == 1:
        await waiting[0]
    elif waiting:
        results: list[Any] = await asyncio.gather(*waiting, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result


def _same_arguments(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    try:
        return bool(one == other)
    except Exception:  # some arguments cannot be compared, for example arrays
        return False
