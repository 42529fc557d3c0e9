"""Worker threads: cheap, in this process, and impossible to kill. One that hangs is abandoned and counted.

:mod:`rllm_gym.runtime.worker_threads` has the threads themselves.
"""

# ruff: noqa: ASYNC109 - the timeout is the contract: passing it kills the worker
from __future__ import annotations

import asyncio
import itertools
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from rllm_gym.runtime.errors import DeadlineExceeded, WorkerDied
from rllm_gym.runtime.queued_calls import DONE, RUNNING, WAITING
from rllm_gym.runtime.request_handler import RequestHandler, WorkRequest, failure
from rllm_gym.runtime.worker_threads import WorkerThreads

_SLOW = 0.001
"""Seconds, averaged over its last calls, above which an object's calls are slow."""
_HEAD_START = 0.0002
"""Seconds that an event loop waits for slow work to begin before it continues.

Without this, a loop that hands work to many threads in a row keeps the interpreter's lock, none of them begins until it
is done, and all run in lockstep.
"""

_CLOSE = WorkRequest("close")
_worker_numbers = itertools.count()


class ThreadCall:
    """A request to a worker: a :class:`~rllm_gym.runtime.queued_calls.QueuedCall`.

    Attributes:
        ended: Called with this object in the thread that ended it, with its result or its failure.
        context: What ``ended`` needs to know.
        returned: Whether there is a result, and not an exception.
    """

    __slots__ = ("_done", "_value", "began", "context", "ended", "request", "returned", "seconds", "slow", "state",
                 "until", "worker")  # fmt: skip

    def __init__(self, worker: ThreadWorker, request: WorkRequest, seconds: float) -> None:
        self.worker = worker
        self.request = request
        self.seconds = seconds
        # How long another function took says nothing about the next.
        self.slow = worker.slow or request.op == "run"
        self.state = WAITING
        self.until = math.inf
        self.context: Any = None
        self.ended: Callable[[ThreadCall], object] = _ignore
        self.began: threading.Lock | None = None  # released when the work begins

    @property
    def name(self) -> str:
        return self.request.name

    def start(self) -> None:
        """Submit it to the threads of its worker."""
        self.worker.threads.submit([self])

    def run(self) -> None:
        if self.began is not None:
            self.began.release()
        began = time.monotonic()
        self._done: tuple[bool, Any]
        try:
            self._done = (True, self.worker.handler.handle(self.request))
        except BaseException as error:
            self._done = (False, failure(error))
        if self.request.op == "call":
            self.worker.took(time.monotonic() - began)

    def deliver(self) -> None:
        self.end(*self._done)

    def end(self, returned: bool, value: Any) -> None:
        self.worker.pending = None
        self.returned, self._value = returned, value
        self.ended(self)

    def expire(self) -> None:
        self.worker.expire(self)

    def clean_up(self) -> None:
        self.worker.handler.handle(_CLOSE)

    def result(self) -> Any:
        """Return the result of a call that has ended. Raises as :meth:`ThreadWorker.call`."""
        if not self.returned:
            raise self._value
        return self._value

    async def aresult(self) -> Any:
        return self.result()


def _ignore(call: ThreadCall) -> None:
    """Nobody waits for the call."""


class ThreadWorker:
    """A place for one request at a time, in any of the pool's threads or in one of its own.

    When a deadline passes or a wait is cancelled, the thread is abandoned and the worker has ended (``alive`` is
    False). A thread cannot be killed: it ends by itself when the call returns, and then closes an actor's object.
    """

    pid = None  # it runs in this process

    def __init__(self, pool_name: str, threads: WorkerThreads, *, own_thread: bool = False) -> None:
        self.name = f"{pool_name}-{next(_worker_numbers)}"
        self.alive = True
        self.handler = RequestHandler()
        self.slow = False
        """Whether the calls of its object are slow."""
        self.pending: ThreadCall | None = None
        self._own_thread = own_thread
        self.threads = WorkerThreads(self.name, parent=threads) if own_thread else threads
        self._seconds = 0.0

    def is_healthy(self) -> bool:
        return self.alive

    def prepare(self, request: WorkRequest, timeout: float) -> ThreadCall:
        """Return a call to be submitted to the threads of the pool."""
        call = self.pending = ThreadCall(self, request, timeout)
        return call

    def call(self, request: WorkRequest, timeout: float) -> Any:
        outbox: queue.SimpleQueue[ThreadCall] = queue.SimpleQueue()
        call = self.prepare(request, timeout)
        call.ended = outbox.put
        try:
            call.start()
            outbox.get()  # the threads keep the deadline
            return call.result()
        except Exception:
            raise
        except BaseException:  # Ctrl-C
            if self._end(call) == RUNNING:
                self.threads.log_abandoned([call], "was not waited for, because the wait was interrupted")
            raise

    async def acall(self, request: WorkRequest, timeout: float) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        mailbox = self.threads.mailbox(loop)
        call = self.prepare(request, timeout)
        call.ended = lambda _: mailbox.post(loop, future)
        if call.slow:
            began = call.began = threading.Lock()
            began.acquire()
            call.start()
            began.acquire(timeout=_HEAD_START)
        else:
            mailbox.submit_soon(loop, call)
        try:
            await future
        except BaseException:
            if self._end(call) == RUNNING:
                self.threads.log_abandoned([call], "was not waited for, because the wait was cancelled")
            raise
        return call.result()

    def kill(self) -> None:
        """Accept no more work. The result of work in progress is dropped; its caller gets ``WorkerDied`` now."""
        kill_workers([self])

    def expire(self, call: ThreadCall) -> None:
        """End a call whose deadline has passed."""
        if self.threads.give_up(call) == RUNNING:
            text = f"did not finish within {call.seconds:g} s"
            self.threads.log_abandoned([call], text)
            self.alive = False
            self._end_own_thread()
            text = f"{call.name!r} {text}; thread {self.name} cannot be killed and was abandoned"
            call.end(False, DeadlineExceeded(text))

    def took(self, seconds: float) -> None:
        """Record the duration of a call of the object."""
        self._seconds += 0.3 * (seconds - self._seconds)
        self.slow = self._seconds > _SLOW

    def _end(self, call: ThreadCall | None) -> int:
        """End the worker, and return the state of its call until now."""
        self.alive = False
        self.pending = None
        state = DONE if call is None else self.threads.give_up(call)
        # Otherwise the object is closed when the call returns.
        if state in (WAITING, DONE) and self.handler.has_object:
            with suppress(RuntimeError):  # no more threads, or a fork
                ThreadCall(self, _CLOSE, math.inf).start()
        self._end_own_thread()
        return state

    def _end_own_thread(self) -> None:
        if self._own_thread:
            self.threads.close()


def kill_workers(workers: Iterable[ThreadWorker]) -> None:
    """Kill workers, with one line in the log for all threads that are abandoned."""
    abandoned = []
    for worker in workers:
        if not worker.alive:
            continue
        call = worker.pending
        state = worker._end(call)
        if call is not None and state in (WAITING, RUNNING):
            if state == RUNNING:
                abandoned.append(call)
            call.end(False, WorkerDied(f"worker {worker.name} was closed during a call"))
    if abandoned:
        abandoned[0].worker.threads.log_abandoned(abandoned, "was not waited for, because its worker was closed")
