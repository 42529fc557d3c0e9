"""Replaces the values that a test uses, to check that the test notices.

A program without a solution can pass a test that computes the expected value from data the program may change, or that
asks the program whether two of its objects are equal. Such a test also passes with other values.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

MUTATIONS = ("other", "empty")
"""``"different_value"`` values of the same number, or ``"empty"``."""

ALTERATIONS = ("all", "first", "last", "all")
"""Which values of an object to change, in order: a single change may leave it equal by accident."""

_random = random.SystemRandom()


def different_value(value: Any) -> Any:
    """Return a different value of the same type."""
    kind = type(value)
    if kind is bool:
        return not value
    if kind is int:
        step = _random.randrange(1, 9)
        return value - min(step, 4) if value > 5 and step % 2 else value + step
    if kind is float:
        return value + _random.randrange(1, 9)
    if kind is str:
        return value + chr(_random.randrange(97, 123))
    if kind is list or kind is tuple:
        return kind([different_value(value[0]), *value[1:]]) if value else kind([_random.randrange(9)])
    if kind is dict:
        return {key: different_value(item) for key, item in value.items()} if value else {"a": 1}
    return _random.randrange(9) if value is None else value


def altered_arguments(
    which: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with some of them changed."""
    values = [*args, *kwargs.values()]
    for index in {"all": range(len(values)), "first": [0], "last": [len(values) - 1]}[which]:
        values[index] = different_value(values[index])
    return tuple(values[: len(args)]), dict(zip(kwargs, values[len(args) :]))


class ArgumentMutator:
    """Changes a test's arguments in place.

    Args:
        kind: One of :data:`MUTATIONS`.
        own: Name of the module whose objects are changed too.
    """

    def __init__(self, kind: str, own: str) -> None:
        self._empty = kind == "empty"
        self._own = own
        self._seen: dict[int, Any] = {}
        self.changed = False

    def __call__(self, value: Any) -> None:
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, list | dict | set | deque | bytearray):
            self._container(value)
        elif isinstance(value, tuple | frozenset):
            for item in value:
                self(item)
        elif hasattr(value, "fill") and hasattr(value, "dtype"):
            self._array(value)
        elif type(value).__module__ == self._own and hasattr(value, "__dict__"):
            self._attributes(vars(value))

    def _container(self, value: Any) -> None:
        if self._empty:
            self.changed = self.changed or bool(value)
            value.clear()
        elif isinstance(value, dict):
            self._attributes(value)
        elif isinstance(value, set):
            if value:
                self.changed = True
                value.add(different_value(value.pop()))
        elif isinstance(value, bytearray):
            self.changed = True
            value.append(_random.randrange(256))
        else:
            self._sequence(value)

    def _sequence(self, value: Any) -> None:
        if len(value) > 1:
            self.changed = True
            value.pop()
        elif not value:
            self.changed = True
            value.append(_random.randrange(9))
        for index, item in enumerate(value):
            value[index] = self._different(item)

    def _attributes(self, names: dict[Any, Any]) -> None:
        for name, item in list(names.items()):
            plain = type(item) in (int, float, str, bool)
            if self._empty and not plain and item is not None:
                self.changed, names[name] = True, None
            elif not self._empty:
                names[name] = self._different(item)

    def _different(self, item: Any) -> Any:
        if type(item) in (int, float, str, bool):
            self.changed = True
            return different_value(item)
        self(item)
        return item

    def _array(self, value: Any) -> None:
        if not value.size or not value.flags.writeable:
            return
        self.changed = True
        if self._empty or value.dtype.kind not in "iufc":
            value.fill(0)
        else:
            value += _random.randrange(1, 9)
