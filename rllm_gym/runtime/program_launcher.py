"""The trainer's side of the supervisors: start a program with a request of argv, environment and three pipe ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rllm_gym.core import EnvironmentFault
from rllm_gym.runtime import supervisor

_LENGTH = struct.Struct(">I")
_SEND_S = 30.0

private_fds: set[int] = set()
"""Pipes and sockets to programs: a fork of the trainer closes its copies, so that it does not keep them open."""


def _close_private_fds() -> None:
    for fd in private_fds:
        with contextlib.suppress(OSError):
            os.close(fd)
    private_fds.clear()


os.register_at_fork(after_in_child=_close_private_fds)


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """A command with all placeholders filled in."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str


def fill_placeholders(text: str, values: Mapping[str, str]) -> str:
    """Replace each ``{name}`` of ``values`` by its value; what a value contains is not replaced.

    >>> fill_placeholders("{a}-{b}-{c}", {"a": "{b}", "b": "1"})
    '{b}-1-{c}'
    """
    names = "|".join(map(re.escape, values))
    return re.sub(rf"\{{({names})\}}", lambda found: values[found[1]], text)


def server_spec(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, *, home: str, values: Mapping[str, str]
) -> LaunchSpec:
    """Return the command of a server, with its placeholders filled in. No shell is involved.

    Args:
        argv: The program and its arguments.
        env: Environment variables. Of this process's own, the server has only ``PATH``.
        cwd: Its working directory.
        home: Its home directory.
        values: Values by placeholder, for all of the above but ``home``; ``{python}`` is this interpreter.
    """
    values = {"python": sys.executable, **values}
    base = {"PATH": os.environ.get("PATH", os.defpath), "HOME": home, "LANG": "C.UTF-8"}
    return LaunchSpec(
        tuple(fill_placeholders(word, values) for word in argv),
        base | {key: fill_placeholders(value, values) for key, value in env.items()},
        fill_placeholders(cwd, values),
    )


class ProgramLauncher:
    """Starts programs under supervisors. Its process starts on first use, and again if it was killed. Must be closed.

    Args:
        folder: Removed at the end, also when the trainer is killed.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._commands: int | None = None
        self._pid = os.getpid()

    def start(self, spec: LaunchSpec, fds: Sequence[int]) -> int:
        """Start a program with the given standard input, output and error; the caller closes those.

        Returns:
            A socket that yields lines of JSON: ``{"pid"}`` or ``{"error", "file"}``, then ``{"status"}`` when the
            program ends, and end of file when all its processes are gone. Writing one byte ends the program.

        Raises:
            EnvironmentFault: No process can be started on this machine.
        """
        ours, theirs = socket.socketpair()
        body = json.dumps({"argv": spec.argv, "env": dict(spec.env), "cwd": spec.cwd}).encode()
        try:
            with theirs:
                self._send_command(theirs.fileno())
            ours.settimeout(_SEND_S)
            socket.send_fds(ours, [_LENGTH.pack(len(body))], list(fds))
            ours.sendall(body)
        except OSError as error:
            ours.close()
            raise EnvironmentFault(f"cannot start a process: {error}", kind="server_start") from error
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        return ours.detach()

    def close(self) -> None:
        """End the launcher process, after its programs. Safe to call twice."""
        with self._lock:
            if self._pid == os.getpid():
                self._discard()

    def _send_command(self, fd: int) -> None:
        with self._lock:
            try:
                self._send(fd)
            except OSError:  # it was killed between two requests
                self._discard()
                self._send(fd)

    def _send(self, fd: int) -> None:
        if self._commands is None:
            self._commands = self._start_supervisor()
        with socket.socket(fileno=os.dup(self._commands)) as commands:
            commands.settimeout(_SEND_S)
            socket.send_fds(commands, [b"k"], [fd])

    def _start_supervisor(self) -> int:
        if not sys.executable:
            raise EnvironmentFault("sys.executable is empty, so no program can be started", kind="server_start")
        ours, theirs = socket.socketpair()
        with theirs:
            arguments = [str(theirs.fileno()), str(os.getpid()), self._folder]
            command = [sys.executable, "-I", "-S", "-B", supervisor.__file__, *arguments]
            try:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env={"LANG": "C.UTF-8"},
                )
            except BaseException:
                ours.close()
                raise
        private_fds.add(ours.fileno())
        return ours.detach()

    def _discard(self) -> None:
        if self._commands is not None:
            private_fds.discard(self._commands)
            os.close(self._commands)
            self._commands = None
        if self._process is not None:
            process, self._process = self._process, None
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5.0)
