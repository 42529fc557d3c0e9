"""The symbolic comparison for grading workers: exact up to 200,000 bits, then fifty digits at several points."""

from __future__ import annotations

from fractions import Fraction

from rllm_gym.grading.math import high_precision
from rllm_gym.grading.math.compare import any_of, same
from rllm_gym.grading.math.comparers import rationally_equal, rounding_tolerance
from rllm_gym.grading.math.interpretations import interpretations
from rllm_gym.grading.math.syntax import MathNode

MAX_BITS = 200_000


def decide(gold: str, answer: str) -> bool | None:
    """Return whether two normalized answers are equal; ``None`` if one is unreadable or a value cannot be computed."""
    comparer = SymbolicComparer()
    gold_readings, answer_readings = interpretations(gold), interpretations(answer)
    return (
        any_of(same(mine, other, comparer) for mine in gold_readings for other in answer_readings)
        if gold_readings and answer_readings
        else None
    )


class SymbolicComparer:
    """The symbolic comparison: returns ``None`` only for expressions whose value fifty digits cannot determine."""

    def equal(self, gold: MathNode, answer: MathNode) -> bool | None:
        if gold == answer:
            return True
        verdict = rationally_equal(gold, answer, MAX_BITS)
        if verdict is not None:
            return verdict
        verdict = high_precision.equal(gold, answer)
        if verdict is False:
            for decimal, exact in ((gold, answer), (answer, gold)):
                tolerance = rounding_tolerance(decimal)
                if tolerance is not None and high_precision.near(exact, _decimal_value(decimal), tolerance):
                    return True
        return verdict

    def proportional(self, gold: MathNode, answer: MathNode) -> int | None:
        return high_precision.ratio_sign(gold, answer)


def _decimal_value(decimal: MathNode) -> Fraction:
    if decimal.op == "neg":
        return -_decimal_value(decimal.args[0])
    value: Fraction = decimal.args[0]
    return value
