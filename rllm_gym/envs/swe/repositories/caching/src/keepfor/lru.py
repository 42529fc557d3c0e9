"""A cache of limited size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, MutableMapping
from typing import TypeVar

from keepfor.stats import Stats

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(MutableMapping[K, V]):
    """Keeps what was used last.

    Reading and writing an entry are uses; asking with ``in`` or iterating is not. Iteration goes from the entry that
    would be forgotten first to the one that was used last.

    Args:
        size: The weight of all entries together.
        weigh: The weight of a value; 1 by default, so that ``size`` is the number of entries.
        on_evict: Called with the key and the value of an entry that is forgotten to make room.
    """

    def __init__(
        self,
        size: int,
        *,
        weigh: Callable[[V], int] | None = None,
        on_evict: Callable[[K, V], None] | None = None,
    ) -> None:
        if size < 1:
            raise ValueError(f"a cache of size {size} can keep nothing")
        self.size = size
        self.stats = Stats()
        self._weigh = weigh or (lambda value: 1)
        self._on_evict = on_evict
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._weight = 0

    @property
    def weight(self) -> int:
        """The weight of what is in the cache now."""
        return self._weight

    def __getitem__(self, key: K) -> V:
        try:
            value = self._entries[key]
        except KeyError:
            self.stats.misses += 1
            raise
        self.stats.hits += 1
        self._entries.move_to_end(key)
        return value

    def __setitem__(self, key: K, value: V) -> None:
        weight = self._weigh(value)
        if weight > self.size:
            raise ValueError(f"a value of weight {weight} does not fit into a cache of size {self.size}")
        if key in self._entries:
            self._weight -= self._weigh(self._entries.pop(key))
        while self._weight + weight > self.size:
            self._evict()
        self._entries[key] = value
        self._weight += weight

    def __delitem__(self, key: K) -> None:
        self._weight -= self._weigh(self._entries.pop(key))

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def peek(self, key: K) -> V | None:
        """The value without using it: neither the order nor the counters change."""
        return self._entries.get(key)

    def resize(self, size: int) -> None:
        """Change the size; what no longer fits is forgotten."""
        if size < 1:
            raise ValueError(f"a cache of size {size} can keep nothing")
        self.size = size
        while self._weight > self.size:
            self._evict()

    def _evict(self) -> None:
        key, value = self._entries.popitem(last=False)
        self._weight -= self._weigh(value)
        self.stats.evictions += 1
        if self._on_evict is not None:
            self._on_evict(key, value)
