"""Functions that remember their results."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, MutableMapping
from typing import Any

from keepfor.clock import Clock
from keepfor.lru import LRUCache
from keepfor.ttl import TTLCache


def memoize(
    *,
    size: int = 128,
    seconds: float | None = None,
    ignore: tuple[str, ...] = (),
    keep_none: bool = True,
    clock: Clock = time.monotonic,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Keep the results of a function.

    Calls with equal arguments share a result; ``f(1)`` and ``f(1.0)`` and ``f(True)`` do not. The order of keyword
    arguments does not matter. The function gets ``cache`` and ``forget()``.

    Args:
        size: How many results are kept.
        seconds: How long each is kept; for ever by default.
        ignore: Keyword arguments that do not change the result.
        keep_none: Whether ``None`` is a result worth keeping.
        clock: Where the time comes from.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        cache: MutableMapping[Hashable, Any]
        cache = LRUCache(size) if seconds is None else TTLCache(seconds, size=size, clock=clock)

        @functools.wraps(function)
        def remembering(*args: Any, **kwargs: Any) -> Any:
            key = make_key(args, {name: value for name, value in kwargs.items() if name not in ignore})
            try:
                return cache[key]
            except KeyError:
                result = function(*args, **kwargs)
            if result is not None or keep_none:
                cache[key] = result
            return result

        remembering.cache = cache  # type: ignore[attr-defined]
        remembering.forget = cache.clear  # type: ignore[attr-defined]
        return remembering

    return decorate


def make_key(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """A key for the arguments of a call; lists, sets and dicts among them are fine."""
    named = tuple((name, _freeze(kwargs[name])) for name in sorted(kwargs))
    return tuple(_freeze(value) for value in args), named


def _freeze(value: Any) -> Hashable:
    if isinstance(value, dict):
        return "dict", frozenset((_freeze(key), _freeze(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(_freeze(item) for item in value)
    if isinstance(value, set | frozenset):
        return "set", frozenset(_freeze(item) for item in value)
    return type(value).__name__, value
