"""A queue of results: its reader is woken once, when as many as it waits for have arrived."""

from __future__ import annotations

import threading
import time
from collections import deque

from gymnasium.error import ClosedEnvironmentError

from rllm_gym.vector.env_commands import EnvResult


class ResultQueue:
    """Filled from any thread, emptied by one thread at a time.

    It has no ``threading.Condition``, in whose Python code Ctrl-C can leave the lock held.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: deque[EnvResult] = deque()
        self._wanted = 0
        self._enough = threading.Lock()  # held while ``_wanted`` is above 0; who sets that to 0 releases it
        self.closed = False
        self.ready = False
        """Whether there is a result, or the queue is closed."""

    def close(self) -> None:
        """Wake a reader, and raise in every later :meth:`wait` and :meth:`take`."""
        with self._lock:
            self.closed = self.ready = True
            self._wake()

    def put(self, result: EnvResult) -> None:
        with self._lock:
            self._results.append(result)
            self.ready = True
            # A reader is woken once for a whole batch: waking costs more than a cheap environment's step.
            if self._wanted <= len(self._results):
                self._wake()

    def wait(self, at_least: int, timeout: float | None) -> None:
        """Wait until there are ``at_least`` so many results, or the timeout has passed.

        Raises:
            ClosedEnvironmentError: The queue was closed.
        """
        give_up = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                self._assert_open()
                if len(self._results) >= at_least:
                    return
                self._enough.acquire(blocking=False)
                self._wanted = at_least
            left = None if give_up is None else give_up - time.monotonic()
            if left is not None and left <= 0:
                return
            self._enough.acquire(timeout=-1 if left is None else min(left, threading.TIMEOUT_MAX))

    def take(self) -> list[EnvResult]:
        """Return all results.

        Raises:
            ClosedEnvironmentError: The queue was closed.
        """
        with self._lock:
            self._assert_open()
            results = list(self._results)
            self._results.clear()
            self.ready = False
        return results

    def _wake(self) -> None:
        """Wake the reader, if it waits. Called with the lock held."""
        if self._wanted:
            self._wanted = 0
            self._enough.release()

    def _assert_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError("the vector environment was closed while a call waited for it")
