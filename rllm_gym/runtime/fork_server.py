"""The warm process that workers are forked from; it ends with its owner, and all workers end with it.

One single-threaded process per pool. It has the pool's modules imported, so that a worker starts in milliseconds; it
reaps and kills workers; and when its owner ends, even by SIGKILL, it kills all remaining ones.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from rllm_gym.runtime import child

_PR_SET_CHILD_SUBREAPER = 36


def main(fd: int, owner_pid: int, preload: list[str]) -> None:
    """Serve the owner at the other end of socket ``fd`` until it closes it or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if sys.platform == "linux":
        # Orphans of dead workers become children of this process, so that all of them can be killed.
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for name in preload:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    control = socket.socket(fileno=fd)
    try:
        _ForkServer(control, owner_pid).serve()
    finally:
        _kill_all(_descendants(os.getpid()))


class _ForkServer:
    def __init__(self, control: socket.socket, owner_pid: int) -> None:
        self._control = control
        self._owner_pid = owner_pid
        self._alive: dict[str, int] = {}
        self._status: dict[str, int] = {}
        # Readable when the owner has ended, even while a fork of the owner still holds the socket open.
        self._owner: int | None = None
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self._owner = os.pidfd_open(owner_pid)

    def serve(self) -> None:
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        if self._owner is not None:
            poller.register(self._owner, select.POLLIN)
        text, fds = b"", collections.deque[int]()
        while os.getppid() == self._owner_pid:
            events = dict(poller.poll(500))
            self._reap()
            if self._owner in events:
                return
            if self._control.fileno() not in events:
                continue
            data, new_fds, _, _ = socket.recv_fds(self._control, 1 << 16, 64)
            if not data:
                return
            fds.extend(new_fds)
            *lines, text = (text + data).split(b"\n")
            for line in lines:
                self._handle(json.loads(line), fds)

    def _handle(self, command: dict[str, Any], fds: collections.deque[int]) -> None:
        worker = command["worker"]
        if command["do"] == "spawn":
            self._spawn(worker, fds.popleft(), command["memory_mb"], command["path"])
        elif command["do"] == "end":
            self._end(worker)
        elif command["do"] == "why":
            reply = {"worker": worker, "status": self._exit_status(worker)}
            self._control.sendall(json.dumps(reply).encode() + b"\n")

    def _spawn(self, worker: str, fd: int, memory_mb: int | None, path: list[str]) -> None:
        template_pid = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            os.close(fd)  # the owner sees the connection close before the worker's first message
            return
        if pid:
            os.close(fd)
            self._alive[worker] = pid
            return
        code = 1
        try:
            self._control.close()
            if self._owner is not None:
                os.close(self._owner)
            sys.path[:] = path
            child.serve(socket.socket(fileno=fd), memory_mb, template_pid)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            # Never return into the template's own frames, and run none of the template's exit handlers.
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for worker, known in self._alive.items():
                if known == pid:
                    self._status[worker] = os.waitstatus_to_exitcode(status)
                    del self._alive[worker]
                    _kill_group(pid)
                    break

    def _end(self, worker: str) -> None:
        pid = self._alive.get(worker)
        if pid is not None:
            family = _descendants(pid)
            _kill_group(pid)
            _kill_all([pid, *family])
            self._alive.pop(worker)
        self._status.pop(worker, None)

    def _exit_status(self, worker: str) -> int | None:
        # A dying process closes its sockets a moment before it can be reaped. The number of attempts is limited, not
        # the time: while the whole machine is stalled, no process dies either.
        for _ in range(500):
            self._reap()
            if worker not in self._alive:
                break
            time.sleep(0.002)
        status = self._status.get(worker)
        self._end(worker)
        return status


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _kill_all(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _descendants(root: int) -> list[int]:
    """Return every process below ``root``, including those that left its session (Linux; elsewhere an empty list)."""
    children = collections.defaultdict[int, list[int]](list)
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            # "pid (any name, even with parentheses) state ppid …"
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        children[int(fields[1])].append(int(entry.parent.name))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children[queue.pop()]
        found += below
        queue += below
    return found
