"""An index of computed prefixes of conversations, in running slots or kept for later turns.

Prefixes are found by the hash of each block of tokens together with all tokens before it, and then compared token by
token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any


class CachedPrefix:
    """Tokens whose keys and values are available: ``slot`` in the running batch, or ``kept`` tensors."""

    __slots__ = ("hashes", "ids", "kept", "size", "slot")

    def __init__(
        self, ids: tuple[int, ...], *, slot: int = -1, kept: Any = None, size: int = 0, hashes: Sequence[int] = ()
    ) -> None:
        self.ids = ids
        self.slot = slot
        self.kept = kept
        self.size = size
        self.hashes = list(hashes)


class PrefixCache:
    """Finds the longest computed prefix of a prompt.

    Args:
        block: Tokens per hashed block.
        max_bytes: Maximum memory for kept prefixes; the least recently used is removed first.
    """

    def __init__(self, block: int, max_bytes: int) -> None:
        self._block = block
        self._max_bytes = max_bytes
        self._index: dict[int, CachedPrefix] = {}
        self._kept: OrderedDict[object, CachedPrefix] = OrderedDict()
        self._names: dict[int, object] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def hashes(self, ids: tuple[int, ...], known: Sequence[int] = ()) -> list[int]:
        """Return a hash for each block of ``ids``; ``known`` holds the hashes of a prefix of it."""
        values = list(known)
        value = values[-1] if values else 0
        for end in range((len(values) + 1) * self._block, len(ids) + 1, self._block):
            value = hash((value, ids[end - self._block : end]))
            values.append(value)
        return values

    def add(self, source: CachedPrefix) -> None:
        """Add a source to the index."""
        source.hashes = self.hashes(source.ids, source.hashes)
        for value in source.hashes:
            self._index[value] = source

    def remove(self, source: CachedPrefix) -> None:
        """Remove a source from the index."""
        for value in source.hashes:
            if self._index.get(value) is source:
                del self._index[value]

    def keep(self, name: object, source: CachedPrefix) -> None:
        """Keep a source with tensors of its own, replacing the one under this name."""
        self.drop(name)
        if source.size > self._max_bytes:
            return
        self.add(source)
        self._kept[name] = source
        self._names[id(source)] = name
        self.bytes += source.size
        self._trim()

    def limit(self, max_bytes: int) -> None:
        """Change the memory limit."""
        self._max_bytes = max_bytes
        self._trim()

    def _trim(self) -> None:
        while self.bytes > self._max_bytes:
            self.drop(next(iter(self._kept)))

    def drop(self, name: object) -> None:
        """Remove what is kept under a name."""
        source = self._kept.pop(name, None)
        if source is not None:
            self.bytes -= source.size
            del self._names[id(source)]
            self.remove(source)

    def clear(self) -> None:
        """Remove everything, because the weights are new."""
        self._index.clear()
        self._kept.clear()
        self._names.clear()
        self.bytes = 0

    def find(
        self, ids: tuple[int, ...], limit: int, hashes: Sequence[int] | None = None
    ) -> tuple[CachedPrefix | None, int]:
        """Return the source with the longest common prefix with ``ids``, and its length, at most ``limit``."""
        found, blocks = None, 0
        for number, value in enumerate(self.hashes(ids) if hashes is None else hashes, 1):
            source = self._index.get(value)
            if source is not None:
                found, blocks = source, number
        if found is None:
            return None, 0
        length = min(blocks * self._block, limit)
        if found.ids[:length] != ids[:length]:
            return None, 0  # hash collision
        end = min(len(found.ids), limit)
        if found.ids[:end] == ids[:end]:
            length = end
        else:
            while length < end and found.ids[length] == ids[length]:
                length += 1
        name = self._names.get(id(found))
        if name is not None:
            self._kept.move_to_end(name)
        return found, length
