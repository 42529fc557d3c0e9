"""The owner's side of an environment in a worker: a deadline for every call, and a fault for every failure."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from typing import Any, Self, TypeVar

from rllm_gym.core.errors import EnvironmentFault
from rllm_gym.runtime.env_checks import as_fault
from rllm_gym.runtime.env_host import StepResult
from rllm_gym.runtime.errors import DeadlineExceeded, MemoryExceeded, WorkerDied, WorkerError
from rllm_gym.runtime.pool import Actor, StartedCall, WorkerPool
from rllm_gym.runtime.process_worker import PendingCall

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EnvDeadlines:
    """Maximum duration of each call into an environment, in seconds. All values are finite.

    Attributes:
        make: Constructing the environment.
        reset: ``reset``.
        step: ``step``, including the reward; the environment's :attr:`~rllm_gym.core.TextEnv.max_step_s` is added.
        close: ``close``.
    """

    make: float = 120.0
    reset: float = 120.0
    step: float = 60.0
    close: float = 10.0

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if (
                isinstance(value, bool)
                or not isinstance(value, int | float)
                or not (math.isfinite(value) and value > 0)
            ):
                raise ValueError(f"deadline {entry.name}={value!r} must be a finite number of seconds above 0")

    @classmethod
    def of(cls, deadlines: Mapping[str, float] | Self | None) -> Self:
        """Return the deadlines from a mapping or from an instance.

        Raises:
            TypeError: It is neither.
            ValueError: A name is unknown, or a value is not a finite number above 0.
        """
        if isinstance(deadlines, cls):
            return deadlines
        if deadlines is not None and not isinstance(deadlines, Mapping):
            raise TypeError(f"deadlines={deadlines!r} must be a mapping, such as {{'step': 5.0}}, or an EnvDeadlines")
        names = [entry.name for entry in fields(cls)]
        unknown = sorted(set(deadlines or ()) - set(names))
        if unknown:
            raise ValueError(f"unknown deadline(s) {unknown}; the deadlines are {names}")
        return cls(**(deadlines or {}))


class EnvWorker:
    """Environments in one worker, which is started for the first of them, and again after it was lost.

    Used from one event loop at a time, one call at a time. In a thread, an environment with coroutines is created
    there; then its coroutines are awaited on the caller's loop, and the thread is free.

    Args:
        pool: Provides the worker.
        new_host: Creates the object that holds the environments in the worker: an
            :class:`~rllm_gym.runtime.env_host.EnvHost`, or an object with the same methods.
        deadlines: Seconds that each call may take.
    """

    needs_coroutines = False
    """Whether an environment without coroutines is an error."""

    def __init__(self, pool: WorkerPool, new_host: Callable[[], Any], deadlines: EnvDeadlines) -> None:
        self.deadlines = deadlines
        self._pool = pool
        self._new_host = new_host
        self._actor: Actor | None = None
        self._created: set[str] = set()
        self._max_step_s = 0.0
        self._host: Any = None  # set while coroutines are awaited here

    def has_env(self, env_name: str = "") -> bool:
        """Return whether an environment exists."""
        return env_name in self._created

    def deadline(self, phase: str) -> float:
        """Return the seconds that a phase may take, a step with what a model can make it take."""
        seconds: float = getattr(self.deadlines, phase)
        return seconds + self._max_step_s if phase == "step" else seconds

    async def make(self, env_name: str = "") -> None:
        """Create an environment, unless it exists.

        Raises:
            EnvironmentFault: No worker could be started, it died, or it exceeded the deadline.
            Exception: Raised by the constructor.
        """
        if env_name in self._created:
            return
        names = (env_name,) if env_name else ()
        if self._host is not None:
            with self._faults("make"):
                step_s = await self._pool.arun(self._host.make, *names, timeout=self.deadlines.make)
            self._host.use(env_name)
            self._host.async_env()
        else:
            local = await self._start()
            step_s = await self._call("make", "make", *names)
            if local is not None:
                self._await_coroutines(local)
        self._created.add(env_name)
        self._max_step_s = max(self._max_step_s, step_s or 0.0)

    async def remake(self, env_name: str = "") -> None:
        """As :meth:`make`, but an exception of the constructor is a fault: it has succeeded before."""
        try:
            await self.make(env_name)
        except EnvironmentFault:
            raise
        except Exception as error:
            raise EnvironmentFault(
                f"creating the environment raised {type(error).__name__}: {error}", kind="make"
            ) from error

    async def reset(self, seed: int | None, options: dict[str, Any] | None, env_name: str = "") -> Any:
        """Reset an environment that exists.

        Raises:
            EnvironmentFault: It failed, took too long, died, or returned an invalid result.
            TaskError: There is no such task.
        """
        if self._host is None:
            return await self._call("reset", "reset", seed, options, *((env_name,) if env_name else ()))
        self._host.use(env_name)
        coroutine = self._host.async_env().async_reset(seed=seed, options=options)
        return self._host.checked_reset(await self._awaited("reset", coroutine))

    async def step(self, action: Any) -> Any:
        """Step the environment that was reset last. Raises the same faults as :meth:`reset`."""
        if self._host is None:
            return await self._call("step", "step", action)
        result: StepResult = self._host.checked_step(
            await self._awaited("step", self._host.async_env().async_step(action))
        )
        return result

    async def call(self, method: str, *args: Any) -> Any:
        """Call another method of the host, within the deadline of a step. Raises the same faults as :meth:`step`."""
        if self._host is None:
            return await self._call("step", method, *args)
        result = getattr(self._host, method)(*args)
        return await self._within("step", result) if asyncio.iscoroutine(result) else result

    def start(self, method: str, *args: Any) -> PendingCall | None:
        """Send a reset or a step to the process of the worker without waiting; ``None`` if there is none."""
        if self._actor is None:
            return None
        try:
            return self._actor.start(method, args, self.deadline(method))
        except WorkerDied:
            return None

    async def finish(self, phase: str, call: StartedCall) -> Any:
        """Return the result of a call that :meth:`start` began, and that has ended. Raises as :meth:`step`."""
        with self._faults(phase):
            return await call.aresult()

    async def close_envs(self) -> None:
        """Close the environments, and keep the worker.

        Raises:
            EnvironmentFault: Closing one raised, or took too long.
        """
        created, self._created = self._created, set()
        host, self._host = self._host, None
        if host is not None:
            envs = [env.unwrapped for env in host.detach()]
            closed = await asyncio.gather(
                *(self._awaited("close", env.async_close()) for env in envs), return_exceptions=True
            )
            for error in closed:
                if error is not None:
                    raise error
        elif created and self._actor is not None and self._actor.alive:
            await self._call("close", "close")

    async def aclose(self) -> None:
        """Close the environments, and end the worker in any case.

        Raises:
            EnvironmentFault: Closing an environment raised, or took too long.
        """
        try:
            await self.close_envs()
        finally:
            actor, self._actor = self._actor, None
            if actor is not None:
                actor.kill()

    # Implementation

    async def _start(self) -> Any:
        """Start a worker, if there is none. Returns its host if that is a new one in this process."""
        if self._actor is not None and self._actor.alive:
            return None
        self._created.clear()
        local = self._new_host() if self._pool.kind == "thread" else None
        try:
            self._actor = await self._pool.aactor(
                self._new_host if local is None else lambda: local, timeout=self.deadlines.make
            )
        except (DeadlineExceeded, WorkerDied) as error:
            raise EnvironmentFault(f"no worker could be started: {error}", kind="worker_died") from error
        return local

    def _await_coroutines(self, local: Any) -> None:
        """Await the coroutines of the environment that ``local`` has created, if it has any, and free its thread."""
        try:
            local.async_env()
        except TypeError:
            if self.needs_coroutines:
                raise
            return
        self._host = local.moved()
        assert self._actor is not None
        self._actor.kill()
        self._actor = None

    async def _call(self, phase: str, method: str, *args: Any) -> Any:
        actor = self._actor
        if actor is None:
            raise EnvironmentFault("the environment is closed", kind="closed")
        try:
            with self._faults(phase):
                return await actor.acall(method, *args, timeout=self.deadline(phase))
        except asyncio.CancelledError:
            self._on_lost_worker()  # the call was still running
            raise

    @contextmanager
    def _faults(self, phase: str) -> Iterator[None]:
        """Convert errors of the worker to faults."""
        try:
            with worker_faults(phase, f"{phase}_deadline", self.deadline(phase), self._on_lost_worker):
                yield
        except MemoryError as error:
            raise EnvironmentFault(f"{phase} exceeded its memory limit: {error}", kind="memory") from error
        except WorkerError as error:
            raise EnvironmentFault(
                f"the result of {phase} cannot be sent between processes: {error}", kind="invalid_result"
            ) from error

    def _on_lost_worker(self) -> None:
        """Forget a worker that was killed, died, or was abandoned."""
        self._created.clear()
        actor, self._actor = self._actor, None
        if actor is not None:
            actor.kill()

    async def _awaited(self, phase: str, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return await self._within(phase, coroutine)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            raise as_fault(error, phase) from error

    async def _within(self, phase: str, coroutine: Coroutine[Any, Any, T]) -> T:
        seconds = self.deadline(phase)
        try:
            async with asyncio.timeout(seconds) as deadline:
                return await coroutine
        except TimeoutError:
            if not deadline.expired():
                raise
            raise EnvironmentFault(f"{phase} did not finish within {seconds:g} s", kind=f"{phase}_deadline") from None


async def close_quietly(worker: EnvWorker) -> None:
    """Close a worker whose environment has failed. Further failures are of no interest."""
    with suppress(Exception):
        await worker.aclose()


@contextmanager
def worker_faults(what: str, late: str, seconds: float, on_lost_worker: Callable[[], None]) -> Iterator[None]:
    """Convert the loss of a worker to a fault.

    Args:
        what: What the worker does, for the message.
        late: Kind of the fault when it takes longer than ``seconds``.
        on_lost_worker: Called when the worker was killed, died, or was abandoned.
    """
    try:
        yield
    except DeadlineExceeded:
        on_lost_worker()
        raise EnvironmentFault(f"{what} did not finish within {seconds:g} s", kind=late) from None
    except MemoryExceeded as error:
        on_lost_worker()
        raise EnvironmentFault(f"{what} exceeded its memory limit: {error}", kind="memory") from error
    except WorkerDied as error:
        on_lost_worker()
        raise EnvironmentFault(f"the worker died during {what}: {error}", kind="worker_died") from error
