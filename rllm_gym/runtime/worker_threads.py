"""The threads of a pool: they work through one queue of calls, and a watch thread keeps the deadlines.

Handing work from thread to thread costs more than a step of a cheap environment, so one thread works through the whole
queue. A call that is known to be slow, or turns out to be, keeps the thread that carries it out, and another thread
continues with the queue: cheap calls share one handover, and none waits for the slow ones.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from rllm_gym.runtime.errors import WorkerStartFailed
from rllm_gym.runtime.queued_calls import DONE, GIVEN_UP, RUNNING, WAITING, LoopMailbox, QueuedCall

_log = logging.getLogger(__name__)

_TICK = 0.002
"""Seconds between two checks of a queue that may be blocked."""
_QUIET_TICKS = 25
"""Checks without a new call after which the watch thread sleeps until the next one."""
_LOOK_FOR_LATE = 0.05
"""Longest time between two searches for late calls, in seconds."""


class _Thread:
    """One thread.

    Attributes:
        call: What it is doing.
        ends: Whether it takes no more calls: decided with the lock held, as a call may arrive while the pool is closed.
    """

    def __init__(self) -> None:
        self.wake = threading.Lock()
        self.wake.acquire()
        self.call: QueuedCall | None = None
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
        self._mailboxes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopMailbox] = weakref.WeakKeyDictionary()
        # The attributes below are protected by the lock.
        self._lock = threading.Lock()
        self._queue: deque[QueuedCall] = deque()
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

    def submit(self, calls: Sequence[QueuedCall]) -> None:
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

    def mailbox(self, loop: asyncio.AbstractEventLoop) -> LoopMailbox:
        return self._mailboxes.get(loop) or self._mailboxes.setdefault(loop, LoopMailbox(self.submit))

    def give_up(self, call: QueuedCall) -> int:
        """Give up a call, which then does not end by itself, and abandon its thread if it is running.

        Args:
            call: A call that was submitted, or that will be: it is then ignored.

        Returns:
            Its state until now.
        """
        with self._lock:
            state = call.state
            if state in (WAITING, RUNNING):
                call.state = GIVEN_UP
            if state == RUNNING:
                (self._parent or self).abandoned += 1
                thread = next(thread for thread in self._threads if thread.call is call)
                self._leading.discard(thread)
                self._threads.discard(thread)
        return state

    def log_abandoned(self, calls: Sequence[QueuedCall], why: str) -> None:
        """Log, in one line, that the threads of these calls were abandoned."""
        pool = self._parent or self
        _log.warning(
            "%s %s: %d thread(s) of pool %r cannot be killed and were abandoned (%d so far)",
            ", ".join(dict.fromkeys(repr(call.name) for call in calls)),
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
        call: QueuedCall | None = None
        with self._lock:
            self._threads.add(thread)
        while True:
            with self._lock:
                if call is not None:
                    if call.state == GIVEN_UP:
                        break
                    call.state = DONE
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
            call.clean_up()

    def _next(self, thread: _Thread) -> QueuedCall | None:
        """Return the next call for this thread; without one, it becomes idle. Called with the lock held."""
        thread.call = None
        while self._queue:
            call = self._queue.popleft()
            self._taken += 1
            if call.state == GIVEN_UP:
                continue
            call.state = RUNNING
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
                    call.expire()
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
