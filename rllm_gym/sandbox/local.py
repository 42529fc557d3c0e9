"""Sessions on this machine: starting their trusted process behind the wall of a tier, and talking to it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from rllm_gym.core import RllmGymError
from rllm_gym.sandbox import bubblewrap, uids
from rllm_gym.sandbox.errors import SandboxBroke
from rllm_gym.sandbox.inside import files
from rllm_gym.sandbox.program import Ended
from rllm_gym.sandbox.runtime import Runtime
from rllm_gym.sandbox.session import ExecResult, Session, SessionLimits
from rllm_gym.sandbox.tier import Tier
from rllm_gym.sandbox.tree import Changes, Owner, Tree, TreeTooLarge, owner_of, tree_of
from rllm_gym.sandbox.worker import sources

_log = logging.getLogger(__name__)

WORKDIR = "/workspace"
"""Where the workspace is inside, in tier A."""

_HOST = "/host"
_FRAME = struct.Struct(">II")
_MAX_HEADER, _MAX_BODY = 1 << 28, 1 << 31
_BATCH = 8 << 20
_START_S = 120.0
_END_S = 20.0
_GRACE_S = 120.0
"""Seconds beyond what was agreed before a session that does not answer counts as broken: a busy machine is no fault."""

_CONFINEMENT = {Tier.NAMESPACES: "namespaces", Tier.LANDLOCK: "landlock", Tier.UNSAFE: "none"}
_MODULES = ("confine", "seccomp", "processes", "files", "mounts", "workspace", "agent", "session")
_LOWER_MODULES = ("confine", "landlock", "seccomp", "named_memory", "landlocked", *_MODULES[2:])
_BOOT = """
import json, sys, types
control, owner, sources = map(int, sys.argv[1:4])
with open(sources, "rb") as file:
    settings = json.load(file)
room = "rllm_gym.sandbox.inside"
for name in ("rllm_gym", "rllm_gym.sandbox", room):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
for name, text in settings.pop("modules"):
    module = sys.modules[room + "." + name] = types.ModuleType(room + "." + name)
    setattr(sys.modules[room], name, module)
    exec(compile(text, "<" + name + ">", "exec"), module.__dict__)
sys.modules[room + ".session"].main(control, control, owner, settings)
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


class TrustedProcess(Protocol):
    """The trusted process of one session, wherever it runs."""

    channel: Channel
    tier: Tier

    @property
    def workdir(self) -> str: ...

    @property
    def variables(self) -> dict[str, str]: ...

    def last_words(self) -> str: ...

    def close(self) -> None: ...


class Host:
    """The trusted process of one session, from its start to its end.

    Args:
        tier: How it is walled in.
        runtime: What its commands see.

    Raises:
        SandboxUnavailable: The wall cannot be built.
        SandboxBroke: The process could not be started.
    """

    def __init__(self, tier: Tier, runtime: Runtime) -> None:
        self.tier = tier
        self.runtime = runtime
        self.user = uids.take() if tier in (Tier.NAMESPACES, Tier.LANDLOCK) else None
        self.folder: str | None = None
        self._said = os.memfd_create("stderr", os.MFD_CLOEXEC)
        self._lock = threading.Lock()
        self._closed = False
        self._pid = os.getpid()
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        try:
            self._process = _in_starter(lambda: self._start(theirs.fileno()))
        except BaseException as error:
            ours.close()
            self._let_go()
            if isinstance(error, OSError):
                raise SandboxBroke(f"a session's process could not be started: {error}") from error
            raise
        finally:
            theirs.close()

    def _start(self, control: int) -> subprocess.Popen[bytes]:
        owner = os.pidfd_open(os.getpid())
        said = os.memfd_create("sources", os.MFD_CLOEXEC)
        outer = None
        try:
            fds = [control, owner, said]
            command = [self.runtime.python, "-I", "-S", "-B", "-c", _BOOT, *map(str, fds)]
            settings: dict[str, Any] = {
                "confinement": _CONFINEMENT[self.tier],
                "mount_proc": self.tier is Tier.NAMESPACES and self.user is not None,
                "folder": None,
            }
            if self.tier is Tier.NAMESPACES:
                extra = ["--dir", WORKDIR, "--dir", _HOST, "--bind", "/", _HOST]
                if self.user is None:
                    extra += ["--cap-add", "ALL"]  # in the user namespace that bwrap makes
                outer = bubblewrap.Outer(self.runtime, command, extra=extra)
                command, fds = outer.command, [*fds, *outer.fds]
                settings["modules"] = sources(_MODULES)
            else:
                settings |= self._lower_settings()
                settings["modules"] = sources(_LOWER_MODULES)
            os.write(said, json.dumps(settings).encode())
            os.lseek(said, 0, os.SEEK_SET)
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                pass_fds=fds,
                start_new_session=True,
                env={"LANG": "C.UTF-8"},
            )
        finally:
            os.close(owner)
            os.close(said)
            if outer is not None:
                outer.close()

    def _lower_settings(self) -> dict[str, Any]:
        """A directory on the disk, and what is shown of the machine besides."""
        self.folder = tempfile.mkdtemp(prefix="rllm-gym-session-")
        os.chmod(self.folder, 0o711)  # the spare user passes it, and cannot list it
        scratch, site = self.scratch, f"{self.folder}/packages"
        os.mkdir(scratch, 0o700)
        os.mkdir(site)
        for name, path in self.runtime.packages:
            os.symlink(path, f"{site}/{name}")
        outside = [path for _, path in (*self.runtime.files, *self.runtime.packages)]
        return {
            "folder": self.folder,
            "scratch": scratch,
            "uid": self.user,
            "readable": [self.runtime.python, *outside, site, *bubblewrap.READABLE],
            "without": ["/usr/local", *self.runtime.hidden],
            "devices": [f"/dev/{name}" for name in bubblewrap.DEVICES],
        }

    @property
    def scratch(self) -> str:
        """The directory inside that holds all that the agent can write."""
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
        return variables

    def wait_until_ready(self) -> None:
        """
        Raises:
            SandboxBroke: It did not come up.
        """
        try:
            self.channel.receive(time.monotonic() + _START_S)
        except (OSError, EOFError) as error:
            why = f"a session's process did not start: {error}{self.last_words()}"
            self.close()
            raise SandboxBroke(why) from error

    def pids(self) -> list[int]:
        """The trusted process's id; behind bwrap, that of the process which waits for it too."""
        pid = self._process.pid
        try:
            inner = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            inner = []  # it has ended, or the kernel does not tell
        return [*map(int, inner), pid] if self.tier is Tier.NAMESPACES else [pid]

    @property
    def alive(self) -> bool:
        return not self._closed and self._process.poll() is None

    def last_words(self) -> str:
        """What it wrote to its standard error, for messages."""
        if self._said < 0:
            return ""
        size = os.fstat(self._said).st_size
        words = os.pread(self._said, 2000, max(0, size - 2000)).decode(errors="replace").strip()
        return f": {words}" if words else ""

    def close(self) -> None:
        """Hang up, and wait until it and all its processes are gone."""
        if os.getpid() != self._pid:
            return  # a fork of the owner: the session is the owner's
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
            self._let_go()

    def _let_go(self) -> None:
        os.close(self._said)
        self._said = -1
        uids.give_back(self.user)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


class Stock:
    """Processes of sessions that were started before they are wanted, so that opening a session takes milliseconds.

    Args:
        tier: How they are walled in.
        spares: How many are kept, of each runtime, once one has been asked for.
    """

    def __init__(self, tier: Tier, spares: int = 2) -> None:
        self.tier = tier
        self.spares = spares
        self._lock = threading.Lock()
        self._ready: dict[Runtime, deque[Host]] = {}
        self._starting = False
        self._closed = False

    def open(
        self, base: Path | None, limits: SessionLimits, runtime: Runtime, environment: Mapping[str, str]
    ) -> LocalSession:
        """
        Raises:
            NotADirectoryError: ``base`` is not a directory.
            SandboxUnavailable, SandboxBroke: The session could not be started.
        """
        if base is not None and not os.path.isdir(base):
            raise NotADirectoryError(f"base={str(base)!r} is not a directory")
        host = self._take(runtime)
        try:
            order = {
                "scratch": host.scratch,
                "host": _HOST,
                "user": host.user,
                "inside": bubblewrap.UID,
                "base": _describe(base) if base is not None else None,
            }
            return LocalSession(host, base, limits, environment, order)
        except BaseException:
            host.close()
            raise

    def close(self) -> None:
        """End the spare ones. Sessions that were opened are their owners'."""
        with self._lock:
            self._closed = True
            hosts = [host for ready in self._ready.values() for host in ready]
            self._ready.clear()
        for host in hosts:
            host.close()

    def _take(self, runtime: Runtime) -> Host:
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed; open the session in another one")
            ready = self._ready.setdefault(runtime, deque())
            host = ready.popleft() if ready else None
            if not self._starting and self.spares:
                self._starting = True
                threading.Thread(target=self._restock, args=(runtime,), name="session-stock", daemon=True).start()
        if host is not None and host.alive:
            return host
        host = Host(self.tier, runtime)
        host.wait_until_ready()
        return host

    def _restock(self, runtime: Runtime) -> None:
        try:
            while self._wants(runtime):
                host = Host(self.tier, runtime)
                host.wait_until_ready()
                with self._lock:
                    kept = not self._closed
                    if kept:
                        self._ready[runtime].append(host)
                if not kept:
                    host.close()
        except (RllmGymError, OSError) as error:
            # Whoever opens the next session meets the same, and is told.
            _log.warning("no spare session could be started: %s", error)
            with self._lock:
                self._starting = False

    def _wants(self, runtime: Runtime) -> bool:
        with self._lock:
            self._starting = not self._closed and len(self._ready[runtime]) < self.spares
            return self._starting


def _no_starter_after_fork() -> None:
    global _orders, _orders_lock
    _orders, _orders_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_no_starter_after_fork)

_orders: queue.SimpleQueue[tuple[Any, queue.SimpleQueue[Any]]] | None = None
_orders_lock = threading.Lock()


def _in_starter(start: Any) -> Any:
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

    def __init__(
        self,
        host: TrustedProcess,
        base: Path | None,
        limits: SessionLimits,
        environment: Mapping[str, str],
        order: Mapping[str, Any],
    ) -> None:
        super().__init__(host.workdir, host.tier, limits)
        self._host = host
        weakref.finalize(self, host.close)
        asked = {
            "do": "prepare",
            "workdir": self.workdir,
            "limits": asdict(limits),
            "environment": {**host.variables, **environment},
            **order,
        }
        answer, _ = self._ask(asked, timeout=300.0)
        self.overlay = bool(answer["overlay"])
        """Whether the workspace is an overlay over the base, not a copy."""
        if base is not None and not self.overlay:
            for entries, body in _packed(base):
                self._ask({"do": "fill", "entries": entries}, body)

    def _exec(self, command: bytes, timeout: float) -> ExecResult:
        header, output = self._ask({"do": "exec", "timeout": timeout}, command, timeout=timeout + 30.0)
        if not header["clean"]:
            raise self._broken("processes of a command could not be ended")
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
            raise self._broken(f"{type(error).__name__}: {error}") from error
        except BaseException:
            self.close_sync()  # an answer is outstanding that nobody will fetch
            raise
        match header.get("error"):
            case None:
                return header, answer
            case "too large":
                raise TreeTooLarge(header["message"])
            case "os":
                raise OSError(header["errno"], header["message"], header["path"])
        raise self._broken(header["message"])

    def _broken(self, why: str) -> SandboxBroke:
        words = self._host.last_words()
        self.close_sync()
        return SandboxBroke(f"the session's own process failed: {why}{words}")

    def _close(self) -> None:
        self._host.close()


# The base ---------------------------------------------------------------------------------------------------------

_owners: dict[tuple[str, int, int, int], Owner | None] = {}


def _describe(base: Path) -> dict[str, Any] | None:
    """What the trusted process needs to find the base; ``None`` where it must be copied: its files are of several."""
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
