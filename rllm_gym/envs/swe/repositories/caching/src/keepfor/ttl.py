"""A cache whose entries grow old."""

from __future__ import annotations

import heapq
import time
from collections.abc import Hashable, Iterator, MutableMapping
from typing import TypeVar

from keepfor.clock import Clock
from keepfor.stats import Stats

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TTLCache(MutableMapping[K, V]):
    """Keeps every entry for less than ``seconds``.

    Args:
        seconds: How long an entry lives, unless :meth:`set` gave it another time.
        size: How many entries there may be; the one that dies first makes room. ``None``: any number.
        refresh: Reading an entry gives it its whole time again.
        clock: Where the time comes from.
    """

    def __init__(
        self, seconds: float, *, size: int | None = None, refresh: bool = False, clock: Clock = time.monotonic
    ) -> None:
        if seconds <= 0:
            raise ValueError(f"entries that live for {seconds} seconds are never there")
        if size is not None and size < 1:
            raise ValueError(f"a cache of size {size} can keep nothing")
        self.seconds = seconds
        self.size = size
        self.refresh = refresh
        self.stats = Stats()
        self._clock = clock
        # key -> (value, seconds it lives, when it dies)
        self._entries: dict[K, tuple[V, float, float]] = {}
        # (when it dies, number, key): may hold entries that were replaced or removed since.
        self._deaths: list[tuple[float, int, K]] = []
        self._number = 0

    def __getitem__(self, key: K) -> V:
        self.expire()
        if key not in self._entries:
            self.stats.misses += 1
            raise KeyError(key)
        self.stats.hits += 1
        value, seconds, _ = self._entries[key]
        if self.refresh:
            self.set(key, value, seconds)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self.set(key, value, self.seconds)

    def set(self, key: K, value: V, seconds: float) -> None:
        """Store an entry that lives for ``seconds``."""
        if seconds <= 0:
            raise ValueError(f"an entry that lives for {seconds} seconds is never there")
        self.expire()
        if self.size is not None and key not in self._entries and len(self._entries) >= self.size:
            self._evict()
        death = self._clock() + seconds
        self._entries[key] = (value, seconds, death)
        self._number += 1
        heapq.heappush(self._deaths, (death, self._number, key))

    def __delitem__(self, key: K) -> None:
        self.expire()
        del self._entries[key]

    def __contains__(self, key: object) -> bool:
        self.expire()
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        self.expire()
        return iter(list(self._entries))

    def __len__(self) -> int:
        self.expire()
        return len(self._entries)

    def age(self, key: K) -> float:
        """Seconds since the entry was stored (or read, where reading refreshes)."""
        self.expire()
        _, seconds, death = self._entries[key]
        return seconds - (death - self._clock())

    def expire(self) -> int:
        """Forget what is too old, and return how many entries that were. Every other method does so first."""
        now, count = self._clock(), 0
        while self._deaths and self._deaths[0][0] <= now:
            death, _, key = heapq.heappop(self._deaths)
            if self._is_current(key, death):
                del self._entries[key]
                count += 1
        return count

    def _evict(self) -> None:
        while True:
            death, _, key = heapq.heappop(self._deaths)
            if self._is_current(key, death):
                del self._entries[key]
                self.stats.evictions += 1
                return

    def _is_current(self, key: K, death: float) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry[2] == death
