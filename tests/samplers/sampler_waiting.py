"""Waiting for what nobody announces: a file that another process writes, a process that ends."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], what: str, seconds: float = 200.0) -> None:
    """Return when the condition holds.

    Raises:
        AssertionError: It does not within so many seconds; names what was waited for.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.02)
