"""A queue of results: its reader is woken once, when as many as it waits for have arrived."""

from __future__ import annotations

import threading
import time
from collections import deque

from rllm_gym.vector.orders import Outcome


class Inbox:
    """Filled from any thread, emptied by one thread at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bell = threading.Condition(self._lock)
        self._outcomes: deque[Outcome] = deque()
        self._wanted = 0

    def put(self, outcome: Outcome) -> None:
        with self._lock:
            self._outcomes.append(outcome)
            # A reader is woken once for a whole batch: waking costs more than a cheap environment's step.
            if 0 < self._wanted <= len(self._outcomes):
                self._wanted = 0
                self._bell.notify()

    def take(self, at_least: int, timeout: float | None) -> list[Outcome]:
        """Return all results, once there are ``at_least`` so many, or the timeout has passed."""
        give_up = None if timeout is None else time.monotonic() + timeout
        with self._bell:
            while len(self._outcomes) < at_least:
                left = None if give_up is None else give_up - time.monotonic()
                if left is not None and left <= 0:
                    break
                self._wanted = at_least
                try:
                    self._bell.wait(left)
                finally:
                    self._wanted = 0
            outcomes = list(self._outcomes)
            self._outcomes.clear()
        return outcomes
