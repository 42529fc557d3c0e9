"""The workers of a pool and the queue of programs that wait for them. All of it runs in the pool's own thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

from rllm_gym.core import RllmGymError
from rllm_gym.sandbox.errors import SandboxBroke
from rllm_gym.sandbox.loop import Loop
from rllm_gym.sandbox.running import Running, end, settle
from rllm_gym.sandbox.runtime import Runtime
from rllm_gym.sandbox.tier import Tier
from rllm_gym.sandbox.worker import Worker

_CLOSE_S = 5.0


class Job:
    """Programs that run concurrently: either all of them have a worker, or none has one yet."""

    def __init__(self, runs: Sequence[Running]) -> None:
        self.runs = list(runs)
        self.seated: Future[None] = Future()
        self.dropped = False


class Crew:
    """The workers of a pool, at most ``most``, started on demand, and the ordered queue of jobs."""

    def __init__(self, tier: Tier, most: int, name: str) -> None:
        self.tier, self.most = tier, most
        self.loop = Loop(name)
        self.closed = False
        self._line: deque[Job] = deque()
        self._idle: list[Worker] = []
        self._busy: set[Worker] = set()

    def submit(self, job: Job) -> None:
        if self.closed:
            self._refuse(job)
            return
        self._line.append(job)
        self._advance()

    def drop(self, job: Job) -> None:
        """Cancel a job that has no caller any more: remove it from the queue, or end its programs."""
        job.dropped = True
        if not job.seated.done():
            if job in self._line:
                self._line.remove(job)
            settle(job.seated, None)
            self._advance()
        for run in job.runs:
            for worker in list(self._busy):
                worker.stop(run)
            if run.channel is not None:
                run.channel.close()

    def _advance(self) -> None:
        while self._line and len(self._busy) + len(self._line[0].runs) <= self.most:
            job = self._line.popleft()
            for run in job.runs:
                self._seat(run)
            settle(job.seated, None)

    def _seat(self, run: Running) -> None:
        try:
            worker = self._worker_for(run.program.preload)
        except Exception as error:  # any error must reach the caller that waits for the outcome
            named = isinstance(error, RllmGymError)
            end(run, error if named else SandboxBroke(f"no worker could be started: {type(error).__name__}: {error}"))
            return
        self._busy.add(worker)
        run.halt = lambda: self.loop.call(lambda: worker.stop(run))
        worker.take(run)

    def _worker_for(self, preload: tuple[str, ...]) -> Worker:
        for at in range(len(self._idle) - 1, -1, -1):  # the most recently used worker first: its pages are warm
            if self._idle[at].preload == preload:
                return self._idle.pop(at)
        if len(self._idle) + len(self._busy) >= self.most:
            other = self._idle.pop(0)
            other.hang_up()
            other.wait(_CLOSE_S)
        return Worker(self.loop, self.tier, Runtime.default(), preload, freed=self._freed, died=self._died)

    def _freed(self, worker: Worker) -> None:
        self._busy.discard(worker)
        self._idle.append(worker)
        self._advance()

    def _died(self, worker: Worker) -> None:
        self._busy.discard(worker)
        if worker in self._idle:
            self._idle.remove(worker)
        self._advance()

    def close(self) -> None:
        """End all workers with their programs, reject queued jobs, and wait. Callable from any thread."""
        if not self.closed:
            self.loop.call(self._close)
        self.loop.stop(2 * _CLOSE_S)

    def _close(self) -> None:
        self.closed = True
        while self._line:
            self._refuse(self._line.popleft())
        workers = [*self._idle, *self._busy]
        self._idle.clear()
        self._busy.clear()
        for worker in workers:
            worker.hang_up()
        for worker in workers:
            worker.wait(_CLOSE_S)
            if worker.running is not None:
                end(worker.running, _closed())
                if worker.running.channel is not None:
                    worker.running.channel.close()

    @staticmethod
    def _refuse(job: Job) -> None:
        for run in job.runs:
            end(run, _closed())
        settle(job.seated, _closed())


def _closed() -> SandboxBroke:
    return SandboxBroke("the sandbox's pool was closed; make a new SandboxPool", kind="pool_closed")
