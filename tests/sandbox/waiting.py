"""Wait for unannounced events: the end of other processes' children, the start of a program in a sandbox."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil

from tests.waiting import is_alive


def processes_below(pid: int) -> list[psutil.Process]:
    """Return all descendants of a process."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return those that have not ended: neither gone nor zombies."""
    return [process for process in processes if is_alive(process)]


def mark(number: int) -> str:
    """Return a number of seconds that no other test run on this machine passes to ``sleep``, for :func:`running`."""
    return f"{number}.{os.getpid()}"


def running(argument: str) -> list[int]:
    """Return the processes of this machine, of any user, that have this among their command-line arguments."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                arguments = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it ended while it was inspected
            if argument.encode() in arguments:
                found.append(int(entry))
    return found
