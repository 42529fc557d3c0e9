"""A background thread for the sockets of a pool's workers, so that any thread or event loop can use the pool."""

from __future__ import annotations

import functools
import heapq
import itertools
import logging
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable

_log = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 86_400.0
"""The selector refuses to wait for much longer than this."""


class Timer:
    """A scheduled call. Set ``cancelled`` to prevent it."""

    __slots__ = ("call", "cancelled")

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.cancelled = False


class SelectorLoop:
    """An event loop in its own thread. All methods but :meth:`call` must be called in that thread."""

    def __init__(self, name: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._calls: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, callback: Callable[[], None]) -> None:
        """Schedule ``callback``. Callable from any thread; has no effect after :meth:`stop`."""
        self._calls.append(callback)
        if threading.current_thread() is not self._thread and not self._stopped:
            os.eventfd_write(self._wake, 1)

    def later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._order), timer))
        return timer

    def watch(self, fd: int, events: int, callback: Callable[[int], None]) -> None:
        """Call ``callback(events)`` whenever ``fd`` is ready; ``events=0`` stops watching."""
        known = fd in self._selector.get_map()
        if not events:
            if known:
                self._selector.unregister(fd)
        elif known:
            self._selector.modify(fd, events, callback)
        else:
            self._selector.register(fd, events, callback)

    def stop(self, seconds: float) -> None:
        """End the thread after the scheduled calls, and wait for it up to that many seconds."""
        if not self._stopped:
            self.call(self._stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def _stop(self) -> None:
        self._stopped = True

    def _run(self) -> None:
        try:
            while not self._stopped or self._calls:
                for key, events in self._selector.select(self._pause()):
                    if key.data is None:
                        os.eventfd_read(self._wake)
                    elif key.fd in self._selector.get_map():
                        self._guarded(functools.partial(key.data, events))
                while self._calls:
                    self._guarded(self._calls.popleft())
                while self._timers and self._timers[0][0] <= time.monotonic():
                    timer = heapq.heappop(self._timers)[2]
                    if not timer.cancelled:
                        self._guarded(timer.call)
        finally:
            self._selector.close()
            os.close(self._wake)

    def _pause(self) -> float | None:
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        if self._calls:
            return 0
        return min(max(0.0, self._timers[0][0] - time.monotonic()), _LONGEST_PAUSE_S) if self._timers else None

    @staticmethod
    def _guarded(callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:
            # An error of one caller must not end the thread that all others depend on.
            _log.exception("a callback of the sandbox's thread failed")
