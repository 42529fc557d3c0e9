"""Comparison of a program's output with the expected output, by the rules of programming contests.

White space at line ends and line breaks at the end of the output are ignored. Everything else counts: the number of
lines, and white space at the beginning of a line and within it. With a tolerance, lines are compared token by token,
and tokens that are numbers by value; whole numbers must be exact.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import repeat

_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
_WHOLE = re.compile(r"[+-]?[0-9]+", re.ASCII)
# str.split() without an argument also splits at "\x1c", "\x85" and other characters that no online judge treats as
# whitespace.
_WHITESPACE = re.compile(r"[ \t\r\f\v]+")
_SHOWN = 200


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """The first difference between an output and the expected one; ``line`` counts from 1."""

    line: int
    got: str
    expected: str


def max_output_bytes(expected: str) -> int:
    """Return the maximum bytes of a correct output: the expected ones plus a generous amount of white space."""
    return 4 * len(expected.encode("utf-8", "surrogatepass")) + 65_536


def difference(
    output: bytes, expected: str, float_tolerance: float | None = None, *, tokens: bool = False
) -> OutputDifference | None:
    """Return the first difference between output and expected output; ``None`` if there is none.

    Args:
        output: The program's output. Output that is not UTF-8 is wrong.
        expected: The expected output.
        float_tolerance: ``|got - expected| <= tolerance * max(1, |expected|)`` for finite numbers. Where a whole number
            is expected, ``2000000``, another whole number is wrong, and a decimal may differ by ``tolerance`` itself.
            ``None``: compare text.
        tokens: Compare the words of the whole output, wherever its lines end; ``yes`` and ``no`` in any case.

    >>> difference(b"1 \\n2\\n\\n", "1\\n2")
    >>> difference(b"0.3333334", "0.333333", 1e-6)
    >>> difference(b"nan", "0.5", 1e9)
    OutputDifference(line=1, got='nan', expected='0.5')
    """
    try:
        text = output.decode()
    except UnicodeDecodeError as error:
        line = output[: error.start].count(b"\n") + 1
        return OutputDifference(line, "bytes that are not UTF-8", _shown(expected.split("\n")[:1]))
    got_lines, expected_lines = _lines(text), _lines(expected)
    if tokens:
        got_words, words = (
            [word for line in lines for word in tokens_of(line)] for lines in (got_lines, expected_lines)
        )
        if len(got_words) == len(words) and all(map(_same_word, got_words, words, repeat(float_tolerance))):
            return None
    for number, (got, wanted) in enumerate(zip(got_lines, expected_lines), 1):
        if got != wanted and not (float_tolerance is not None and _near(got, wanted, float_tolerance)):
            return OutputDifference(number, _shown([got]), _shown([wanted]))
    if len(got_lines) != len(expected_lines):
        shorter = min(len(got_lines), len(expected_lines))
        return OutputDifference(shorter + 1, _rest(got_lines, shorter), _rest(expected_lines, shorter))
    return None


def _lines(text: str) -> list[str]:
    lines = [line.rstrip(" \t\r\f\v") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _near(got: str, expected: str, tolerance: float) -> bool:
    tokens, wanted = tokens_of(got), tokens_of(expected)
    return len(tokens) == len(wanted) and all(
        token == other or _near_numbers(token, other, tolerance) for token, other in zip(tokens, wanted)
    )


def _same_word(token: str, expected: str, tolerance: float | None) -> bool:
    if token == expected or (expected.lower() in ("yes", "no") and token.lower() == expected.lower()):
        return True
    return tolerance is not None and _near_numbers(token, expected, tolerance)


def tokens_of(text: str) -> list[str]:
    """Return the parts of a line that are separated by whitespace."""
    return [token for token in _WHITESPACE.split(text) if token]


def _near_numbers(token: str, expected: str, tolerance: float) -> bool:
    # Check the spelling first: float() also accepts "nan", "inf", "1_0" and digits of other scripts.
    if not _NUMBER.fullmatch(token) or not _NUMBER.fullmatch(expected):
        return False
    whole = _WHOLE.fullmatch(expected)
    if whole and _WHOLE.fullmatch(token):
        return int(token) == int(expected)
    value, wanted = float(token), float(expected)
    if value in (float("inf"), float("-inf")) or wanted in (float("inf"), float("-inf")):
        return False
    return abs(value - wanted) <= tolerance * (1.0 if whole else max(1.0, abs(wanted)))


def _shown(lines: list[str]) -> str:
    text = "".join(lines)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _rest(lines: list[str], start: int) -> str:
    return _shown(lines[start : start + 1]) if start < len(lines) else "the end of the output"
