"""Worker threads: cheap, in this process, and impossible to kill. One that hangs is abandoned and counted."""

# ruff: noqa: ASYNC109 - the timeout is the contract: passing it kills the worker
from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from rllm_gym.runtime.errors import DeadlineExceeded, WorkerDied
from rllm_gym.runtime.request_handler import RequestHandler, WorkRequest, failure
from rllm_gym.runtime.task_threads import DONE, RUNNING, WAITING, CloseTask, Pace, TaskThreads, ThreadTask

_worker_numbers = itertools.count()

_Outcome = tuple[bool, Any]

_HEAD_START = 0.0002
"""Seconds that an event loop waits for slow work to begin before it continues.

Without this, a loop that hands work to many threads in a row keeps the interpreter's lock, none of them begins until it
is done, and all run in lockstep.
"""


class WorkerThreads(TaskThreads):
    """The threads of a pool's workers."""

    def __init__(self, pool_name: str) -> None:
        super().__init__(pool_name, f"pool {pool_name!r}")
        self._mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopMailbox] = (
            weakref.WeakKeyDictionary()
        )

    def mailbox(self, loop: asyncio.AbstractEventLoop) -> _LoopMailbox:
        return self._mailboxes.get(loop) or self._mailboxes.setdefault(loop, _LoopMailbox(self))


class _LoopMailbox:
    """Calls and results of one event loop: both are handed over together, not one by one."""

    def __init__(self, threads: TaskThreads) -> None:
        self._threads = threads
        self._calls: list[_Call] = []
        self._outcomes: deque[tuple[asyncio.Future[_Outcome], _Outcome]] = deque()
        self._woken = False

    def submit_soon(self, loop: asyncio.AbstractEventLoop, call: _Call) -> None:
        """Submit a call with the others of this iteration of the loop."""
        if not self._calls:
            loop.call_soon(self._submit)
        self._calls.append(call)

    def _submit(self) -> None:
        calls, self._calls = self._calls, []
        try:
            self._threads.submit(calls)
        except RuntimeError as error:
            for call in calls:
                call.end((False, error))

    def post(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[_Outcome], outcome: _Outcome) -> None:
        """Resolve a future of the loop, from any thread."""
        self._outcomes.append((future, outcome))
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is no caller left
                loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        self._woken = False  # before emptying: what is posted from here on wakes the loop again
        while self._outcomes:
            future, outcome = self._outcomes.popleft()
            if not future.done():
                future.set_result(outcome)


class _Call(ThreadTask):
    """A request to a worker. ``send`` gives the outcome to the caller."""

    __slots__ = ("_outcome", "began", "request", "send", "worker")

    def __init__(self, worker: ThreadWorker, request: WorkRequest, seconds: float, send: Callable[[_Outcome], object]):
        # How long another function took says nothing about the next.
        super().__init__(seconds, worker.pace.slow or request.op == "run")
        self.worker = worker
        self.request = request
        self.send = send
        self.began: threading.Lock | None = None  # released when the work begins

    @property
    def name(self) -> str:
        return f"{self.request.name!r} in {self.worker.name}"

    def run(self) -> None:
        if self.began is not None:
            self.began.release()
        began = time.monotonic()
        self._outcome: _Outcome
        try:
            self._outcome = (True, self.worker.handler.handle(self.request))
        except BaseException as error:
            self._outcome = (False, failure(error))
        if self.request.op == "call":
            self.worker.pace.add(time.monotonic() - began)

    def deliver(self) -> None:
        self.end(self._outcome)

    def end(self, outcome: _Outcome) -> None:
        self.worker.call = None
        self.send(outcome)

    def late(self) -> None:
        self.worker.alive = False
        self.end(
            (
                False,
                DeadlineExceeded(
                    f"{self.request.name!r} did not finish within {self.seconds:g} s; thread {self.worker.name} cannot "
                    "be killed and was abandoned"
                ),
            )
        )

    def clean_up(self) -> None:
        with contextlib.suppress(Exception):
            self.worker.handler.handle(WorkRequest("close"))


class ThreadWorker:
    """A place for one request at a time, in any of the pool's threads.

    When a deadline passes or a wait is cancelled, the thread is abandoned and the worker has ended (``alive`` is
    False). A thread cannot be killed: it ends by itself when the call returns, and then closes an actor's object.
    """

    pid = None  # it runs in this process

    def __init__(self, pool_name: str, threads: WorkerThreads) -> None:
        self.name = f"{pool_name}-{next(_worker_numbers)}"
        self.alive = True
        self.handler = RequestHandler()
        self.pace = Pace()
        self.call: _Call | None = None
        self._threads = threads

    def is_healthy(self) -> bool:
        return self.alive

    def ask(self, request: WorkRequest, timeout: float) -> Any:
        outbox: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        call = self.call = _Call(self, request, timeout, outbox.put)
        self._threads.submit([call])
        try:
            outcome = outbox.get()  # the threads keep the deadline
        except BaseException:
            self._end(call, "was not waited for: the wait was interrupted")
            raise
        return _decode(outcome)

    async def aask(self, request: WorkRequest, timeout: float) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Outcome] = loop.create_future()
        mailbox = self._threads.mailbox(loop)
        call = self.call = _Call(self, request, timeout, lambda outcome: mailbox.post(loop, future, outcome))
        if call.slow:
            began = call.began = threading.Lock()
            began.acquire()
            self._threads.submit([call])
            began.acquire(timeout=_HEAD_START)
        else:
            mailbox.submit_soon(loop, call)
        try:
            outcome = await future
        except BaseException:
            self._end(call, "was not waited for: the wait was cancelled")
            raise
        return _decode(outcome)

    def kill(self) -> None:
        """Accept no more work. The result of work in progress is dropped; its caller gets ``WorkerDied`` now."""
        if not self.alive:
            return
        call = self.call
        if self._end(call, "was not waited for: its worker was closed") in (WAITING, RUNNING):
            assert call is not None
            call.end((False, WorkerDied(f"worker {self.name} was closed during a call")))

    def _end(self, call: _Call | None, why: str) -> int:
        """End the worker, and return the state of its call until now."""
        self.alive = False
        self.call = None
        state = DONE if call is None else self._threads.give_up(call, why)
        # Otherwise the object is closed when the call returns.
        if state in (WAITING, DONE) and self.handler.has_object:
            with contextlib.suppress(RuntimeError):  # no more threads, or a fork
                self._threads.submit(
                    [CloseTask(partial(self.handler.handle, WorkRequest("close")), math.inf, slow=True)]
                )
        return state


def _decode(outcome: _Outcome) -> Any:
    done, value = outcome
    if not done:
        raise value
    return value
