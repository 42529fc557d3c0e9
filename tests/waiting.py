"""Wait for events that nothing announces: the end of another process, a file that appears."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(condition: Callable[[], object], seconds: float = 200.0) -> bool:
    """Poll until the condition holds and return whether it does.

    The time limit is for failures: no machine is so slow or stalls for so long.
    """
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return bool(holds)
