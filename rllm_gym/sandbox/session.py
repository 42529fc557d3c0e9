"""Sessions: workspaces that persist between commands, for agents that edit a repository.

A session drives a trusted process over its channel: one of ``session_process.py`` (this machine, by tier) or of
``docker.py`` (a container).
"""

# ruff: noqa: ASYNC109 - the timeout is the contract: when it passes the command is killed
from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from rllm_gym.sandbox.errors import SandboxFault
from rllm_gym.sandbox.inside import files
from rllm_gym.sandbox.program import Ended
from rllm_gym.sandbox.session_process import TrustedProcess
from rllm_gym.sandbox.tree import EXCLUDED, MAX_BYTES, MAX_FILES, Changes, FileTree, TreeTooLarge, tree_of

_T = TypeVar("_T")

MAX_COMMAND = 1 << 20
"""Maximum length of a command in bytes. A longer one is answered like a line that the shell cannot run."""

_BATCH = 8 << 20
_GRACE_S = 120.0
"""Extra seconds before a session that does not answer counts as broken. A busy machine alone must not break a
session."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """The resource limits of a session's commands, including everything they start.

    Attributes:
        memory_mb: Memory of all processes; shared pages are counted once. Exceeding it ends the running command, or the
            background processes if they hold most of it. Files in the workspace do not count.
        processes: Processes and threads alive at a time.
        workspace_mb: Size of everything written: the workspace beyond its base, ``/tmp`` and ``/dev/shm``.
        workspace_files: Files and directories, likewise.
        output_bytes: Maximum output of one command. The beginning and the end are kept, with a line that says how much
            was left out of the middle.
        background_cpu_s: CPU seconds that the background processes of a command may use after the command has ended.
    """

    memory_mb: int = 2048
    processes: int = 128
    workspace_mb: int = 1024
    workspace_files: int = 100_000
    output_bytes: int = 100_000
    background_cpu_s: float = 120.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"SessionLimits.{name} is {getattr(self, name)!r}; it must be above 0")


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The result of a command.

    Attributes:
        output: Standard output and error, interleaved, at most ``limits.output_bytes`` and one line that says what was
            left out of the middle.
        output_bytes: Total length of the output.
        exit_code: As reported by the shell: 128 plus the signal's number if a signal ended it. ``None`` if the sandbox
            ended it; see ``ended``.
        timed_out: Whether it exceeded its timeout and was killed, with everything it had started.
        wall_s: Wall-clock seconds.
        ended: Why it ended: by itself, ``WALL``, ``MEMORY``, or ``STOPPED`` by the caller.
    """

    output: bytes
    output_bytes: int
    exit_code: int | None
    timed_out: bool
    wall_s: float
    ended: Ended = Ended.EXITED


class SandboxSession:
    """An agent's workspace and its processes. Open it with
    :meth:`~rllm_gym.sandbox.SandboxPool.open_session`; close it, or use ``with``/``async with``.

    **Commands** run as ``bash -c`` (``sh`` if there is no bash) in :attr:`workdir`, each in a fresh shell: variables
    and ``cd`` last for one command, files and background processes (``server &``) for the session. Standard input is
    empty. A command is over when its shell ends. A command that exceeds its timeout is killed with everything it
    started, including processes in sessions of their own; background processes of earlier commands keep running.

    **Files** are read and written by a trusted process that follows no link out of the workspace, reads regular files
    only, and never blocks on one. Mistakes of the agent raise ``OSError`` or :class:`TreeTooLarge`; only a failure of
    the sandbox raises :class:`SandboxFault`. :meth:`read_tree` and :meth:`changes` exclude ``.git``: grading does not
    use the agent's history, and reading it would not be safe.

    A session does one thing at a time; calls from several tasks or threads are queued. Cancelling a call stops it, and
    the session stays usable. Every method has a blocking variant with the suffix ``_sync``.
    """

    def __init__(
        self,
        process: TrustedProcess,
        base: Path | None,
        limits: SessionLimits,
        environment: Mapping[str, str],
        settings: Mapping[str, Any],
    ) -> None:
        self.workdir = process.workdir
        """The path of the workspace inside."""
        self.tier = process.tier
        self.limits = limits
        self._process = process
        weakref.finalize(self, process.close)
        self._lock = threading.RLock()
        self._now = threading.Lock()
        self._call: threading.Event | None = None
        """Set if the call in progress was cancelled."""
        self._running: threading.Event | None = None
        """The same, once its request was sent: a ``stop`` before that would stop nothing, or be sent in its middle."""
        self._executor: concurrent.futures.ThreadPoolExecutor | None = None
        self._closed = False
        variables = _merged(process.variables, environment)
        self.temporary_directory = variables.get("TMPDIR", "/tmp")
        """The directory inside for temporary files; without namespaces, ``/tmp`` is not writable."""
        prepare = {
            "do": "prepare",
            "workdir": self.workdir,
            "limits": asdict(limits),
            "environment": variables,
            **settings,
        }
        answer, _ = self._ask(prepare, timeout=300.0)
        self.overlay = bool(answer["overlay"])
        """Whether the workspace is an overlay over the base rather than a copy."""
        if base is not None and not self.overlay:
            for entries, body in _packed(base):
                self._ask({"do": "fill", "entries": entries}, body)

    # Closing

    def close_sync(self) -> None:
        """End all processes of the session and remove what it wrote. May be called twice, and while a command runs."""
        with self._now:
            if self._closed:
                return
            self._closed = True
        self._process.close()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def close(self) -> None:
        """Run :meth:`close_sync` without blocking the event loop."""
        await asyncio.shield(asyncio.to_thread(self.close_sync))

    @property
    def closed(self) -> bool:
        return self._closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close_sync()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Operations

    def exec_sync(self, command: str, timeout: float = 60.0) -> ExecResult:
        """Run a command, which may be hostile.

        Args:
            command: A line, or a script, for the shell.
            timeout: Wall-clock seconds.

        Raises:
            ValueError: ``timeout`` is not above 0.
            SandboxFault: The session itself failed. It is then closed.
        """
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout!r} seconds; it must be above 0")
        raw = command.encode("utf-8", "surrogateescape") if _encodable(command) else command.encode("utf-8", "replace")
        if b"\0" in raw or len(raw) > MAX_COMMAND:
            reason = b"it has a NUL byte" if b"\0" in raw else b"it has more than %d bytes" % MAX_COMMAND
            text = b"the command cannot be run: " + reason + b"\n"
            return ExecResult(text, len(text), 126, False, 0.0)
        header, output = self._ask({"do": "exec", "timeout": timeout}, raw, timeout=timeout + 30.0)
        if not header["clean"]:
            raise self._fault("processes of a command could not be ended")
        ended = Ended(header["ended"])
        return ExecResult(
            output, header["output_bytes"], header["code"], ended is Ended.WALL, round(header["wall_s"], 6), ended
        )

    async def exec(self, command: str, timeout: float = 60.0) -> ExecResult:
        """Run :meth:`exec_sync` without blocking the event loop. Cancelling the call kills the command."""
        return await self._awaited(lambda: self.exec_sync(command, timeout))

    def read_sync(self, path: str, max_bytes: int = MAX_BYTES) -> bytes:
        """Return the content of a regular file. ``path`` is relative to the workspace, or absolute inside it.

        Raises:
            OSError: It does not exist, is not a regular file, or leads out of the workspace.
            TreeTooLarge: It has more than ``max_bytes``.
        """
        return self._ask({"do": "read", "path": path, "max_bytes": max_bytes})[1]

    async def read(self, path: str, max_bytes: int = MAX_BYTES) -> bytes:
        """Run :meth:`read_sync` without blocking the event loop."""
        return await self._awaited(lambda: self.read_sync(path, max_bytes))

    def write_sync(self, path: str, data: bytes, *, executable: bool | None = None) -> None:
        """Write a file atomically, creating missing directories. A link inside the workspace is written through.

        Args:
            path: As in :meth:`read_sync`.
            data: The whole new content.
            executable: Whether the file is executable; ``None`` keeps its current mode.

        Raises:
            OSError: No space is left, a directory is in the way, or ``path`` leads out of the workspace.
        """
        self._ask({"do": "write", "path": path, "executable": executable}, bytes(data))

    async def write(self, path: str, data: bytes, *, executable: bool | None = None) -> None:
        """Run :meth:`write_sync` without blocking the event loop."""
        await self._awaited(lambda: self.write_sync(path, data, executable=executable))

    def read_tree_sync(self, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> FileTree:
        """Return all files and links of the workspace except ``.git``. Background processes are stopped meanwhile.

        Raises:
            TreeTooLarge: It has more bytes or files than allowed, or is too deep.
            OSError: A file or directory cannot be read.
        """
        try:
            return self._ask_tree("read_tree", max_bytes, max_files)[0]
        except TreeTooLarge as error:
            raise TreeTooLarge(f"{error} (max_bytes={max_bytes}, max_files={max_files})") from None

    async def read_tree(self) -> FileTree:
        """Run :meth:`read_tree_sync` without blocking the event loop."""
        return await self._awaited(self.read_tree_sync)

    def changes_sync(self) -> Changes:
        """Return the changes of the workspace relative to its base: ``changes.apply(base)`` equals :meth:`read_tree`.

        Raises:
            TreeTooLarge: The written files have more bytes or are more than allowed, or the tree is too deep.
            OSError: A file or directory cannot be read.
        """
        tree, header = self._ask_tree("changes", MAX_BYTES, MAX_FILES)
        return Changes(tree, frozenset(header["removed"]))

    async def changes(self) -> Changes:
        """Run :meth:`changes_sync` without blocking the event loop."""
        return await self._awaited(self.changes_sync)

    # The trusted process

    def _ask(
        self, request: dict[str, Any], body: bytes = b"", *, timeout: float = 60.0
    ) -> tuple[dict[str, Any], bytes]:
        """Send a request and return the answer. One request at a time; others wait."""
        with self._lock:
            self._check_open()
            deadline = time.monotonic() + timeout + _GRACE_S
            try:
                self._process.channel.send(request, body, deadline)
                with self._now:
                    self._running = self._call
                    if self._call is not None and self._call.is_set():
                        self._send_stop()
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

    def _ask_tree(self, operation: str, max_bytes: int, max_files: int) -> tuple[FileTree, dict[str, Any]]:
        header, body = self._ask(
            {"do": operation, "max_bytes": max_bytes, "max_files": max_files, "leave_out": sorted(EXCLUDED)}
        )
        return tree_of(_unpacked(header["entries"], body)), header

    def _fault(self, reason: str) -> SandboxFault:
        words = self._process.stderr_tail()
        self.close_sync()
        return SandboxFault(f"the session's own process failed: {reason}{words}")

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the session is closed; open a new one")

    async def _awaited(self, work: Callable[[], _T]) -> _T:
        self._check_open()
        if self._executor is None:
            # Each session has its own thread: in a shared pool, sixty-four waiting sessions would block each other.
            self._executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="session")
        cancelled = threading.Event()

        def tracked() -> _T:
            with self._lock:  # before that, another thread's command may be running
                with self._now:
                    if cancelled.is_set():
                        raise concurrent.futures.CancelledError
                    self._call = cancelled
                try:
                    return work()
                finally:
                    with self._now:
                        self._call = self._running = None

        future = self._executor.submit(tracked)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            with self._now:
                cancelled.set()
                if self._running is cancelled and not self._closed:
                    with contextlib.suppress(OSError):
                        self._send_stop()
            raise

    def _send_stop(self) -> None:
        self._process.channel.send({"do": "stop"}, b"", time.monotonic() + 10)


class PendingSession(Awaitable[SandboxSession]):
    """A session that is being opened, for ``await`` and for ``async with``."""

    def __init__(self, start: Callable[[], SandboxSession]) -> None:
        self._start = start
        self._session: SandboxSession | None = None

    def __await__(self) -> Generator[Any, None, SandboxSession]:
        return self._opened().__await__()

    async def __aenter__(self) -> SandboxSession:
        self._session = await self._opened()
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def _opened(self) -> SandboxSession:
        opening = asyncio.ensure_future(asyncio.to_thread(self._start))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The session is opened anyway, without an owner.
            opening.add_done_callback(_close_unwanted)
            raise


def _close_unwanted(opening: asyncio.Future[SandboxSession]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close_sync()


def _merged(own: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the commands. The sandbox's own ``PYTHONPATH`` holds the packages of the runtime."""
    merged = {**own, **asked}
    if "PYTHONPATH" in own and "PYTHONPATH" in asked:
        merged["PYTHONPATH"] = f"{asked['PYTHONPATH']}:{own['PYTHONPATH']}"
    return merged


def _encodable(text: str) -> bool:
    with contextlib.suppress(UnicodeEncodeError):
        text.encode("utf-8", "surrogateescape")
        return True
    return False


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
