"""The engine side of one worker: deadlines for every call to its environment, and a new worker after a failure."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from gymnasium.envs.registration import EnvSpec

from rllm_gym.core import EnvironmentFault, TaskError
from rllm_gym.engine.env_host import EnvironmentHost, ResetResult, StepResult
from rllm_gym.engine.spec import Deadlines
from rllm_gym.engine.stats import EngineStats
from rllm_gym.runtime import Actor, DeadlineExceeded, MemoryExceeded, WorkerDied, WorkerError, WorkerPool

_log = logging.getLogger(__name__)


class EnvWorker:
    """A worker with an environment. Used by one episode at a time, from one event loop at a time.

    Args:
        pool: Provides the worker.
        source: Creates the environment.
        kwargs: Keyword arguments of the environment.
        deadlines: Maximum duration of each phase, in seconds.
        reuse: Whether an environment is reused for further episodes after a clean end.
        env_made: Shared by the workers of an engine: whether any environment was ever created.
        stats: Counts lost workers and the faults that are not raised.
        host: Class that holds the environment in the worker, such as
            :class:`~rllm_gym.engine.env_host.EnvironmentHost`.
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
        host: Callable[..., Any] = EnvironmentHost,
    ) -> None:
        self._pool = pool
        self._source = source
        self._kwargs = kwargs
        self._deadlines = deadlines
        self._reuse = reuse
        self._env_made = env_made
        self._stats = stats
        self._make_host = host
        self._actor: Actor | None = None
        self._host: Any = None  # set only if the worker is a thread of this process
        self._coroutines: Any = None
        self._has_environment = False

    async def reset(self, seed: int, options: dict[str, Any] | None) -> ResetResult:
        """Reset the environment; create it first if there is none.

        Raises:
            EnvironmentFault: Creating or resetting it failed or took too long.
            TaskError: There is no such task.
        """
        if not self._has_environment:
            await self._make()
        if self._coroutines is not None:
            result = await self._await("reset", self._coroutines.async_reset(seed=seed, options=options))
            return EnvironmentHost.checked_reset(result, self._coroutines)
        return await self._call("reset", "reset", seed, options)  # type: ignore[no-any-return]

    async def step(self, action: Any) -> StepResult:
        """Execute one action.

        Raises:
            EnvironmentFault: The environment raised, took too long, died or returned an invalid value.
        """
        if self._coroutines is not None:
            result = await self._await("step", self._coroutines.async_step(action))
            return EnvironmentHost.checked_step(result, self._coroutines)
        return await self._call("step", "step", action)  # type: ignore[no-any-return]

    async def call(self, method: str, *args: Any) -> Any:
        """Call another method of the host, within the deadline of a step. Raises the same errors as :meth:`step`."""
        return await self._call("step", method, *args)

    async def end_episode(self) -> None:
        """End an episode without a fault: close the environment, or keep it for the next episode.

        Raises:
            EnvironmentFault: ``close`` raised or took too long.
        """
        if self._reuse and (self._coroutines is None or not getattr(self._coroutines, "bound_to_loop", True)):
            return
        await self._close_environment()

    async def discard(self) -> None:
        """Close the environment after a fault, within the deadline. A fault in that is counted, not raised."""
        try:
            await self._close_environment()
        except EnvironmentFault as fault:
            self._stats.faults[fault.kind] += 1
            _log.warning("fault (%s): %s", fault.kind, fault)

    async def aclose(self) -> None:
        """Close the environment and stop the worker. Faults are counted and logged."""
        await self.discard()
        if self._actor is not None:
            self._actor.kill()
            self._actor = None

    # Private methods

    async def _make(self) -> None:
        timeout = self._deadlines.make
        try:
            if self._actor is None or not self._actor.alive:
                if self._pool.kind == "thread":
                    host = self._host = self._make_host(self._source, self._kwargs)
                    self._actor = await self._pool.aactor(lambda: host, timeout=timeout)
                else:
                    self._actor = await self._pool.aactor(self._make_host, self._source, self._kwargs, timeout=timeout)
            await self._call("make", "make")
        except EnvironmentFault:
            raise
        except Exception as error:
            raise EnvironmentFault(
                f"creating the environment raised {type(error).__name__}: {error}", kind="make"
            ) from error
        self._env_made.set()
        self._has_environment = True
        self._coroutines = self._host.async_env() if self._host is not None else None

    async def _close_environment(self) -> None:
        if not self._has_environment:
            return
        self._has_environment = False
        if self._actor is None or not self._actor.alive:
            return
        if self._coroutines is not None:
            coroutines, self._coroutines = self._coroutines, None
            if self._host is not None:
                self._host.detach()
            await self._await("close", coroutines.async_close())
        else:
            await self._call("close", "close")

    async def _call(self, phase: str, method: str, *args: Any) -> Any:
        timeout = getattr(self._deadlines, phase)
        assert self._actor is not None
        try:
            return await self._actor.acall(method, *args, timeout=timeout)
        except DeadlineExceeded:
            self._worker_lost()
            raise EnvironmentFault(f"{phase} did not finish within {timeout:g} s", kind=f"{phase}_deadline") from None
        except (MemoryExceeded, MemoryError) as error:
            if not isinstance(error, MemoryError):
                self._worker_lost()
            raise EnvironmentFault(f"{phase} exceeded its memory limit: {error}", kind="memory") from error
        except WorkerDied as error:
            self._worker_lost()
            raise EnvironmentFault(f"the worker died during {phase}: {error}", kind="worker_died") from error
        except WorkerError as error:
            raise EnvironmentFault(
                f"the result of {phase} cannot be sent between processes: {error}", kind="invalid_result"
            ) from error
        except asyncio.CancelledError:
            self._worker_lost()  # the call was still running
            raise

    async def _await(self, phase: str, coroutine: Any) -> Any:
        timeout = getattr(self._deadlines, phase)
        try:
            async with asyncio.timeout(timeout) as deadline:
                return await coroutine
        except TimeoutError as error:
            if deadline.expired():
                raise EnvironmentFault(
                    f"{phase} did not finish within {timeout:g} s", kind=f"{phase}_deadline"
                ) from None
            raise EnvironmentFault(f"{phase} raised {type(error).__name__}: {error}", kind="exception") from error
        except (EnvironmentFault, TaskError):
            raise
        except Exception as error:
            raise EnvironmentFault(f"{phase} raised {type(error).__name__}: {error}", kind="exception") from error

    def _worker_lost(self) -> None:
        if self._pool.kind == "thread":
            self._stats.abandoned_threads += 1
        else:
            self._stats.killed_processes += 1
        self._has_environment = False
        if self._actor is not None:
            self._actor.kill()
            self._actor = None
