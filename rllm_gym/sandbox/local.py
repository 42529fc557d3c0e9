"""Sessions on this machine: starting their trusted process behind the wall of a tier, and talking to it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rllm_gym.sandbox import bubblewrap
from rllm_gym.sandbox.errors import SandboxBroke
from rllm_gym.sandbox.inside import files
from rllm_gym.sandbox.program import Ended
from rllm_gym.sandbox.runtime import Runtime
from rllm_gym.sandbox.session import ExecResult, Session, SessionLimits
from rllm_gym.sandbox.tier import Tier
from rllm_gym.sandbox.tree import Changes, Owner, Tree, TreeTooLarge, owner_of, tree_of

WORKDIR = "/workspace"
"""Where the workspace is inside, in tier A."""

_HOST = "/host"
_FRAME = struct.Struct(">II")
_MAX_HEADER, _MAX_BODY = 1 << 28, 1 << 31
_BATCH = 8 << 20
_START_S = 120.0
_GRACE_S = 120.0
"""Seconds beyond what was agreed before a session that does not answer counts as broken: a busy machine is no fault."""

_MODULES = ("confine", "seccomp", "processes", "files", "mounts", "workspace", "session")
_BOOT = """
import json, socket, struct, sys, types
control, owner = int(sys.argv[1]), int(sys.argv[2])
sock = socket.socket(fileno=control)
def exactly(size):
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data
header, _ = struct.unpack(">II", exactly(8))
order = json.loads(exactly(header))
sock.detach()
package = ""
for name in "rllm_gym.sandbox.inside".split("."):
    package = package + "." + name if package else name
    sys.modules[package] = types.ModuleType(package)
    sys.modules[package].__path__ = []
for name, text in order["modules"]:
    module = types.ModuleType(package + "." + name)
    sys.modules[module.__name__] = module
    setattr(sys.modules[package], name, module)
    exec(compile(text, "<" + name + ">", "exec"), module.__dict__)
sys.modules[package + ".session"].main(control, owner, order["settings"])
"""


class Channel:
    """Frames to and from one trusted process, with deadlines."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def send(self, header: dict[str, Any], body: bytes, deadline: float) -> None:
        text = json.dumps(header, separators=(",", ":")).encode()
        self._sock.settimeout(_left(deadline))
        self._sock.sendall(_FRAME.pack(len(text), len(body)) + text)
        if body:
            self._sock.settimeout(_left(deadline))
            self._sock.sendall(body)

    def receive(self, deadline: float) -> tuple[dict[str, Any], bytes]:
        header, body = _FRAME.unpack(self._exactly(_FRAME.size, deadline))
        if header > _MAX_HEADER or body > _MAX_BODY:
            raise EOFError(f"a frame of {header} + {body} bytes was announced")
        return json.loads(self._exactly(header, deadline)), self._exactly(body, deadline)

    def _exactly(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._sock.settimeout(_left(deadline))
            piece = self._sock.recv(min(size - len(data), 1 << 20))
            if not piece:
                raise EOFError("it hung up")
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


class Host:
    """The trusted process of one session, from its start to its end."""

    def __init__(self, tier: Tier, runtime: Runtime) -> None:
        self.tier = tier
        self.runtime = runtime
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        owner = os.pidfd_open(os.getpid())
        try:
            self._process = _started_by_one_thread(lambda: self._start(theirs.fileno(), owner))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(owner)

    def _start(self, control: int, owner: int) -> subprocess.Popen[bytes]:
        command = [self.runtime.python, "-I", "-S", "-B", "-c", _BOOT, str(control), str(owner)]
        extra = ["--dir", WORKDIR, "--dir", _HOST, "--bind", "/", _HOST]
        if os.geteuid() != 0:
            extra += ["--cap-add", "ALL"]
        outer = bubblewrap.Outer(self.runtime, command, extra=extra)
        try:
            return subprocess.Popen(
                outer.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[control, owner, *outer.fds],
                start_new_session=True,
                env={},
            )
        finally:
            outer.close()

    def boot(self) -> None:
        """Send in what it runs, and wait until it is ready.

        Raises:
            SandboxBroke: It did not come up.
        """
        folder = Path(files.__file__).parent
        modules = [(name, (folder / f"{name}.py").read_text()) for name in _MODULES]
        deadline = time.monotonic() + _START_S
        settings = {"mount_proc": os.geteuid() == 0}
        try:
            self.channel.send({"modules": modules, "settings": settings}, b"", deadline)
            self.channel.receive(deadline)
        except (OSError, EOFError) as error:
            raise SandboxBroke(f"a session's process did not start: {error}{self.last_words()}") from error

    def last_words(self) -> str:
        """What it wrote to its standard error before it ended, for messages."""
        self.channel.hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            _, text = self._process.communicate(timeout=5)
            if text:
                return f": {text[-1000:].decode(errors='replace').strip()}"
        return ""

    def close(self) -> None:
        """Hang up, and wait until it and all its processes are gone."""
        self.channel.hang_up()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        if self._process.stderr is not None:
            self._process.stderr.close()
        self.channel.close()


_orders: queue.SimpleQueue[tuple[Any, queue.SimpleQueue[Any]]] | None = None
_orders_lock = threading.Lock()


def _started_by_one_thread(start: Any) -> Any:
    """What ``bwrap`` starts dies with the *thread* that started it; this one lives as long as the program."""
    global _orders
    with _orders_lock:
        if _orders is None:
            _orders = queue.SimpleQueue()
            threading.Thread(target=_take_orders, args=(_orders,), name="session-starter", daemon=True).start()
    answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
    _orders.put((start, answer))
    result = answer.get()
    if isinstance(result, BaseException):
        raise result
    return result


def _take_orders(orders: queue.SimpleQueue[tuple[Any, queue.SimpleQueue[Any]]]) -> None:
    while True:
        start, answer = orders.get()
        try:
            answer.put(start())
        except BaseException as error:
            answer.put(error)


class LocalSession(Session):
    """A session on this machine."""

    def __init__(self, host: Host, base: Path | None, limits: SessionLimits, environment: Mapping[str, str]) -> None:
        super().__init__(WORKDIR, host.tier, limits)
        self._host = host
        self.overlay = False
        """Whether the workspace is an overlay over the base, not a copy."""
        order: dict[str, Any] = {
            "do": "prepare",
            "kind": "mounts",
            "workdir": WORKDIR,
            "scratch": bubblewrap.SCRATCH,
            "host": _HOST,
            "user": 200_000 if os.geteuid() == 0 else None,
            "inside": bubblewrap.UID,
            "base": _describe(base) if base is not None else None,
            "limits": asdict(limits),
            "environment": {**bubblewrap.environment(host.runtime), "PAGER": "cat", **environment},
        }
        answer, _ = self._ask(order, timeout=60.0)
        self.overlay = bool(answer["overlay"])
        if base is not None and not self.overlay:
            for entries, body in _packed(base):
                self._ask({"do": "fill", "entries": entries}, body, timeout=60.0)

    def _exec(self, command: bytes, timeout: float) -> ExecResult:
        header, output = self._ask({"do": "exec", "timeout": timeout}, command, timeout=timeout + 30.0)
        if not header["clean"]:
            self._break("processes of a command could not be ended")
        ended = Ended(header["ended"])
        return ExecResult(
            output, header["output_bytes"], header["code"], ended is Ended.WALL, round(header["wall_s"], 6), ended
        )

    def _stop(self) -> None:
        with contextlib.suppress(OSError):
            self._host.channel.send({"do": "stop"}, b"", time.monotonic() + 10)

    def _read(self, path: str, max_bytes: int) -> bytes:
        return self._ask({"do": "read", "path": path, "max_bytes": max_bytes})[1]

    def _write(self, path: str, data: bytes, executable: bool | None) -> None:
        self._ask({"do": "write", "path": path, "executable": executable}, data)

    def _read_tree(self, max_bytes: int, max_files: int, leave_out: frozenset[str]) -> Tree:
        order = {"do": "read_tree", "max_bytes": max_bytes, "max_files": max_files, "leave_out": sorted(leave_out)}
        header, body = self._ask(order)
        return tree_of(_unpacked(header["entries"], body))

    def _changes(self, max_bytes: int, max_files: int, leave_out: frozenset[str]) -> Changes:
        order = {"do": "changes", "max_bytes": max_bytes, "max_files": max_files, "leave_out": sorted(leave_out)}
        header, body = self._ask(order)
        return Changes(tree_of(_unpacked(header["entries"], body)), frozenset(header["removed"]))

    def _ask(self, order: dict[str, Any], body: bytes = b"", *, timeout: float = 60.0) -> tuple[dict[str, Any], bytes]:
        deadline = time.monotonic() + timeout + _GRACE_S
        try:
            self._host.channel.send(order, body, deadline)
            header, answer = self._host.channel.receive(deadline)
        except (OSError, EOFError, ValueError) as error:
            if self._closed:
                raise RuntimeError("the session was closed meanwhile") from error
            self._break(f"{type(error).__name__}: {error}", error)
        except BaseException:
            self.close_sync()  # an answer is outstanding that nobody will fetch
            raise
        if "error" not in header:
            return header, answer
        if header["error"] == "too large":
            raise TreeTooLarge(header["message"])
        if header["error"] == "os":
            raise OSError(header["errno"], header["message"], header["path"])
        self._break(header["message"])

    def _break(self, why: str, cause: BaseException | None = None) -> Any:
        words = self._host.last_words()
        self.close_sync()
        raise SandboxBroke(f"the session's own process failed: {why}{words}") from cause

    def _close(self) -> None:
        self._host.close()


# The base ---------------------------------------------------------------------------------------------------------

_owners: dict[tuple[str, int, int, int], Owner | None] = {}


def _describe(base: Path) -> dict[str, Any] | None:
    """What the trusted process needs to find the base; ``None`` where it must be copied: its files are not one user's."""
    path = os.path.realpath(base)
    status = os.stat(path)
    key = (path, status.st_dev, status.st_ino, status.st_ctime_ns)
    if key not in _owners:
        if len(_owners) > 4096:
            _owners.clear()
        _owners[key] = owner_of(Path(path))
    owner = _owners[key]
    root = os.geteuid() == 0
    if owner is None or (not root and (owner.uid, owner.gid) != (os.geteuid(), os.getegid())):
        return None
    return {
        "path": path,
        "device": status.st_dev,
        "inode": status.st_ino,
        "uid": owner.uid,
        "gid": owner.gid,
    }


def _packed(base: Path) -> Iterator[tuple[list[list[Any]], bytes]]:
    """Everything in ``base``, in pieces of a few megabytes: directories before what is in them."""
    entries: list[list[Any]] = []
    bodies: list[bytes] = []
    size = 0
    for entry, data in _contents(base):
        entries.append(entry)
        bodies.append(data)
        size += len(data)
        if size >= _BATCH or len(entries) >= 2000:
            yield entries, b"".join(bodies)
            entries, bodies, size = [], [], 0
    if entries:
        yield entries, b"".join(bodies)


def _contents(base: Path) -> Iterator[tuple[list[Any], bytes]]:
    todo = deque([""])
    while todo:
        directory = todo.popleft()
        with os.scandir(os.path.join(base, directory)) as found:
            for entry in sorted(found, key=lambda entry: entry.name):
                path = os.path.join(directory, entry.name)
                mode = entry.stat(follow_symlinks=False).st_mode & 0o777
                if entry.is_symlink():
                    data = os.fsencode(os.readlink(entry.path))
                    yield [path, "symlink", mode, len(data)], data
                elif entry.is_dir():
                    todo.append(path)
                    yield [path, "directory", mode, 0], b""
                elif entry.is_file():
                    data = Path(entry.path).read_bytes()
                    yield [path, "file", mode, len(data)], data


def _unpacked(entries: list[list[Any]], body: bytes) -> Iterator[files.Entry]:
    at = 0
    for path, kind, executable, size in entries:
        yield files.Entry(path, kind, body[at : at + size], executable)
        at += size
