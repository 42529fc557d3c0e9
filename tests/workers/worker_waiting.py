"""Helpers that wait for other processes, with a deadline that no busy machine reaches.

Processes that the code under test should end would otherwise run for longer than the deadline (``sleep 300``).
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.waiting import is_alive, until

LONG = 120.0
"""Seconds; on an idle machine no test needs a hundredth of them."""


def gone(pids: Iterable[int]) -> bool:
    """Wait until none of the processes is alive; return whether that is so."""
    pids = list(pids)
    return until(lambda: not any(map(is_alive, pids)))
