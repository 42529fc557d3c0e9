"""Checks shared by tables of cases: all failing cases are listed, and linear time is verified on any machine."""

from __future__ import annotations

import contextlib
import re
import time
import timeit
from collections.abc import Callable, Iterable
from typing import Any

from rllm_gym.core import InvalidAction


def outcome(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Return the result of a call, or the error it raises: a case that raises must not hide the cases after it."""
    try:
        return call(*arguments, **named)
    except Exception as error:
        return error


def listed(wrong: Iterable[tuple[object, ...]]) -> str:
    """Return one line per failing case, each part truncated to a readable length."""
    return "\n" + "\n".join(" | ".join(f"{part!r:.300}" for part in case) for case in wrong)


def assert_all_equal(call: Callable[[Any], Any], cases: Iterable[tuple[Any, Any]]) -> None:
    """Assert ``call(argument) == expected`` for every ``(argument, expected)``."""
    wrong = [(values, got, expected) for values, expected in cases if (got := outcome(call, values)) != expected]
    assert not wrong, listed(wrong)


def assert_all_refused(
    call: Callable[[str], Any], cases: Iterable[tuple[str, str]], *, always: str = "", limit: int = 1_000
) -> None:
    """Assert that ``call(reply)`` raises an InvalidAction with the words of every ``(reply, words)``.

    Its message can be encoded, also contains the words ``always`` and is shorter than ``limit`` characters.
    """
    wrong = []
    for reply, words in cases:
        got = outcome(call, reply)
        output = str(got).encode(errors="replace").decode()
        right = isinstance(got, InvalidAction) and words in output and always in output and len(output) < limit
        if not right or output != str(got):
            wrong.append((reply, words, got))
    assert not wrong, listed(wrong)


def assert_all_raise(
    error: type[Exception], call: Callable[[Any], Any], cases: Iterable[tuple[Any, str]], *, plain: bool = False
) -> None:
    """Assert that ``call(argument)`` raises ``error`` with a matching message, for every ``(argument, pattern)``.

    With ``plain``, the pattern is text that the message contains, and not a regular expression.
    """
    wrong = []
    for values, pattern in cases:
        got = outcome(call, values)
        if not isinstance(got, error) or not (pattern in str(got) if plain else re.search(pattern, str(got))):
            wrong.append((values, pattern, got))
    assert not wrong, listed(wrong)


# Lengths of a short and of a long text. Linear growth makes the long one's time 16 times the short one's, quadratic
# growth 256 times.
SHORT, LONG = 25_000, 400_000
BOUND = 64
FLOOR = 3e-4
"""Seconds; shorter times are rounded up to this, because they may be mostly overhead."""


def assert_linear_time(call: Callable[[str], Any], texts: Iterable[tuple[str, str, str]]) -> None:
    """Assert that ``call(head + piece * n + tail)`` takes time linear in ``n`` for every ``(head, piece, tail)``.

    Compares minima of the processor time of this thread for two lengths, which other processes or a machine that stalls
    do not affect. An InvalidAction is an acceptable result.
    """

    def fastest(head: str, piece: str, tail: str, length: int, enough: float) -> float:
        text = head + piece * (length // len(piece)) + tail

        def read() -> None:
            with contextlib.suppress(InvalidAction):
                call(text)

        best = float("inf")
        for _ in range(5):
            best = min(best, *timeit.repeat(read, timer=time.thread_time, number=1, repeat=1))
            if best <= enough:
                break
        return best

    wrong = []
    for text in texts:
        short = max(fastest(*text, SHORT, FLOOR), FLOOR)
        long = fastest(*text, LONG, BOUND * short)
        if long > BOUND * short:
            wrong.append((*text, f"{short:.4f} s for {SHORT} characters", f"{long:.4f} s for {LONG}"))
    assert not wrong, listed(wrong)
