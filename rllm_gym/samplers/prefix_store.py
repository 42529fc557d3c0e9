"""Which beginnings of conversations are computed already, and where: in running slots, or kept aside for later turns.

Beginnings are found by the hash of each block of tokens together with all before it, and then compared token by token.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any


class Source:
    """Tokens whose keys and values are at hand: ``slot`` in the running batch, or ``kept`` tensors."""

    __slots__ = ("hashes", "ids", "kept", "size", "slot")

    def __init__(
        self, ids: tuple[int, ...], *, slot: int = -1, kept: Any = None, size: int = 0, hashes: Sequence[int] = ()
    ) -> None:
        self.ids = ids
        self.slot = slot
        self.kept = kept
        self.size = size
        self.hashes = list(hashes)


class PrefixStore:
    """Finds the longest beginning of a prompt that is computed already.

    Args:
        block: Tokens per hashed block.
        max_bytes: Most memory for what is kept aside; the least recently used goes first.
    """

    def __init__(self, block: int, max_bytes: int) -> None:
        self._block = block
        self._max_bytes = max_bytes
        self._index: dict[int, Source] = {}
        self._kept: OrderedDict[object, Source] = OrderedDict()
        self._names: dict[int, object] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def hashes(self, ids: tuple[int, ...], known: Sequence[int] = ()) -> list[int]:
        """A hash for each block of ``ids``; ``known`` are those of a beginning of it."""
        values = list(known)
        value = values[-1] if values else 0
        for end in range((len(values) + 1) * self._block, len(ids) + 1, self._block):
            value = hash((value, ids[end - self._block : end]))
            values.append(value)
        return values

    def add(self, source: Source) -> None:
        """Make a source findable."""
        source.hashes = self.hashes(source.ids, source.hashes)
        for value in source.hashes:
            self._index[value] = source

    def remove(self, source: Source) -> None:
        """Make a source unfindable."""
        for value in source.hashes:
            if self._index.get(value) is source:
                del self._index[value]

    def keep(self, name: object, source: Source) -> None:
        """Keep a source with tensors of its own, in place of what this name had."""
        self.drop(name)
        if source.size > self._max_bytes:
            return
        self.add(source)
        self._kept[name] = source
        self._names[id(source)] = name
        self.bytes += source.size
        self._trim()

    def limit(self, max_bytes: int) -> None:
        """Keep to less memory from now on, or to more."""
        self._max_bytes = max_bytes
        self._trim()

    def _trim(self) -> None:
        while self.bytes > self._max_bytes:
            self.drop(next(iter(self._kept)))

    def drop(self, name: object) -> None:
        """Forget what is kept under a name."""
        source = self._kept.pop(name, None)
        if source is not None:
            self.bytes -= source.size
            del self._names[id(source)]
            self.remove(source)

    def clear(self) -> None:
        """Forget everything: the weights are new."""
        self._index.clear()
        self._kept.clear()
        self._names.clear()
        self.bytes = 0

    def find(self, ids: tuple[int, ...], limit: int, hashes: Sequence[int] | None = None) -> tuple[Source | None, int]:
        """The source that shares the longest beginning with ``ids``, and how many tokens of it, at most ``limit``."""
        found, blocks = None, 0
        for number, value in enumerate(self.hashes(ids) if hashes is None else hashes, 1):
            source = self._index.get(value)
            if source is not None:
                found, blocks = source, number
        if found is None:
            return None, 0
        length = min(blocks * self._block, limit)
        if found.ids[:length] != ids[:length]:
            return None, 0  # a collision of hashes
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
