"""How well a cache does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Stats:
    """Counters of one cache."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0

    @property
    def requests(self) -> int:
        return self.hits + self.misses

    @property
    def hit_rate(self) -> float:
        """Share of requests that were answered from the cache; 0 before the first."""
        return self.hits / self.requests if self.requests else 0.0

    def __add__(self, other: Stats) -> Stats:
        return Stats(self.hits + other.hits, self.misses + other.misses, self.evictions + other.evictions)
