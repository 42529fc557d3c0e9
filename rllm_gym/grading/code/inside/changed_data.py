"""Tells how a request of the test changed the data that it gave to the program."""

from __future__ import annotations

from collections import deque
from typing import Any

from .argument_mutation import attributes_of
from .object_server import ObjectServer
from .peer import is_simple
from .shared_containers import is_container, snapshot_of

_MAX_REACHED = 100_000


class GivenData:
    """What a request gives the program: the containers and objects of the test that its arguments lead to.

    Args:
        operands: The operands of the call.
        served: Knows which objects are the test's.
    """

    def __init__(self, operands: tuple[Any, ...], served: ObjectServer) -> None:
        self._operands = operands[1:]
        self._served = served
        # The program may relink objects, so what they lead to is found before. Containers are found when it is needed.
        self._objects = self._reached(self._operands) if self._has_objects() else None

    def _has_objects(self) -> bool:
        args, kwargs = self._operands
        return any(self._served.is_own(value) and not is_container(value) for value in [*args, *kwargs.values()])

    def _reached(self, value: Any) -> dict[int, Any]:
        found: dict[int, Any] = {}
        waiting = [value]
        while waiting and len(found) < _MAX_REACHED:
            item = waiting.pop()
            if id(item) in found or not (is_container(item) or type(item) is tuple or self._served.is_own(item)):
                continue
            found[id(item)] = item
            if isinstance(item, dict):
                waiting += item.values()
            elif isinstance(item, list | tuple | set | deque):
                waiting += item
            if isinstance(item, memoryview):
                waiting.append(item.obj)
            elif not is_container(item):
                waiting += attributes_of(item).values()
        return found

    def kind_of_change(self, changed: list[tuple[Any, Any]], touched: list[Any], result: Any) -> str:
        """Return how a call changed data, as in :attr:`GuardedPeer.changing_calls`.

        A function that works in place changes its arguments while it runs, and returns nothing or one of them. One that
        leaves nothing of them, by emptying a list or making all its elements equal, may want to make a test easy.
        """
        reached = self._objects if self._objects is not None else self._reached(self._operands)
        if any(id(item) not in reached for item in [*(obj for obj, _ in changed), *touched]):
            return "delayed"
        if result is not None and (id(result) not in reached or type(result) is tuple):
            number = type(result) in (int, float) and not touched
            return "rearranged" if number and all(_rearranged(obj, before) for obj, before in changed) else "direct"
        # What a function returns is shorter only if it is a result rather than its argument.
        if any(_degenerate(obj, before) for obj, before in changed):
            return "levelled"
        if any(obj is result and _shrunk(obj, before) for obj, before in changed):
            return "direct"
        if self._objects is not None:
            left = self._reached(self._operands if result is None else result)
            if self._count_objects(left) < self._count_objects(reached):
                return "direct"
        return "returned" if self.returns(result) else "in_place"

    def returns(self, result: Any) -> bool:
        """Return whether a call returned one of the containers that it was given."""
        args, kwargs = self._operands
        return is_container(result) and any(result is value for value in [*args, *kwargs.values()])

    def _count_objects(self, found: dict[int, Any]) -> int:
        return sum(type(item).__module__ == self._served.test_module for item in found.values())


def restored(obj: Any, before: Any) -> bool:
    """Return whether a container has the plain elements that it had in a snapshot of it."""
    now = snapshot_of(obj)
    return before is not None and is_simple(now) and is_simple(before) and repr(now) == repr(before)


def _shrunk(obj: Any, before: Any) -> bool:
    """Return whether a container has fewer elements than in a snapshot of it."""
    if isinstance(obj, dict):
        return len(obj) < len(before[0])
    return isinstance(obj, list | deque | set) and len(obj) < len(before)


def _rearranged(obj: Any, before: Any) -> bool:
    """Return whether a list has the elements that it had in a snapshot of it, at least two, in another order."""
    if not isinstance(obj, list) or not is_simple(obj, 1) or len(obj) != len(before) or len(obj) < 2:
        return False
    return sorted(map(repr, obj)) == sorted(map(repr, before))


def _degenerate(obj: Any, before: Any) -> bool:
    """Return whether a container was emptied or cut to one element, or all its elements were made equal."""
    if isinstance(obj, dict):
        old, new = list(before[1]), list(obj.values())
    elif isinstance(obj, list | deque):
        old, new = list(before), list(obj)
    elif hasattr(obj, "dtype") and not obj.dtype.hasobject:
        return _constant(obj.tobytes(), obj.itemsize) and not _constant(before[1], obj.itemsize)
    else:
        return not isinstance(obj, bytearray) and hasattr(obj, "__len__") and bool(len(before)) and not len(obj)
    if not old or not is_simple(old) or not is_simple(new):
        return bool(old) and len(new) <= (len(old) > 1)
    return not new or (all(item == new[0] for item in new) and any(item != old[0] for item in old))


def _constant(data: bytes, size: int) -> bool:
    return data == data[:size] * (len(data) // size)


def equal_to(obj: Any, other: Any) -> Any:
    """Return a container with the elements of another one that says that it is equal to an object."""
    kind = type(other)
    if kind not in (list, dict, set, deque):
        return other

    def equal(self: Any, value: Any) -> Any:
        return value is obj or kind.__eq__(self, value)

    def unequal(self: Any, value: Any) -> Any:
        return value is not obj and kind.__ne__(self, value)

    return type(kind.__name__, (kind,), {"__eq__": equal, "__ne__": unequal, "__hash__": None})(other)


def content_of(objects: list[Any]) -> str:
    """Return a text that is equal for equal contents; empty if there is too little or it cannot be determined."""
    import hashlib  # takes as long as all the rest of a short run

    texts = [
        hashlib.sha256(obj.tobytes()).hexdigest() if hasattr(obj, "tobytes") else repr(obj)[:100_000]
        for obj in objects
        if hasattr(obj, "tobytes") or is_simple(obj)
    ]
    if len(texts) < len(objects) or not any(len(obj) > 1 for obj in objects):
        return ""
    return hashlib.sha256("\n".join(texts).encode("utf-8", "replace")).hexdigest()
