"""The thorough comparison for grading workers: exact up to 200,000 bits, then fifty digits at several points."""

from __future__ import annotations

from fractions import Fraction

from rllm_gym.grading.math import digits
from rllm_gym.grading.math.compare import any_of, same
from rllm_gym.grading.math.judges import rationally_equal, rounding_tolerance
from rllm_gym.grading.math.readings import readings
from rllm_gym.grading.math.syntax import Node

MAX_BITS = 200_000


def decide(gold: str, answer: str) -> bool | None:
    """Return whether two tidied answers are equal; ``None`` if one is unreadable or a value cannot be computed."""
    judge = ThoroughJudge()
    ours, theirs = readings(gold), readings(answer)
    return any_of(same(mine, other, judge) for mine in ours for other in theirs) if ours and theirs else None


class ThoroughJudge:
    """The thorough comparison: returns ``None`` only for expressions whose value fifty digits cannot determine."""

    def equal(self, gold: Node, answer: Node) -> bool | None:
        if gold == answer:
            return True
        verdict = rationally_equal(gold, answer, MAX_BITS)
        if verdict is not None:
            return verdict
        verdict = digits.equal(gold, answer)
        if verdict is False:
            for decimal, exact in ((gold, answer), (answer, gold)):
                tolerance = rounding_tolerance(decimal)
                if tolerance is not None and digits.near(exact, _decimal_value(decimal), tolerance):
                    return True
        return verdict

    def proportional(self, gold: Node, answer: Node) -> int | None:
        return digits.ratio_sign(gold, answer)


def _decimal_value(decimal: Node) -> Fraction:
    if decimal.op == "neg":
        return -_decimal_value(decimal.args[0])
    value: Fraction = decimal.args[0]
    return value
