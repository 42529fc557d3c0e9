"""The parts that an object of a test is made of: the numbers and texts in the arguments of its class.

A class that compares only some of them could be paid for a result of which the others are wrong. So they are altered
one by one, each in a run of its own (:attr:`.GuardedPeer.parts`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from .argument_mutation import different_value, is_alterable
from .lazy_random import LazyRandom
from .proxies import Remote

Place = tuple[int | str, ...]
"""Where a part is: the index or keyword of an argument, and the indices within it. Keys of a dict have even ones."""

MAX_PARTS = 100
_SEQUENCES = (list, tuple, deque)
_ROUNDS = 8
_FAR = 1000
_random = LazyRandom()


def parts_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Place, Any]:
    """Return the first parts of the arguments, by place."""
    named: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    return dict(islice((part for name, value in named for part in _parts(value, (name,))), MAX_PARTS))


def objects_in(value: Any, depth: int = 5) -> Iterator[Any]:
    """Yield the objects of the program in an argument."""
    if isinstance(value, Remote):
        yield value
    elif depth and type(value) in (*_SEQUENCES, dict):
        for item in islice(value.values() if type(value) is dict else value, MAX_PARTS):
            yield from objects_in(item, depth - 1)


def with_other_part(
    args: tuple[Any, ...], kwargs: dict[str, Any], place: Place, vocabulary: Callable[[], Sequence[Any]]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with another value in a place."""
    known = parts_of(args, kwargs)
    if place not in known:
        return args, kwargs
    others = list(known.values())
    # One that is elsewhere in the object may be no change: a set has each item once.
    for _ in range(_ROUNDS):
        other = _other_value(known[place], vocabulary)
        if other not in others:
            break
    first, *rest = place
    if type(first) is int:
        values = list(args)
        values[first] = _replaced(args[first], rest, other)
        return tuple(values), kwargs
    return args, {**kwargs, str(first): _replaced(kwargs[str(first)], rest, other)}


def _other_value(value: Any, vocabulary: Callable[[], Sequence[Any]]) -> Any:
    # What is the same for all larger values may not be for smaller ones.
    if type(value) in (int, float) and _random.random() < 0.4:
        return value + _random.choice((-1, -1, 1)) * _random.randrange(1, _random.choice((9, _FAR)))
    return different_value(value, vocabulary)


def _parts(value: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    if type(value) in _SEQUENCES or type(value) is dict:
        items = _items(value)
        for index, item in enumerate(items):
            # The key of what is 0 or empty may be as good as none.
            if type(value) is not dict or index % 2 or items[index + 1]:
                yield from _parts(item, (*place, index))
    elif value is not None and not hasattr(value, "flat") and is_alterable(value):  # arrays compare item by item
        yield place, value


def _items(value: Any) -> list[Any]:
    return [item for pair in value.items() for item in pair] if type(value) is dict else list(value)


def _replaced(value: Any, place: Sequence[int | str], other: Any) -> Any:
    if not place:
        return other
    first, *rest = place
    items = _items(value)
    items[int(first)] = _replaced(items[int(first)], rest, other)
    return dict(zip(items[::2], items[1::2])) if type(value) is dict else type(value)(items)
