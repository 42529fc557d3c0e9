"""Places driven by coroutines: environments in workers of a pool (processes, Ray actors), or asynchronous ones."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import gymnasium

from rllm_gym.core import EnvironmentFault
from rllm_gym.runtime import (
    Actor,
    BackgroundLoop,
    DeadlineExceeded,
    MemoryExceeded,
    WorkerDied,
    WorkerError,
    WorkerPool,
)
from rllm_gym.runtime.env_building import EnvBuildSpec, async_env, build_env
from rllm_gym.runtime.env_checks import as_fault, checked_reset, checked_step
from rllm_gym.vector.env_commands import (
    MAX_ATTEMPTS,
    EnvCommand,
    EnvDeadlines,
    EnvResult,
    ResetResult,
    StepResult,
)
from rllm_gym.vector.env_host import EnvDescription, EnvHost
from rllm_gym.vector.result_queue import ResultQueue

T = TypeVar("T")


class EnvBackend(ABC):
    """One slot with its environment. Methods raise :class:`EnvironmentFault` when it fails or exceeds a deadline."""

    def __init__(self, build_specs: Mapping[str, EnvBuildSpec], deadlines: EnvDeadlines) -> None:
        self.build_specs = build_specs
        self.deadlines = deadlines
        self.settings: dict[str, Any] = {}

    @abstractmethod
    async def make(self, member: str) -> EnvDescription:
        """Create this environment, unless it exists. Exceptions of its constructor are not converted."""

    @abstractmethod
    async def reset(self, member: str, seed: int | None, options: dict[str, Any] | None) -> ResetResult: ...

    @abstractmethod
    async def step(self, action: Any) -> StepResult: ...

    @abstractmethod
    async def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    @abstractmethod
    async def set(self, name: str, value: Any) -> None: ...

    @abstractmethod
    def discard(self) -> Coroutine[Any, Any, None]:
        """Empty the slot at once; the returned coroutine then closes its environments, within the deadline."""


class WorkerEnvBackend(EnvBackend):
    """In a separate worker: a process, or whatever the pool provides."""

    def __init__(self, build_specs: Mapping[str, EnvBuildSpec], deadlines: EnvDeadlines, pool: WorkerPool) -> None:
        super().__init__(build_specs, deadlines)
        self._pool = pool
        self._actor: Actor | None = None
        self._descriptions: dict[str, EnvDescription] = {}

    async def make(self, member: str) -> EnvDescription:
        if member not in self._descriptions:
            seconds = self.deadlines.make
            if self._actor is None:
                self._descriptions.clear()
                try:
                    self._actor = await self._pool.aactor(EnvHost, self.build_specs, timeout=seconds)
                except (DeadlineExceeded, WorkerDied) as error:
                    raise EnvironmentFault(f"no worker could be started: {error}", kind="worker_died") from error
            self._descriptions[member] = await self._ask("make", "make", member)
            for name, value in self.settings.items():
                await self._ask("make", "set", name, value)
        return self._descriptions[member]

    async def reset(self, member: str, seed: int | None, options: dict[str, Any] | None) -> ResetResult:
        return await self._ask("reset", "reset", member, seed, options)  # type: ignore[no-any-return]

    async def step(self, action: Any) -> StepResult:
        return await self._ask("step", "step", action)  # type: ignore[no-any-return]

    async def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return await self._ask("step", "call", name, args, kwargs)

    async def set(self, name: str, value: Any) -> None:
        await self._ask("step", "set", name, value)

    def discard(self) -> Coroutine[Any, Any, None]:
        actor, self._actor = self._actor, None
        self._descriptions.clear()
        return self._end(actor)

    async def _end(self, actor: Actor | None) -> None:
        if actor is not None:
            with suppress(Exception):
                await actor.aclose(self.deadlines.close)

    async def _ask(self, phase: str, method: str, *args: Any) -> Any:
        seconds = getattr(self.deadlines, phase)
        actor = self._actor
        if actor is None:
            raise EnvironmentFault("the environment is closed", kind="closed")
        try:
            return await actor.acall(method, *args, timeout=seconds)
        except DeadlineExceeded:
            raise EnvironmentFault(f"{phase} did not finish within {seconds:g} s", kind=f"{phase}_deadline") from None
        except MemoryExceeded as error:
            raise EnvironmentFault(f"{phase} exceeded its memory limit: {error}", kind="memory") from error
        except WorkerDied as error:
            raise EnvironmentFault(f"the worker died during {phase}: {error}", kind="worker_died") from error
        except WorkerError as error:
            raise EnvironmentFault(
                f"the result of {phase} cannot be sent between processes: {error}", kind="invalid_result"
            ) from error


class CoroutineEnvBackend(EnvBackend):
    """On the event loop itself: the environment's own coroutines are awaited.

    The constructor is a blocking function: it runs in a thread of ``pool``.
    """

    def __init__(self, build_specs: Mapping[str, EnvBuildSpec], deadlines: EnvDeadlines, pool: WorkerPool) -> None:
        super().__init__(build_specs, deadlines)
        self._pool = pool
        self._envs: dict[str, gymnasium.Env[Any, Any]] = {}
        self._member = ""
        self._elapsed = 0

    async def make(self, member: str) -> EnvDescription:
        env = self._envs.get(member)
        if env is None:
            seconds = self.deadlines.make
            try:
                # No wrapper may change ``step``, so the limit of steps is counted here.
                env = await self._pool.arun(
                    partial(build_env, limit_steps=False), self.build_specs[member], timeout=seconds
                )
            except DeadlineExceeded:
                raise EnvironmentFault(f"make did not finish within {seconds:g} s", kind="make_deadline") from None
            async_env(env)
            self._envs[member] = env
            for name, value in self.settings.items():
                env.set_wrapper_attr(name, value)
        self._member = self._member or member
        return EnvDescription.of(env)

    async def reset(self, member: str, seed: int | None, options: dict[str, Any] | None) -> ResetResult:
        env = self._envs[member]
        result = await self._awaited("reset", env.unwrapped.async_reset(seed=seed, options=options))  # type: ignore[attr-defined]
        self._member, self._elapsed = member, 0
        return checked_reset(result, env.observation_space)

    async def step(self, action: Any) -> StepResult:
        env = self._envs[self._member]
        result = await self._awaited("step", env.unwrapped.async_step(action))  # type: ignore[attr-defined]
        observation, reward, terminated, truncated, info = checked_step(result, env.observation_space)
        self._elapsed += 1
        limit = self.build_specs[self._member].max_episode_steps
        if limit is not None and self._elapsed >= limit:
            truncated = True
        return observation, reward, terminated, truncated, info

    async def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        env = self._envs[self._member]
        found = getattr(env, name) if name == "render" else env.get_wrapper_attr(name)
        if not callable(found):
            return found
        result = found(*args, **kwargs)
        return await self._within("step", result) if asyncio.iscoroutine(result) else result

    async def set(self, name: str, value: Any) -> None:
        for env in self._envs.values():
            env.set_wrapper_attr(name, value)

    def discard(self) -> Coroutine[Any, Any, None]:
        envs, self._envs, self._member = self._envs, {}, ""
        return self._end(envs)

    async def _end(self, envs: Mapping[str, gymnasium.Env[Any, Any]]) -> None:
        for env in envs.values():
            with suppress(Exception):
                await self._within("close", env.unwrapped.async_close())  # type: ignore[attr-defined]

    async def _awaited(self, phase: str, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return await self._within(phase, coroutine)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raise as_fault(error, phase) from error

    async def _within(self, phase: str, coroutine: Coroutine[Any, Any, T]) -> T:
        seconds = getattr(self.deadlines, phase)
        try:
            async with asyncio.timeout(seconds) as deadline:
                return await coroutine
        except TimeoutError:
            if not deadline.expired():
                raise
            raise EnvironmentFault(f"{phase} did not finish within {seconds:g} s", kind=f"{phase}_deadline") from None


class AsyncExecutor:
    """Executes commands on an event loop in a separate thread.

    Args:
        backend: Creates a slot.
        count: Number of slots.
        deadlines: Deadlines of each call.
        results: Receives results.
        pool: The pool of the workers, closed with this object.
    """

    def __init__(
        self,
        backend: Callable[[], EnvBackend],
        count: int,
        deadlines: EnvDeadlines,
        results: ResultQueue,
        pool: WorkerPool,
    ) -> None:
        self._backends = [backend() for _ in range(count)]
        self._deadlines = deadlines
        self._results = results
        self._pool = pool
        self._pid = os.getpid()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False
        self._loop = BackgroundLoop("vector-environments")

    @property
    def abandoned(self) -> int:
        """Number of threads abandoned so far."""
        return self._pool.abandoned

    def submit(self, commands: Sequence[EnvCommand]) -> None:
        """Start commands without waiting. Each slot may have at most one command in progress."""
        self._loop.call_soon(partial(self._begin, list(commands)))

    def close(self) -> None:
        """Close every environment and end its worker, within the deadline. Work in progress is cancelled."""
        if self._closed or os.getpid() != self._pid:
            return  # called twice, or in a fork: the workers belong to the parent
        self._closed = True
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
        await asyncio.gather(*map(self._give_up, self._backends), *self._closing, return_exceptions=True)

    def _begin(self, commands: Sequence[EnvCommand]) -> None:
        for command in commands:
            _start(self._serve(self._backends[command.index], command), self._tasks)

    def _give_up(self, backend: EnvBackend) -> asyncio.Task[None]:
        """Empty a slot at once. The task closes what was in it, also if whoever waits for it is cancelled."""
        return _start(backend.discard(), self._closing)

    async def _serve(self, backend: EnvBackend, command: EnvCommand) -> None:
        try:
            outcome = await self._execute(backend, command)
        except EnvironmentFault as fault:
            self._give_up(backend)
            outcome = EnvResult(command.index, command.final, fault=fault, replacements=command.replacements + 1)
        except Exception as error:
            outcome = EnvResult(command.index, command.final, error=error, replacements=command.replacements)
        self._results.put(outcome)

    async def _execute(self, backend: EnvBackend, command: EnvCommand) -> EnvResult:
        if command.op == "step":
            stepped = await backend.step(command.action)
            if command.retry is None or not (stepped[2] or stepped[3]):
                return EnvResult(command.index, stepped)
            command.final = stepped
            command.op, (command.member, command.seed) = "reset", command.retry
        if command.op == "reset":
            return await self._reset(backend, command)
        description = await backend.make(command.member)
        if command.op == "make":
            return EnvResult(command.index, value=description)
        if command.op == "set":
            name, value = command.arguments
            backend.settings[name] = value
            await backend.set(name, value)
            return EnvResult(command.index)
        return EnvResult(command.index, value=await backend.call(*command.arguments))

    async def _reset(self, backend: EnvBackend, command: EnvCommand) -> EnvResult:
        while True:
            try:
                await _remake(backend, command.member)
                reset = await backend.reset(command.member, command.effective_seed(), command.options)
                return EnvResult(command.index, command.final, reset, replacements=command.replacements)
            except EnvironmentFault:
                if command.replacements + 1 >= MAX_ATTEMPTS:
                    raise
            command.replacements += 1
            await asyncio.shield(self._give_up(backend))


def _start(coroutine: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    """Run a coroutine as a task that is a member of ``tasks`` until it is done."""
    task = asyncio.get_running_loop().create_task(coroutine)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def _remake(backend: EnvBackend, member: str) -> None:
    try:
        await backend.make(member)
    except EnvironmentFault:
        raise
    except Exception as error:
        raise EnvironmentFault(
            f"creating the environment raised {type(error).__name__}: {error}", kind="make"
        ) from error
