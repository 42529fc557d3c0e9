"""Environments driven by coroutines: in workers of a pool (processes, Ray actors), or asynchronous ones."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from rllm_gym.core import EnvironmentFault
from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.runtime import WorkerPool
from rllm_gym.runtime.env_building import EnvBuildSpec
from rllm_gym.runtime.env_host import EnvHost, StepResult
from rllm_gym.runtime.env_worker import EnvDeadlines, EnvWorker, close_quietly
from rllm_gym.runtime.pool import StartedCall
from rllm_gym.vector.env_commands import MAX_ATTEMPTS, EnvCommand, EnvResult, ResetResult
from rllm_gym.vector.result_queue import ResultQueue


class VectorEnvWorker(EnvWorker):
    """The environments of one slot.

    Attributes:
        settings: Attributes that were set on the environments, and are set on those that replace them.
    """

    def __init__(self, build_specs: Mapping[str, EnvBuildSpec], deadlines: EnvDeadlines, pool: WorkerPool) -> None:
        super().__init__(pool, partial(EnvHost, build_specs), deadlines)
        self.settings: dict[str, Any] = {}

    async def make(self, env_name: str = "") -> None:
        if not self.has_env(env_name):
            await super().make(env_name)
            for name, value in self.settings.items():
                await self.call("set", name, value)


class CoroutineEnvWorker(VectorEnvWorker):
    """The environments of one slot, whose coroutines are awaited."""

    needs_coroutines = True

    def __init__(self, build_specs: Mapping[str, EnvBuildSpec], deadlines: EnvDeadlines, pool: WorkerPool) -> None:
        super().__init__(build_specs, deadlines, pool)
        # No wrapper may change ``step``, so the limit of steps is counted here.
        self._new_host = partial(EnvHost, build_specs, limit_steps=False)
        self._limits = {name: spec.max_episode_steps for name, spec in build_specs.items()}
        self._limit: int | None = None
        self._elapsed = 0

    async def reset(self, seed: int | None, options: dict[str, Any] | None, env_name: str = "") -> ResetResult:
        result: ResetResult = await super().reset(seed, options, env_name)
        self._limit, self._elapsed = self._limits[env_name], 0
        return result

    async def step(self, action: Any) -> StepResult:
        observation, reward, terminated, truncated, info = await super().step(action)
        self._elapsed += 1
        return observation, reward, terminated, truncated or self._elapsed == self._limit, info


class AsyncExecutor:
    """Executes commands on an event loop in a separate thread, and keeps their results until they are taken.

    Args:
        new_worker: Creates the worker of a slot, without starting it.
        count: Number of slots.
        deadlines: Deadlines of each call.
        pool: The pool of the workers, closed with this object.
    """

    def __init__(
        self,
        new_worker: Callable[[], VectorEnvWorker],
        count: int,
        deadlines: EnvDeadlines,
        pool: WorkerPool,
    ) -> None:
        self._new_worker = new_worker
        self._workers = [new_worker() for _ in range(count)]
        self._deadlines = deadlines
        self._results = ResultQueue()
        self._pool = pool
        self._pid = os.getpid()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self._loop = BackgroundLoop("vector-environments")

    def submit(self, commands: Sequence[EnvCommand]) -> None:
        """Start commands without waiting. Each slot may have at most one command in progress."""
        self._loop.call_soon(partial(self._begin, list(commands)))

    def put(self, result: EnvResult) -> None:
        """Add a result."""
        self._results.put(result)

    def wait(self, at_least: int, timeout: float | None) -> None:
        """Wait until ``at_least`` results have arrived, or ``timeout`` seconds have passed; it may return earlier.

        Ctrl-C can end it at any instant: it changes nothing.
        """
        self._results.wait(at_least, timeout)

    def take(self) -> list[EnvResult]:
        """Return the results that have arrived."""
        return self._results.take()

    def close(self) -> None:
        """Close every environment and end its worker, within the deadline. Work in progress is cancelled."""
        if self._closed or os.getpid() != self._pid:
            return  # called twice, or in a fork: the workers belong to the parent
        if self._loop.is_current:
            threading.Thread(target=self.close, name="vector-close", daemon=True).start()
            return
        self._closed = True
        self._results.close()
        try:
            with suppress(TimeoutError):
                self._loop.start(self._clear()).result(2 * self._deadlines.close + 10.0)
        finally:
            self._pool.close()
            self._loop.close()

    async def _clear(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Environments that broke before are not cancelled: each closes within its own deadline.
        await asyncio.gather(*map(self._replace, range(len(self._workers))), *self._closing, return_exceptions=True)

    def _begin(self, commands: Sequence[EnvCommand], call: StartedCall | None = None) -> None:
        """Start commands; with ``call``, one command whose first attempt is that call, which has ended."""
        for command in commands:
            _start(self._serve(command, call), self._tasks)

    def _replace(self, index: int) -> asyncio.Task[None]:
        """Give a slot a new worker at once. The task closes the old one, also if whoever waits for it is cancelled."""
        old = self._workers[index]
        self._workers[index] = new = self._new_worker()
        new.settings = old.settings
        return _start(close_quietly(old), self._closing)

    async def _serve(self, command: EnvCommand, call: StartedCall | None) -> None:
        try:
            outcome = await self._execute(command, call)
        except EnvironmentFault as fault:
            self._replace(command.index)
            outcome = EnvResult(command.index, command.final, fault=fault, replacements=command.replacements + 1)
        except Exception as error:
            outcome = EnvResult(command.index, command.final, error=error, replacements=command.replacements)
        self.put(outcome)

    async def _execute(self, command: EnvCommand, call: StartedCall | None) -> EnvResult:
        worker = self._workers[command.index]
        if command.op == "step":
            stepped = await (worker.step(command.action) if call is None else worker.finish("step", call))
            outcome = command.after(stepped)
            if isinstance(outcome, EnvResult):
                return outcome
            command, call = outcome, None
        if command.op == "reset":
            return await self._reset(command, call)
        await worker.make(command.env_name)
        if command.op == "make":
            return EnvResult(command.index, value=await worker.call("describe", command.env_name))
        if command.op == "set":
            name, value = command.arguments
            worker.settings[name] = value
            await worker.call("set", name, value)
            return EnvResult(command.index)
        return EnvResult(command.index, value=await worker.call("call", *command.arguments))

    async def _reset(self, command: EnvCommand, call: StartedCall | None) -> EnvResult:
        while True:
            worker = self._workers[command.index]
            try:
                if call is not None:
                    reset = await worker.finish("reset", call)
                else:
                    await worker.remake(command.env_name)
                    reset = await worker.reset(command.effective_seed(), command.options, command.env_name)
                return EnvResult(command.index, command.final, reset, replacements=command.replacements)
            except EnvironmentFault:
                if command.replacements + 1 >= MAX_ATTEMPTS:
                    raise
            call = None
            command.replacements += 1
            await asyncio.shield(self._replace(command.index))


def _start(coroutine: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    """Run a coroutine as a task that is a member of ``tasks`` until it is done."""
    task = asyncio.get_running_loop().create_task(coroutine)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
