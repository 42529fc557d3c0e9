"""Digests that are identical for values that Python considers equal; used inside the sandbox and in the trainer."""

from __future__ import annotations

import collections.abc
import fractions
import hashlib
import math
from typing import Any

MAX_DEPTH = 60
MAX_DIGITS = 5000
_BUILTIN_EQUALITIES: tuple[object, ...] = tuple(
    kind.__eq__ for kind in (object, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)
)


class Opaque(Exception):
    """A value that only its own class can compare."""


def digest(value: Any) -> str:
    """Return a digest that is equal for equal plain values and different for others.

    Raises:
        Opaque: The value is not a number, text or container of these.
    """
    return hashlib.sha256(canonical(value).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def canonical(value: Any, depth: int = 0) -> str:
    """Return a canonical spelling of a plain value; subclasses of builtin types are spelled like their content."""
    if depth > MAX_DEPTH:
        raise Opaque("deep")
    if value is None or value is Ellipsis:
        return repr(value)
    if isinstance(value, str):
        return "s" + ascii(str.__str__(value))
    if isinstance(value, (bytes, bytearray)):
        return "b" + repr(bytes(value))
    if isinstance(value, (list, tuple)):
        inner = [canonical(item, depth + 1) for item in tuple(value)]
        return ("[" if isinstance(value, list) else "(") + ",".join(inner) + ")"
    if isinstance(value, dict):
        pairs = [canonical(key, depth + 1) + ":" + canonical(item, depth + 1) for key, item in dict.items(value)]
        return "{" + ",".join(sorted(pairs)) + "}"
    if isinstance(value, collections.abc.Set):
        return "<" + ",".join(sorted(canonical(item, depth + 1) for item in value)) + ">"
    return _number(value)


def _number(value: Any) -> str:
    if isinstance(value, complex):
        if value.imag:
            return "c" + _number(value.real) + "+" + _number(value.imag)
        value = value.real
    if hasattr(value, "dtype") and getattr(value, "shape", None) == ():
        return canonical(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return "n" + float.__repr__(value)
    if hasattr(value, "adjusted") and abs(value.adjusted()) > MAX_DIGITS:
        raise Opaque("large")
    try:
        exact = fractions.Fraction(value)
    except (TypeError, ValueError, OverflowError, ArithmeticError):
        raise Opaque(type(value).__name__) from None
    return f"n{exact.numerator:x}/{exact.denominator:x}"


def compares_itself(value: Any, depth: int = 0) -> bool:
    """Return whether a custom class decides what the value, or something in it, is equal to."""
    if depth > MAX_DEPTH or type(value).__eq__ not in _BUILTIN_EQUALITIES:
        return value is not None
    if isinstance(value, dict):
        return any(compares_itself(item, depth + 1) for pair in dict.items(value) for item in pair)
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(compares_itself(item, depth + 1) for item in value)
    return False
