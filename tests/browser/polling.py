"""Waiting for what nobody announces: other processes, files that appear. Used by tests/mcp and tests/envs too."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import psutil

DEADLINE_S = 120.0
"""Far beyond what a busy or stalled machine takes: whoever waits so long waits for what never comes."""
_PAUSE_S = 0.02


def until(true: Callable[[], Any]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, f"it did not happen within {DEADLINE_S:g} s"
        time.sleep(_PAUSE_S)


async def auntil(true: Callable[[], Any]) -> None:
    """:func:`until`, while the event loop goes on."""
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, f"it did not happen within {DEADLINE_S:g} s"
        await asyncio.sleep(_PAUSE_S)


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
