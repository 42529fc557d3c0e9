"""How often something may be done."""

from __future__ import annotations

import math
import time
from collections import deque

from keepfor.clock import Clock


class TokenBucket:
    """Allows ``rate`` things a second on average and ``burst`` at once.

    The bucket starts full.
    """

    def __init__(self, rate: float, burst: int, *, clock: Clock = time.monotonic) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"a bucket of {burst} tokens at {rate} a second never allows anything")
        self.rate = rate
        self.burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._filled = clock()

    @property
    def tokens(self) -> float:
        """What is in the bucket now."""
        self._fill()
        return self._tokens

    def allow(self, cost: int = 1) -> bool:
        """Take ``cost`` tokens if they are there; else take none."""
        self._fill()
        if cost > self._tokens:
            return False
        self._tokens -= cost
        return True

    def wait_time(self, cost: int = 1) -> float:
        """Seconds until ``cost`` tokens are there; infinity if they never are."""
        if cost > self.burst:
            return math.inf
        self._fill()
        return max(0.0, (cost - self._tokens) / self.rate)

    def _fill(self) -> None:
        now = self._clock()
        self._tokens = min(float(self.burst), self._tokens + (now - self._filled) * self.rate)
        self._filled = now


class SlidingWindow:
    """Allows ``count`` things in any ``seconds`` seconds, for each key on its own."""

    def __init__(self, count: int, seconds: float, *, clock: Clock = time.monotonic) -> None:
        if count < 1 or seconds <= 0:
            raise ValueError(f"{count} things in {seconds} seconds is not a limit")
        self.count = count
        self.seconds = seconds
        self._clock = clock
        self._times: dict[str, deque[float]] = {}

    def allow(self, key: str = "") -> bool:
        """Whether it may be done now; if so, it counts. What is refused does not count."""
        times = self._recent(key)
        if len(times) >= self.count:
            return False
        self._times.setdefault(key, times).append(self._clock())
        return True

    def remaining(self, key: str = "") -> int:
        """How many more are allowed now."""
        return self.count - len(self._recent(key))

    def wait_time(self, key: str = "") -> float:
        """Seconds until the next one is allowed."""
        times = self._recent(key)
        if len(times) < self.count:
            return 0.0
        return times[0] + self.seconds - self._clock()

    def keys(self) -> list[str]:
        """The keys with something inside the window; the others take no memory."""
        for key in list(self._times):
            self._recent(key)
        return sorted(self._times)

    def _recent(self, key: str) -> deque[float]:
        times = self._times.get(key, deque())
        now = self._clock()
        while times and times[0] + self.seconds <= now:
            times.popleft()
        if not times:
            self._times.pop(key, None)
        return times
