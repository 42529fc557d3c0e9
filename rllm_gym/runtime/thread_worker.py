"""Worker threads: cheap, in this process, and impossible to kill. One that hangs is abandoned and counted.

Handing work from thread to thread costs more than a step of a cheap environment, so one thread works through the whole
queue of calls. A call that is known to be slow, or turns out to be, keeps the thread that carries it out, and another
thread continues with the queue: cheap calls share one handover, and none waits for the slow ones.
"""

# ruff: noqa: ASYNC109 - the timeout is the contract: passing it kills the worker
from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from rllm_gym.runtime.errors import DeadlineExceeded, WorkerDied, WorkerStartFailed
from rllm_gym.runtime.request_handler import RequestHandler, WorkRequest, failure

_log = logging.getLogger(__name__)

_SLOW = 0.001
"""Seconds, averaged over its last calls, above which an object's calls are slow."""
_TICK = 0.002
"""Seconds between two checks of a queue that may be blocked."""
_QUIET_TICKS = 25
"""Checks without a new call after which the watch thread sleeps until the next one."""
_LOOK_FOR_LATE = 0.05
"""Longest time between two searches for late calls, in seconds."""
_HEAD_START = 0.0002
"""Seconds that an event loop waits for slow work to begin before it continues.

Without this, a loop that hands work to many threads in a row keeps the interpreter's lock, none of them begins until it
is done, and all run in lockstep.
"""

_WAITING, _RUNNING, _DONE, _GIVEN_UP = range(4)  # states of a call
_CLOSE = WorkRequest("close")
_worker_numbers = itertools.count()


class ThreadCall:
    """A request to a worker.

    Attributes:
        ended: Called with this object in the thread that ended it, with its result or its failure.
        context: What ``ended`` needs to know.
        returned: Whether there is a result, and not an exception.
        slow: Whether it gets a thread for itself.
        until: When it is late, in seconds of ``time.monotonic()``; known once it is running.
    """

    __slots__ = ("_done", "_value", "began", "context", "ended", "request", "returned", "seconds", "slow", "state",
                 "until", "worker")  # fmt: skip

    def __init__(self, worker: ThreadWorker, request: WorkRequest, seconds: float) -> None:
        self.worker = worker
        self.request = request
        self.seconds = seconds
        # How long another function took says nothing about the next.
        self.slow = worker.slow or request.op == "run"
        self.state = _WAITING
        self.until = math.inf
        self.context: Any = None
        self.ended: Callable[[ThreadCall], object] = _ignore
        self.began: threading.Lock | None = None  # released when the work begins

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
        """End with the result of :meth:`run`."""
        self.end(*self._done)

    def end(self, returned: bool, value: Any) -> None:
        self.worker.call = None
        self.returned, self._value = returned, value
        self.ended(self)

    def result(self) -> Any:
        """Return the result of a call that has ended. Raises as :meth:`ThreadWorker.ask`."""
        if not self.returned:
            raise self._value
        return self._value

    async def aresult(self) -> Any:
        return self.result()


def _ignore(call: ThreadCall) -> None:
    """Nobody waits for the call."""


class _Thread:
    """One thread.

    Attributes:
        call: What it is doing.
        ends: Whether it takes no more calls: decided with the lock held, as a call may arrive while the pool is closed.
    """

    def __init__(self) -> None:
        self.wake = threading.Lock()
        self.wake.acquire()
        self.call: ThreadCall | None = None
        self.ends = False


class WorkerThreads:
    """The threads of a pool's workers, started as needed, and their queue of calls. Used from any thread.

    Args:
        pool_name: Name of the pool in messages.
        parent: The threads of the pool, if these are one worker's own: all its calls, of which there is one at a time,
            then run in the same thread.
    """

    def __init__(self, pool_name: str, parent: WorkerThreads | None = None) -> None:
        self.abandoned = 0
        """Number of threads abandoned so far, those of single workers included."""
        self._parent = parent
        self._name = pool_name
        self._pid = os.getpid()
        self._mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopMailbox] = (
            weakref.WeakKeyDictionary()
        )
        # The attributes below are protected by the lock.
        self._lock = threading.Lock()
        self._queue: deque[ThreadCall] = deque()
        # Threads add themselves: Ctrl-C in ``Thread.start`` leaves unknown whether the thread has begun.
        self._threads: set[_Thread] = set()
        self._idle: list[_Thread] = []
        self._leading: set[_Thread] = set()
        """Those that will soon take the next call from the queue."""
        self._numbers = itertools.count()
        self._submitted = 0
        self._taken = 0
        self._closed = False
        # Not a ``threading.Condition``, in whose Python code Ctrl-C can leave the lock held.
        self._wake_watch = threading.Lock()  # released to wake the watch thread
        self._wake_watch.acquire()
        self._watch_sleeps = False
        self._watched = False

    def submit(self, calls: Sequence[ThreadCall]) -> None:
        """Start calls without waiting.

        Raises:
            WorkerStartFailed: The machine has no more threads; nothing was started.
            RuntimeError: Called in a fork of the process, where these threads do not exist.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(f"pool {self._name!r} belongs to process {self._pid}; a fork must create its own pool")
        with self._lock:
            try:
                if not self._leading:
                    self._start_thread()
                if not self._watched:
                    _start_daemon(f"{self._name}-watch", self._watch)
            except RuntimeError as error:
                raise WorkerStartFailed(f"pool {self._name!r} cannot start a thread: {error}") from error
            self._queue.extend(calls)
            self._submitted += 1
        if self._watch_sleeps:
            self._wake()

    def mailbox(self, loop: asyncio.AbstractEventLoop) -> _LoopMailbox:
        return self._mailboxes.get(loop) or self._mailboxes.setdefault(loop, _LoopMailbox(self))

    def give_up(self, call: ThreadCall) -> int:
        """Give up a call, which then does not end by itself, and abandon its thread if it is running.

        Args:
            call: A call that was submitted, or that will be: it is then ignored.

        Returns:
            Its state until now.
        """
        with self._lock:
            state = call.state
            if state in (_WAITING, _RUNNING):
                call.state = _GIVEN_UP
            if state == _RUNNING:
                (self._parent or self).abandoned += 1
                thread = next(thread for thread in self._threads if thread.call is call)
                self._leading.discard(thread)
                self._threads.discard(thread)
        return state

    def log_abandoned(self, calls: Sequence[ThreadCall], why: str) -> None:
        """Log, in one line, that the threads of these calls were abandoned."""
        pool = self._parent or self
        _log.warning(
            "%s %s: %d thread(s) of pool %r cannot be killed and were abandoned (%d so far)",
            ", ".join(dict.fromkeys(repr(call.request.name) for call in calls)),
            *(why, len(calls), pool._name, pool.abandoned),
        )

    def close(self) -> None:
        """End the threads once there are no more calls. Safe to call twice."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            for thread in self._idle:
                thread.wake.release()
            self._idle.clear()
        self._wake()

    # The queue

    def _start_thread(self) -> None:
        """Let one more thread work through the queue. Called with the lock held.

        Raises:
            RuntimeError: There is no thread, and the machine has no more of them.
        """
        if self._idle:
            thread = self._idle.pop()
            self._leading.add(thread)
            thread.wake.release()
        else:
            thread = _Thread()
            try:
                _start_daemon(f"{self._name}-{next(self._numbers)}", self._serve, thread)
            except RuntimeError:
                if not self._threads:
                    raise
                return  # the other threads have to do it
            self._leading.add(thread)

    def _serve(self, thread: _Thread) -> None:
        call: ThreadCall | None = None
        with self._lock:
            self._threads.add(thread)
        while True:
            with self._lock:
                if call is not None:
                    if call.state == _GIVEN_UP:
                        break
                    call.state = _DONE
                following = self._next(thread)
            if call is not None:
                call.deliver()
            # An idle thread must not keep the last call and its result alive.
            call, following = following, None
            if call is not None:
                call.run()
            elif thread.ends:
                return
            else:
                thread.wake.acquire()
        with suppress(Exception):
            call.worker.handler.handle(_CLOSE)

    def _next(self, thread: _Thread) -> ThreadCall | None:
        """Return the next call for this thread; without one, it becomes idle. Called with the lock held."""
        thread.call = None
        while self._queue:
            call = self._queue.popleft()
            self._taken += 1
            if call.state == _GIVEN_UP:
                continue
            call.state = _RUNNING
            call.until = time.monotonic() + call.seconds
            thread.call = call
            if call.slow:
                self._leading.discard(thread)
                if self._queue and not self._leading:
                    self._start_thread()
            else:
                self._leading.add(thread)
            return call
        self._leading.discard(thread)
        if self._closed:
            thread.ends = True
            self._threads.discard(thread)
        else:
            self._idle.append(thread)
        return None

    # The watch thread

    def _watch(self) -> None:
        """Start more threads when the queue is blocked, and give up the late calls."""
        submitted = taken = stuck = started = quiet = 0
        look_for_late = 0.0
        with self._lock:
            if self._watched:
                return  # another one has begun
            self._watched = True
        while True:
            now = time.monotonic()
            with self._lock:
                if self._closed and not self._queue:
                    return
                running = [thread.call for thread in self._threads if thread.call is not None]
                quiet = quiet + 1 if self._submitted == submitted and not self._queue else 0
                if self._parent is not None and not self._queue:
                    quiet = _QUIET_TICKS + 1  # one worker's thread: no other would continue, so only deadlines matter
                # Threads started last time have taken one call each: that alone is not progress.
                stuck = stuck + 1 if self._queue and self._taken - taken <= started else 0
                submitted, taken, started = self._submitted, self._taken, 0
                if stuck > 1:
                    started = min(len(self._queue), 2 ** (stuck - 2))
                    self._add_threads(started)
            if quiet > _QUIET_TICKS or now >= look_for_late:
                late = [call for call in running if call.until <= now]
                first = min([call.until for call in running if call.until > now], default=math.inf)
                look_for_late = min(first, now + _LOOK_FOR_LATE)
                for call in late:
                    call.worker.end_late(call)
            if quiet <= _QUIET_TICKS:
                self._wake_watch.acquire(timeout=_TICK)
                continue
            self._watch_sleeps = True
            if self._submitted == submitted and not self._closed:
                left = first - time.monotonic()
                self._wake_watch.acquire(timeout=max(0.0, left) if left < threading.TIMEOUT_MAX else -1)
            self._watch_sleeps = False

    def _wake(self) -> None:
        """Wake the watch thread."""
        self._watch_sleeps = False
        with suppress(RuntimeError):  # another thread has woken it
            self._wake_watch.release()

    def _add_threads(self, count: int) -> None:
        """Treat all busy threads as slow; ``count`` others continue. Called with the lock held."""
        if self._parent is not None:
            return
        # This also forgets a thread that never began.
        self._leading = {thread for thread in self._threads & self._leading if thread.call is None}
        with suppress(RuntimeError):  # no more threads: the next check tries again
            for _ in range(count):
                self._start_thread()


def _start_daemon(name: str, target: Callable[..., None], *args: Any) -> None:
    try:
        threading.Thread(target=target, args=args, name=name, daemon=True).start()
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # it left a lock of the thread in the wrong state
            raise error.__context__ from None
        raise


class _LoopMailbox:
    """Calls and results of one event loop: both are handed over together, not one by one."""

    def __init__(self, threads: WorkerThreads) -> None:
        self._threads = threads
        self._calls: list[ThreadCall] = []
        self._ended: deque[asyncio.Future[None]] = deque()
        self._woken = False

    def submit_soon(self, loop: asyncio.AbstractEventLoop, call: ThreadCall) -> None:
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
                call.end(False, error)

    def post(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
        """Resolve a future of the loop, from any thread."""
        self._ended.append(future)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed: there is no caller left
                loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        self._woken = False  # before emptying: what is posted from here on wakes the loop again
        while self._ended:
            future = self._ended.popleft()
            if not future.done():
                future.set_result(None)


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
        self.call: ThreadCall | None = None
        self._own_thread = own_thread
        self.threads = WorkerThreads(self.name, parent=threads) if own_thread else threads
        self._seconds = 0.0

    def is_healthy(self) -> bool:
        return self.alive

    def prepare(self, request: WorkRequest, timeout: float) -> ThreadCall:
        """Return a call to be submitted to the threads of the pool."""
        call = self.call = ThreadCall(self, request, timeout)
        return call

    def ask(self, request: WorkRequest, timeout: float) -> Any:
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
            if self._end(call) == _RUNNING:
                self.threads.log_abandoned([call], "was not waited for, because the wait was interrupted")
            raise

    async def aask(self, request: WorkRequest, timeout: float) -> Any:
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
            if self._end(call) == _RUNNING:
                self.threads.log_abandoned([call], "was not waited for, because the wait was cancelled")
            raise
        return call.result()

    def kill(self) -> None:
        """Accept no more work. The result of work in progress is dropped; its caller gets ``WorkerDied`` now."""
        kill_workers([self])

    def end_late(self, call: ThreadCall) -> None:
        """End a call whose deadline has passed."""
        if self.threads.give_up(call) == _RUNNING:
            text = f"did not finish within {call.seconds:g} s"
            self.threads.log_abandoned([call], text)
            self.alive = False
            self._end_own_thread()
            text = f"{call.request.name!r} {text}; thread {self.name} cannot be killed and was abandoned"
            call.end(False, DeadlineExceeded(text))

    def took(self, seconds: float) -> None:
        """Record the duration of a call of the object."""
        self._seconds += 0.3 * (seconds - self._seconds)
        self.slow = self._seconds > _SLOW

    def _end(self, call: ThreadCall | None) -> int:
        """End the worker, and return the state of its call until now."""
        self.alive = False
        self.call = None
        state = _DONE if call is None else self.threads.give_up(call)
        # Otherwise the object is closed when the call returns.
        if state in (_WAITING, _DONE) and self.handler.has_object:
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
        call = worker.call
        state = worker._end(call)
        if call is not None and state in (_WAITING, _RUNNING):
            if state == _RUNNING:
                abandoned.append(call)
            call.end(False, WorkerDied(f"worker {worker.name} was closed during a call"))
    if abandoned:
        abandoned[0].worker.threads.log_abandoned(abandoned, "was not waited for, because its worker was closed")
