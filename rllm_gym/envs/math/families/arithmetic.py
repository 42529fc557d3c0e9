"""Generators of problems on whole numbers, fractions, decimals and percentages; each answer is one number."""

from __future__ import annotations

import random
from fractions import Fraction

from rllm_gym.envs.math.families.notation import Problem, fraction

_LIMITS = (0, 99, 99, 999, 9_999, 99_999)


def sums(rng: random.Random, difficulty: int) -> Problem:
    """Draw a sum with plus and minus signs."""
    limit = _LIMITS[difficulty]
    total = rng.randint(0, limit)
    text = str(total)
    for _ in range(difficulty):
        term = rng.randint(1, limit)
        if rng.random() < 0.5:
            total, text = total + term, f"{text} + {term}"
        else:
            total, text = total - term, f"{text} - {term}"
    return f"What is {text}?", str(total)


def products(rng: random.Random, difficulty: int) -> Problem:
    """Draw a product of two numbers."""
    first, second = ((99, 99), (999, 99), (999, 999), (9_999, 999), (99_999, 9_999))[difficulty - 1]
    a, b = rng.randint(2, first), rng.randint(2, second)
    return f"What is {a} * {b}?", str(a * b)


def quotients(rng: random.Random, difficulty: int) -> Problem:
    """Draw a division without remainder."""
    limit = (99, 199, 999, 4_999, 99_999)[difficulty - 1]
    divisor, quotient = rng.randint(2, limit), rng.randint(2, limit)
    return f"What is {divisor * quotient} divided by {divisor}?", str(quotient)


def expressions(rng: random.Random, difficulty: int) -> Problem:
    """Draw an expression with brackets; multiplication has precedence over addition."""
    limit = (20, 20, 30, 50, 99)[difficulty - 1]
    value, text = rng.randint(1, limit), ""
    text, compound = str(value), False
    for _ in range(difficulty + 1):
        operand = rng.randint(2, limit)
        kind = rng.randrange(4)
        if kind == 0:
            value, text, compound = value + operand, f"{text} + {operand}", True
        elif kind == 1:
            value, text, compound = value - operand, f"{text} - {operand}", True
        elif kind == 2:
            # The right operand of a minus sign is put in brackets, so that it is subtracted as a whole.
            value, text, compound = operand - value, f"{operand} - {f'({text})' if compound else text}", True
        else:
            factor = operand % 8 + 2
            value, text, compound = value * factor, f"{factor} * {f'({text})' if compound else text}", False
    return f"Compute {text}.", str(value)


def fraction_sums(rng: random.Random, difficulty: int) -> Problem:
    """Draw sums and differences of fractions."""
    limit = (9, 12, 16, 30, 60)[difficulty - 1]
    parts = [Fraction(rng.randint(1, limit), rng.randint(2, limit)) for _ in range(2 if difficulty < 4 else 3)]
    total, text = parts[0], fraction(parts[0])
    for part in parts[1:]:
        if rng.random() < 0.5:
            total, text = total + part, f"{text} + {fraction(part)}"
        else:
            total, text = total - part, f"{text} - {fraction(part)}"
    return f"What is {text}? Give an integer or a fraction.", fraction(total)


def fraction_products(rng: random.Random, difficulty: int) -> Problem:
    """Draw a product or a quotient of two fractions."""
    limit = (9, 12, 20, 40, 99)[difficulty - 1]
    a = b = Fraction(1)
    while 1 in (a, b):
        a, b = (Fraction(rng.randint(1, limit), rng.randint(2, limit)) for _ in range(2))
    if rng.random() < 0.5:
        return f"What is {fraction(a)} times {fraction(b)}? Give an integer or a fraction.", fraction(a * b)
    return f"What is {fraction(a)} divided by {fraction(b)}? Give an integer or a fraction.", fraction(a / b)


def percentages(rng: random.Random, difficulty: int) -> Problem:
    """Ask for a percentage of a number; the answer is always a whole number."""
    step = (10, 5, 5, 2, 1)[difficulty - 1]
    percent = 100
    while percent == 100:
        percent = step * rng.randint(1, 100 // step - 1 if difficulty < 3 else 200 // step)
    base = (100 // step) * rng.randint(2, (200, 400, 400, 200, 400)[difficulty - 1])
    return f"What is {percent}% of {base}?", str(percent * base // 100)


def decimals(rng: random.Random, difficulty: int) -> Problem:
    """Draw a sum, a difference or a product of decimal numbers; the answer is exact."""
    places = (1, 2, 2, 3, 3)[difficulty - 1]
    limit = (200, 2_000, 20_000, 50_000, 500_000)[difficulty - 1]
    a, b = rng.randint(1, limit), rng.randint(1, limit)
    kind = rng.randrange(3 if difficulty > 1 else 2)
    if kind == 2:
        return f"What is {_decimal(a, places)} * {_decimal(b, 1)}?", _decimal(a * b, places + 1)
    sign, value = ("+", a + b) if kind == 0 else ("-", a - b)
    return f"What is {_decimal(a, places)} {sign} {_decimal(b, places)}?", _decimal(value, places)


def _decimal(value: int, places: int) -> str:
    """Return ``value`` divided by ten to the power of ``places``, without trailing zeros."""
    full, part = divmod(abs(value), 10**places)
    digits = f"{part:0{places}d}".rstrip("0")
    return ("-" if value < 0 else "") + (f"{full}.{digits}" if digits else str(full))
