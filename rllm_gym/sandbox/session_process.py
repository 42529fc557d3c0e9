"""The trusted process of a session: starting it in the isolation of a tier, and the channel to it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from rllm_gym.sandbox import bubblewrap, uids
from rllm_gym.sandbox.errors import SandboxFault
from rllm_gym.sandbox.inside.frames import LENGTHS, frame_start
from rllm_gym.sandbox.inside.landlock_worker import remove
from rllm_gym.sandbox.runtime import Runtime
from rllm_gym.sandbox.tier import Tier
from rllm_gym.sandbox.worker import LOAD_MODULES, lower_tier_settings, sources, stderr_tail

WORKDIR = "/workspace"
"""The path of the workspace inside, in tier A."""

_MAX_HEADER, _MAX_BODY = 1 << 28, 1 << 31
_START_S = 120.0
_END_S = 20.0

_CONFINEMENT = {Tier.NAMESPACES: "namespaces", Tier.LANDLOCK: "landlock", Tier.UNSAFE: "none"}
_COMMON = ("frames", "files", "mounts", "workspace", "command_confinement", "session")
MODULES = ("syscalls", "seccomp", "processes", *_COMMON)
_NAMESPACE_MODULES = (*MODULES[:-1], "private_files", MODULES[-1])
_LOWER_MODULES = ("syscalls", "processes", "landlock", "seccomp", "named_memory", "landlock_worker", *_COMMON)
_BOOT = f"""
import json, sys, types
reading, writing, owner, sources = map(int, sys.argv[1:5])
with open(sources, "rb") as file:
    settings = json.load(file)
{LOAD_MODULES}
sys.modules[package + ".session"].main(reading, writing, owner, settings)
"""


class SessionChannel:
    """Frames to and from one trusted process, with deadlines."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, header: dict[str, Any], body: bytes, deadline: float) -> None:
        self._sock.settimeout(_left(deadline))
        self._sock.sendall(frame_start(header, body))
        if body:
            self._sock.settimeout(_left(deadline))
            self._sock.sendall(body)

    def receive(self, deadline: float) -> tuple[dict[str, Any], bytes]:
        header, body = LENGTHS.unpack(self._exactly(LENGTHS.size, deadline))
        if header > _MAX_HEADER or body > _MAX_BODY:
            raise EOFError(f"a frame of {header} + {body} bytes was announced")
        return json.loads(self._exactly(header, deadline)), self._exactly(body, deadline)

    def _exactly(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._sock.settimeout(_left(deadline))
            piece = self._sock.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise EOFError("the connection was closed")
            data += piece
        return bytes(data)

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._sock.close()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline passed")
    return left


class TrustedProcess(Protocol):
    """Interface of the trusted process of one session, wherever it runs."""

    channel: SessionChannel
    tier: Tier

    @property
    def workdir(self) -> str: ...

    @property
    def variables(self) -> dict[str, str]: ...

    def stderr_tail(self) -> str: ...

    def close(self) -> None: ...


class SessionProcess:
    """The trusted process of one session, from start to end.

    Args:
        tier: How the process is isolated.
        runtime: The files that its commands see.

    Raises:
        SandboxUnavailable: The isolation cannot be set up.
        SandboxFault: The process could not be started.
    """

    def __init__(self, tier: Tier, runtime: Runtime) -> None:
        self.tier = tier
        self.runtime = runtime
        self.user = uids.acquire() if tier in (Tier.NAMESPACES, Tier.LANDLOCK) else None
        self.folder: str | None = None
        self._stderr = os.memfd_create("stderr", os.MFD_CLOEXEC)
        self._lock = threading.Lock()
        self._closed = False
        self.shared: list[str] = []
        """Paths inside whose files are the machine's own, although tier A would give it others; set when ready."""
        self._pid = os.getpid()
        ours, theirs = socket.socketpair()
        self.channel = SessionChannel(ours)
        try:
            self._process = _starter.submit(self._start, theirs.fileno()).result()
        except BaseException as error:
            ours.close()
            self._release()
            if isinstance(error, OSError):
                raise SandboxFault(f"a session's process could not be started: {error}") from error
            raise
        finally:
            theirs.close()

    def _start(self, control: int) -> subprocess.Popen[bytes]:
        owner = os.pidfd_open(os.getpid())
        stderr_fd = os.memfd_create("sources", os.MFD_CLOEXEC)
        outer = None
        try:
            fds = [control, owner, stderr_fd]
            command = [self.runtime.python, "-I", "-S", "-B", "-c", _BOOT, *map(str, (control, *fds))]
            settings: dict[str, Any] = {
                "confinement": _CONFINEMENT[self.tier],
                "view": None,
                "folder": None,
            }
            if self.tier is Tier.NAMESPACES:
                outer = bubblewrap.BubblewrapCommand(self.runtime, command, extra=["--dir", WORKDIR])
                command, fds = outer.command, [*fds, *outer.fds]
                # The tree of the machine stays until the workspace has been created.
                settings |= {"view": outer.view | {"keep_host": True}, "modules": sources(_NAMESPACE_MODULES)}
            else:
                self.folder = tempfile.mkdtemp(prefix="rllm-gym-session-")
                settings |= lower_tier_settings(self.runtime, self.folder)
                settings |= {"folder": self.folder, "uid": self.user, "modules": sources(_LOWER_MODULES)}
            os.write(stderr_fd, json.dumps(settings).encode())
            os.lseek(stderr_fd, 0, os.SEEK_SET)
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=fds,
                start_new_session=True,
                env={"LANG": "C.UTF-8"},
            )
        finally:
            os.close(owner)
            os.close(stderr_fd)
            if outer is not None:
                outer.close()

    @property
    def scratch(self) -> str:
        """The directory inside that holds everything the agent can write."""
        return bubblewrap.SCRATCH if self.folder is None else f"{self.folder}/scratch"

    @property
    def workdir(self) -> str:
        return WORKDIR if self.folder is None else f"{self.scratch}/workspace"

    @property
    def variables(self) -> dict[str, str]:
        """The environment of its commands."""
        variables = bubblewrap.environment(self.runtime) | {"PAGER": "cat"}
        if self.folder is not None:
            temporary = f"{self.scratch}/tmp"
            variables |= {"HOME": temporary, "TMPDIR": temporary, "PYTHONPATH": f"{self.folder}/packages"}
            variables["GIT_CONFIG_NOSYSTEM"] = "1"  # git fails if the system configuration is inaccessible
        return variables

    def wait_until_ready(self) -> None:
        """Wait until the process answers.

        Raises:
            SandboxFault: It did not start.
        """
        try:
            header, _ = self.channel.receive(time.monotonic() + _START_S)
            self.shared = header["shared"]
        except (OSError, EOFError) as error:
            message = f"a session's process did not start: {error}{self.stderr_tail()}"
            self.close()
            raise SandboxFault(message) from error

    def pids(self) -> list[int]:
        """Return the id of the trusted process and, with bwrap, the id of the process that waits for it."""
        pid = self._process.pid
        try:
            inner = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            inner = []  # it has ended, or the kernel does not provide the list
        return [*map(int, inner), pid] if self.tier is Tier.NAMESPACES else [pid]

    @property
    def alive(self) -> bool:
        return not self._closed and self._process.poll() is None

    def stderr_tail(self) -> str:
        """Return the end of what the process wrote to standard error, for error messages."""
        return "" if self._stderr < 0 else stderr_tail(self._stderr)

    def close(self) -> None:
        """Close the connection and wait until the process and all its descendants have ended."""
        if os.getpid() != self._pid:
            return  # this is a fork of the owner, and the session belongs to the owner
        self.channel.hang_up()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                for pid in self.pids():
                    os.kill(pid, signal.SIGKILL)
                self._process.wait()
            self.channel.close()
            self._release()

    def _release(self) -> None:
        os.close(self._stderr)
        self._stderr = -1
        uids.release(self.user)
        if self.folder is not None:
            with contextlib.suppress(OSError):  # usually it is gone; else a killed process left a hostile tree
                remove(self.folder)


_starter = ThreadPoolExecutor(1, thread_name_prefix="session-starter")
"""A process started by ``bwrap`` dies with the *thread* that started it. This thread lives as long as the program."""


def _new_starter_after_fork() -> None:
    global _starter
    _starter = ThreadPoolExecutor(1, thread_name_prefix="session-starter")


os.register_at_fork(after_in_child=_new_starter_after_fork)
