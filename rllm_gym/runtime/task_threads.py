"""Threads that carry out tasks with deadlines: one does cheap tasks in turn, and slow ones run concurrently.

Handing work from thread to thread costs more than a step of a cheap environment, so one thread works through the whole
queue. A task that is known to be slow, or turns out to be, keeps the thread that does it, and another thread continues
with the queue: cheap tasks share one handover, and none waits for the slow ones.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from rllm_gym.runtime.errors import WorkerStartFailed

_log = logging.getLogger(__name__)

_SLOW = 0.001
"""Seconds, averaged over its last tasks, above which a :class:`Pace` is slow."""
_TICK = 0.002
"""Seconds between two checks of a queue that may be blocked."""
_QUIET_TICKS = 25
"""Checks without a new task after which the watch thread sleeps until the next one."""
_LOOK_FOR_LATE = 0.05
"""Longest time between two searches for late tasks, in seconds, while there are new tasks; else a second."""

WAITING, RUNNING, DONE, GIVEN_UP = range(4)
"""States of a task."""


class TaskGivenUp(Exception):
    """Raised by :meth:`ThreadTask.enter` in a thread that was abandoned; its result is ignored."""


class Pace:
    """How long the tasks of one environment take on average."""

    __slots__ = ("seconds",)

    def __init__(self) -> None:
        self.seconds = 0.0

    @property
    def slow(self) -> bool:
        return self.seconds > _SLOW

    def add(self, seconds: float) -> None:
        self.seconds += 0.3 * (seconds - self.seconds)


class ThreadTask(ABC):
    """A task for :class:`TaskThreads`.

    Attributes:
        name: Its name in messages.
        seconds: How long it may take.
        slow: Whether it gets a thread for itself.
        until: When it is late, in seconds of ``time.monotonic()``.
        state: ``WAITING``, ``RUNNING``, ``DONE`` or ``GIVEN_UP``.
    """

    __slots__ = ("seconds", "slow", "state", "until")

    def __init__(self, seconds: float, slow: bool) -> None:
        self.seconds = seconds
        self.slow = slow
        self.until = math.inf
        self.state = WAITING

    @property
    @abstractmethod
    def name(self) -> str: ...

    def enter(self, seconds: float) -> None:
        """Begin a part of the task with a deadline of its own.

        Raises:
            TaskGivenUp: The task was late before.
        """
        if self.state == GIVEN_UP:
            raise TaskGivenUp
        self.seconds = seconds
        self.until = time.monotonic() + seconds

    @abstractmethod
    def run(self) -> None:
        """Carry out the task and keep its result; raise nothing else than :class:`TaskGivenUp`."""

    @abstractmethod
    def deliver(self) -> None:
        """Deliver the result. Not called for a task that was given up."""

    @abstractmethod
    def late(self) -> None:
        """Report that the task was given up because it was late."""

    def clean_up(self) -> None:  # noqa: B027 - most hold nothing
        """Release what a task that was given up holds, once it has returned."""


class CloseTask(ThreadTask):
    """Closes something; its exceptions are ignored."""

    __slots__ = ("_close",)

    name = "close"

    def __init__(self, close: Callable[[], object], seconds: float, *, slow: bool) -> None:
        super().__init__(seconds, slow)
        self._close = close

    def run(self) -> None:
        with suppress(BaseException):
            self._close()

    def deliver(self) -> None: ...

    def late(self) -> None: ...


class _TaskThread:
    """One thread.

    Attributes:
        task: What it is doing.
        leads: Whether it will soon take the next task from the queue.
    """

    def __init__(self) -> None:
        self.wake = threading.Lock()
        self.wake.acquire()
        self.thread: threading.Thread | None = None
        self.task: ThreadTask | None = None
        self.leads = True


class TaskThreads:
    """A queue of tasks, and the threads that carry them out, started as needed. Used from any thread.

    A thread cannot be killed: one whose task is late is abandoned, counted, and logged.

    Args:
        name: Name of the threads.
        owner: Whose threads these are, for messages.
    """

    def __init__(self, name: str, owner: str) -> None:
        self.abandoned = 0
        """Number of threads abandoned so far."""
        self._name = name
        self._owner = owner
        self._pid = os.getpid()
        # The attributes below are protected by the lock.
        self._lock = threading.Lock()
        self._queue: deque[ThreadTask] = deque()
        self._threads: set[_TaskThread] = set()
        self._idle: list[_TaskThread] = []
        self._started = 0
        self._leads = 0
        self._submitted = 0
        self._taken = 0
        self._ended = False
        self._wake_watch = threading.Condition(threading.Lock())
        self._watch_sleeps = False
        self._watch: threading.Thread | None = None

    def submit(self, tasks: Sequence[ThreadTask]) -> None:
        """Start tasks without waiting.

        Raises:
            WorkerStartFailed: The machine has no more threads; nothing was started.
            RuntimeError: Called in a fork of the process, where these threads do not exist.
        """
        if os.getpid() != self._pid:
            raise RuntimeError(f"the threads of {self._owner} belong to process {self._pid}; a fork has to use its own")
        with self._lock:
            try:
                if self._leads == 0:
                    self._start_thread()
                if self._watch is None:
                    watch = threading.Thread(target=self._watch_tasks, name=f"{self._name}-watch", daemon=True)
                    watch.start()
                    self._watch = watch
            except RuntimeError as error:
                raise WorkerStartFailed(f"{self._owner} cannot start a thread: {error}") from error
            self._queue.extend(tasks)
            self._submitted += 1
        if self._watch_sleeps:
            with self._wake_watch:
                self._watch_sleeps = False
                self._wake_watch.notify()

    def give_up(self, task: ThreadTask, why: str = "") -> int:
        """Give up a task, whose result is then not delivered, and abandon its thread if it is running.

        Args:
            task: A task that was submitted, or that will be: it is then ignored.
            why: For the log; ``""`` logs nothing.

        Returns:
            Its state until now; ``DONE`` means that it was too late to give it up.
        """
        with self._lock:
            state = task.state
            if state in (WAITING, RUNNING):
                task.state = GIVEN_UP
            if state == RUNNING:
                self.abandoned += 1
                count = self.abandoned
                for thread in self._threads:
                    if thread.task is task:
                        self._yield_lead(thread)
                        self._threads.discard(thread)
                        break
        if state == RUNNING and why:
            _log.warning(
                "%s %s; its thread cannot be killed and was abandoned (%d thread(s) of %s so far)",
                *(task.name, why, count, self._owner),
            )
        return state

    def unfinished(self) -> list[ThreadTask]:
        """Return the tasks that wait or are running."""
        with self._lock:
            return [*self._queue, *(thread.task for thread in self._threads if thread.task is not None)]

    def close(self) -> None:
        """End the threads once there are no more tasks. Safe to call twice."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._ended = True
            for thread in self._idle:
                thread.wake.release()
            self._idle.clear()
        with self._wake_watch:
            self._wake_watch.notify()

    def join(self, seconds: float) -> None:
        """Wait for the end of the threads that were not abandoned, for so many seconds at most."""
        deadline = time.monotonic() + seconds
        with self._lock:
            threads = [thread.thread for thread in self._threads]
        for thread in (*threads, self._watch):
            if thread is not None and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    # The queue

    def _start_thread(self) -> None:
        """Let one more thread work through the queue. Called with the lock held.

        Raises:
            RuntimeError: There is no thread, and the machine has no more of them.
        """
        if self._idle:
            thread = self._idle.pop()
            thread.leads = True
            thread.wake.release()
        else:
            thread = _TaskThread()
            name = f"{self._name}-{self._started}"
            thread.thread = threading.Thread(target=self._serve, args=(thread,), name=name, daemon=True)
            try:
                thread.thread.start()
            except RuntimeError:
                if not self._threads:
                    raise
                return  # the other threads have to do it
            self._started += 1
            self._threads.add(thread)
        self._leads += 1

    def _serve(self, thread: _TaskThread) -> None:
        task: ThreadTask | None = None
        while True:
            with self._lock:
                if task is not None:
                    if task.state == GIVEN_UP:
                        break
                    task.state = DONE
                following = self._next(thread)
            if task is not None:
                task.deliver()
            # An idle thread must not keep the last task and its result alive.
            task, following = following, None
            if task is None:
                if self._ended:
                    return
                thread.wake.acquire()
                continue
            with suppress(TaskGivenUp):
                task.run()
        task.clean_up()

    def _next(self, thread: _TaskThread) -> ThreadTask | None:
        """Return the next task for this thread; without one, it becomes idle. Called with the lock held."""
        thread.task = None
        while self._queue:
            task = self._queue.popleft()
            self._taken += 1
            if task.state == GIVEN_UP:
                continue
            task.state = RUNNING
            task.until = time.monotonic() + task.seconds
            thread.task = task
            if task.slow:
                self._yield_lead(thread)
                if self._queue and self._leads == 0:
                    self._start_thread()
            elif not thread.leads:
                thread.leads = True
                self._leads += 1
            return task
        self._yield_lead(thread)
        if not self._ended:
            self._idle.append(thread)
        return None

    def _yield_lead(self, thread: _TaskThread) -> None:
        if thread.leads:
            thread.leads = False
            self._leads -= 1

    # The watch thread

    def _watch_tasks(self) -> None:
        """Start more threads when the queue is blocked, and give up the late tasks."""
        submitted = taken = stuck = called = quiet = 0
        look_for_late = 0.0
        while True:
            now = time.monotonic()
            with self._lock:
                running = [thread.task for thread in self._threads if thread.task is not None]
                if self._ended and not self._queue and all(task.until == math.inf for task in running):
                    return
                quiet = quiet + 1 if self._submitted == submitted and not self._queue else 0
                # Threads started last time have taken one task each: that alone is not progress.
                stuck = stuck + 1 if self._queue and self._taken - taken <= called else 0
                submitted, taken, called = self._submitted, self._taken, 0
                if stuck > 1:
                    called = min(len(self._queue), 2 ** (stuck - 2))
                    with suppress(RuntimeError):  # no more threads: the next check tries again
                        self._add_threads(called)
            if quiet > _QUIET_TICKS or now >= look_for_late:
                first = min([task.until for task in running], default=math.inf)
                look_for_late = min(first, now + _LOOK_FOR_LATE)
                if first <= now:
                    self._end_late(running, now)
            with self._wake_watch:
                if quiet <= _QUIET_TICKS:
                    self._wake_watch.wait(_TICK)
                    continue
                self._watch_sleeps = True
                if self._submitted == submitted and (running or not self._ended):
                    # A running task may enter a part with an earlier deadline.
                    longest = _LOOK_FOR_LATE if self._ended else 1.0
                    self._wake_watch.wait(min(longest, max(0.0, first - now)) if running else None)
                self._watch_sleeps = False

    def _end_late(self, running: Sequence[ThreadTask], now: float) -> None:
        for task in running:
            if task.until <= now and self.give_up(task, f"did not finish within {task.seconds:g} s") == RUNNING:
                task.late()

    def _add_threads(self, count: int) -> None:
        """Treat all busy threads as slow; ``count`` others continue. Called with the lock held."""
        for thread in self._threads:
            if thread.task is not None:
                self._yield_lead(thread)
        for _ in range(count):
            self._start_thread()
