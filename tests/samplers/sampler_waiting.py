"""Wait for unannounced events: a file that another process writes, a process that ends."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], what: str, seconds: float = 200.0) -> None:
    """Return when the condition holds.

    Raises:
        AssertionError: It does not hold within the time limit; names the condition.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"timeout after {seconds:g} s: {what}"
        time.sleep(0.02)
