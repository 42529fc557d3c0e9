"""A calculator with exact arithmetic. It parses its own grammar (no ``eval``) and limits length, depth and size."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from fractions import Fraction

Number = Fraction | float

MAX_CHARS = 1_000
MAX_DEPTH = 50
MAX_BITS = 4_096

TOOLS = json.dumps(
    [
        {
            "type": "function",
            "function": {
                "name": "calculator",
                "description": (
                    "Exact arithmetic. Operators + - * / // % ^ (power) ! (factorial) and brackets; functions abs, "
                    "ceil, floor, gcd, lcm, max, min, sqrt; the constants pi and e."
                ),
                "parameters": {
                    "type": "object",
                    "properties": {
                        "expression": {"type": "string", "description": "Such as 2 * (3 + 4) / 5"},
                    },
                    "required": ["expression"],
                },
            },
        }
    ]
)
"""The calculator as a JSON list of OpenAI tool schemas."""


class CalculatorError(ValueError):
    """An expression that has no value.

    Args:
        message: What is wrong.
        position: Position of the error, counted from 1.
        malformed: Whether the expression cannot be parsed; false if it can be parsed but has no value, as ``1/0``.
    """

    def __init__(self, message: str, position: int, *, malformed: bool) -> None:
        super().__init__(f"{message} at position {position}")
        self.position = position
        self.malformed = malformed


def calculate(expression: str) -> str:
    """Return the value of an expression: exact for whole numbers and fractions, else to 12 significant digits.

    ``^`` and ``**`` are powers; ``×``, ``÷`` and ``−`` are accepted.

    Raises:
        CalculatorError: The expression cannot be parsed, has no value, or is too large; the message says where.

    >>> calculate("2 * (3 + 4)"), calculate("1/3 + 1/6"), calculate("2^10 - 5!")
    ('14', '1/2 (about 0.5)', '904')
    """
    return _show(_ExpressionParser(expression).value())


def _show(value: Number) -> str:
    if isinstance(value, float):
        return f"{value:.12g}"
    if value.denominator == 1:
        return str(value.numerator)
    # Exact decimals are shown as decimals; other fractions are followed by an approximation.
    try:
        return f"{value} (about {float(value):.12g})"
    except OverflowError:
        return str(value)


_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z]+)|(?P<sign>\*\*|//|[-+*/%^!(),]))",
    re.ASCII,
)
_ALIASES = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "[": "(", "]": ")"})


class _ExpressionParser:
    """A recursive-descent parser: sum → product → sign → power → factorial → atom."""

    def __init__(self, expression: str) -> None:
        if len(expression) > MAX_CHARS:
            raise CalculatorError(
                f"the expression has {len(expression)} characters, more than {MAX_CHARS},",
                MAX_CHARS + 1,
                malformed=True,
            )
        self._tokens: list[tuple[str, str, int]] = []
        text = expression.translate(_ALIASES)
        end = len(text.rstrip())
        at = 0
        while at < end:
            match = _TOKEN.match(text, at)
            if match is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                raise CalculatorError(f"unexpected {expression[at]!r}", at + 1, malformed=True)
            kind = match.lastgroup or ""
            self._tokens.append((kind, match[kind], match.start(kind) + 1))
            at = match.end()
        self._tokens.append(("end", "", end + 1))
        self._next = 0
        self._depth = 0

    def value(self) -> Number:
        value = self._sum()
        if self._tokens[self._next][0] != "end":
            raise self._unexpected()
        return value

    def _take(self, *signs: str) -> tuple[str, int] | None:
        kind, text, position = self._tokens[self._next]
        if kind == "sign" and text in signs:
            self._next += 1
            return text, position
        return None

    def _unexpected(self) -> CalculatorError:
        kind, text, position = self._tokens[self._next]
        if kind == "end":
            return CalculatorError("the expression ends too early", position, malformed=True)
        return CalculatorError(f"unexpected {text[:40]!r}", position, malformed=True)

    def _sum(self) -> Number:
        value = self._product()
        while taken := self._take("+", "-"):
            sign, position = taken
            other = self._product()
            value = _operate(value, other if sign == "+" else -other, "+", position)
        return value

    def _product(self) -> Number:
        value = self._signed()
        while taken := self._take("*", "/", "//", "%"):
            sign, position = taken
            value = _operate(value, self._signed(), sign, position)
        return value

    def _signed(self) -> Number:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CalculatorError(f"more than {MAX_DEPTH} levels deep", self._tokens[self._next][2], malformed=True)
        try:
            if taken := self._take("-", "+"):
                value = self._signed()
                return -value if taken[0] == "-" else value
            return self._power()
        finally:
            self._depth -= 1

    def _power(self) -> Number:
        base = self._factorial()
        if taken := self._take("^", "**"):
            # Powers are right-associative, and an exponent may have a sign: 2^-3^2.
            return _operate(base, self._signed(), "^", taken[1])
        return base

    def _factorial(self) -> Number:
        value = self._atom()
        while taken := self._take("!"):
            number = _whole(value, "factorial", taken[1])
            if not 0 <= number <= 500:
                raise CalculatorError("a factorial is taken of 0 to 500", taken[1], malformed=False)
            value = _checked(Fraction(math.factorial(number)), taken[1])
        return value

    def _atom(self) -> Number:
        kind, text, position = self._tokens[self._next]
        if kind == "number":
            self._next += 1
            return _literal(text, position)
        if self._take("("):
            value = self._sum()
            if not self._take(")"):
                raise self._unexpected()
            return value
        if kind == "name":
            self._next += 1
            if text in ("pi", "e"):
                return math.pi if text == "pi" else math.e
            if text not in _FUNCTIONS:
                raise CalculatorError(
                    f"unknown name {text[:40]!r} (known are {', '.join([*_FUNCTIONS, 'pi', 'e'])})",
                    position,
                    malformed=True,
                )
            return self._call(text, position)
        raise self._unexpected()

    def _call(self, name: str, position: int) -> Number:
        if not self._take("("):
            raise self._unexpected()
        arguments = [self._sum()]
        while self._take(","):
            arguments.append(self._sum())
        if not self._take(")"):
            raise self._unexpected()
        several = name in ("gcd", "lcm", "max", "min")
        if len(arguments) != 1 and not several:
            raise CalculatorError(f"{name} takes one number, not {len(arguments)},", position, malformed=True)
        return _checked(_FUNCTIONS[name](arguments, position), position)


def _literal(text: str, position: int) -> Number:
    mantissa, _, exponent = text.lower().partition("e")
    if exponent and len(exponent.lstrip("+-")) > 4:
        raise CalculatorError("the number is too large or too small", position, malformed=False)
    if exponent and abs(int(exponent)) > MAX_BITS // 4:
        raise CalculatorError("the number is too large or too small", position, malformed=False)
    return _checked(Fraction(mantissa) * Fraction(10) ** int(exponent or 0), position)


def _operate(a: Number, b: Number, sign: str, position: int) -> Number:
    if sign in ("/", "//", "%") and not b:
        raise CalculatorError("division by zero", position, malformed=False)
    if isinstance(a, float) or isinstance(b, float):
        a, b = _float(a, position), _float(b, position)
    try:
        if sign == "+":
            value: Number = a + b
        elif sign == "*":
            value = a * b
        elif sign == "/":
            value = a / b
        elif sign == "//":
            value = Fraction(a // b) if not isinstance(a, float) else float(a // b)
        elif sign == "%":
            value = a % b
        else:
            value = _power(a, b, position)
    except (OverflowError, ZeroDivisionError) as error:
        raise CalculatorError(f"the result is too large ({error})", position, malformed=False) from error
    return _checked(value, position)


def _power(a: Number, b: Number, position: int) -> Number:
    if not a and b < 0:
        raise CalculatorError("division by zero", position, malformed=False)
    if isinstance(a, Fraction) and isinstance(b, Fraction) and b.denominator == 1:
        exponent = b.numerator
        # The size is checked before the power is computed: 9^9^9 must not be attempted.
        bits = max(a.numerator.bit_length(), a.denominator.bit_length())
        if a not in (0, 1, -1) and bits * abs(exponent) > 2 * MAX_BITS:
            raise CalculatorError(f"the power has more than {MAX_BITS} bits", position, malformed=False)
        if a in (1, -1):
            return a if exponent % 2 else Fraction(1)
        return a**exponent
    if a < 0:
        raise CalculatorError("a negative number has no such power among real numbers", position, malformed=False)
    if isinstance(a, Fraction) and b == Fraction(1, 2):
        return _sqrt([a], position)
    power: float = _float(a, position) ** _float(b, position)
    return power


def _checked(value: Number, position: int) -> Number:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise CalculatorError("the result is too large", position, malformed=False)
    elif max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise CalculatorError(f"the result has more than {MAX_BITS} bits", position, malformed=False)
    return value


def _float(value: Number, position: int) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise CalculatorError(
            "the number is too large for a calculation with decimals", position, malformed=False
        ) from error


def _whole(value: Number, what: str, position: int) -> int:
    if isinstance(value, float) or value.denominator != 1:
        raise CalculatorError(f"{what} takes whole numbers", position, malformed=False)
    return value.numerator


def _sqrt(arguments: list[Number], position: int) -> Number:
    (value,) = arguments
    if value < 0:
        raise CalculatorError("a negative number has no square root among real numbers", position, malformed=False)
    if isinstance(value, Fraction):
        top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return Fraction(top, bottom)
    return math.sqrt(_float(value, position))


def _largest(arguments: list[Number], position: int) -> Number:
    largest = arguments[0]
    for value in arguments[1:]:
        largest = value if value > largest else largest
    return largest


_FUNCTIONS: dict[str, Callable[[list[Number], int], Number]] = {
    "abs": lambda arguments, _: -arguments[0] if arguments[0] < 0 else arguments[0],
    "ceil": lambda arguments, _: Fraction(math.ceil(arguments[0])),
    "floor": lambda arguments, _: Fraction(math.floor(arguments[0])),
    "gcd": lambda arguments, at: Fraction(math.gcd(*(_whole(value, "gcd", at) for value in arguments))),
    "lcm": lambda arguments, at: Fraction(math.lcm(*(_whole(value, "lcm", at) for value in arguments))),
    "max": _largest,
    "min": lambda arguments, at: -_largest([-value for value in arguments], at),
    "sqrt": _sqrt,
}
