"""Tables of invalid options, each with the expected error message."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any


def not_raised(
    cases: Iterable[tuple[Any, str]], act: Callable[[Any], object], error: type[Exception]
) -> list[tuple[Any, str, str]]:
    """Return the cases in which ``act`` does not raise the error, or one that does not match the pattern: the case, its
    pattern, and the actual result.
    """
    wrong = []
    for case, pattern in cases:
        try:
            got = f"returned {act(case)!r}"
        except error as refused:
            got = str(refused)
            if re.search(pattern, got):
                continue
        wrong.append((case, pattern, got))
    return wrong
