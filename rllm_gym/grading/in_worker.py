"""What a grading worker does: fifty digits first, and math-verify for notations that only it reads.

Runs in a process that is killed at its deadline and capped in memory, and nowhere else. Answer text reaches
math-verify's LaTeX grammar only; its plain-expression path calls ``sympy.parse_expr``, which evaluates Python.
"""

from __future__ import annotations

import logging
import re

import math_verify
from math_verify import LatexExtractionConfig

from rllm_gym.grading import digits
from rllm_gym.grading.compare import any_of, same
from rllm_gym.grading.judges import rationally_equal, rounding_tolerance
from rllm_gym.grading.readings import readings
from rllm_gym.grading.syntax import Node, Unreadable

MAX_BITS = 1_000_000
_MAX_GRAMMAR_CHARS = 600
_MAX_GRAMMAR_DEPTH = 12
_LONG_NUMBER = re.compile(r"[0-9]{200}")
_DANGEROUS = re.compile(r"\^\s*\{[^{}]*\^|\^\s*\{?\s*[0-9]{5}|[0-9]{5}\s*!|!\s*\)?\s*!|\*\*|\^[^+\-={}]*\^")
_RELATION = re.compile(r"=|<|>|\\(?:le|ge|ne|in)\b")
logging.getLogger("math_verify").setLevel(logging.CRITICAL)


class ThoroughJudge:
    """Exact up to a million bits, then fifty digits."""

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
                if tolerance is not None and digits.near(exact, _value(decimal), tolerance):
                    return True
        return verdict

    def proportional(self, gold: Node, answer: Node) -> int | None:
        return digits.ratio_sign(gold, answer)


def _value(decimal: Node) -> object:
    return -_value(decimal.args[0]) if decimal.op == "neg" else decimal.args[0]  # type: ignore[operator]


def decide(gold: str, answer: str) -> bool:
    """Whether two tidied answers are equal, as far as can be found out."""
    ours, theirs = readings(gold), readings(answer)
    judge = ThoroughJudge()
    verdict = any_of(same(mine, other, judge) for mine in ours for other in theirs) if ours and theirs else None
    if verdict is not None:
        return verdict
    return _by_grammar(gold, answer)


def _by_grammar(gold: str, answer: str) -> bool:
    if any(_out_of_bounds(text) for text in (gold, answer)):
        return False
    if _has_words(gold) or _has_words(answer):
        return False
    expected, found = _parse(gold), _parse(answer)
    if not expected or not found:
        return False
    try:
        return bool(math_verify.verify(expected, found, strict=True, timeout_seconds=None))
    except BaseException as error:
        # math-verify raises what it likes, a BaseException for its own timeouts included: not an equality.
        if isinstance(error, MemoryError | KeyboardInterrupt):
            raise
        return False


def _parse(text: str) -> list[object]:
    """The SymPy objects of a formula; strings math-verify falls back to are left out."""
    try:
        parsed = math_verify.parse(
            f"${text}$",
            extraction_config=(LatexExtractionConfig(),),
            fallback_mode="no_fallback",
            parsing_timeout=None,
        )
    except BaseException as error:
        if isinstance(error, MemoryError | KeyboardInterrupt):
            raise
        return []
    return [item for item in parsed if not isinstance(item, str)]


def _out_of_bounds(text: str) -> bool:
    depth = deepest = 0
    for character in text:
        depth += (character in "{([") - (character in "})]")
        deepest = max(deepest, depth)
    return (
        len(text) > _MAX_GRAMMAR_CHARS
        or deepest > _MAX_GRAMMAR_DEPTH
        or _LONG_NUMBER.search(text) is not None
        or _DANGEROUS.search(text) is not None
        or "$" in text
    )


def _has_words(text: str) -> bool:
    return (
        re.search(r"\\text\{[^{}]*[A-Za-z]{2}", text) is not None
        or re.search(r"(?<![\\A-Za-z])[A-Za-z]{4,}", text) is not None
    )


__all__ = ["ThoroughJudge", "Unreadable", "decide"]
