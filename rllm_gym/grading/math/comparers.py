"""The fast comparison for the caller's thread: exact rational arithmetic, and floats for values that are far apart."""

from __future__ import annotations

from fractions import Fraction

from rllm_gym.grading.math.floating_point import surely_different
from rllm_gym.grading.math.rational import NotRational, NumberTooLarge, rational
from rllm_gym.grading.math.syntax import MathNode

FAST_BITS = 4096
_ROUNDED_PLACES = 6


class FastComparer:
    """The fast comparison: takes microseconds for any input, and returns ``None`` if a worker has to decide."""

    symbolic = False
    """Whether anything other than rational numbers had to be compared."""

    def equal(self, gold: MathNode, answer: MathNode) -> bool | None:
        if gold == answer:
            return True
        verdict = rationally_equal(gold, answer, FAST_BITS)
        if verdict is not None:
            return verdict
        self.symbolic = True
        return False if surely_different(gold, answer) else None

    def proportional(self, gold: MathNode, answer: MathNode) -> int | None:
        self.symbolic = True
        return 1 if gold == answer else None


def rationally_equal(gold: MathNode, answer: MathNode, max_bits: int) -> bool | None:
    """Return whether two rational numbers are equal, or one is the other rounded to at least six decimals."""
    try:
        gold_value, answer_value = rational(gold, max_bits), rational(answer, max_bits)
    except (NumberTooLarge, NotRational):
        return None
    if gold_value == answer_value:
        return True
    return any(
        tolerance is not None and abs(gold_value - answer_value) < tolerance
        for tolerance in (rounding_tolerance(gold), rounding_tolerance(answer))
    )


def rounding_tolerance(node: MathNode) -> Fraction | None:
    """Return the allowed error of a decimal such as ``4.123105625617661``: one unit of its last place.

    Returns ``None`` for expressions that are not decimals, or too short to be rounded (``0.33`` is not a third).
    """
    while node.op == "neg":
        node = node.args[0]
    if node.op != "num" or node.args[1] is None or node.args[1] < _ROUNDED_PLACES:
        return None
    value, places = node.args
    digits = len(str(abs(value.numerator * 10**places // value.denominator)))
    if digits < _ROUNDED_PLACES:
        return None
    unit = Fraction(1, 10**places)
    return max(unit, abs(value) / 10**12) if digits > 12 else unit
