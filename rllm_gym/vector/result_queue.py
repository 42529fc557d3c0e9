"""A queue of results: its reader is woken once, when as many as it waits for have arrived."""

from __future__ import annotations

import threading
import time
from collections import deque

from gymnasium.error import ClosedEnvironmentError

from rllm_gym.vector.env_commands import EnvResult


class ResultQueue:
    """Filled from any thread, emptied by one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._enough = threading.Condition(self._lock)
        self._results: deque[EnvResult] = deque()
        self._wanted = 0
        self._closed = False
        self.ready = False
        """Whether :meth:`take` would return a result, or raise, without waiting."""

    def close(self) -> None:
        """Wake a reader, and raise in every later :meth:`take`."""
        with self._lock:
            self._closed = self.ready = True
            self._enough.notify_all()

    def put(self, result: EnvResult) -> None:
        with self._lock:
            self._results.append(result)
            self.ready = True
            # A reader is woken once for a whole batch: waking costs more than a cheap environment's step.
            if 0 < self._wanted <= len(self._results):
                self._wanted = 0
                self._enough.notify()

    def take(self, at_least: int, timeout: float | None) -> list[EnvResult]:
        """Return all results, once there are ``at_least`` so many, or the timeout has passed.

        Raises:
            ClosedEnvironmentError: The queue was closed.
        """
        give_up = None if timeout is None else time.monotonic() + timeout
        with self._enough:
            while not self._closed and len(self._results) < at_least:
                left = None if give_up is None else give_up - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._wanted = at_least
                try:
                    self._enough.wait(left)
                finally:
                    self._wanted = 0
            if self._closed:
                raise ClosedEnvironmentError("the vector environment was closed while a call waited for it")
            outcomes = list(self._results)
            self._results.clear()
            self.ready = False
        return outcomes
