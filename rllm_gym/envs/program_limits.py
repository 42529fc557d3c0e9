"""Bounds of the CPU time and memory that an environment gives to a model's program."""

from __future__ import annotations

import math

CPU_LIMITS_S = (0.1, 60.0)
MEMORY_LIMITS_MB = (32, 4_096)


def check_bounds(name: str, value: float, minimum: float, maximum: float = math.inf) -> float:
    """Return the value of the argument ``name``.

    Raises:
        ValueError: It is not a number within the bounds.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
        bounds = f"at least {minimum:g}" if maximum == math.inf else f"from {minimum:g} to {maximum:g}"
        raise ValueError(f"{name}={value!r} must be a number {bounds}")
    return float(value)
