"""Poll for unannounced events: other processes, files that appear. Also used by tests/mcp and tests/envs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import psutil

DEADLINE_S = 120.0
"""Far longer than a busy or stalled machine takes: a wait this long would never end."""
_PAUSE_S = 0.02


async def auntil(true: Callable[[], Any]) -> None:
    """Wait until a condition holds, without blocking the event loop."""
    deadline = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline, f"the condition did not hold within {DEADLINE_S:g} s"
        await asyncio.sleep(_PAUSE_S)


def lives(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def command_line(process: psutil.Process) -> str:
    """Return the words of its command line; nothing if it has ended."""
    try:
        return " ".join(process.cmdline()) if process.status() != psutil.STATUS_ZOMBIE else ""
    except psutil.Error:
        return ""


def browsers(parent: int | None = None) -> list[psutil.Process]:
    """Return the Chromium processes (not their renderers) below a process."""
    found = []
    for process in psutil.Process(parent).children(recursive=True):
        line = command_line(process)
        if "--remote-debugging-pipe" in line and "--type=" not in line:
            found.append(process)
    return found
