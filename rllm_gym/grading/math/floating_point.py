"""Numeric values of answers at chosen points of their symbols: floats detect inequality, fifty digits decide equality.

The work is bounded: no operation grows with the *size* of a number, and none uses more digits.
"""

from __future__ import annotations

import cmath
import hashlib
import math
from typing import Any

from rllm_gym.grading.math.syntax import MathNode, children

POINTS = 6
"""Sets of values for the symbols. The first four are positive, the rest mixed."""


class NoValueError(ArithmeticError):
    """The expression has no value here: undefined, not a number, or out of range."""


def symbols(node: MathNode) -> frozenset[str]:
    """Return the names in an expression."""
    if node.op == "sym":
        return frozenset([node.args[0]])
    found: frozenset[str] = frozenset()
    for child in children(node):
        found |= symbols(child)
    return found


def _unit_interval(*parts: Any) -> float:
    digest = hashlib.blake2b(repr(parts).encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


class FloatEvaluator:
    """Arithmetic in complex double precision. Records the largest magnitude, which is the scale of rounding errors."""

    def __init__(self, point: int = 0, log_base: int | None = 10) -> None:
        self.point = point
        self.log_base = log_base
        self.peak: Any = 0.0
        self.pi: Any = math.pi
        self.e: Any = math.e
        self.i: Any = 1j
        self.lib: Any = cmath

    def value(self, node: MathNode) -> Any:
        """Return the value of an expression.

        Raises:
            NoValueError: It has no value.
        """
        try:
            result = self._value(node)
        except (OverflowError, ZeroDivisionError, ValueError, TypeError, RecursionError) as error:
            raise NoValueError(str(error)) from None
        return result

    def number(self, numerator: int, denominator: int) -> Any:
        return complex(numerator / denominator)

    def symbol(self, name: str) -> Any:
        value = 0.6 + 2.3 * _unit_interval(name, self.point)
        if self.point >= POINTS - 2 and _unit_interval("sign", name, self.point) < (0.5 if self.point % 2 else 1.1):
            value = -value
        return self.number(round(value * 2**30), 2**30)

    def gamma(self, x: Any) -> Any:
        if abs(x.imag) > 0:
            raise NoValueError("gamma of a complex number")
        return complex(math.gamma(x.real))

    def magnitude(self, x: Any) -> float:
        """Return the base-2 logarithm of |x|."""
        size = abs(x)
        return math.log2(size) if size else -math.inf

    def power(self, base: Any, exponent: Any) -> Any:
        return base**exponent

    def real(self, x: Any) -> Any:
        if abs(x.imag) > 1e-9 * max(1.0, abs(x)):
            raise NoValueError("not real")
        return x.real

    def floor(self, x: Any) -> Any:
        return complex(math.floor(self.real(x)))

    def root(self, radicand: Any, index: int) -> Any:
        if radicand.imag == 0 and radicand.real < 0 and index % 2:
            return -((-radicand.real) ** (1 / index)) + 0j
        return radicand ** (1 / index)

    def cancels(self, x: Any) -> Any:
        """Called for every value whose leading digits may cancel. With floats, :meth:`noted` already covers this."""
        return x

    def noted(self, x: Any) -> Any:
        if x != x or abs(x) == math.inf:
            raise NoValueError("not finite")
        self.peak = max(self.peak, abs(x))
        return complex(x.real, 0.0) if x.imag == 0 else x  # no negative zero: it selects the wrong branch of a root

    def _value(self, node: MathNode) -> Any:
        op, args = node.op, node.args
        if op == "num":
            result = self.number(args[0].numerator, args[0].denominator)
        elif op == "sym":
            result = self.symbol(args[0])
        elif op == "const":
            result = {"pi": self.pi, "e": self.e, "i": self.i}[args[0]]
        elif op == "neg":
            result = self.number(0, 1) - self._value(args[0])  # unlike -x never a negative zero
        elif op == "add":
            result = self._value(args[0])
            for term in args[1:]:
                result = result + self.cancels(self._value(term))
        elif op == "mul":
            result = self._value(args[0]) * self._value(args[1])
        elif op == "div":
            result = self._value(args[0]) / self._value(args[1])
        elif op == "pow":
            result = self._power(self._value(args[0]), self._value(args[1]))
        elif op == "fact":
            result = self._gamma(self._value(args[0]) + 1)
        elif op == "unit":
            result = self._value(args[0])
        elif op == "pct":
            result = self._value(args[0]) / 100
        elif op == "deg":
            result = self._value(args[0]) * self.pi / 180
        elif op == "fn":
            result = self._function(args[0], args[1:])
        elif op == "app":
            # An unknown function is evaluated as a fixed smooth function of its arguments.
            result = self.symbol(args[0])
            for place, argument in enumerate(args[1:]):
                weight = self.symbol(f"{args[0]}/{place}")
                result = result + self.lib.sin(weight * self._angle(self._value(argument)) + weight)
        else:
            raise NoValueError(op)
        return self.noted(result)

    def _power(self, base: Any, exponent: Any) -> Any:
        size = self.magnitude(exponent)
        if size > 50 or (base != 0 and abs(self.magnitude(base)) * 2.0 ** max(size, 0) > 1e15):
            raise NoValueError("a power too large")
        if base == 0 and (exponent.real <= 0):
            raise NoValueError("zero to a power that is not positive")
        return self.power(base, exponent)

    def _gamma(self, x: Any) -> Any:
        if self.magnitude(x) > 40:
            raise NoValueError("a factorial too large")
        return self.gamma(x)

    def _angle(self, x: Any) -> Any:
        if self.magnitude(x) > 100:
            raise NoValueError("an angle too large")
        return self.cancels(x)

    def _function(self, name: str, arguments: tuple[MathNode, ...]) -> Any:
        values = [self._value(argument) for argument in arguments]
        lib = self.lib
        x = values[0]
        if len(values) == 1:
            if name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "exp"):
                return getattr(lib, name)(self._angle(x))
            if name in ("cot", "sec", "csc", "coth"):
                return 1 / getattr(lib, {"cot": "tan", "sec": "cos", "csc": "sin", "coth": "tanh"}[name])(
                    self._angle(x)
                )
            if name in ("arcsin", "arccos", "arctan"):
                return getattr(lib, name.replace("arc", "a"))(x)
            if name in ("arccot", "arcsec", "arccsc"):
                return getattr(lib, {"arccot": "atan", "arcsec": "acos", "arccsc": "asin"}[name])(1 / x)
            if name in ("ln", "log"):
                if x == 0:
                    raise NoValueError("logarithm of zero")
                if name == "ln" or self.log_base is None:
                    return lib.log(x)
                return lib.log(x) / lib.log(self.number(self.log_base, 1))
            if name == "sqrt":
                return lib.sqrt(x)
            if name == "abs":
                return abs(x) + self.number(0, 1)
            if name in ("floor", "ceil"):
                return self.floor(x) if name == "floor" else -self.floor(-x)
            if name == "Re":
                return x.real + self.number(0, 1)
            if name == "Im":
                return x.imag + self.number(0, 1)
            if name == "sgn":
                return x / abs(x)
        if len(values) == 2:
            y = values[1]
            if name == "root":
                index = self.real(y)
                if index != int(index) or not 1 <= index <= 1000:
                    return self._power(x, 1 / y)
                return self.root(x, int(index))
            if name == "logb":
                return lib.log(y) / lib.log(x)
            if name == "binom":
                return self._gamma(x + 1) / (self._gamma(y + 1) * self._gamma(x - y + 1))
        if name in ("max", "min"):
            reals = [self.real(value) for value in values]
            return (max(reals) if name == "max" else min(reals)) + self.number(0, 1)
        raise NoValueError(name)


def surely_different(first: MathNode, second: MathNode) -> bool:
    """Return whether floats prove two expressions unequal, allowing for all intermediate rounding errors."""
    for log_base in log_bases(first, second):
        point = FloatEvaluator(log_base=log_base)
        try:
            a, b = point.value(first), point.value(second)
        except NoValueError:
            return False
        # Cancellation loses digits in proportion to the largest intermediate value.
        if not abs(a - b) > 1e-6 * max(abs(a), abs(b)) + 1e-9 * min(point.peak, 1e300):
            return False
    return True


def log_bases(*nodes: MathNode) -> tuple[int | None, ...]:
    """Return the possible bases of ``log``: ten or natural (``None``), the same throughout a comparison."""
    return (10, None) if any(_has_log(node) for node in nodes) else (10,)


def _has_log(node: MathNode) -> bool:
    return (node.op == "fn" and node.args[0] == "log") or any(_has_log(child) for child in children(node))


def real_value(node: MathNode) -> float:
    """Return the value of a real constant.

    Raises:
        NoValueError: There is none, or it depends on symbols.
    """
    if node.op == "inf":
        return math.inf
    if node.op == "neg" and node.args[0].op == "inf":
        return -math.inf
    if symbols(node):
        raise NoValueError("depends on symbols")
    point = FloatEvaluator()
    return float(point.real(point.value(node)))
