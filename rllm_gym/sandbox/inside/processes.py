"""Processes as /proc tells of them: who descends from whom, what they use, and ending a whole family for good.

Sent in as source text: standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_ROUNDS = 200


@dataclass(frozen=True, slots=True)
class Process:
    """One line of ``/proc/PID/stat``. CPU seconds are its own plus those of children it has waited for."""

    pid: int
    parent: int
    state: str
    threads: int
    cpu_s: float

    @property
    def alive(self) -> bool:
        # A process whose first thread has ended is shown as a zombie while others of its threads run on.
        return self.state not in "ZX" or self.threads > 1

    @property
    def runs(self) -> bool:
        return self.alive and self.state not in "Tt"


def processes() -> dict[int, Process]:
    """All of this pid namespace."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (one := process(int(name))) is not None:
            found[one.pid] = one
    return found


def process(pid: int) -> Process | None:
    """One of them; ``None`` when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
        # The name in parentheses is the process's own choice, and may hold parentheses.
        fields = line[line.rindex(b")") + 2 :].split()
        cpu = sum(int(field) for field in fields[11:15]) / _TICKS
        return Process(pid, int(fields[1]), fields[0].decode(), int(fields[17]), cpu)
    except (OSError, ValueError, IndexError):
        return None  # it ended while it was looked at


def descendants(roots: Iterable[int], table: dict[int, Process]) -> set[int]:
    """Those below ``roots``, without them."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    todo = list(roots)
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def end(members: Callable[[dict[int, Process]], set[int]], deadline: float) -> bool:
    """Kill all ``members`` of the table, those they start meanwhile included. True when none is alive.

    Killing them one by one loses against a family that forks faster; so they are stopped, in rounds, until a round
    finds none that runs, and killed then.
    """
    stopped: set[int] = set()
    for _ in range(_ROUNDS):
        table = processes()
        running = {pid for pid in members(table) if table[pid].runs}
        fresh = running - stopped
        for pid in running:
            send(pid, signal.SIGSTOP)
        stopped |= running
        if not fresh or time.monotonic() > deadline:
            break
    while True:
        table = processes()
        alive = {pid for pid in members(table) if table[pid].alive}
        if not alive:
            return True
        for pid in alive:
            send(pid, signal.SIGKILL)
        reap()
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)


def send(pid: int, number: int) -> None:
    """A signal, to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def reap() -> dict[int, int]:
    """Wait status of every child of this process that has ended."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = status


def has_children() -> bool:
    """Whether any child of this process, ended or not, is left. For a subreaper: any descendant."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def memory(pids: Iterable[int], limit: int) -> int:
    """Bytes those processes hold, shared pages counted once if it matters.

    Adding up resident pages is cheap and never too low; only when that is above ``limit`` the kernel is asked to
    divide shared pages among their holders.
    """
    pids = list(pids)
    rough = sum(_field(pid, "statm") for pid in pids)
    return rough if rough <= limit else sum(_field(pid, "smaps_rollup") for pid in pids)


def _field(pid: int, file: str) -> int:
    try:
        with open(f"/proc/{pid}/{file}", "rb") as stream:
            text = stream.read()
        if file == "statm":
            return int(text.split()[1]) * _PAGE
        for line in text.splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except PermissionError:
        # It has made itself unreadable: by running a program that it may execute and not read.
        return _field(pid, "statm") if file != "statm" else 0
    except (OSError, ValueError, IndexError):
        return 0  # it ended while it was looked at
    return 0
