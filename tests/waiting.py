"""Wait for events that nothing announces: the end of another process, a file that appears."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil


def until(condition: Callable[[], object], seconds: float = 200.0) -> bool:
    """Poll until the condition holds and return whether it does.

    The time limit is for failures: no machine is so slow or stalls for so long.
    """
    end = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return bool(holds)


async def auntil(condition: Callable[[], object | Awaitable[object]], seconds: float = 200.0) -> None:
    """Poll, without blocking the event loop, until the condition, which may be a coroutine function, holds.

    Raises:
        AssertionError: It does not hold in time.
    """
    end = time.monotonic() + seconds
    while not (await holds if inspect.isawaitable(holds := condition()) else holds):
        assert time.monotonic() < end, f"the condition did not hold within {seconds:g} s"
        await asyncio.sleep(0.01)


def is_alive(process: int | psutil.Process) -> bool:
    """Return whether a process runs; a zombie does not."""
    import psutil  # not in every environment of tests/integrations

    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(process) if isinstance(process, int) else process
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
