"""The functions an expression may call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def _round(value: float, digits: int = 0) -> float:
    """Half away from zero, as people expect it, and not to even."""
    scale = 10**digits
    rounded = math.floor(abs(value) * scale + 0.5) / scale
    signed = math.copysign(rounded, value)
    return signed if digits > 0 else int(signed)


def _extreme(choose: Callable[..., Any]) -> Callable[..., Any]:
    """``min`` and ``max`` of the arguments, or of the items of one list."""

    def function(*values: Any) -> Any:
        return choose(values[0] if len(values) == 1 and isinstance(values[0], list) else values)

    return function


def _contains(whole: Any, part: Any) -> bool:
    """Upper and lower case are the same in texts."""
    if isinstance(whole, str):
        return str(part).casefold() in whole.casefold()
    return part in whole


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "contains": _contains,
    "floor": math.floor,
    "len": len,
    "lower": str.lower,
    "max": _extreme(max),
    "min": _extreme(min),
    "round": _round,
    "sqrt": math.sqrt,
    "sum": sum,
    "upper": str.upper,
}
