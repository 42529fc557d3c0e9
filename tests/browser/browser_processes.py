"""Find the browsers that run below a process. Also used by tests/envs."""

from __future__ import annotations

import psutil


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
