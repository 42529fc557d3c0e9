"""Process information from /proc: descendants, resource use, and ending a whole process family.

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
    """One line of ``/proc/PID/stat``. CPU seconds include those of children it has waited for."""

    pid: int
    parent: int
    state: str
    threads: int
    cpu_s: float

    @property
    def alive(self) -> bool:
        # A process whose first thread has ended is shown as a zombie while its other threads still run.
        return self.state not in "ZX" or self.threads > 1

    @property
    def runs(self) -> bool:
        return self.alive and self.state not in "Tt"


def processes() -> dict[int, Process]:
    """Return all processes of this pid namespace."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (one := process(int(name))) is not None:
            found[one.pid] = one
    return found


def process(pid: int) -> Process | None:
    """Return one process; ``None`` if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            line = file.read()
        # The name in parentheses is chosen by the process and may contain parentheses.
        fields = line[line.rindex(b")") + 2 :].split()
        cpu = sum(int(field) for field in fields[11:15]) / _TICKS
        return Process(pid, int(fields[1]), fields[0].decode(), int(fields[17]), cpu)
    except (OSError, ValueError, IndexError):
        return None  # it ended during the read


def descendants(roots: Iterable[int], table: dict[int, Process]) -> set[int]:
    """Return the descendants of ``roots``, without the roots."""
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


def end(members: Callable[[dict[int, Process]], set[int]], deadline: float, *, whole_namespace: bool = False) -> bool:
    """Kill all ``members`` of the process table, including those started meanwhile. Returns whether none is alive.

    Killing processes one by one fails against a family that forks faster. They are therefore stopped, in rounds, until
    a round finds none that runs, and killed then. If they are all other processes of this pid namespace, the kernel
    kills them at once: on a busy machine, where hundreds of them want to run, one round takes seconds.
    """
    stopped: set[int] = set()
    if whole_namespace:
        send(-1, signal.SIGKILL)
    for _ in range(0 if whole_namespace else _ROUNDS):
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
    """Send a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def reap() -> dict[int, int]:
    """Return the wait status of every child of this process that has ended."""
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
    """Return whether any child of this process is left, ended or not. For a subreaper: any descendant."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def memory(pids: Iterable[int], limit: int) -> int:
    """Return the bytes that the processes hold; shared pages are counted once if that matters for the limit.

    The sum of resident pages is cheap and never too low. Only if it is above ``limit`` is the kernel asked to divide
    shared pages among their holders.
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
        # The process has made itself unreadable by executing a program that it may execute but not read.
        return _field(pid, "statm") if file != "statm" else 0
    except (OSError, ValueError, IndexError):
        return 0  # it ended during the read
    return 0
