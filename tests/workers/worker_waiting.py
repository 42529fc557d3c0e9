"""Waiting for what other processes do, with a deadline that no busy machine reaches.

What would go on without the behaviour under test goes on for longer than the deadline (``sleep 300``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable

import psutil

LONG = 120.0
"""Seconds; no test needs a hundredth of them on an idle machine."""


def until(condition: Callable[[], object]) -> bool:
    """Wait until the condition holds; whether it does."""
    deadline = time.monotonic() + LONG
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.01)  # the processor is for those who are waited for
    return bool(holds)


def lives(pid: int) -> bool:
    """A zombie does not live."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def gone(pids: Iterable[int]) -> bool:
    """Wait until none of the processes lives; whether that is so."""
    pids = list(pids)
    return until(lambda: not any(map(lives, pids)))
