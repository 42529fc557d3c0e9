"""The pool, which runs programs in warm workers, from any thread and any event loop."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

from rllm_gym.argument_checks import check_int
from rllm_gym.core.per_process import PerProcess
from rllm_gym.sandbox import probe
from rllm_gym.sandbox.docker import Containers, ContainerScheduler
from rllm_gym.sandbox.errors import SandboxUnavailable
from rllm_gym.sandbox.program import Program, ProgramResult
from rllm_gym.sandbox.running_program import RunningProgram
from rllm_gym.sandbox.runtime import Runtime
from rllm_gym.sandbox.scheduler import ProgramJob, Scheduler, WorkerScheduler, submit_program
from rllm_gym.sandbox.session import PendingSession, SandboxSession, SessionLimits
from rllm_gym.sandbox.session_pool import SessionPool
from rllm_gym.sandbox.tier import Tier
from rllm_gym.sandbox.worker import check


class SandboxPool:
    """A pool that runs model-written programs concurrently, each in a fresh process isolated by one tier.

    Workers are warm Python processes that fork for each program. They are started on demand, one kind per set of
    ``Program.preload``, are replaced when they die, and end with this process, even if it is killed by SIGKILL. Close
    the pool with ``with``, ``async with``, :meth:`close` or :meth:`aclose`; an unclosed pool is closed when it is
    garbage-collected or the interpreter exits. A fork of this process cannot use the pool (``RuntimeError``) and has to
    create its own.

    While all workers are busy, programs wait in a queue, in order. Waiting does not count against their limits.

    Args:
        sandbox: ``"auto"``: the strongest tier that works here; ``"namespaces"``, ``"landlock"``, ``"docker"``, or
            ``"unsafe"``, which isolates nothing.
        max_workers: Maximum number of programs that run concurrently. Default: 8 per processor and at least 16, since
            programs are limited by their CPU time.

    Raises:
        SandboxUnavailable: The sandbox does not work here; the message gives the reason and a solution.
        ValueError: An unknown sandbox, or ``max_workers`` below 1.

    >>> with SandboxPool() as pool:
    ...     pool.run_sync(Program("print(6 * 7)")).stdout
    b'42\\n'
    """

    def __init__(self, sandbox: str | Tier = "auto", *, max_workers: int | None = None) -> None:
        if max_workers is not None:
            check_int("max_workers", max_workers, otherwise="None for a number that suits the machine")
        self.tier: Tier = probe.choose(sandbox)
        self.max_workers = max_workers or max(16, 8 * (os.cpu_count() or 1))
        self._pid = os.getpid()
        # The scheduler and its thread hold no reference to the pool, so that an unclosed pool can be garbage-collected.
        name = f"rllm-gym sandbox {self.tier.value}"
        self._scheduler: Scheduler
        self._sessions: SessionPool | Containers
        if self.tier is Tier.DOCKER:
            self._sessions = Containers()
            self._scheduler = ContainerScheduler(self._sessions, self.max_workers, name)
        else:
            self._sessions = SessionPool(self.tier)
            self._scheduler = WorkerScheduler(self.tier, self.max_workers, name)
        self._finalizer = weakref.finalize(self, _close, self._scheduler, self._sessions, self._pid)

    async def run(self, program: Program) -> ProgramResult:
        """Run a program to its end. Cancelling the call stops the program.

        Raises:
            SandboxFault: The sandbox failed, not the program.
            ValueError: The program's files, limits or preload are invalid.
            RuntimeError: The pool belongs to another process.
        """
        return await asyncio.wrap_future(self._submit(program))

    def run_sync(self, program: Program) -> ProgramResult:
        """Run :meth:`run` from code without an event loop, blocking."""
        future = self._submit(program)
        try:
            return future.result()
        finally:
            future.cancel()  # on Ctrl-C, stop the program too

    def start(self, *programs: Program) -> ProgramStart:
        """Run programs concurrently, each with a channel to this process: ``async with pool.start(a, b) as (a, b)``.

        All programs get their workers at the same time, so that two groups never wait for each other. ``with`` does the
        same without an event loop. Leaving the block stops programs that still run. Inside a program, the channel is
        file descriptor 3 and carries frames in both directions: 4 bytes of length, big-endian, then that many bytes.

        Raises:
            ValueError: More programs than the pool has workers, or an invalid program.
            SandboxUnavailable: The pool's programs run in containers, which have no such channel.
        """
        if not 1 <= len(programs) <= self.max_workers:
            raise ValueError(f"{len(programs)} programs cannot run concurrently with max_workers={self.max_workers}")
        for program in programs:
            check(program)
        self._check_owner()
        if self.tier is Tier.DOCKER:
            raise SandboxUnavailable(
                "programs in containers have no channel to the trainer, which tests of functions need: use "
                "sandbox='namespaces' or 'landlock' for them"
            )
        return ProgramStart(self, [RunningProgram(program, self._scheduler.loop) for program in programs])

    def open_session(
        self,
        base: Path | None = None,
        *,
        limits: SessionLimits | None = None,
        runtime: Runtime | None = None,
        environment: Mapping[str, str] | None = None,
        image: str | None = None,
        workdir: str | None = None,
    ) -> PendingSession:
        """Open a session, a workspace for many commands, with ``await`` or ``async with``.

        Sessions do not count as workers of the pool, and closing the pool does not close them.

        Args:
            base: A directory of this machine whose content the workspace starts with. It must not change meanwhile;
                the session does not change it. ``None``: the workspace starts empty.
            limits: Limits of its commands.
            runtime: The Python and packages that are visible inside; by default as in :class:`SandboxPool`.
            environment: Variables for its commands, in addition to ``PATH``, ``HOME`` and similar ones.
            image: With ``sandbox="docker"``: the image that the container runs, which replaces the runtime.
            workdir: With ``sandbox="docker"``: the directory of the image that is the workspace.

        Raises:
            NotADirectoryError: ``base`` is not a directory.
            SandboxFault: The session could not be started.
            ValueError: An ``image`` or ``workdir`` without Docker, or a ``runtime`` with it.
        """
        return PendingSession(
            lambda: self.open_session_sync(
                base, limits=limits, runtime=runtime, environment=environment, image=image, workdir=workdir
            )
        )

    def open_session_sync(
        self,
        base: Path | None = None,
        *,
        limits: SessionLimits | None = None,
        runtime: Runtime | None = None,
        environment: Mapping[str, str] | None = None,
        image: str | None = None,
        workdir: str | None = None,
    ) -> SandboxSession:
        """Run :meth:`open_session` from code without an event loop."""
        self._check_owner()
        limits, environment = limits or SessionLimits(), environment or {}
        if isinstance(self._sessions, Containers):
            if runtime is not None:
                raise ValueError(
                    "runtime= has no effect with sandbox='docker': the image has its own; give image= instead"
                )
            return self._sessions.open(base, limits, environment, image=image, workdir=workdir)
        if image is not None or workdir is not None:
            raise ValueError(
                f"image={image!r}, workdir={workdir!r} need sandbox='docker'; this pool has {self.tier.value!r}"
            )
        return self._sessions.open(base, limits, runtime or Runtime.default(), environment)

    def _submit(self, program: Program) -> Future[ProgramResult]:
        check(program)
        self._check_owner()
        return submit_program(self._scheduler, program)

    def _check_owner(self) -> None:
        if os.getpid() != self._pid:
            raise RuntimeError(f"this SandboxPool belongs to process {self._pid}; a fork of it must create its own")
        if not self._finalizer.alive:
            raise RuntimeError("this SandboxPool is closed; create a new one")

    def close(self) -> None:
        """Stop all programs and end all workers. Pending calls raise ``SandboxFault``. Closing twice is allowed."""
        self._finalizer()

    async def aclose(self) -> None:
        """Run :meth:`close` without blocking the event loop."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()


class ProgramStart:
    """The context manager returned by :meth:`SandboxPool.start`; enter it once, with ``async with`` or ``with``."""

    def __init__(self, pool: SandboxPool, runs: list[RunningProgram]) -> None:
        self._pool = pool
        self._job = ProgramJob(runs)
        self._scheduler = pool._scheduler

    def _enter(self) -> Future[None]:
        job, scheduler = self._job, self._scheduler
        scheduler.loop.call_soon(lambda: scheduler.submit(job))
        return job.assigned

    def _leave(self) -> list[Future[ProgramResult]]:
        job, scheduler = self._job, self._scheduler
        scheduler.loop.call_soon(lambda: scheduler.drop(job))
        return [run.outcome for run in job.runs]

    async def __aenter__(self) -> tuple[RunningProgram, ...]:
        try:
            await asyncio.wrap_future(self._enter())
        except BaseException:
            self._leave()
            raise
        return tuple(self._job.runs)

    async def __aexit__(self, *exc_info: object) -> None:
        # Every program ends and frees its worker, even if this wait is cancelled.
        await asyncio.wait([asyncio.wrap_future(outcome) for outcome in self._leave()])

    def __enter__(self) -> tuple[RunningProgram, ...]:
        try:
            self._enter().result()
        except BaseException:
            self._leave()
            raise
        return tuple(self._job.runs)

    def __exit__(self, *exc_info: object) -> None:
        for outcome in self._leave():
            outcome.exception()


_shared: dict[Tier, SandboxPool] = {}
_shared_lock = PerProcess(threading.Lock)


def shared_pool(sandbox: str | Tier = "auto") -> SandboxPool:
    """Return the pool shared by all environments of this process, one per tier. It is closed when the process exits.

    Raises: as :class:`SandboxPool`.
    """
    tier = probe.choose(sandbox)
    with _shared_lock():
        pool = _shared.get(tier)
        if pool is None or pool._pid != os.getpid() or not pool._finalizer.alive:
            pool = _shared[tier] = SandboxPool(tier)
        return pool


def _close(scheduler: Scheduler, sessions: SessionPool | Containers, pid: int) -> None:
    if os.getpid() == pid:
        sessions.close()
        scheduler.close()
