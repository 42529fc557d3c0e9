"""Limits what is passed to math-verify: short formulas without words or nested powers. Checked without importing it."""

from __future__ import annotations

import re

_MAX_CHARS = 600
_MAX_DEPTH = 12
_LONG_NUMBER = re.compile(r"[0-9]{200}")
_DANGEROUS = re.compile(r"\^\s*\{[^{}]*\^|\^\s*\{?\s*[0-9]{5}|[0-9]{5}\s*!|!\s*\)?\s*!|\*\*|\^\s*[0-9A-Za-z]+\s*\^")
_WORDS = re.compile(r"\\text\{[^{}]*[A-Za-z]{2}|(?<![\\A-Za-z])[A-Za-z]{4,}")
_UNEVALUATED = re.compile(r"\\(?:sum|prod|i{0,2}int|oint|lim)(?![a-z])")


def is_unevaluated(normalized: str) -> bool:
    """Return whether a formula has a sum, product, integral or limit: what our own parser does not read."""
    return _UNEVALUATED.search(normalized) is not None


def within_bounds(normalized: str) -> bool:
    """Return whether a normalized answer is short, flat, and without words or constructs that SymPy computes endlessly.

    >>> within_bounds(r"\\sum_{k=1}^{10} k"), within_bounds("9**9**9**9"), within_bounds("seven apples")
    (True, False, False)
    """
    depth = deepest = 0
    for character in normalized[: _MAX_CHARS + 1]:
        depth += (character in "{([") - (character in "})]")
        deepest = max(deepest, depth)
    return (
        len(normalized) <= _MAX_CHARS
        and deepest <= _MAX_DEPTH
        and "$" not in normalized
        and not _LONG_NUMBER.search(normalized)
        and not _DANGEROUS.search(normalized)
        and not _WORDS.search(normalized)
    )
