"""The quick comparison for the caller's thread: exact rational arithmetic, and floats for values that are far apart."""

from __future__ import annotations

from fractions import Fraction

from rllm_gym.grading.math.exact import NotRational, TooLarge, rational
from rllm_gym.grading.math.numeric import surely_different
from rllm_gym.grading.math.syntax import Node

QUICK_BITS = 4096
_ROUNDED_PLACES = 6


class QuickJudge:
    """The quick comparison: takes microseconds for any input, and returns ``None`` if a worker has to decide."""

    symbolic = False
    """Whether anything other than rational numbers had to be compared."""

    def equal(self, gold: Node, answer: Node) -> bool | None:
        if gold == answer:
            return True
        verdict = rationally_equal(gold, answer, QUICK_BITS)
        if verdict is not None:
            return verdict
        self.symbolic = True
        return False if surely_different(gold, answer) else None

    def proportional(self, gold: Node, answer: Node) -> int | None:
        self.symbolic = True
        return 1 if gold == answer else None


def rationally_equal(gold: Node, answer: Node, max_bits: int) -> bool | None:
    """Return whether two rational numbers are equal, or one is the other rounded to at least six decimals."""
    try:
        ours, theirs = rational(gold, max_bits), rational(answer, max_bits)
    except (TooLarge, NotRational):
        return None
    if ours == theirs:
        return True
    return any(
        tolerance is not None and abs(ours - theirs) < tolerance
        for tolerance in (rounding_tolerance(gold), rounding_tolerance(answer))
    )


def rounding_tolerance(node: Node) -> Fraction | None:
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
