"""Replaces the values that a test uses, to check that the test notices.

A program without a solution can pass a test that computes the expected value from data the program may change, or that
asks the program whether two of its objects are equal. Such a test also passes with other values.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from typing import Any

from .lazy_random import LazyRandom
from .peer import is_simple
from .shared_containers import is_array

MUTATIONS = ("other", "empty")
"""Other values, fewer where there are several, or none."""

ALTERATIONS = ("all", "first", "last") * 6
"""Which values of a request to change, in order: a single change may leave an object equal by accident."""

_ATOMS = (int, float, str, bool, bytes, complex, range, type(None))
_TIMES = (date, datetime, timedelta)
_AWAY = {"lt": -1, "le": -1, "gt": 1, "ge": 1}
_MAX_ITEMS = 1000
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_random = LazyRandom()
_DATA = frozenset(
    {
        ("_io", "BytesIO"), ("_io", "StringIO"), ("argparse", "Namespace"), ("builtins", "memoryview"),
        ("collections", "ChainMap"), ("collections", "UserDict"), ("collections", "UserList"),
        ("types", "SimpleNamespace"), ("xml.etree.ElementTree", "Element"),
    }
)  # fmt: skip


def is_data(value: Any) -> bool:
    """Return whether this is an object of the standard library that only holds data, which may change."""
    return (type(value).__module__, type(value).__name__) in _DATA


def plain_attributes(cls: type) -> dict[str, Any]:
    """Return the attributes of a class that are data."""
    return {name: item for name, item in vars(cls).items() if name[:2] != "__" and is_alterable(item)}


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, including those in slots."""
    found = dict(vars(value)) if hasattr(value, "__dict__") else {}
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if type(slots) is str else slots:
            descriptor: Any = vars(base).get(name)
            if type(descriptor).__name__ == "member_descriptor":
                try:
                    found[name] = descriptor.__get__(value)
                except AttributeError:  # not set
                    continue
    return found


def seed(value: int | str) -> None:
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
    if kind is str and _random.random() < 0.5:
        mixed = _mixed_text(value, [item for item in vocabulary() if type(item) is str])
        if mixed.casefold() != value.casefold():
            return mixed
    if kind in (int, float, str) and _random.random() < 0.7:
        others = [item for item in vocabulary() if type(item) is kind and item != value]
        if kind is str:
            # Another case of the same letters is the same to many classes.
            others = [item for item in others if item.casefold() != value.casefold()]
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
        mixed = "".join(_random.choice(letters) for _ in value) if letters and _random.random() < 0.5 else value
        if mixed.casefold() != value.casefold():
            return mixed
        at = _random.randrange(len(value) + 1)
        other = _random.choice([letter for letter in _LETTERS if letter != value[at : at + 1].casefold()])
        return value[:at] + other + value[at + 1 :]
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
    if kind.__module__ == "numpy" and is_alterable(value):
        if not is_array(value):
            return value + kind(_random.randrange(1, 9))
        value = value.copy()
        value.flat[_random.randrange(value.size)] += _random.randrange(1, 9)
        return value
    return _random.randrange(9) if value is None else value


def _mixed_text(value: str, texts: list[str]) -> str:
    """Return a text of the same length with other characters, each from the same place of another text.

    The objects of an honest class that compares a part of its data, such as cards by their rank, are equal too often
    when they are made of one of the other texts.
    """
    near = [text for text in texts if abs(len(text) - len(value)) <= 2]
    mixed = []
    for at, old in enumerate(value[:_MAX_ITEMS]):
        others = [text[at] for text in near if at < len(text) and text[at].casefold() != old.casefold()]
        mixed.append(_random.choice(others or [old]))
    return "".join(mixed) + value[_MAX_ITEMS:]


def is_alterable(value: Any, depth: int = 20) -> bool:
    """Return whether :func:`different_value` has another value."""
    kind = type(value)
    if kind in _ATOMS or kind in _TIMES or kind.__module__ in ("decimal", "fractions"):
        return True
    if kind in (list, tuple, set, frozenset, dict, deque):
        items = itertools.islice(value.values() if kind is dict else value, _MAX_ITEMS)
        return not value or (depth > 0 and any(is_alterable(item, depth - 1) for item in items))
    return kind.__module__ == "numpy" and hasattr(value, "flat") and bool(value.size) and value.dtype.kind in "iufc"


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
        away = _AWAY.get(operation, 0) if type(values[index]) in (int, float) and _random.random() < 0.5 else 0
        # What is more than 0 is often more than all the other numbers of a test.
        far = away * (1 + abs(values[index])) * _random.randrange(1, 9) * 10 ** _random.randrange(1, 7) if away else 0
        values[index] = values[index] + far if away else different_value(values[index], vocabulary)
    args, kwargs = tuple(values[: len(args)]), dict(zip(kwargs, values[len(args) :]))
    return (target, args, kwargs) if operation == "call" else (target, *args)


class ArgumentMutator:
    """Changes a test's arguments in place.

    Args:
        kind: One of :data:`MUTATIONS`, or ``"values"``: others, of the same number.
        own: Name of the module whose objects are changed too.
        consistent: A number; data with equal plain content are then changed in the same way.
    """

    def __init__(self, kind: str, own: str, consistent: int | None = None) -> None:
        self._empty, self._same_number = kind == "empty", kind == "values"
        self._own = own
        self._consistent = consistent
        self._seen: dict[int, Any] = {}
        self.changed: set[int | tuple[int, str]] = set()
        """The ids of what was changed, and those of classes with the names of attributes."""

    def __call__(self, value: Any) -> None:
        if id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if self._consistent is not None:
            # By the content alone: in which order data are found may differ from run to run.
            small = type(value) in (list, dict, set, deque) and len(value) <= _MAX_ITEMS and is_simple(value)
            seed(f"{self._consistent} {value!r}" if small else self._consistent)
        kind = type(value)  # a stand-in for an object of the program may call itself a list
        if issubclass(kind, list | dict | set | deque | bytearray):
            self._container(value)
        elif issubclass(kind, tuple | frozenset):
            for item in value:
                self(item)
        elif is_array(value):
            self._array(value)
        elif is_data(value) and kind.__module__ in ("_io", "builtins", "xml.etree.ElementTree"):
            self._data(value)
        elif isinstance(value, type) and value.__module__ == self._own:
            for name, item in plain_attributes(value).items():
                if type(item) in _ATOMS and not self._empty:
                    setattr(value, name, different_value(item))
                    self.changed.add((id(value), name))
                else:
                    self(item)
        elif kind.__module__ == self._own or is_data(value):
            self._items(value, attributes_of(value), lambda name, item: object.__setattr__(value, name, item))

    def _data(self, value: Any) -> None:
        self.changed.add(id(value))
        if isinstance(value, memoryview):
            if not value.readonly and value.contiguous:
                value.cast("B")[:] = bytes(0 if self._empty else _random.randrange(256) for _ in range(value.nbytes))
        elif not hasattr(value, "getvalue"):  # an element of XML
            if self._empty or len(value):
                value.clear()
            else:
                value.append(copy.copy(value))
        elif not value.closed:
            # What is read from its beginning stays so, and what is written stays so as well.
            at_end = value.tell() == len(value.getvalue())
            content = value.getvalue()[:0] if self._empty else different_value(value.getvalue())
            value.seek(0)
            value.truncate()
            value.write(content)
            value.seek(0, 2 if at_end else 0)

    def _container(self, value: Any) -> None:
        if isinstance(value, bytearray):
            self._bytes(value)
        elif self._empty:
            if value:
                self.changed.add(id(value))
            value.clear()
        elif isinstance(value, dict):
            self._items(value, value, value.__setitem__)
        elif isinstance(value, set):
            if value:
                self.changed.add(id(value))
                value.add(different_value(value.pop()))
        else:
            self._sequence(value)

    def _bytes(self, value: Any) -> None:
        self.changed.add(id(value))
        value[:] = bytes(0 if self._empty else _random.randrange(256) for _ in value)
        if not self._same_number:
            with contextlib.suppress(BufferError):  # a view keeps their number
                value.append(_random.randrange(256))

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

    def _items(self, owner: Any, items: dict[Any, Any], put: Callable[[Any, Any], None]) -> None:
        for name, item in list(items.items()):
            plain = type(item) in (int, float, str, bool)
            if self._empty and not plain and item is not None:
                put(name, None)
                self.changed.add(id(owner))
            elif not self._empty:
                put(name, self._different(owner, item))

    def _different(self, owner: Any, item: Any) -> Any:
        if type(item) in (int, float, str, bool):
            self.changed.add(id(owner))
            return different_value(item)
        self(item)
        return item

    def _array(self, value: Any) -> None:
        if not hasattr(value, "flat"):
            self.changed.add(id(value))
            for index, item in enumerate(value):
                value[index] = type(item)(0) if self._empty else item + 1 if item < 100 else item - 1
            return
        if not value.size or not value.flags.writeable:
            return
        self.changed.add(id(value))
        if self._empty or value.dtype.kind not in "iufc":
            value.fill(0)
        else:
            for index in range(min(value.size, 10_000)):
                value.flat[index] += _random.randrange(1, 9)
