"""Check whether an answer is finished. Equality would accept the question as an answer: ``29 - 48`` equals ``-19``.

Only answers to built-in problems are checked; their gold answers are simple enough for a clear definition. Rows from
files are graded by equality only, as by the authors of those data sets.
"""

from __future__ import annotations

import re

RULES = {
    "number": "Give the final answer as one number in \\boxed{}.",
    "fraction": "Give the final answer as one number in \\boxed{}.",
    "polynomial": "Give the final answer as a polynomial in \\boxed{}.",
    "expression": "Give the final answer in \\boxed{}.",
}
"""The answer format in the prompt, by the form of the gold answer; it does not reveal whether a number is whole."""

_POLYNOMIAL = re.compile(r"[0-9x^+ -]*")
_SEPARATOR = re.compile(r"(?<=\d)(?:\{?,\}?|\\[,! ]| )(?=\d{3}(?!\d))")
_NUMBER = re.compile(r"\d+(?:\.\d*)?|\.\d+")
_UNIT_POWER = re.compile(r"(?<=[A-Za-z}])\s*\^\s*\{?[23]\}?")
_FRACTION = re.compile(
    r"-?\s*(?:\d+\s*)?(?:\\[dt]?frac\s*(?:\{\s*-?\d+\s*\}|\d)\s*(?:\{\s*-?\d+\s*\}|\d)|-?\d+\s*/\s*-?\d+)"
)
_LAYOUT = re.compile(r"\\(?:left|right|cdot|times|,|;|!| )|[\s$]")
_UNFINISHED = re.compile(r"\\(?:sqrt|binom|d?binom|tbinom|sum|prod|log|ln|sin|cos|tan|gcd|lcm|bmod|pmod|mod|max|min)|!")

_MAX_CHARS = 2_000


def form_of(gold: str) -> str:
    """Return ``"number"`` (whole), ``"fraction"`` (or decimal), ``"polynomial"`` (in x), or ``"expression"``."""
    if gold.lstrip("-").isdecimal():
        return "number"
    if re.fullmatch(r"-?\d+(?:/\d+|\.\d+)", gold):
        return "fraction"
    return "polynomial" if _POLYNOMIAL.fullmatch(gold) else "expression"


def is_finished(answer: str, form: str) -> bool:
    """Return whether an answer with the right value is written as a result, not as a calculation.

    >>> is_finished("-19", "number"), is_finished("29 - 48", "number"), is_finished("1,519 dollars", "number")
    (True, False, True)
    >>> is_finished("3/4", "fraction"), is_finished("1/2 + 1/4", "fraction")
    (True, False)
    >>> is_finished("x^2 - 1", "polynomial"), is_finished("(x^3 - x)/x", "polynomial")
    (True, False)
    """
    if form == "expression" or form not in RULES:
        return True
    if answer.isascii() and answer.isdigit() and len(answer) <= _MAX_CHARS:
        return True
    if len(answer) > _MAX_CHARS:
        return False
    value = answer.rpartition("=")[2].strip()
    if form == "polynomial":
        rest = _LAYOUT.sub("", value)
        return not re.search(r"[^0-9x^+*(){}.\u2212-]", rest)
    value = _UNIT_POWER.sub("", _SEPARATOR.sub("", value))
    if _UNFINISHED.search(value):
        return False
    if form == "fraction" and _FRACTION.fullmatch(value.strip(" $")):
        return True
    return len(_NUMBER.findall(value)) == 1
