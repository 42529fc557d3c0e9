"""Runs many attacks in one pool, some concurrently, and names those that succeed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from rllm_gym.grading.code import CodeVerdict

AT_A_TIME = 4

T = TypeVar("T")


def graded(attacks: Iterable[str], grade: Callable[[str], T], at_a_time: int = AT_A_TIME) -> dict[str, T | Exception]:
    """Return the result of each attack, or the exception it raised."""

    def one(name: str) -> T | Exception:
        try:
            return grade(name)
        except Exception as error:  # the others are still graded
            return error

    names = list(attacks)
    with ThreadPoolExecutor(at_a_time) as threads:
        return dict(zip(names, threads.map(one, names), strict=True))


def rewarded(found: dict[str, CodeVerdict | Exception]) -> dict[str, object]:
    """Return attacks that got any reward or could not be graded."""
    return {name: output for name, output in found.items() if isinstance(output, Exception) or output.fraction != 0}


def not_correct(found: dict[str, CodeVerdict | Exception]) -> dict[str, object]:
    """Return attempts that did not get the full reward or could not be graded."""
    return {name: output for name, output in found.items() if isinstance(output, Exception) or not output.correct}
