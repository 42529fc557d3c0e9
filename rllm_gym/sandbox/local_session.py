"""Sessions on this machine: taken from a stock of processes started in advance, and driven over their channel."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rllm_gym.core import RllmGymError
from rllm_gym.sandbox import bubblewrap
from rllm_gym.sandbox.errors import SandboxFault
from rllm_gym.sandbox.inside import files
from rllm_gym.sandbox.program import Ended
from rllm_gym.sandbox.runtime import Runtime
from rllm_gym.sandbox.session import ExecResult, SandboxSession, SessionLimits
from rllm_gym.sandbox.session_process import HOST, SessionProcess, TrustedProcess
from rllm_gym.sandbox.tier import Tier
from rllm_gym.sandbox.tree import Changes, DirectoryStats, Tree, TreeTooLarge, directory_stats, tree_of

_log = logging.getLogger(__name__)

COPIED_ENTRIES, COPIED_BYTES = 300, 4 << 20
"""A base of at most this size is copied."""

_BATCH = 8 << 20
_GRACE_S = 120.0
"""Extra seconds before a session that does not answer counts as broken. A busy machine alone must not break a
session."""


class SessionPool:
    """Session processes that are started before they are needed, so that opening a session takes milliseconds.

    Args:
        tier: How they are isolated.
        spares: Number of spare processes per runtime, once one has been requested.
    """

    def __init__(self, tier: Tier, spares: int = 2) -> None:
        self.tier = tier
        self.spares = spares
        self._lock = threading.Lock()
        self._ready: dict[Runtime, deque[SessionProcess]] = {}
        self._starting = False
        self._closed = False

    def open(
        self, base: Path | None, limits: SessionLimits, runtime: Runtime, environment: Mapping[str, str]
    ) -> LocalSession:
        """Open a session.

        Raises:
            NotADirectoryError: ``base`` is not a directory.
            SandboxUnavailable, SandboxFault: The session could not be started.
        """
        if base is not None and not os.path.isdir(base):
            raise NotADirectoryError(f"base={str(base)!r} is not a directory")
        host = self._take(runtime)
        try:
            order = {
                "scratch": host.scratch,
                "host": HOST,
                "user": host.user,
                "inside": bubblewrap.UID,
                "base": _describe(base) if base is not None else None,
            }
            return LocalSession(host, base, limits, environment, order)
        except BaseException:
            host.close()
            raise

    def close(self) -> None:
        """End the spare processes. Open sessions belong to their owners and stay open."""
        with self._lock:
            self._closed = True
            hosts = [host for ready in self._ready.values() for host in ready]
            self._ready.clear()
        for host in hosts:
            host.close()

    def _take(self, runtime: Runtime) -> SessionProcess:
        with self._lock:
            if self._closed:
                raise RuntimeError("the pool is closed; open the session in another one")
            ready = self._ready.setdefault(runtime, deque())
            host = ready.popleft() if ready else None
            if not self._starting and self.spares:
                self._starting = True
                threading.Thread(target=self._refill, args=(runtime,), name="session-stock", daemon=True).start()
        if host is not None and host.alive:
            return host
        host = SessionProcess(self.tier, runtime)
        host.wait_until_ready()
        return host

    def _refill(self, runtime: Runtime) -> None:
        try:
            while self._wants(runtime):
                host = SessionProcess(self.tier, runtime)
                host.wait_until_ready()
                with self._lock:
                    kept = not self._closed
                    if kept:
                        self._ready[runtime].append(host)
                if not kept:
                    host.close()
        except (RllmGymError, OSError) as error:
            with self._lock:
                self._starting = False
                wanted = not self._closed and threading.main_thread().is_alive()
            if wanted:  # opening the next session fails the same way and reports it
                _log.warning("could not start a spare session: %s", error)

    def _wants(self, runtime: Runtime) -> bool:
        with self._lock:
            self._starting = not self._closed and len(self._ready[runtime]) < self.spares
            return self._starting


class LocalSession(SandboxSession):
    """A session on this machine."""

    def __init__(
        self,
        process: TrustedProcess,
        base: Path | None,
        limits: SessionLimits,
        environment: Mapping[str, str],
        order: Mapping[str, Any],
    ) -> None:
        super().__init__(process.workdir, process.tier, limits)
        self._process = process
        weakref.finalize(self, process.close)
        asked = {
            "do": "prepare",
            "workdir": self.workdir,
            "limits": asdict(limits),
            "environment": {**process.variables, **environment},
            **order,
        }
        answer, _ = self._ask(asked, timeout=300.0)
        self.overlay = bool(answer["overlay"])
        """Whether the workspace is an overlay over the base rather than a copy."""
        if base is not None and not self.overlay:
            for entries, body in _packed(base):
                self._ask({"do": "fill", "entries": entries}, body)

    def _exec(self, command: bytes, timeout: float) -> ExecResult:
        header, output = self._ask({"do": "exec", "timeout": timeout}, command, timeout=timeout + 30.0)
        if not header["clean"]:
            raise self._fault("processes of a command could not be ended")
        ended = Ended(header["ended"])
        return ExecResult(
            output, header["output_bytes"], header["code"], ended is Ended.WALL, round(header["wall_s"], 6), ended
        )

    def _stop(self) -> None:
        with contextlib.suppress(OSError):
            self._process.channel.send({"do": "stop"}, b"", time.monotonic() + 10)

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
            self._process.channel.send(order, body, deadline)
            header, answer = self._process.channel.receive(deadline)
        except (OSError, EOFError, ValueError) as error:
            if self._closed:
                raise RuntimeError("the session was closed meanwhile") from error
            raise self._fault(f"{type(error).__name__}: {error}") from error
        except BaseException:
            self.close_sync()  # an unread answer remains in the channel
            raise
        match header.get("error"):
            case None:
                return header, answer
            case "too large":
                raise TreeTooLarge(header["message"])
            case "os":
                raise OSError(header["errno"], header["message"], header["path"])
        raise self._fault(header["message"])

    def _fault(self, reason: str) -> SandboxFault:
        words = self._process.stderr_tail()
        self.close_sync()
        return SandboxFault(f"the session's own process failed: {reason}{words}")

    def _close(self) -> None:
        self._process.close()


# The base of a workspace

_directory_stats: dict[tuple[str, int, int, int], DirectoryStats] = {}


def _describe(base: Path) -> dict[str, Any] | None:
    """Return what the trusted process needs for an overlay over the base; ``None`` if the base is to be copied.

    Copying a small base is cheap and gives directories that can be renamed. An overlay refuses to rename directories of
    its base (``EXDEV``, as in every container), which ``mv`` handles and ``git mv`` does not. Files of several users
    can only be copied, because a user namespace has a single user.
    """
    path = os.path.realpath(base)
    status = os.stat(path)
    key = (path, status.st_dev, status.st_ino, status.st_ctime_ns)
    if key not in _directory_stats:
        if len(_directory_stats) > 4096:
            _directory_stats.clear()
        _directory_stats[key] = directory_stats(Path(path))
    found = _directory_stats[key]
    if found.owner is None or (found.entries <= COPIED_ENTRIES and found.size <= COPIED_BYTES):
        return None
    uid, gid = found.owner
    if os.geteuid() != 0 and (uid, gid) != (os.geteuid(), os.getegid()):
        return None
    return {"path": path, "device": status.st_dev, "inode": status.st_ino, "uid": uid, "gid": gid}


def _packed(base: Path) -> Iterator[tuple[list[list[Any]], bytes]]:
    """Yield the content of ``base`` in pieces of a few megabytes; a directory comes before its content."""
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


def _unpacked(entries: list[list[Any]], body: bytes) -> Iterator[files.FileEntry]:
    at = 0
    for path, kind, executable, size in entries:
        yield files.FileEntry(path, kind, body[at : at + size], executable)
        at += size
