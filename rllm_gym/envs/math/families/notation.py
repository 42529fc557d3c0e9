"""Formatting of numbers, sums and polynomials in the text of problems and in answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fractions import Fraction

Problem = tuple[str, str]
"""A question and its answer, the answer as plain or LaTeX mathematics."""

Generator = Callable[[random.Random, int], Problem]
"""Draws a problem of a difficulty from 1 (easy) to 5. Its only source of randomness is the generator it is given."""


def nonzero(rng: random.Random, low: int, high: int) -> int:
    """Draw a whole number in ``low..high`` that is not 0."""
    while True:
        value = rng.randint(low, high)
        if value:
            return value


def fraction(value: Fraction | int) -> str:
    """Format a fraction: ``-3``, ``3/4``, ``-3/4``."""
    return str(Fraction(value))


def terms(coefficients: Sequence[tuple[int, str]]) -> str:
    """Format a sum such as ``2x - y + 7`` from ``(coefficient, symbol)`` pairs, without zeros; an empty sum is ``0``.

    >>> terms([(2, "x"), (-1, "y"), (0, "z"), (7, "")])
    '2x - y + 7'
    """
    text = ""
    for coefficient, symbol in coefficients:
        if not coefficient:
            continue
        size = abs(coefficient)
        factor = symbol if size == 1 and symbol else f"{size}{symbol}"
        if text:
            text += f" - {factor}" if coefficient < 0 else f" + {factor}"
        else:
            text = f"-{factor}" if coefficient < 0 else factor
    return text or "0"


def polynomial(coefficients: Sequence[int]) -> str:
    """Format a polynomial from its coefficients, the constant first.

    >>> polynomial([5, -1, 0, 2])
    '2x^3 - x + 5'
    """
    return terms(
        [
            (coefficient, "" if power == 0 else "x" if power == 1 else f"x^{power}")
            for power, coefficient in reversed(list(enumerate(coefficients)))
        ]
    )


def multiply(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return the product of two polynomials given by their coefficients, the constant first."""
    product = [0] * (len(first) + len(second) - 1)
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            product[i + j] += a * b
    return product


def listing(items: Sequence[object]) -> str:
    """Format a list: ``a``, ``a and b``, ``a, b and c``."""
    texts = [str(item) for item in items]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
