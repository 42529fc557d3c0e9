"""The workers of a pool and the queue of programs that wait for them. All of it runs in the pool's own thread.

It is not :class:`rllm_gym.runtime.WorkerPool`, although it is no faster (``benchmarks/results/sandbox_workers.md``),
because of two properties that the pool does not have:

- Several programs of a job get their workers in one step, in the order of the queue. A function test runs its program
  and its test code in two workers; from a pool that lends one worker per call, tests that each held one of the last
  workers would wait for each other forever.
- A program can be stopped, or run into its limits, without the loss of its worker: the worker forks for every program
  and ends the fork. The pool can only kill the process that a call runs in, and the next program would wait for a new
  one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol

from rllm_gym.core import RllmGymError
from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.sandbox.errors import SandboxFault
from rllm_gym.sandbox.program import Program, ProgramResult
from rllm_gym.sandbox.running_program import RunningProgram, end, resolve_future
from rllm_gym.sandbox.runtime import Runtime
from rllm_gym.sandbox.tier import Tier
from rllm_gym.sandbox.worker import WorkerProcess

_CLOSE_S = 5.0


class ProgramJob:
    """Programs that run concurrently: either all of them have a worker, or none has one yet."""

    def __init__(self, runs: Sequence[RunningProgram]) -> None:
        self.runs = list(runs)
        self.assigned: Future[None] = Future()
        self.dropped = False


class Scheduler(Protocol):
    """Runs the programs of a pool. Methods without a note run in the thread of ``loop``."""

    @property
    def loop(self) -> BackgroundLoop: ...

    def submit(self, job: ProgramJob) -> None: ...

    def drop(self, job: ProgramJob) -> None:
        """Cancel a job that has no caller any more."""

    def close(self) -> None:
        """End all programs, reject queued jobs, and wait. Callable from any thread."""


def submit_program(scheduler: Scheduler, program: Program) -> Future[ProgramResult]:
    """Run one program. Cancelling the future stops the program. Callable from any thread."""
    running = RunningProgram(program)
    job = ProgramJob([running])
    scheduler.loop.call_soon(lambda: scheduler.submit(job))

    def left(future: Future[ProgramResult]) -> None:
        if future.cancelled():
            scheduler.loop.call_soon(lambda: scheduler.drop(job))

    running.outcome.add_done_callback(left)
    return running.outcome


class WorkerScheduler:
    """The workers of a pool, at most ``max_workers``, started on demand, and the ordered queue of jobs."""

    def __init__(self, tier: Tier, max_workers: int, name: str) -> None:
        self.tier, self.max_workers = tier, max_workers
        self.loop = BackgroundLoop(name)
        self.closed = False
        self._queue: deque[ProgramJob] = deque()
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()

    def submit(self, job: ProgramJob) -> None:
        if self.closed:
            self._refuse(job)
            return
        self._queue.append(job)
        self._advance()

    def drop(self, job: ProgramJob) -> None:
        """Cancel a job that has no caller any more: remove it from the queue, or end its programs."""
        job.dropped = True
        if not job.assigned.done():
            if job in self._queue:
                self._queue.remove(job)
            resolve_future(job.assigned, None)
            self._advance()
        for run in job.runs:
            for worker in list(self._busy):
                worker.stop(run)
            if run.channel is not None:
                run.channel.close()

    def _advance(self) -> None:
        while self._queue and len(self._busy) + len(self._queue[0].runs) <= self.max_workers:
            job = self._queue.popleft()
            for run in job.runs:
                self._assign(run)
            resolve_future(job.assigned, None)

    def _assign(self, run: RunningProgram) -> None:
        try:
            worker = self._worker_for(run.program.preload)
        except Exception as error:  # any error must reach the caller that waits for the outcome
            named = isinstance(error, RllmGymError)
            end(run, error if named else SandboxFault(f"no worker could be started: {type(error).__name__}: {error}"))
            return
        self._busy.add(worker)
        run.halt = lambda: self.loop.call_soon(lambda: worker.stop(run))
        worker.take(run)

    def _worker_for(self, preload: tuple[str, ...]) -> WorkerProcess:
        for at in range(len(self._idle) - 1, -1, -1):  # the most recently used worker first: its pages are warm
            if self._idle[at].preload == preload:
                return self._idle.pop(at)
        if len(self._idle) + len(self._busy) >= self.max_workers:
            other = self._idle.pop(0)
            other.hang_up()
            other.wait(_CLOSE_S)
        return WorkerProcess(self.tier, Runtime.default(), preload, freed=self._freed, died=self._died)

    def _freed(self, worker: WorkerProcess) -> None:
        self._busy.discard(worker)
        self._idle.append(worker)
        self._advance()

    def _died(self, worker: WorkerProcess) -> None:
        self._busy.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        self._advance()

    def close(self) -> None:
        """End all workers with their programs, reject queued jobs, and wait. Callable from any thread."""
        if not self.closed:
            self.loop.call_soon(self._close)
        with suppress(TimeoutError):
            self.loop.close(2 * _CLOSE_S)

    def _close(self) -> None:
        self.closed = True
        while self._queue:
            self._refuse(self._queue.popleft())
        workers = [*self._idle, *self._busy]
        self._idle.clear()
        self._busy.clear()
        for worker in workers:
            worker.hang_up()
        for worker in workers:
            worker.wait(_CLOSE_S)
            if worker.running is not None:
                end(worker.running, pool_closed())
                if worker.running.channel is not None:
                    worker.running.channel.close()

    @staticmethod
    def _refuse(job: ProgramJob) -> None:
        for run in job.runs:
            end(run, pool_closed())
        resolve_future(job.assigned, pool_closed())


def pool_closed() -> SandboxFault:
    """Return the fault of a program whose pool was closed."""
    return SandboxFault("the sandbox's pool was closed; create a new SandboxPool", kind="pool_closed")
