"""Check whether an answer is finished. Equality would accept the question as an answer: ``29 - 48`` equals ``-19``.

Answers to built-in problems have a form, because their gold answers are simple enough for a clear definition. Rows from
files are graded by equality, as by the authors of those data sets, but no answer may repeat a formula of the problem:
``\\sqrt{242}`` to "Simplify $\\sqrt{242}$" would be right for one in thirteen problems of MATH-500.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Literal, get_args

from rllm_gym.grading.math.extract import formulas
from rllm_gym.grading.math.normalize import normalize

AnswerFormat = Literal["boxed", "answer_line", "last_number"]
"""Where in the reply the answer is; the names are those of :func:`rllm_gym.grading.grade_math`."""
ANSWER_FORMATS: tuple[AnswerFormat, ...] = get_args(AnswerFormat)
FORMS = {"number": " as one number", "fraction": " as one number", "polynomial": " as a polynomial", "expression": ""}
"""Forms of gold answers, and how the prompt names them; it does not reveal whether a number is whole."""
_RULES = {
    "boxed": "Give the final answer{form} in \\boxed{{}}.",
    "answer_line": "End your reply with a line 'Answer: ...' that gives the final answer{form}.",
    "last_number": "End your reply with the answer.",
}
_EXAMPLES = {"boxed": "\\boxed{{{answer}}}", "answer_line": "Answer: {answer}", "last_number": "{answer}"}
MISSING = {
    "boxed": "the reply has no \\boxed{}",
    "answer_line": "the reply has no line 'Answer: ...'",
    "last_number": "the reply has no number",
}
"""Why a reply has no answer, by answer format."""


def answer_rule(form: str, answer_format: AnswerFormat) -> str:
    """Return the sentence of the prompt that says how to give the answer."""
    return _RULES[answer_format].format(form=FORMS[form])


def example_reply(answer: str, answer_format: AnswerFormat) -> str:
    """Return the shortest reply that gives an answer."""
    return _EXAMPLES[answer_format].format(answer=answer)


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
_MAX_FORMULAS = 200
_MAX_PROBLEM_CHARS = 10_000


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
    if form == "expression" or form not in FORMS:
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


_TOKEN = re.compile(r"\\[A-Za-z]+|[0-9A-Za-z.]|[-+*/^!|%]")
_SPELLINGS = {"\\frac": "/", "\\div": "/", "\\cdot": "*", "\\times": "*", "\\degree": "\\circ"}
_NO_OPERATION = re.compile(r"-?(?:[0-9.]+|[A-Za-z]|\\[A-Za-z]+)(?:\^?\\circ|%)?")
_PLAIN_FRACTION = re.compile(r"-?[0-9]*/[0-9]+")
_OTHER_FORM = re.compile(r"decimal|percent|improper|mixed|simpl|lowest|reduce", re.IGNORECASE)
# With bounded repetitions: a problem from a file may be nothing but brackets.
_PLAIN_ARITHMETIC = re.compile(
    r"(?<![\d.,])\({0,9}\d[\d.,]{0,40}\){0,9}(?:\s{0,9}[-+*/^\u00d7\u00f7]\s{0,9}\({0,9}\d[\d.,]{0,40}\){0,9})+"
)
_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|in)(?![a-z])")


def repeats_problem(answer: str, gold: str, problem: str) -> bool:
    r"""Return whether an answer is a formula of the problem, also with its parts in another order or with an addition.

    Plain numbers and names never repeat the problem, nor do answers with a formula that the gold answer has too. A
    fraction does if the problem asks for another form of it.

    >>> repeats_problem(r"\sqrt{242}", r"11\sqrt2", r"Simplify $\sqrt{242}$.")
    True
    >>> repeats_problem(r"\sqrt{242} = 11\sqrt{2}", r"11\sqrt2", r"Simplify $\sqrt{242}$.")
    False
    """
    if len(answer) > _MAX_CHARS:
        return False
    value = normalize(answer).rpartition("=")[2]
    if _RELATION.search(value):
        return False
    mine, right = _tokens(value), _tokens(normalize(gold))
    if mine == right:
        return False
    other_form = _OTHER_FORM.search(problem) is not None
    for formula in itertools.islice(dict.fromkeys(_formulas_of(problem[:_MAX_PROBLEM_CHARS])), _MAX_FORMULAS):
        tokens = _tokens(formula)
        spelled = "".join(tokens)
        if (
            len(tokens) < 2
            or _NO_OPERATION.fullmatch(spelled)
            or (_PLAIN_FRACTION.fullmatch(spelled) and not other_form)
        ):
            continue
        if _contains(mine, tokens) and not _contains(right, tokens):
            return True
    return False


def _formulas_of(problem: str) -> Iterator[str]:
    for formula in formulas(problem):
        yield from re.split(r"[=<>\u2264\u2265]", normalize(formula))
    for calculation in _PLAIN_ARITHMETIC.finditer(problem):
        yield normalize(calculation[0].rstrip(".,"))


def _tokens(normalized: str) -> list[str]:
    return [_SPELLINGS.get(token, token) for token in _TOKEN.findall(normalized)]


def _contains(answer: list[str], formula: list[str]) -> bool:
    """Return whether the formula is part of the answer, or the answer is made of the same parts."""
    if len(formula) > len(answer):
        return False
    if Counter(formula) == Counter(answer):
        return True
    return f" {' '.join(formula)} " in f" {' '.join(answer)} "
