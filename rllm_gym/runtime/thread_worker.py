"""Worker threads: cheap, in this process, and impossible to kill. One that hangs is abandoned and counted."""

# ruff: noqa: ASYNC109 - the timeout is the contract: passing it kills the worker
from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from rllm_gym.runtime.errors import DeadlineExceeded, WorkerDied
from rllm_gym.runtime.request_handler import RequestHandler, WorkRequest, failure

_worker_numbers = itertools.count()

_Outcome = tuple[bool, Any]
_Deliver = Callable[[_Outcome], object]

_HEAD_START = 0.0002
"""Seconds that an event loop waits for a worker to begin before it continues.

Without this, a loop that hands work to many threads in a row keeps the interpreter's lock, none of them begins until it
is done, and all run in lockstep.
"""


class _LoopMailbox:
    """Results for one event loop. The loop is woken once for any number of them."""

    def __init__(self) -> None:
        self._outcomes: deque[tuple[Callable[[_Outcome], None], _Outcome]] = deque()
        self._woken = False

    def post(self, loop: asyncio.AbstractEventLoop, resolve: Callable[[_Outcome], None], outcome: _Outcome) -> None:
        self._outcomes.append((resolve, outcome))
        if not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: there is no caller left
                loop.call_soon_threadsafe(self._empty)

    def _empty(self) -> None:
        self._woken = False  # before emptying: what is posted from here on wakes the loop again
        while self._outcomes:
            resolve, outcome = self._outcomes.popleft()
            resolve(outcome)


_mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopMailbox] = weakref.WeakKeyDictionary()


class ThreadWorker:
    """One daemon thread. It executes one request at a time.

    When a deadline passes or a wait is cancelled, the thread is abandoned (``alive`` is False): it cannot be killed,
    ends by itself when the call returns, and then closes an actor's object.
    """

    pid = None  # it runs in this process

    def __init__(self, pool_name: str, abandon: Callable[[str], None]) -> None:
        self.name = f"{pool_name}-{next(_worker_numbers)}"
        self.alive = True
        self._abandon = abandon
        self._inbox: queue.SimpleQueue[tuple[WorkRequest, _Deliver] | None] = queue.SimpleQueue()
        self._waiter: _Deliver | None = None
        self._request_started = threading.Lock()  # released when a request starts
        threading.Thread(target=self._serve, name=self.name, daemon=True).start()

    def is_healthy(self) -> bool:
        return self.alive

    def ask(self, request: WorkRequest, timeout: float) -> Any:
        outbox: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._submit(request, outbox.put)
        try:
            outcome = outbox.get(timeout=timeout)
        except queue.Empty:
            raise self._deadline_error(request, timeout) from None
        except BaseException:
            self._abandon_worker(f"the wait for {request.name!r} was interrupted")
            raise
        return _decode(outcome)

    async def aask(self, request: WorkRequest, timeout: float) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_Outcome | None] = loop.create_future()
        mailbox = _mailboxes.get(loop)
        if mailbox is None:
            mailbox = _mailboxes.setdefault(loop, _LoopMailbox())

        def resolve(outcome: _Outcome | None = None) -> None:
            if not future.done():
                future.set_result(outcome)

        self._request_started.acquire(blocking=False)
        self._submit(request, lambda outcome: mailbox.post(loop, resolve, outcome))
        self._request_started.acquire(timeout=_HEAD_START)
        # A bare timer: asyncio.timeout costs a quarter of the whole round trip.
        timer = loop.call_later(timeout, resolve)
        try:
            outcome = await future
        except BaseException:
            self._abandon_worker(f"the wait for {request.name!r} was cancelled")
            raise
        finally:
            timer.cancel()
        if outcome is None:
            raise self._deadline_error(request, timeout)
        return _decode(outcome)

    def kill(self) -> None:
        """Accept no more work. The result of work in progress is dropped; its caller gets ``WorkerDied`` now."""
        waiter, self._waiter = self._waiter, None
        self.stop()
        if waiter is not None:
            self._abandon(f"{self.name} was closed during a call")
            waiter((False, WorkerDied(f"worker {self.name} was closed during a call")))

    def stop(self) -> None:
        """End the thread once it is idle."""
        if self.alive:
            self.alive = False
            self._inbox.put(None)

    def _submit(self, request: WorkRequest, deliver: _Deliver) -> None:
        self._waiter = deliver
        self._inbox.put((request, deliver))

    def _deadline_error(self, request: WorkRequest, timeout: float) -> DeadlineExceeded:
        self._abandon_worker(f"{request.name!r} did not finish within {timeout:g} s")
        return DeadlineExceeded(
            f"{request.name!r} did not finish within {timeout:g} s; thread {self.name} cannot be killed and "
            "was abandoned"
        )

    def _abandon_worker(self, reason: str) -> None:
        self._waiter = None
        self.stop()
        self._abandon(f"{self.name} was abandoned: {reason}")

    def _serve(self) -> None:
        handler = RequestHandler()
        while (entry := self._inbox.get()) is not None:
            request, deliver = entry
            with contextlib.suppress(RuntimeError):  # the caller does not wait for the start of this one
                self._request_started.release()
            outcome: _Outcome
            try:
                outcome = (True, handler.handle(request))
            except BaseException as error:
                outcome = (False, failure(error))
            self._waiter = None
            deliver(outcome)
            # An idle thread must not keep the last request and its result alive.
            del entry, request, deliver, outcome
        with contextlib.suppress(Exception):
            handler.handle(WorkRequest("close"))


def _decode(outcome: _Outcome) -> Any:
    done, value = outcome
    if not done:
        raise value
    return value
