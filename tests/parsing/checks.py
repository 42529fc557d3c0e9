"""Checks that tables of cases share: every case that is wrong is shown, and that time is linear, on any machine."""

from __future__ import annotations

import contextlib
import re
import time
import timeit
from collections.abc import Callable, Iterable
from typing import Any

from rllm_gym.core import InvalidAction


def outcome(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What a call returns, or the error it raises: a case that raises must not hide the cases after it."""
    try:
        return call(*arguments, **named)
    except Exception as error:
        return error


def listed(wrong: Iterable[tuple[object, ...]]) -> str:
    """One line per case that is wrong, each of its parts cut to a length that can be read."""
    return "\n" + "\n".join(" | ".join(f"{part!r:.300}" for part in case) for case in wrong)


def assert_all_equal(call: Callable[[Any], Any], cases: Iterable[tuple[Any, Any]]) -> None:
    """``call(given) == expected`` for every ``(given, expected)``."""
    wrong = [(values, got, expected) for values, expected in cases if (got := outcome(call, values)) != expected]
    assert not wrong, listed(wrong)


def assert_all_refused(
    call: Callable[[str], Any], cases: Iterable[tuple[str, str]], *, always: str = "", limit: int = 1_000
) -> None:
    """``call(reply)`` raises an InvalidAction with the words of every ``(reply, words)``.

    Its message can be encoded, has the words ``always`` too and is shorter than ``limit`` characters.
    """
    wrong = []
    for reply, words in cases:
        got = outcome(call, reply)
        output = str(got).encode(errors="replace").decode()
        right = isinstance(got, InvalidAction) and words in output and always in output and len(output) < limit
        if not right or output != str(got):
            wrong.append((reply, words, got))
    assert not wrong, listed(wrong)


def assert_all_raise(error: type[Exception], call: Callable[[Any], Any], cases: Iterable[tuple[Any, str]]) -> None:
    """``call(given)`` raises ``error`` with a message in which ``pattern`` is found, for every ``(given, pattern)``."""
    wrong = []
    for values, pattern in cases:
        got = outcome(call, values)
        if not isinstance(got, error) or not re.search(pattern, str(got)):
            wrong.append((values, pattern, got))
    assert not wrong, listed(wrong)


# Lengths of a short and of a long text. Of the long one's time, linear growth makes 16 times the short one's,
# quadratic growth 256 times.
SHORT, LONG = 25_000, 400_000
BOUND = 64
FLOOR = 3e-4
"""Seconds; a shorter time is taken for this one, because it may be mostly overhead."""


def assert_linear_time(call: Callable[[str], Any], texts: Iterable[tuple[str, str, str]]) -> None:
    """``call(head + piece * n + tail)`` takes time linear in ``n`` for every ``(head, piece, tail)``.

    Compared are minima of the processor time of this thread, for two lengths: neither other processes nor a machine
    that stands still change the verdict. An InvalidAction is as good a result as any.
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
