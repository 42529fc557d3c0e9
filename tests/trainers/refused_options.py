"""Tables of what must be refused, each with what the error message must say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any


def not_refused(
    cases: Iterable[tuple[Any, str]], act: Callable[[Any], object], error: type[Exception]
) -> list[tuple[Any, str, str]]:
    """The cases in which ``act`` does not raise the error, or one that does not match the pattern: the case, its
    pattern, and what came instead."""
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
