"""Records the operands of rewritten assertions and the exceptions of statements, as JSON; used inside the sandbox.

Sent in as text in front of ``run_tests.py``, like it for Python 3.8 and later. Nothing here decides: the owner
evaluates each assertion (see :mod:`rllm_gym.grading.swe.trace_check`). Values are taken apart with the methods of the
builtin types, never with those of their own class.
"""

from __future__ import annotations

import array
import collections
import datetime
import decimal
import fractions
import functools
import itertools
import json
import pathlib
import re
import types
import uuid
import warnings
from collections.abc import Callable
from typing import Any

MAX_NODES = 50_000
MAX_CHARS = 1_000_000
MAX_NESTING = 60
MAX_TEST_CHARS = 3_000_000
MAX_RUN_CHARS = 10_000_000
MAX_SWALLOWED = 200
MAX_PART_NODES = 5_000
MAX_PART_CHARS = 100_000
MAX_ITEMS = 1_000
MAX_LISTED = 20_000
MAX_VIEWS = 3
MAX_EXACT = 1 << 53
# How a few types of the standard library are written as text that recreates them.
_SPELLED: dict[type, Callable[[Any], Any]] = {
    decimal.Decimal: decimal.Decimal.__str__,
    fractions.Fraction: lambda value: [hex(fractions.Fraction.numerator.__get__(value)),
                                       hex(fractions.Fraction.denominator.__get__(value))],
    datetime.datetime: lambda value: [datetime.datetime.isoformat(value), datetime.datetime.fold.__get__(value)],
    datetime.date: datetime.date.isoformat,
    datetime.time: datetime.time.isoformat,
    datetime.timedelta: lambda value: [getattr(datetime.timedelta, name).__get__(value)
                                       for name in ("days", "seconds", "microseconds")],
    uuid.UUID: lambda value: hex(uuid.UUID.__int__(value)),
    pathlib.PurePosixPath: pathlib.PurePath.__str__,
    pathlib.PosixPath: pathlib.PurePath.__str__,
    range: lambda value: [value.start, value.stop, value.step],
    complex: lambda value: [repr(complex.real.__get__(value)), repr(complex.imag.__get__(value))],
}  # fmt: skip
# Types of the standard library that equal, or stand for, a plain value.
_STANDS_FOR: dict[type, Callable[[Any], Any]] = {
    types.MappingProxyType: dict,
    collections.ChainMap: dict,
    collections.UserDict: lambda value: value.data,
    collections.UserList: lambda value: value.data,
    collections.UserString: lambda value: value.data,
    memoryview: bytes,
    array.array: list,
}
_VIEWS: dict[type, Callable[[Any], Any]] = {
    type({}.keys()): dict.fromkeys,
    type({}.items()): dict,
    type({}.values()): list,
}
_BASES: tuple[tuple[type, str], ...] = (
    (str, ""), (int, ""), (float, ""), (bytes, "b"), (bytearray, "ba"), (tuple, "t"), (list, "l"), (dict, "d"),
    (set, "s"), (frozenset, "fs"), (collections.deque, "l"),
)  # fmt: skip


class TooLarge(Exception):
    """A value that is too large to be sent."""


class ValueEncoder:
    """Encodes one value. Every value becomes JSON; what is not plain data is reduced to its type and fields."""

    def __init__(self) -> None:
        self._nodes = 0
        self._chars = 0
        self._max_nodes = MAX_NODES
        self._max_chars = MAX_CHARS
        self._views = 0
        self._open: list[int] = []

    @property
    def least(self) -> int:
        """About the least number of characters that the value has as JSON."""
        return self._nodes + self._chars

    def encode(self, value: Any) -> Any:
        kind = type(value)
        self._nodes += 1
        if self._nodes > self._max_nodes or len(self._open) > MAX_NESTING:
            raise TooLarge
        if value is None or kind is bool:
            return value
        for base, tag in _BASES:
            if kind is base:
                return self._content(value, base, tag)
        if kind in _SPELLED:
            return ["x", kind.__name__, _SPELLED[kind](value)]
        if kind in _VIEWS:
            return ["x", kind.__name__, self.encode(_VIEWS[kind](value))]
        if kind in _STANDS_FOR:
            return ["B", name_of_type(kind), self.encode(_STANDS_FOR[kind](value)), {}]
        if value is Ellipsis or value is NotImplemented:
            return ["x", kind.__name__, None]
        if issubclass(kind, type):
            return ["T", name_of_type(value), [name_of_type(base) for base in type.__dict__["__mro__"].__get__(value)]]
        if kind in (types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType):
            return ["o", name_of_type(kind) + " " + str(getattr(value, "__qualname__", getattr(value, "__name__", "")))]
        if id(value) in self._open:
            return ["R", len(self._open) - self._open.index(id(value))]
        return self._object(value, kind)

    def _content(self, value: Any, base: type, tag: str) -> Any:
        """Encode the content that a value has as an instance of a builtin type."""
        if base is str:
            return self._text(str.__str__(value))
        if base is int:
            number = int.__int__(value)
            return number if -MAX_EXACT < number < MAX_EXACT else ["i", self._text(hex(number))]
        if base is float:
            real = float.__float__(value)
            return real if real - real == 0 else ["f", float.__repr__(real)]
        if base is bytes or base is bytearray:
            return [tag, self._text(base.__getitem__(value, slice(None)).decode("latin-1"))]
        if id(value) in self._open:
            return ["R", len(self._open) - self._open.index(id(value))]
        self._open.append(id(value))
        if base is dict:
            items = [self.encode(part) for pair in dict.items(value) for part in pair]
        else:
            items = [self.encode(item) for item in base.__iter__(value)]  # type: ignore[attr-defined]
        self._open.pop()
        if base is set or base is frozenset:
            items.sort(key=json.dumps)
        return [tag, *items]

    def _text(self, text: str) -> str:
        self._chars += str.__len__(text)
        if self._chars > self._max_chars:
            raise TooLarge
        return text

    def _part(self, value: Any, *, views: int = 0) -> Any:
        """Encode a part of an object that may be left out: ``["!", why]`` if it is too large."""
        limits = self._max_nodes, self._max_chars, self._views
        nodes, chars, nesting = self._nodes, self._chars, len(self._open)
        self._max_nodes = min(self._max_nodes, nodes + MAX_PART_NODES)
        self._max_chars = min(self._max_chars, chars + MAX_PART_CHARS)
        self._views += views
        try:
            return self.encode(value)
        except TooLarge:
            self._nodes, self._chars = nodes, chars
            return ["!", "too large"]
        finally:
            self._max_nodes, self._max_chars, self._views = limits
            del self._open[nesting:]

    def _object(self, value: Any, kind: type) -> Any:
        name = name_of_type(kind)
        if kind is re.Match:
            return ["x", "Match", [value.re.pattern, list(value.span()), self.encode(value.groups())]]
        if kind is re.Pattern:
            return ["x", "Pattern", [self.encode(value.pattern), value.flags]]
        if name == "numpy:ndarray":
            return ["N", str(value.dtype), self.encode(value.tolist())]
        if name.partition(":")[0] == "numpy" and hasattr(value, "item") and value.shape == ():
            return self.encode(value.item())
        self._open.append(id(value))
        # What is private may be a cache of any size, and has no view of its own.
        fields = {
            key: self._part(field, views=MAX_VIEWS) if key.startswith("_") else self.encode(field)
            for key, field in fields_of(value, kind).items()
        }
        if issubclass(kind, BaseException):
            fields["args"] = self.encode(BaseException.args.__get__(value))  # type: ignore[attr-defined]
        view = self._view(value, kind) if self._views < MAX_VIEWS else {}
        bases = [name_of_type(base) for base in type.__dict__["__mro__"].__get__(kind)[1:-1]]
        more = [view, bases] if view or bases else []
        self._open.pop()
        for base, tag in _BASES:
            if issubclass(kind, base):
                return ["B", name, self._content(value, base, tag), fields, *more]
        for spelled in _SPELLED:
            if issubclass(kind, spelled):
                return ["B", name, ["x", spelled.__name__, _SPELLED[spelled](value)], fields, *more]
        return ["O", name, fields, *more]

    def _view(self, value: Any, kind: type) -> dict[str, Any]:
        """Return what an object shows of itself: its public properties, its items and their number.

        Its own code computes this, as it computes its fields: it is worth what it says, compared elsewhere.
        """
        found: dict[str, Any] = {}
        members: dict[str, Any] = {}
        for base in reversed(type.__dict__["__mro__"].__get__(kind)):
            members.update(type.__dict__["__dict__"].__get__(base))
        for key, member in members.items():
            try:
                if isinstance(member, _TUPLE_FIELD):
                    found[key] = self.encode(member.__get__(value, kind))
                elif isinstance(member, _PROPERTIES) and not key.startswith("_"):
                    found[key] = self._part(member.__get__(value, kind), views=1)
            except TooLarge:
                raise
            except Exception:  # a property that raises shows nothing
                continue
        iterate, length = members.get("__iter__"), members.get("__len__")
        try:
            if type(length) is types.FunctionType:
                found["len()"] = self._part(length(value))
            # What has no length may be endless, or be used up: a bucket of more-itertools reads on until it is killed.
            if type(iterate) is type(length) is types.FunctionType and "__next__" not in members:
                items = list(itertools.islice(iterate(value), MAX_ITEMS + 1))
                if len(items) <= MAX_ITEMS:
                    found["iter()"] = self._part(items, views=1)
        except TooLarge:
            raise
        except Exception:
            pass
        return {key: item for key, item in found.items() if item != ["!", "too large"]}


_PROPERTIES = (property, functools.cached_property, types.DynamicClassAttribute)
_TUPLE_FIELD = type(collections.namedtuple("_Pair", "one").one)  # type: ignore[attr-defined]


def name_of_type(kind: Any) -> str:
    module = type.__getattribute__(kind, "__module__")
    return "{}:{}".format(module if type(module) is str else "", type.__dict__["__qualname__"].__get__(kind))


def fields_of(value: Any, kind: type) -> dict[str, Any]:
    """Return the fields of an object: its ``__dict__`` and the slots of its classes."""
    fields: dict[str, Any] = {}
    for base in type.__dict__["__mro__"].__get__(kind):
        for key, slot in type.__dict__["__dict__"].__get__(base).items():
            if type(slot) is types.MemberDescriptorType and not key.startswith("__"):
                try:
                    fields[key] = slot.__get__(value)
                except AttributeError:
                    continue
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = None
    if type(own) is dict:
        fields.update((key, field) for key, field in dict.items(own) if type(key) is str)
    return {key: fields[key] for key in sorted(fields)}


def encode(value: Any, encoder: ValueEncoder | None = None) -> Any:
    """Return a value as JSON; ``["!", why]`` if it cannot be encoded."""
    try:
        return (encoder or ValueEncoder()).encode(value)
    except TooLarge:
        return ["!", "too large"]
    except Exception as error:  # a class of the repository may raise anything
        return ["!", type(error).__name__]


def encode_error(error: BaseException) -> Any:
    """Return an exception as JSON: the names of its classes, its text and its value."""
    try:
        text = str(error)[:4000]
    except Exception:
        text = ""
    kinds = [name_of_type(base) for base in type.__dict__["__mro__"].__get__(type(error))]
    return [kinds, text if type(text) is str else "", encode(error)]


class Observer:
    """What the rewritten tests call. One list of events per test, which the reporter takes."""

    def __init__(self) -> None:
        self._events: list[Any] = []
        self._swallowed = 0
        self._chars = 0
        self._least = 0
        """About the least number of characters that the events of this test have."""

    def take(self) -> list[Any]:
        events, self._events, self._swallowed = self._events, [], 0
        least, self._least = self._least, 0
        chars = len(json.dumps(events)) if least <= MAX_TEST_CHARS else least
        if chars > MAX_TEST_CHARS or self._chars + chars > MAX_RUN_CHARS:
            return ["too large"]
        self._chars += chars
        return events

    def operands(self, site: int, values: list[Any], whole: Callable[[list[Any]], Any] | None = None) -> None:
        """Record the operands of an assertion. ``whole``: evaluates it here, where only the product's classes can."""
        if self._least > MAX_TEST_CHARS:  # what is never sent is not kept: it could be gigabytes
            self._events.clear()
            return
        event: list[Any] = [site, [self._encoded(value) for value in values]]
        if whole is not None:
            try:
                event.append(encode(bool(whole(values))))
            except Exception as error:
                self._events.append(["x", site, encode_error(error)])
                return
        self._events.append(event)

    def _encoded(self, value: Any) -> Any:
        encoder = ValueEncoder()
        encoded = encode(value, encoder)
        if type(encoded) is not list or encoded[0] != "!":
            self._least += encoder.least
        return encoded

    def guard(self, site: int, *expected: Any) -> Any:
        return StatementGuard(self, site, expected)

    def listed(self, value: Any) -> Any:
        """Return the items of an iterator as a list, and any other value as it is."""
        if not hasattr(type(value), "__next__"):
            return value
        items = list(itertools.islice(value, MAX_LISTED + 1))
        return items if len(items) <= MAX_LISTED else value

    def warned(self, site: int, *expected: Any) -> Any:
        return WarningGuard(self, site, expected)

    def note(self, *event: Any) -> None:
        self._events.append(list(event))

    def swallow(self) -> bool:
        self._swallowed += 1
        return self._swallowed <= MAX_SWALLOWED


class StatementGuard:
    """Records the exception of a statement, expected or not, and lets the test continue as if it were expected.

    Attributes:
        value: The exception, as pytest's ``ExceptionInfo`` and unittest's context have it.
    """

    def __init__(self, observer: Observer, site: int, expected: tuple[Any, ...]) -> None:
        self._observer = observer
        self._site = site
        self._expected = expected
        self.value: Any = None
        self.exception: Any = None
        self.type: Any = None

    def __enter__(self) -> StatementGuard:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if error is None:
            return False
        module = name_of_type(kind).partition(":")[0].partition(".")[0]
        if module in ("_pytest", "hypothesis", "unittest") or kind in (KeyboardInterrupt, GeneratorExit):
            return False  # control flow of the runner: a skipped test, an assumption
        self.value = self.exception = error
        self.type = kind
        self._observer.note("x", self._site, encode_error(error), *map(encode, self._expected))
        return self._observer.swallow()


class WarningGuard:
    """Records the warnings of a block."""

    def __init__(self, observer: Observer, site: int, expected: tuple[Any, ...]) -> None:
        self._observer = observer
        self._site = site
        self._expected = expected
        self._catcher: Any = None
        self._record: list[Any] = []

    def __enter__(self) -> list[Any]:
        self._catcher = warnings.catch_warnings(record=True)
        self._record = self._catcher.__enter__()
        warnings.simplefilter("always")
        return self._record

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._catcher.__exit__(kind, error, trace)
        if error is None:
            seen = [encode_error(item.message) for item in self._record[:50]]
            self._observer.note("w", self._site, seen, *map(encode, self._expected))
