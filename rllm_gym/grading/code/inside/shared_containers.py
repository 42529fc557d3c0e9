"""Mutable containers with a copy on both sides: lists, dicts, sets, arrays.

Changes on one side are visible on the other. Each container has a number, the same on both sides. A message contains
the contents of new containers and of those that changed since the last message, so that ``obj.items.append(3)``,
``sort_in_place(values)`` and ``f(x) is x`` behave as in one process. A side that is the only holder of a container
drops it and reports that.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from .codec import Codec, MalformedMessage, Tree, Uncodable, expect, from_base64, numpy_type, to_base64

MAX_CONTAINERS = 1_000_000
"""Maximum number of shared containers at a time."""

_ARRAY_TYPES = frozenset("bBhHiIlLqQfd")
_MISSING = object()


class _ContainerEntry:
    __slots__ = ("changed", "obj", "snapshot")

    def __init__(self, obj: Any, snapshot: Any) -> None:
        self.obj = obj
        self.snapshot = snapshot
        self.changed = False


def _references_of_an_entry() -> int:
    entry = _ContainerEntry([], None)
    return sys.getrefcount(entry.obj)


_ALONE = _references_of_an_entry()
"""The result of ``sys.getrefcount`` for a container that is referenced only by its entry."""


class SharedContainers:
    """The containers of one side.

    Args:
        first: 0 for the side that numbers its own containers 0, 2, 4, …; 1 for the other.
        detached: Send copies to the other side, so that its changes are not visible here.
    """

    def __init__(self, first: int, *, detached: bool = False) -> None:
        self._first = first
        self._next = first
        self._detached = detached
        self._entries: dict[int, _ContainerEntry] = {}
        self._numbers: dict[int, int] = {}
        self._fresh: list[int] = []
        self._copies: dict[int, tuple[Any, Any]] = {}
        self._reading = 0
        self._gone: set[int] = set()
        self.on_new: Callable[[Any], None] = lambda value: None
        """Called for each container of this side before it is sent for the first time."""
        self.changed_by_other: list[tuple[Any, Any]] = []
        """Containers of this side that the other side changed, each with its elements before."""

    def tree_of(self, value: Any) -> Tree | None:
        """Return the tree that identifies a container, registering a new one; ``None`` for other values."""
        number = self._numbers.get(id(value))
        if number is None:
            if not is_container(value):
                return None
            if self._detached:
                value = self._copy(value)
                number = self._numbers.get(id(value))
            if number is None:
                self.on_new(value)
                number = self._add(value)
        return ["@", number]

    def _add(self, value: Any) -> int:
        if len(self._entries) >= MAX_CONTAINERS:
            raise Uncodable(f"more than {MAX_CONTAINERS:,} lists, dicts and sets at a time")
        number = self._next
        self._next += 2
        self._entries[number] = _ContainerEntry(value, _MISSING)
        self._numbers[id(value)] = number
        self._fresh.append(number)
        return number

    def named(self, number: Any) -> Any:
        entry = self._entries.get(expect(number, int))
        if entry is None:
            raise MalformedMessage("unknown container id")
        return entry.obj

    def own(self) -> list[Any]:
        """Return the containers that this side created and the other side still holds."""
        return [entry.obj for number, entry in self._entries.items() if number % 2 == self._first]

    def snapshots(self) -> dict[int, Any]:
        """Return the elements of the containers of this side, by their ids."""
        return {id(obj): snapshot_of(obj) for obj in self.own()}

    # Writing

    def write(self, codec: Codec) -> dict[str, Any]:
        """Return a message's container data. Call it when the values are encoded and still referenced."""
        self._copies.clear()
        news: list[Tree] = []
        changes: list[Tree] = []
        written: list[tuple[_ContainerEntry, Any]] = []
        for number, entry in list(self._entries.items()):
            if entry.snapshot is not _MISSING and _differs(entry.obj, entry.snapshot):
                written.append((entry, snapshot_of(entry.obj)))
                changes.append([number, *_contents_to_tree(codec, entry.obj)])
        for number in self._fresh:  # which grows: the elements may be new as well
            entry = self._entries[number]
            written.append((entry, snapshot_of(entry.obj)))
            news.append([number, *_contents_to_tree(codec, entry.obj)])
        for entry, snapshot in written:
            entry.snapshot = snapshot
        self._fresh.clear()
        self._copies.clear()
        gone = []
        # While a message is read, nothing else references its new containers yet.
        if not self._reading:
            gone = [number for number, entry in self._entries.items() if sys.getrefcount(entry.obj) == _ALONE]
        for number in gone:
            self._forget(number)
        message: dict[str, Any] = {}
        for key, trees in (("new", news), ("set", changes), ("gone", gone)):
            if trees:
                message[key] = trees
        return message

    def forget_unsent(self) -> None:
        """Forget the new containers of a message that was not sent: the other side does not know them."""
        for number in self._fresh:
            self._forget(number)
        self._fresh.clear()

    # Reading

    def read(self, codec: Codec, message: dict[str, Any]) -> None:
        """Apply a message's container data, before its values are decoded."""
        self._reading += 1
        filling: list[tuple[_ContainerEntry, list[Any]]] = []
        for item in expect(message.get("new", []), list):
            number, kind, *rest = expect(item, list)
            if expect(number, int) in self._entries or number % 2 == self._first or number < 0:
                raise MalformedMessage("a new container with an id that is in use")
            if len(self._entries) >= MAX_CONTAINERS:
                raise MalformedMessage(f"more than {MAX_CONTAINERS:,} containers")
            entry = _ContainerEntry(_empty(codec, kind, rest), _MISSING)
            self._entries[number] = entry
            self._numbers[id(entry.obj)] = number
            filling.append((entry, rest))
        for item in expect(message.get("set", []), list):
            number, kind, *rest = expect(item, list)
            changed = self._entries.get(expect(number, int))
            if changed is None:
                raise MalformedMessage("change of an unknown container id")
            if _KINDS.get(type(changed.obj)) != kind and not (kind in ("nd", "array") and is_array(changed.obj)):
                raise MalformedMessage("a change of a container into another type")
            if number % 2 == self._first:
                before = changed.snapshot if changed.snapshot is not _MISSING else snapshot_of(changed.obj)
                self.changed_by_other.append((changed.obj, before))
            changed.snapshot = _MISSING
            filling.append((changed, rest))
        for entry, rest in filling:
            _fill(codec, entry.obj, rest)
        # Only after all are filled: hashing an element of a set may call the other side, which must not see incomplete
        # data.
        for entry, _rest in filling:
            entry.snapshot = snapshot_of(entry.obj)

    def read_gone(self, message: dict[str, Any]) -> None:
        """Drop what the other side dropped, after the values are decoded."""
        self._reading -= 1
        for number in expect(message.get("gone", []), list):
            if expect(number, int) not in self._entries or number in self._gone:
                raise MalformedMessage("deletion of an unknown container id")
            self._gone.add(number)
        # Not while another message is being read, which may still refer to them.
        if not self._reading:
            for number in self._gone:
                self._forget(number)
            self._gone.clear()

    def _forget(self, number: int) -> None:
        entry = self._entries.pop(number)
        self._numbers.pop(id(entry.obj), None)

    def _copy(self, value: Any) -> Any:
        held = self._copies.get(id(value))
        if held is None:
            copy = self._copied_shallow(value)
            held = self._copies[id(value)] = (value, copy)
            self._detach(copy)
        return held[1]

    @staticmethod
    def _copied_shallow(value: Any) -> Any:
        return value.copy() if hasattr(value, "copy") else value[:]

    def _detach(self, copy: Any) -> None:
        kind = _KINDS.get(type(copy))
        if kind in ("list", "deque"):
            for index, item in enumerate(copy):
                copy[index] = self._detached_item(item)
        elif kind in ("dict", "OrderedDict", "defaultdict", "Counter"):
            for key, item in list(copy.items()):
                copy[key] = self._detached_item(item)

    def _detached_item(self, item: Any) -> Any:
        if type(item) is tuple:
            return tuple(self._detached_item(part) for part in item)
        return self._copy(item) if is_container(item) and id(item) not in self._numbers else item


# Kinds of containers

_KINDS: dict[type, str] = {
    list: "list",
    dict: "dict",
    set: "set",
    bytearray: "bytearray",
    deque: "deque",
    defaultdict: "defaultdict",
    OrderedDict: "OrderedDict",
    Counter: "Counter",
}


def is_container(value: Any) -> bool:
    """Return whether a value is of exactly one of the supported mutable types."""
    return type(value) in _KINDS or is_array(value)


def is_array(value: Any) -> bool:
    kind = type(value)
    module = kind.__module__
    if module == "numpy":
        return kind is sys.modules["numpy"].ndarray
    return module == "array" and kind is sys.modules["array"].array


def snapshot_of(obj: Any) -> Any:
    """Return the elements themselves, to detect changes by identity, since the program may define equality."""
    kind = type(obj)
    if kind is list or kind is deque or kind is set:
        return tuple(obj)
    if isinstance(obj, dict):
        return (tuple(obj.keys()), tuple(obj.values()))
    if kind is bytearray:
        return bytes(obj)
    if getattr(obj, "dtype", None) is not None and obj.dtype.hasobject:
        return (obj.shape, tuple(obj.flat))
    return (obj.shape if hasattr(obj, "shape") else len(obj), obj.tobytes())


def _differs(obj: Any, snapshot: Any) -> bool:
    kind = type(obj)
    if kind is list or kind is deque or kind is set:
        return not _same(obj, snapshot)
    if isinstance(obj, dict):
        return not (_same(obj.keys(), snapshot[0]) and _same(obj.values(), snapshot[1]))
    if kind is bytearray:
        return bool(bytes(obj) != snapshot)
    if getattr(obj, "dtype", None) is not None and obj.dtype.hasobject:
        return bool(obj.shape != snapshot[0]) or not _same(obj.flat, snapshot[1])
    return bool(snapshot_of(obj) != snapshot)


def _same(items: Any, snapshot: tuple[Any, ...]) -> bool:
    return len(items) == len(snapshot) and all(item is other for item, other in zip(items, snapshot))


def _contents_to_tree(codec: Codec, obj: Any) -> list[Tree]:
    kind = _KINDS.get(type(obj))
    if kind == "list" or kind == "set":
        return [kind, codec.encode_all(obj)]
    if kind == "deque":
        return [kind, codec.encode_all(obj), obj.maxlen]
    if kind == "bytearray":
        return [kind, to_base64(obj)]
    if kind == "defaultdict":
        return [kind, *_items_to_tree(codec, obj), codec.encode(obj.default_factory)]
    if kind is not None:
        return [kind, *_items_to_tree(codec, obj)]
    if type(obj).__module__ == "array":
        if obj.typecode not in _ARRAY_TYPES:
            raise Uncodable(f"an array of type {obj.typecode!r}")
        return ["array", to_base64(obj.tobytes()), obj.typecode]
    if obj.dtype.kind == "O":
        return ["nd", codec.encode_all(obj.flat), "O", list(obj.shape)]
    if obj.dtype.kind == "V":
        raise Uncodable("a numpy array of records")
    return ["nd", to_base64(obj.tobytes()), obj.dtype.str, list(obj.shape)]


def _items_to_tree(codec: Codec, obj: dict[Any, Any]) -> list[Tree]:
    return [codec.encode_all(obj.keys()), codec.encode_all(obj.values())]


def _empty(codec: Codec, kind: Any, rest: list[Any]) -> Any:
    if kind == "array":
        import array

        if len(rest) != 2 or rest[1] not in _ARRAY_TYPES:
            raise MalformedMessage("unknown type of array")
        return array.array(rest[1])
    if kind == "nd":
        return _empty_array(codec, rest)
    if kind == "deque":
        maxlen = rest[1] if len(rest) == 2 else _MISSING
        if maxlen is not None and (type(maxlen) is not int or maxlen < 0):
            raise MalformedMessage("invalid maximum length of a deque")
        return deque(maxlen=maxlen)
    for container_type, name in _KINDS.items():
        if name == kind:
            return container_type()
    raise MalformedMessage("unknown type of container")


def _empty_array(codec: Codec, rest: list[Any]) -> Any:
    import numpy as np

    data, kind, shape = rest
    for size in expect(shape, list):
        if expect(size, int) < 0:
            raise MalformedMessage("an array of negative size")
    count = 1
    for size in shape:
        count *= size
    if len(shape) > 32:
        raise MalformedMessage("an array of more than 32 dimensions")
    if kind == "O":
        if len(expect(data, list)) != count:
            raise MalformedMessage("an array whose shape and size differ")
        return np.empty(shape, dtype=object)
    dtype = numpy_type(kind)
    raw = from_base64(data)
    if len(raw) != count * dtype.itemsize:
        raise MalformedMessage("an array whose shape and size differ")
    if not raw:
        return np.empty(shape, dtype)
    array = np.frombuffer(raw, dtype).reshape(shape)
    return (array if codec.extreme is None else codec.extreme.changed_array(array)).copy()


def _fill(codec: Codec, obj: Any, rest: list[Any]) -> None:
    kind = type(obj)
    if kind is list:
        obj[:] = codec.decode_all(*rest)
    elif kind is set:
        items = codec.decode_all(*rest)
        obj.clear()
        obj.update(items)
    elif kind is deque:
        items = codec.decode_all(rest[0])
        obj.clear()
        obj.extend(items)
    elif kind is bytearray:
        obj[:] = from_base64(*rest)
    elif isinstance(obj, dict):
        _fill_mapping(codec, obj, rest)
    elif kind.__module__ == "array":
        raw = from_base64(rest[0])
        if rest[1:] != [obj.typecode] or len(raw) % obj.itemsize:
            raise MalformedMessage("an array of another type")
        del obj[:]
        obj.frombytes(raw)
        if codec.extreme is not None and obj.typecode in "fd":
            obj[:] = type(obj)(obj.typecode, map(codec.extreme.changed, obj))
    else:
        _fill_array(codec, obj, rest)


def _fill_mapping(codec: Codec, obj: dict[Any, Any], rest: list[Any]) -> None:
    keys, values = codec.decode_all(rest[0]), codec.decode_all(rest[1])
    if len(keys) != len(values):
        raise MalformedMessage("keys and values that differ in number")
    if isinstance(obj, defaultdict):
        factory = codec.decode(rest[2])
        if factory is not None and not callable(factory):
            raise MalformedMessage("a default factory that cannot be called")
        obj.default_factory = factory
    elif len(rest) != 2:
        raise MalformedMessage("a mapping of more than keys and values")
    obj.clear()
    for key, value in zip(keys, values):
        obj[key] = value


def _fill_array(codec: Codec, obj: Any, rest: list[Any]) -> None:
    fresh = _empty_array(codec, rest)
    if fresh.dtype != obj.dtype or fresh.shape != obj.shape:
        raise MalformedMessage("an array that changed its shape")
    if rest[1] == "O":
        items = codec.decode_all(rest[0])
        for index, item in enumerate(items):
            obj.flat[index] = item
    else:
        obj[...] = fresh
