"""Values that a test run observed: decoded to plain data, or held against those of the reference solution.

What arrives was written by a hostile process. It is JSON of bounded size; decoding takes time linear in it.
"""

from __future__ import annotations

import datetime
import decimal
import fractions
import json
import math
import pathlib
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_NESTING = 80
MAX_DIGITS = 20_000
MAX_EXPONENT = 5_000
MAX_KEYS = 1_000
MAX_RANGE = 100_000
MORE_LEAVES = 4
"""An object with other private fields may hold twice as many values as that of the reference solution, and these."""
ANYTHING = ["*"]
"""Stands, in the observations of the reference solution, for a part that differs between its runs."""


class NotPlain(ValueError):
    """A value that is not plain data: an object of the repository, or something that cannot be encoded."""


@dataclass(frozen=True, slots=True)
class ClassRef:
    """A class, by the name of its module and its qualified name.

    Attributes:
        name: ``"package.module:Class"``.
        bases: The names of its bases, itself first.
    """

    name: str
    bases: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassRef) and same_class(self.name, other.name)

    def __hash__(self) -> int:
        return hash(self.name.partition(":")[2])


def same_class(one: str, other: str) -> bool:
    """Return whether two names of classes mean the same one; it may have moved within its package.

    >>> same_class("shop.pricing:Price", "shop.prices:Price"), same_class("shop:Price", "builtins:Price")
    (True, False)
    """
    (package, _, name), (other_package, _, other_name) = one.partition(":"), other.partition(":")
    return name == other_name and package.partition(".")[0] == other_package.partition(".")[0]


def decode(encoded: Any) -> Any:
    """Return an observed value.

    Raises:
        NotPlain: It is not plain data, or malformed.
    """
    try:
        return _Decoder().value(encoded, 0)
    except NotPlain:
        raise
    except (ValueError, TypeError, ArithmeticError, KeyError, IndexError, AttributeError) as error:
        raise NotPlain(f"an observed value is malformed ({type(error).__name__})") from None


class _Decoder:
    def __init__(self) -> None:
        self._keys = 0

    def value(self, encoded: Any, depth: int, *, hashed: bool = False) -> Any:
        if depth > MAX_NESTING:
            raise NotPlain("nested too deeply")
        match encoded:
            case None | bool() | str():
                return encoded
            case int() | float():
                return self._number(encoded, hashed)
            case ["i", str(text)] if len(text) <= MAX_DIGITS:
                return self._number(int(text, 16), hashed)
            case ["f", "inf" | "-inf" | "nan" as text]:
                return float(text)
            case ["b", str(text)]:
                return text.encode("latin-1")
            case ["ba", str(text)] if not hashed:
                return bytearray(text.encode("latin-1"))
            case ["l", *items] if not hashed:
                return [self.value(item, depth + 1) for item in items]
            case ["t", *items]:
                self._count_key(hashed)
                return tuple(self.value(item, depth + 1, hashed=hashed) for item in items)
            case ["s", *items] if not hashed:
                return {self.value(item, depth + 1, hashed=True) for item in items}
            case ["fs", *items]:
                self._count_key(hashed)
                return frozenset(self.value(item, depth + 1, hashed=True) for item in items)
            case ["d", *items] if not hashed and len(items) % 2 == 0:
                pairs = zip(items[::2], items[1::2])
                return {self.value(key, depth + 1, hashed=True): self.value(item, depth + 1) for key, item in pairs}
            case ["x", str(kind), content] if kind in _SPELLED:
                return self._number(_SPELLED[kind](content), hashed)
            case ["x", "dict_keys" | "dict_items" as kind, ["d", *_] as content] if not hashed:
                items = self.value(content, depth + 1)
                return items.keys() if kind == "dict_keys" else items.items()
            case ["x", "dict_values", ["l", *_] as content] if not hashed:
                return self.value(content, depth + 1)
            case ["B", str(), content, dict(), *_] if content is not None:
                return self.value(content, depth + 1, hashed=hashed)
            case ["T", str(name), list(bases)]:
                return ClassRef(name, tuple(map(str, bases)))
            case ["N", str(), content] if not hashed:
                return self.value(content, depth + 1)
        raise NotPlain(f"{name_of(encoded)} is not plain data")

    def _number(self, value: Any, hashed: bool) -> Any:
        if not (isinstance(value, int | float) and -(2**60) < value < 2**60):
            self._count_key(hashed)
        return value

    def _count_key(self, hashed: bool) -> None:
        """Bound how many tuples and large numbers are keys: they can be chosen to have the same hash."""
        self._keys += hashed
        if self._keys > MAX_KEYS:
            raise NotPlain("too many keys that are tuples or large numbers")


def _decimal(text: str) -> decimal.Decimal:
    value = decimal.Decimal(text)
    if len(text) > MAX_EXPONENT or (value.is_finite() and abs(value.adjusted()) > MAX_EXPONENT):
        raise NotPlain("a decimal with a large exponent")
    return value


def _fraction(parts: list[str]) -> fractions.Fraction:
    if max(map(len, parts)) > MAX_DIGITS:
        raise NotPlain("a large fraction")
    return fractions.Fraction(int(parts[0], 16), int(parts[1], 16))


def _range(parts: list[int]) -> range:
    value = range(*parts)
    if len(value) > MAX_RANGE:
        raise NotPlain("a long range")
    return value


_SPELLED: dict[str, Callable[[Any], Any]] = {
    "Decimal": _decimal,
    "Fraction": _fraction,
    "datetime": lambda parts: datetime.datetime.fromisoformat(parts[0]).replace(fold=parts[1]),
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "timedelta": lambda parts: datetime.timedelta(parts[0], parts[1], parts[2]),
    "UUID": lambda text: uuid.UUID(int=int(text, 16)),
    "PurePosixPath": pathlib.PurePosixPath,
    "PosixPath": pathlib.PurePosixPath,
    "range": _range,
    "complex": lambda parts: complex(float(parts[0]), float(parts[1])),
    "ellipsis": lambda _: Ellipsis,
    "NotImplementedType": lambda _: NotImplemented,
    "Match": lambda parts: ("re.Match", parts[0], tuple(parts[1]), _Decoder().value(parts[2], 0)),
    "Pattern": lambda parts: ("re.Pattern", parts[0] if isinstance(parts[0], str) else None, parts[1]),
}


def name_of(encoded: Any) -> str:
    """Return the class of an observed value, for a message."""
    match encoded:
        case ["O" | "B" | "T", str(name), *_]:
            return name.partition(":")[2][:80]
        case ["!", why]:
            return f"a value that cannot be recorded ({why!s:.40})"
        case ["o", str(name)]:
            return name.partition(":")[2][:80]
    return "a value"


@dataclass(frozen=True, slots=True)
class FieldNames:
    """Which fields of an object a solution may lack.

    Attributes:
        before: The names of classes and attributes in the original tree.
        present: By qualified name of a class, the fields that any of its objects had in this run.
        tested: The attributes and keywords in the hidden tests.
    """

    before: frozenset[str] = frozenset()
    present: Mapping[str, set[str]] = field(default_factory=dict)
    tested: frozenset[str] = frozenset()

    def may_lack(self, kind: str, name: str, value: Any) -> bool:
        """Return whether an object of a class may have no such field, though the reference solution's has it.

        Only if no object of the class has it: a field that came with the reference solution and is private, or of a
        class from before and not named in the tests, or a private one from before that is empty, such as a cache.
        """
        kind = kind.partition(":")[2]
        if name in self.present.get(kind, ()):
            return False
        if name in self.before:
            return name.startswith("_") and value in _EMPTY
        return name.startswith("_") or (kind in self.before and name not in self.tested)


_EMPTY: tuple[Any, ...] = (None, False, 0, "", ["l"], ["t"], ["d"], ["s"], ["fs"])


@dataclass(frozen=True, slots=True)
class _Object:
    """An observed object: its class with its bases, its content as a builtin type, its fields and what it shows."""

    name: str
    content: Any
    fields: Mapping[str, Any]
    view: Mapping[str, Any]
    bases: tuple[str, ...]

    @property
    def parts(self) -> dict[str, Any]:
        return {**self.view, **self.fields}

    def is_a(self, name: str) -> bool:
        return any(same_class(name, own) for own in (self.name, *self.bases))


def _object(encoded: Any) -> _Object | None:
    match encoded:
        case ["O", str(name), dict(fields), *more]:
            content = None
        case ["B", str(name), content, dict(fields), *more]:
            pass
        case _:
            return None
    match more:
        case [dict(view), list(bases)]:
            return _Object(name, content, fields, view, tuple(base for base in bases if isinstance(base, str)))
    return _Object(name, content, fields, {}, ())


def collect_fields(encoded: Any, present: dict[str, set[str]]) -> None:
    """Add the fields and properties of every object in a value to those of its class."""
    todo = [encoded]
    while todo:
        item = todo.pop()
        one = _object(item)
        if one is not None:
            present.setdefault(one.name.partition(":")[2], set()).update(one.parts)
            todo += [*one.parts.values(), one.content]
        elif isinstance(item, list):
            todo += [part for part in item if isinstance(part, list)]


def has_content(encoded: Any) -> bool:
    """Return whether an observed value says more than of which class it is."""
    one = _object(encoded)
    if one is not None:
        return bool(one.parts) or one.content is not None
    return not (isinstance(encoded, list) and encoded[:1] in (["o"], ["!"], ["*"], ["R"]))


def matches(gold: Any, found: Any, names: FieldNames = FieldNames()) -> bool:
    """Return whether an observed value is that of the reference solution.

    An object is compared by what is public of it: fields, properties, items. A subclass will do, and so will more
    fields. What is private may be stored in another way: under another name, or as other containers of the same values
    unless these are public anyway. Only if nothing is public, private fields are compared by name.
    """
    return _Match(names).values(gold, found, 0)


class _Match:
    def __init__(self, names: FieldNames) -> None:
        self._names = names

    def values(self, gold: Any, found: Any, depth: int, *, private: bool = False) -> bool:
        """``private``: a tuple may be a list."""
        if gold == ANYTHING or depth > MAX_NESTING:
            return bool(gold == ANYTHING)
        one, other = _object(gold), _object(found)
        if one is not None and other is not None:
            if one.content is not None and other.content is not None:
                return self.values(one.content, other.content, depth + 1)
            return other.is_a(one.name) and self._objects(one, other, depth)
        if one is not None:
            return one.content is not None and self.values(one.content, found, depth + 1)
        if other is not None:
            return other.content is not None and self.values(gold, other.content, depth + 1)
        match gold, found:
            case ["T", str(name), _], ["T", str(other_name), _]:
                return same_class(name, other_name)
            case ["d", *items], ["d", *others]:
                return len(items) == len(others) and self._pairs(items, others, depth, private)
            case ["s" | "fs", *items], ["s" | "fs", *others]:
                return len(items) == len(others) and self._members(items, others, depth)
            case ["l" | "t", *items], ["l" | "t", *others] if private:
                return len(items) == len(others) and self._items(items, others, depth, private)
            case [str(tag), *items], [str(other_tag), *others]:
                return tag == other_tag and len(items) == len(others) and self._items(items, others, depth, private)
            case [*items], [*others]:
                return len(items) == len(others) and self._items(items, others, depth, private)
            case ((bool() | None), _):
                return type(gold) is type(found) and bool(gold == found)
        if isinstance(gold, float) and isinstance(found, int | float) and not isinstance(found, bool):
            return math.isclose(gold, found, rel_tol=1e-9, abs_tol=1e-12)  # other solutions add in another order
        return not isinstance(found, bool | list | dict) and bool(gold == found)

    def _items(self, items: list[Any], others: list[Any], depth: int, private: bool = False) -> bool:
        return all(self.values(one, other, depth + 1, private=private) for one, other in zip(items, others))

    def _pairs(self, items: list[Any], others: list[Any], depth: int, private: bool) -> bool:
        by_key = {repr(key): value for key, value in zip(others[::2], others[1::2])}
        if by_key.keys() != {repr(key) for key in items[::2]}:
            return self._items(items, others, depth, private)  # keys that are objects: in order
        pairs = zip(items[::2], items[1::2])
        return all(self.values(value, by_key[repr(key)], depth + 1, private=private) for key, value in pairs)

    def _members(self, items: list[Any], others: list[Any], depth: int) -> bool:
        return sorted(map(repr, items)) == sorted(map(repr, others)) or self._items(items, others, depth)

    def _objects(self, gold: _Object, found: _Object, depth: int) -> bool:
        parts = found.parts
        public = {name: value for name, value in gold.parts.items() if not name.startswith("_")}
        private = {name: value for name, value in gold.fields.items() if name.startswith("_")}
        shared = [name for name in public if name in parts]
        if not all(self._names.may_lack(gold.name, name, public[name]) for name in public if name not in parts):
            return False
        if not all(self.values(public[name], parts[name], depth + 1) for name in shared):
            return False
        if not private:
            return bool(shared or not public)
        return self._private(private, {name: public[name] for name in shared}, gold, found, depth)

    def _private(
        self, private: dict[str, Any], shown: dict[str, Any], gold: _Object, found: _Object, depth: int
    ) -> bool:
        """Return whether an object holds what the reference solution's private fields do, as far as it is not shown."""
        public = leaves(list(shown.values()))
        matched = bool(shown)
        missing: set[str] = set()
        for name, value in private.items():
            if value == ["!", "too large"]:
                continue
            if name in found.fields and self.values(value, found.fields[name], depth + 1, private=True):
                matched = True
                continue
            contained = leaves(value)
            if name in found.fields and (not shown or not contained or contained - public):
                return False
            if value in _EMPTY or self._names.may_lack(gold.name, name, value):
                continue
            missing |= contained - public
            # Zeros and ones are in every value: only the whole tells whether they are the same.
            if not contained and isinstance(value, list) and not self._is_part(value, found, depth):
                return False
        if not missing:
            # An object that shows nothing of what the reference solution's shows is another one.
            shows = any(not name.startswith("_") for name in gold.parts)
            lacking = all(self._names.may_lack(gold.name, name, value) for name, value in private.items())
            return matched or (lacking and not shows)
        known, held = leaves(list(gold.parts.values())), leaves(list(found.parts.values()))
        return missing <= held and len(held - known) <= len(known) + MORE_LEAVES  # not everything there is

    def _is_part(self, value: Any, found: _Object, depth: int) -> bool:
        return any(self.values(value, part, depth + 1, private=True) for part in found.parts.values())


def size_of(encoded: Any) -> int:
    """Return how much a value holds: characters of its text, or of its spelling. A range holds its numbers."""
    match encoded:
        case str():
            return len(encoded)
        case ["x", "range", list(parts)]:
            return 4 * len(_range(parts))
        case ["B", str(), content, *_] if content is not None:
            return size_of(content)
    return len(json.dumps(encoded))


def count_of(encoded: Any, *, nested: bool = False) -> int:
    """Return how many items a value has; 0 for one that is no container and no text.

    ``nested``: a container in it counts as its items, one that is empty not at all.
    """
    match encoded:
        case str():
            return len(encoded)
        case ["l" | "t" | "s" | "fs", *items]:
            return sum(map(_leaf_count, items)) if nested else len(items)
        case ["d", *items]:
            return sum(map(_leaf_count, items[1::2])) if nested else len(items) // 2
        case ["x", "range", list(parts)]:
            return len(_range(parts))
        case ["B" | "N", str(), content, *_] | ["x", "dict_keys" | "dict_items" | "dict_values", content]:
            return count_of(content, nested=nested)
    return 0


def _leaf_count(encoded: Any) -> int:
    is_container = isinstance(encoded, list) and encoded[:1] in (["l"], ["t"], ["s"], ["fs"], ["d"], ["B"], ["N"])
    return count_of(encoded, nested=True) if is_container else 1


def infinities_in(encoded: Any) -> set[str]:
    """Return which of infinity, minus infinity and "not a number" are in a value."""
    found: set[str] = set()
    todo = [encoded]
    while todo:
        match todo.pop():
            case float() as number if not math.isfinite(number):
                found.add(str(number))
            case ["f", str(text)] if text in _INFINITIES:
                found.add(text)
            case ["x", "Decimal", str(text)] if name := _NOT_FINITE.fullmatch(text):
                found.add("nan" if name["nan"] else "-inf" if text.startswith("-") else "inf")
            case ["x", "complex", [*parts]]:
                found |= _INFINITIES & set(map(str, parts))
            case [*items]:
                todo += items
            case dict() as fields:
                todo += fields.values()
    return found


_INFINITIES = {"inf", "-inf", "nan"}
_NOT_FINITE = re.compile(r"[+-]?(inf(inity)?|(?P<nan>s?nan)\d*)", re.IGNORECASE)


def leaves(encoded: Any) -> set[str]:
    """Return the numbers, texts and dates in a value, without those that nearly every value contains."""
    found: set[str] = set()
    todo = [encoded]
    while todo:
        item = todo.pop()
        one = _object(item)
        match item:
            case _ if one is not None:
                todo += [*one.parts.values(), one.content]
            case ["x", str(kind), content]:
                found.add(f"{kind} {content}")
            case ["i" | "f" | "b" | "ba" as tag, str(text)]:
                found.add(f"{tag} {text}")
            case ["!" | "R" | "o" | "T" | "*", *_]:
                pass
            case ["t" | "l" | "s" | "fs" | "d" | "N", *items]:
                todo += items
            case [*items]:
                todo += items
            case str() if item:
                found.add(f"text {item}")
            case int() | float() if not isinstance(item, bool) and item not in (-1, 0, 1, 2):
                found.add(repr(float(item)))
    return found


def merged(one: Any, other: Any, depth: int = 0) -> Any:
    """Return what two runs of the reference solution have in common, with :data:`ANYTHING` where they differ."""
    if one == other and type(one) is type(other):
        return one
    if depth <= MAX_NESTING and isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        if one[:1] == other[:1]:
            return [merged(first, second, depth + 1) for first, second in zip(one, other)]
    elif isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return {key: merged(value, other[key], depth + 1) for key, value in one.items()}
    return ANYTHING
