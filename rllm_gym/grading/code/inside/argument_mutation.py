"""Replaces the values that a test uses, to check that the test notices.

A program without a solution can pass a test that computes the expected value from data the program may change, or that
asks the program whether two of its objects are equal. Such a test also passes with other values.
"""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from typing import Any

MUTATIONS = ("other", "empty")
"""Other values, fewer where there are several, or none."""

ALTERATIONS = ("all", "first", "last") * 6
"""Which values of a request to change, in order: a single change may leave an object equal by accident."""

_random = random.Random()
_ATOMS = (int, float, str, bool, bytes, complex, range, type(None))
_TIMES = (date, datetime, timedelta)
_MAX_ITEMS = 1000


def seed(value: int) -> None:
    """Choose the same values again in another run."""
    _random.seed(value)


def different_value(value: Any, vocabulary: Callable[[], Sequence[Any]] = tuple) -> Any:
    """Return a different value of the same type; unchanged for a type without one.

    Args:
        value: The value.
        vocabulary: Returns the constants of the test. Most new values come from there, so that the program cannot tell
            them from the test's own by how they look.
    """
    kind = type(value)
    if kind in (int, float, str) and _random.random() < 0.7:
        others = [item for item in vocabulary() if type(item) is kind and item != value]
        if kind is str:
            others = [item for item in others if len(item) == len(value)] or others
        if others:
            return _random.choice(others)
    if kind is bool:
        return not value
    if kind is int:
        step = _random.randrange(1, 9)
        return value - min(step, 4) if value > 5 and step % 2 else value + step
    if kind is float or kind is complex:
        return value + _random.randrange(1, 9)
    if kind is str:
        letters = "".join(item for item in vocabulary() if type(item) is str)
        if value and letters and _random.random() < 0.5:
            return "".join(_random.choice(letters) for _ in value)
        at = _random.randrange(len(value) + 1)
        return value[:at] + chr(_random.randrange(97, 123)) + value[at + 1 :]
    if kind is bytes:
        return value + bytes([_random.randrange(256)])
    if kind is list or kind is tuple or kind is deque:
        if not value:
            return kind([_random.randrange(9)])
        items = list(value)
        at = _random.choice([index for index, item in enumerate(items) if is_alterable(item)] or [0])
        items[at] = different_value(items[at], vocabulary)
        return kind(items)
    if kind is set or kind is frozenset:
        old = _random.choice([item for item in value if is_alterable(item)] or [0])
        return kind((value - {old}) | {different_value(old, vocabulary)})
    if kind is dict:
        return {key: different_value(item, vocabulary) for key, item in value.items()} if value else {"a": 1}
    if kind is range:
        return range(value.start, value.stop + value.step * _random.randrange(1, 4), value.step)
    if kind.__module__ in ("decimal", "fractions"):
        return value + _random.randrange(1, 9)
    if kind in _TIMES:
        return value + timedelta(days=_random.randrange(1, 9), seconds=_random.randrange(9))
    if hasattr(value, "flat") and is_alterable(value):
        value = value.copy()
        value.flat[_random.randrange(value.size)] += _random.randrange(1, 9)
        return value
    return _random.randrange(9) if value is None else value


def is_alterable(value: Any, depth: int = 20) -> bool:
    """Return whether :func:`different_value` has another value."""
    kind = type(value)
    if kind in _ATOMS or kind in _TIMES or kind.__module__ in ("decimal", "fractions"):
        return True
    if kind in (list, tuple, set, frozenset, dict, deque):
        items = itertools.islice(value.values() if kind is dict else value, _MAX_ITEMS)
        return not value or (depth > 0 and any(is_alterable(item, depth - 1) for item in items))
    return hasattr(value, "flat") and bool(value.size) and value.dtype.kind in "iufc"


def altered_operands(
    which: str, operation: str, operands: tuple[Any, ...], vocabulary: Callable[[], Sequence[Any]]
) -> tuple[Any, ...]:
    """Return the operands of a request with some of its arguments changed."""
    target, *values = operands
    args: tuple[Any, ...] = tuple(values)
    kwargs: dict[str, Any] = {}
    if operation == "call":
        args, kwargs = values
    values = [*args, *kwargs.values()]
    found = [index for index, value in enumerate(values) if is_alterable(value)]
    for index in {"all": found, "first": found[:1], "last": found[-1:]}[which]:
        values[index] = different_value(values[index], vocabulary)
    args, kwargs = tuple(values[: len(args)]), dict(zip(kwargs, values[len(args) :]))
    return (target, args, kwargs) if operation == "call" else (target, *args)


class ArgumentMutator:
    """Changes a test's arguments in place.

    Args:
        kind: One of :data:`MUTATIONS`, or ``"values"``: others, of the same number.
        own: Name of the module whose objects are changed too.
    """

    def __init__(self, kind: str, own: str) -> None:
        self._empty, self._same_number = kind == "empty", kind == "values"
        self._own = own
        self._seen: dict[int, Any] = {}
        self.changed: set[int] = set()
        """The ids of what was changed."""

    def __call__(self, value: Any) -> None:
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        kind = type(value)  # a stand-in for an object of the program may call itself a list
        if issubclass(kind, list | dict | set | deque | bytearray):
            self._container(value)
        elif issubclass(kind, tuple | frozenset):
            for item in value:
                self(item)
        elif hasattr(value, "fill") and hasattr(value, "dtype"):
            self._array(value)
        elif type(value).__module__ == self._own and hasattr(value, "__dict__"):
            self._attributes(value, vars(value))

    def _container(self, value: Any) -> None:
        if self._empty:
            if value:
                self.changed.add(id(value))
            value.clear()
        elif isinstance(value, dict):
            self._attributes(value, value)
        elif isinstance(value, set):
            if value:
                self.changed.add(id(value))
                value.add(different_value(value.pop()))
        elif isinstance(value, bytearray):
            self.changed.add(id(value))
            value.append(_random.randrange(256))
        else:
            self._sequence(value)

    def _sequence(self, value: Any) -> None:
        if len(value) > 1 and not self._same_number:
            self.changed.add(id(value))
            value.pop()
        elif not value:
            self.changed.add(id(value))
            value.append(_random.randrange(9))
        before = list(value)
        for index, item in enumerate(before):
            value[index] = self._different(value, item)
            if self._same_number and type(item) in _ATOMS and _random.random() < 0.5:
                value[index] = _random.choice(before)

    def _attributes(self, owner: Any, names: dict[Any, Any]) -> None:
        for name, item in list(names.items()):
            plain = type(item) in (int, float, str, bool)
            if self._empty and not plain and item is not None:
                names[name] = None
                self.changed.add(id(owner))
            elif not self._empty:
                names[name] = self._different(owner, item)

    def _different(self, owner: Any, item: Any) -> Any:
        if type(item) in (int, float, str, bool):
            self.changed.add(id(owner))
            return different_value(item)
        self(item)
        return item

    def _array(self, value: Any) -> None:
        if not value.size or not value.flags.writeable:
            return
        self.changed.add(id(value))
        if self._empty or value.dtype.kind not in "iufc":
            value.fill(0)
        else:
            for index in range(min(value.size, 10_000)):
                value.flat[index] += _random.randrange(1, 9)
