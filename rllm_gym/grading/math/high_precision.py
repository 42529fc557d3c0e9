"""Equality to fifty digits at several points. Bounded work, yet used only in grading workers, which can be killed."""

from __future__ import annotations

from typing import Any

import mpmath  # type: ignore[import-untyped]

from rllm_gym.grading.math.floating_point import POINTS, FloatEvaluator, NoValueError, log_bases, symbols
from rllm_gym.grading.math.syntax import MathNode

_CONTEXT = mpmath.MPContext()
_CONTEXT.dps = 70
_RELATIVE = _CONTEXT.mpf(10) ** -45
_ABSOLUTE = _CONTEXT.mpf(10) ** -55


class HighPrecision(FloatEvaluator):
    """Evaluate as :class:`FloatEvaluator`, with 70 digits. ``peak`` covers only sums and angles, which may cancel."""

    def __init__(self, point: int = 0, log_base: int | None = 10) -> None:
        super().__init__(point, log_base)
        self.lib = _CONTEXT
        self.pi, self.e, self.i = _CONTEXT.mpc(_CONTEXT.pi), _CONTEXT.mpc(_CONTEXT.e), _CONTEXT.mpc(0, 1)
        self.peak = _CONTEXT.mpf(0)

    def number(self, numerator: int, denominator: int) -> Any:
        return _CONTEXT.mpc(_CONTEXT.mpf(numerator) / denominator)

    def gamma(self, x: Any) -> Any:
        return _CONTEXT.gamma(x)

    def magnitude(self, x: Any) -> float:
        return float(_CONTEXT.mag(x)) if x else float("-inf")

    def power(self, base: Any, exponent: Any) -> Any:
        return _CONTEXT.power(base, exponent)

    def real(self, x: Any) -> Any:
        x = _CONTEXT.mpc(x)
        if abs(x.imag) > _RELATIVE * max(1, abs(x)):
            raise NoValueError("not real")
        return x.real

    def floor(self, x: Any) -> Any:
        real = self.real(x)
        nearest = _CONTEXT.nint(real)
        # A value that differs from an integer only by rounding is that integer.
        return _CONTEXT.mpc(nearest if abs(real - nearest) < _RELATIVE * max(1, abs(real)) else _CONTEXT.floor(real))

    def root(self, radicand: Any, index: int) -> Any:
        radicand = _CONTEXT.mpc(radicand)
        if radicand.imag == 0 and radicand.real < 0 and index % 2:
            return _CONTEXT.mpc(-_CONTEXT.root(-radicand.real, index))
        return _CONTEXT.mpc(_CONTEXT.root(radicand, index))

    def cancels(self, x: Any) -> Any:
        self.peak = max(self.peak, abs(x))
        return x

    def noted(self, x: Any) -> Any:
        if not _CONTEXT.isfinite(x):
            raise NoValueError("not finite")
        return _CONTEXT.mpc(x)


def equal(first: MathNode, second: MathNode) -> bool | None:
    """Return whether two expressions are equal wherever both have a value; ``None`` if that cannot be computed.

    Equal means: at every positive point, and at every mixed point at which both are real.
    """
    verdicts = [_equal(first, second, log_base) for log_base in log_bases(first, second)]
    return True if True in verdicts else verdicts[0]


def _equal(first: MathNode, second: MathNode, log_base: int | None) -> bool | None:
    points = range(POINTS) if symbols(first) | symbols(second) else range(1)
    seen = 0
    for number in points:
        point = HighPrecision(number, log_base)
        try:
            a, b = point.value(first), point.value(second)
        except NoValueError:
            continue
        mixed = number >= POINTS - 2
        if mixed and (abs(a.imag) > _RELATIVE or abs(b.imag) > _RELATIVE):
            continue
        if abs(a - b) > _RELATIVE * max(abs(a), abs(b)) + _ABSOLUTE * point.peak:
            return False
        seen += not mixed
    return True if seen >= min(len(points), 2) else None


def ratio_sign(first: MathNode, second: MathNode) -> int | None:
    """Return the sign of the constant c in ``first = c * second``; 0 if there is none, ``None`` if unknown."""
    factor, seen = None, 0
    for number in range(POINTS - 2):
        point = HighPrecision(number)
        try:
            a, b = point.value(first), point.value(second)
        except NoValueError:
            continue
        if abs(b) <= _ABSOLUTE * (1 + point.peak) or abs(a) <= _ABSOLUTE * (1 + point.peak):
            return 0
        c = a / b
        if factor is None:
            factor = c
        elif abs(c - factor) > _RELATIVE * (1 + point.peak) * max(abs(c), abs(factor)):
            return 0
        seen += 1
    if factor is None or (seen < 2 and symbols(first) | symbols(second)):
        return None
    if abs(factor.imag) > _RELATIVE * abs(factor):
        return 0
    return 1 if factor.real > 0 else -1


def near(node: MathNode, value: Any, tolerance: Any) -> bool | None:
    """Return whether the constant ``node`` is within ``tolerance`` of the rational ``value``."""
    point = HighPrecision()
    try:
        x = point.value(node)
        exact = point.number(value.numerator, value.denominator)
        allowed = point.number(tolerance.numerator, tolerance.denominator)
    except NoValueError:
        return None
    return bool(abs(x - exact) <= abs(allowed) * (1 + _RELATIVE))
