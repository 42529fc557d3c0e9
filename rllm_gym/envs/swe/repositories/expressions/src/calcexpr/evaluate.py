"""The value of a tree."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from calcexpr.errors import EvaluationError
from calcexpr.functions import FUNCTIONS
from calcexpr.tree import Binary, Call, Choice, Compare, Element, Items, Literal, Name, Node, Unary

MAX_POWER_BITS = 10_000

ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda item, whole: item in whole,
}


def evaluate(node: Node, values: Mapping[str, Any] | None = None) -> Any:
    """The value of ``node``, with ``values`` for its variables.

    Raises:
        EvaluationError: There is none.
    """
    try:
        return _value(node, values or {})
    except (TypeError, ValueError, ArithmeticError, IndexError, AttributeError) as error:
        raise EvaluationError(str(error)) from error


def _value(node: Node, values: Mapping[str, Any]) -> Any:
    match node:
        case Literal(value):
            return value
        case Name(name):
            if name not in values:
                raise EvaluationError(f"{name} has no value")
            return values[name]
        case Unary("not", operand):
            return not _value(operand, values)
        case Unary(sign, operand):
            number = _number(_value(operand, values), sign)
            return -number if sign == "-" else number
        case Binary("and", left, right):
            return bool(_value(left, values)) and bool(_value(right, values))
        case Binary("or", left, right):
            return bool(_value(left, values)) or bool(_value(right, values))
        case Binary(symbol, left, right):
            return _binary(symbol, _value(left, values), _value(right, values))
        case Compare(operators, operands):
            return _compare(operators, operands, values)
        case Choice(condition, yes, no):
            return _value(yes if _value(condition, values) else no, values)
        case Call(function, arguments):
            if function not in FUNCTIONS:
                raise EvaluationError(f"there is no function {function}")
            return FUNCTIONS[function](*[_value(argument, values) for argument in arguments])
        case Items(items):
            return [_value(item, values) for item in items]
        case Element(of, index):
            return _value(of, values)[_value(index, values)]


def _binary(symbol: str, left: Any, right: Any) -> Any:
    if symbol == "+" and type(left) is type(right) and isinstance(left, str | list):
        return left + right
    left, right = _number(left, symbol), _number(right, symbol)
    if symbol == "^":
        return _power(left, right)
    if symbol in ("/", "//", "%") and right == 0:
        raise EvaluationError("division by zero")
    return ARITHMETIC[symbol](left, right)


def _power(base: float, exponent: float) -> float:
    """A power whose size is bounded, so that a formula cannot eat all memory."""
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        if base.bit_length() * exponent > MAX_POWER_BITS:
            raise EvaluationError("the power is too large")
        return base**exponent
    result = float(base) ** exponent
    if isinstance(result, complex):
        raise EvaluationError("the power of a negative number must be whole")
    return result


def _compare(operators: tuple[str, ...], operands: tuple[Node, ...], values: Mapping[str, Any]) -> bool:
    """Every neighbouring pair must fit; each operand is looked at once, and only as far as needed."""
    left = _value(operands[0], values)
    for symbol, operand in zip(operators, operands[1:]):
        right = _value(operand, values)
        if not COMPARE[symbol](left, right):
            return False
        left = right
    return True


def _number(value: Any, symbol: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EvaluationError(f"{symbol} needs numbers, not {value!r}")
    return value
