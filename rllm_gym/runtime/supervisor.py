"""A supervisor program beside the trainer: starts programs (MCP servers, agents), and ends each with all descendants.

One launcher process per owner forks one supervisor per program: a fork of this small process costs a hundredth of a
start of Python. The supervisor waits for the end of its program, for a command to end it, and for the end of the
trainer, even by SIGKILL; then it kills everything that the program has started. Standard library only; nothing of the
package is imported here.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
import time
from typing import Any, NoReturn

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LENGTH = struct.Struct(">I")
_END_S = 10.0
"""Seconds to keep killing descendants that start new processes faster than they are killed."""


def main() -> None:
    """Serve the trainer until it closes the socket or ends.

    Command line arguments: a socket to the trainer, its pid, a folder to remove at the end.
    """
    commands = socket.socket(fileno=int(sys.argv[1]))
    owner_pid = int(sys.argv[2])
    owner = os.pidfd_open(owner_pid) if hasattr(os, "pidfd_open") else None
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors that end leave no zombies
    poller = select.poll()
    poller.register(commands, select.POLLIN)
    if owner is not None:
        poller.register(owner, select.POLLIN)
    while os.getppid() == owner_pid:
        events = dict(poller.poll(1000))
        if owner in events:
            break
        if commands.fileno() not in events:
            continue
        data, fds, _, _ = socket.recv_fds(commands, 1, 1)
        if not data:
            break
        if os.fork() == 0:
            commands.close()
            _supervise(socket.socket(fileno=fds[0]), owner, owner_pid)
        os.close(fds[0])
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-1, 0)  # the supervisors, which end processes that may still write there
    shutil.rmtree(sys.argv[3], ignore_errors=True)


def _supervise(control: socket.socket, owner: int | None, owner_pid: int) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        os.setsid()
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphaned descendants of the server become children of this process
        head, fds, _, _ = socket.recv_fds(control, _LENGTH.size, 3)
        command = json.loads(_exactly(control, _LENGTH.unpack(head)[0]))
        try:
            server = _start(command, fds)
        except OSError as error:
            _send(control, {"error": error.strerror or str(error), "file": error.filename})
            os._exit(0)
        for fd in fds:
            os.close(fd)
        _send(control, {"pid": server})
        status = _await_end(server, control, owner, owner_pid)
        if status is not None:
            _send(control, {"status": status})
        _kill_process_tree(server)
    finally:
        os._exit(0)


def _start(command: dict[str, Any], fds: list[int]) -> int:
    """Return the server's process id.

    Raises:
        OSError: It could not be started; includes the file.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        where = command["cwd"]
        try:
            os.setsid()
            os.chdir(where)
            where = command["argv"][0]
            for target, fd in enumerate(fds):
                os.dup2(fd, target)
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            for number in (signal.SIGINT, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.closerange(3, writing)
            os.closerange(writing + 1, 1024)
            os.execvpe(where, command["argv"], command["env"])
        except OSError as error:
            os.write(writing, json.dumps([error.errno, error.strerror, where]).encode())
        finally:
            os._exit(127)
    os.close(writing)
    with open(reading, "rb") as failure:  # closed by a successful exec
        if message := failure.read():
            os.waitpid(pid, 0)
            raise OSError(*json.loads(message))
    return pid


def _await_end(server: int, control: socket.socket, owner: int | None, owner_pid: int) -> int | None:
    """Return the server's exit status, or ``None`` when it must be ended."""
    poller = select.poll()
    poller.register(control, select.POLLIN)
    if owner is None:  # no pidfd on this system: poll
        while True:
            if poller.poll(100) or os.getppid() == 1:
                return None
            if os.waitid(os.P_PID, server, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])
    ended = os.pidfd_open(server)
    for fd in (owner, ended):
        poller.register(fd, select.POLLIN)
    while True:
        events = dict(poller.poll())
        if ended in events:
            return os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])
        if events:
            return None


def _kill_process_tree(server: int) -> None:
    """Kill the server's process group, and all descendants that left it, until nothing is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server, signal.SIGKILL)
    give_up = time.monotonic() + _END_S
    while _has_children() and time.monotonic() < give_up:
        for pid in _descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


def _has_children() -> bool:
    """Reap ended children; return whether any is still running."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _descendants(root: int) -> list[int]:
    """Return every descendant of ``root`` (Linux; elsewhere an empty list)."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:
                # "pid (any name, even with parentheses) state ppid …"
                children.setdefault(int(file.read().rpartition(b")")[2].split()[1]), []).append(int(name))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _send(control: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the trainer has closed the socket
        control.sendall(json.dumps(message).encode() + b"\n")


def _exactly(control: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = control.recv(size - len(data))
        if not piece:
            os._exit(0)
        data += piece
    return data


if __name__ == "__main__":
    main()
