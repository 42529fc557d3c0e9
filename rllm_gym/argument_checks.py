"""Checks of arguments, for constructors: each error names the argument, its value and what it must be."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any


def check_int(name: str, value: Any, least: int = 1, *, otherwise: str = "") -> int:
    """Check that ``value`` is a whole number of at least ``least``, and return it as an ``int``.

    Args:
        name: The argument.
        value: Its value.
        least: The smallest allowed value.
        otherwise: What else the argument may be, which the caller has ruled out: ``"None for all"``.

    Raises:
        ValueError: It is not.

    >>> check_int("max_workers", "2")
    Traceback (most recent call last):
    ValueError: max_workers='2' must be a whole number of at least 1
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        or_else = f", or {otherwise}" if otherwise else ""
        raise ValueError(f"{name}={value!r:.80} must be a whole number of at least {least}{or_else}")
    return int(value)


def check_number(name: str, value: Any, *, least: float | None = None, above: float | None = None) -> float:
    """Check that ``value`` is a number, not nan, at least ``least`` and above ``above``; return it.

    Raises:
        ValueError: It is not.
    """
    right = isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
    if not right or (least is not None and value < least) or (above is not None and value <= above):
        bounds = f" of at least {least:g}" if least is not None else f" above {above:g}" if above is not None else ""
        raise ValueError(f"{name}={value!r:.80} must be a number{bounds}")
    return value  # type: ignore[no-any-return]


def check_type(name: str, value: Any, kind: type | tuple[type, ...], must: str) -> None:
    """Check that ``value`` is an instance of ``kind``.

    Args:
        name: The argument.
        value: Its value.
        kind: One or more types.
        must: What it must be, in words, with an example where it helps.

    Raises:
        TypeError: It is not.

    >>> check_type("source", 3, str, "the text of a Python program")
    Traceback (most recent call last):
    TypeError: source=3 must be the text of a Python program, not a value of type int
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name}={value!r:.80} must be {must}, not a value of type {type(value).__name__}")
