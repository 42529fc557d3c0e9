"""Exact values of rational answers, with a limit on the size of numbers."""

from __future__ import annotations

import math
from fractions import Fraction

from rllm_gym.grading.math.syntax import MathNode


class NumberTooLarge(ArithmeticError):
    """The value has more bits than allowed."""


class NotRational(ArithmeticError):
    """Plain arithmetic does not reduce the expression to a rational number."""


def rational(node: MathNode, max_bits: int) -> Fraction:
    """Return the value of ``node``.

    Raises:
        NotRational: It has symbols, irrational parts, or no value (a zero denominator).
        NumberTooLarge: An intermediate value would need more than ``max_bits`` bits.
    """
    op, args = node.op, node.args
    if op == "num":
        value: Fraction = args[0]
    elif op == "neg":
        value = -rational(args[0], max_bits)
    elif op == "add":
        value = sum((rational(term, max_bits) for term in args), Fraction(0))
    elif op == "mul":
        value = rational(args[0], max_bits) * rational(args[1], max_bits)
    elif op == "div":
        top, bottom = rational(args[0], max_bits), rational(args[1], max_bits)
        if bottom == 0:
            raise NotRational("division by zero")
        value = top / bottom
    elif op == "pow":
        value = _power(rational(args[0], max_bits), rational(args[1], max_bits), max_bits)
    elif op == "fact":
        value = Fraction(_factorial(_whole(rational(args[0], max_bits)), max_bits))
    elif op == "fn":
        value = _function(args[0], [rational(argument, max_bits) for argument in args[1:]], max_bits)
    elif op == "based":
        value = Fraction(_from_base(args[0], args[1]))
    elif op == "unit":
        value = rational(args[0], max_bits)
    else:
        raise NotRational(op)
    if value.numerator.bit_length() + value.denominator.bit_length() > max_bits:
        raise NumberTooLarge(f"more than {max_bits} bits")
    return value


def _whole(value: Fraction) -> int:
    if value.denominator != 1:
        raise NotRational("not a whole number")
    return value.numerator


def _power(base: Fraction, exponent: Fraction, max_bits: int) -> Fraction:
    if exponent.denominator != 1:
        return _rational_root(base, exponent.denominator) ** _power_limit(base, exponent.numerator, max_bits)
    if base == 0 and exponent <= 0:
        raise NotRational("zero to a power that is not positive")
    return base ** _power_limit(base, exponent.numerator, max_bits)


def _power_limit(base: Fraction, exponent: int, max_bits: int) -> int:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) not in (0, 1) and abs(exponent) * max(bits - 1, 1) > max_bits:
        raise NumberTooLarge("a power too large")
    if exponent.bit_length() > max_bits:
        raise NumberTooLarge("an exponent too large")
    return exponent if abs(base) != 1 else exponent % 2


def _rational_root(base: Fraction, index: int) -> Fraction:
    if base < 0 or index > 64:
        raise NotRational("a root that plain arithmetic does not find")
    return Fraction(_whole_root(base.numerator, index), _whole_root(base.denominator, index))


def _whole_root(value: int, index: int) -> int:
    if index == 2:
        root = math.isqrt(value)
    else:
        low, high = 0, 1 << (value.bit_length() // index + 1)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle**index <= value else (low, middle - 1)
        root = low
    if root**index != value:
        raise NotRational("an irrational root")
    return root


def _factorial(value: int, max_bits: int) -> int:
    if value < 0:
        raise NotRational("factorial of a negative number")
    if value > max_bits or (value > 2 and value * (math.log2(value) - 1.45) > max_bits):
        raise NumberTooLarge("a factorial too large")
    return math.factorial(value)


def _function(name: str, values: list[Fraction], max_bits: int) -> Fraction:
    if name == "sqrt" and len(values) == 1:
        return _rational_root(values[0], 2)
    if name == "root" and len(values) == 2:
        index = _whole(values[1])
        if index < 1:
            raise NotRational("a root of an index that is not positive")
        if values[0] < 0 and index % 2:
            return -_rational_root(-values[0], index)
        return _rational_root(values[0], index)
    if name == "abs" and len(values) == 1:
        return abs(values[0])
    if name == "floor" and len(values) == 1:
        return Fraction(math.floor(values[0]))
    if name == "ceil" and len(values) == 1:
        return Fraction(math.ceil(values[0]))
    if name == "binom" and len(values) == 2:
        n, k = _whole(values[0]), _whole(values[1])
        if not 0 <= k <= n:
            raise NotRational("a binomial outside its triangle")
        k = min(k, n - k)
        if k * max(n.bit_length(), 1) > max_bits:
            raise NumberTooLarge("a binomial too large")
        return Fraction(math.comb(n, k))
    if name in ("max", "min") and values:
        return max(values) if name == "max" else min(values)
    if name in ("gcd", "lcm") and values:
        wholes = [_whole(value) for value in values]
        return Fraction(math.gcd(*wholes) if name == "gcd" else math.lcm(*wholes))
    raise NotRational(name)


def _from_base(digits: str, base: int) -> int:
    if not 2 <= base <= 36:
        raise NotRational(f"base {base}")
    value = 0
    for digit in digits:
        if int(digit) >= base:
            raise NotRational(f"{digit} is no digit in base {base}")
        value = value * base + int(digit)
    return value
