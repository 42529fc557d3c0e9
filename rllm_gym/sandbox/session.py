"""A workspace that lives from command to command: what an agent that edits a repository works in.

Where it runs is another room's matter: ``local.py`` (this machine, by tier) and ``docker.py`` (a container).
"""

# ruff: noqa: ASYNC109 - the timeout is the contract: when it passes the command is killed
from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from rllm_gym.sandbox.program import Ended
from rllm_gym.sandbox.runtime import Runtime
from rllm_gym.sandbox.tier import Tier
from rllm_gym.sandbox.tree import LEFT_OUT, MAX_BYTES, MAX_FILES, Changes, Tree

if TYPE_CHECKING:
    from rllm_gym.sandbox.pool import SandboxPool

_T = TypeVar("_T")

MAX_COMMAND = 1 << 20
"""Bytes of the longest command. A longer one is answered as the shell answers a line it cannot run."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What a session's commands, with everything they start, may use together.

    Attributes:
        memory_mb: Memory of all processes, shared pages counted once. The running command is ended when it is over;
            background processes, when it is mostly theirs. Files in the workspace are not counted here.
        processes: Processes and threads alive at a time.
        workspace_mb: Size of all that was written: the workspace beyond its base, ``/tmp`` and ``/dev/shm``.
        workspace_files: Files and directories likewise.
        output_bytes: Longest output of one command: its beginning and its end are kept, with a line that says how much
            of the middle was left out.
        background_cpu_s: CPU seconds that what a command left running may use after the command has ended.
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
    """What came of a command.

    Attributes:
        output: Standard output and error as they came, at most ``limits.output_bytes`` and one line that says what
            was left out of the middle.
        output_bytes: How much there was.
        exit_code: As the shell counts: 128 plus the signal's number where a signal ended it. ``None`` if it was ended
            from outside, see ``ended``.
        timed_out: It outlived its timeout and was killed, with all it had started.
        wall_s: Seconds by the clock.
        ended: Why it ended: by itself, ``WALL``, ``MEMORY``, or ``STOPPED`` by the caller.
    """

    output: bytes
    output_bytes: int
    exit_code: int | None
    timed_out: bool
    wall_s: float
    ended: Ended = Ended.EXITED


class Session(ABC):
    """One agent's workspace, with its processes. Opened by :meth:`open`; close it, or use ``with``/``async with``.

    **Commands** run as ``bash -c`` (``sh`` where there is no bash) in :attr:`workdir`, each in a fresh shell: variables
    and ``cd`` last for one command, files and background processes (``server &``) for the session. Standard input is
    empty. A command is over when its shell is; one that outlives its timeout is killed with everything it
    started, also what made sessions of its own, while what earlier commands left running lives on.

    **Files** are read and written by a trusted process that follows no link out of the workspace, reads regular
    files only, and waits for nobody. What the agent does wrong comes as ``OSError`` or :class:`TreeTooLarge`; only a
    broken world is a :class:`SandboxBroke`. ``.git`` is no part of :meth:`read_tree` and :meth:`changes`: nothing that
    is graded looks at the agent's history, nor would it be safe to.

    A session does one thing at a time; calls from several tasks or threads stand in line. A cancelled call is
    stopped and the session goes on. Every method has a blocking twin with the ending ``_sync``.
    """

    def __init__(self, workdir: str, tier: Tier, limits: SessionLimits) -> None:
        self.workdir = workdir
        """The workspace's path inside."""
        self.tier = tier
        self.limits = limits
        self._turn = threading.Lock()
        self._now = threading.Lock()
        self._running: object | None = None
        self._executor: concurrent.futures.ThreadPoolExecutor | None = None
        self._closed = False

    # Opening and closing --------------------------------------------------------------------------------------

    @staticmethod
    def open(
        base: Path | None = None,
        *,
        sandbox: str | SandboxPool = "auto",
        limits: SessionLimits | None = None,
        runtime: Runtime | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Opening:
        """A session whose workspace begins as ``base``: ``await`` it, or use it with ``async with``.

        Args:
            base: A directory of this machine that nobody changes meanwhile; the session does not either. ``None``:
                the workspace begins empty.
            sandbox: As in :class:`SandboxPool`, or a pool.
            limits: What its commands may use.
            runtime: The Python and packages it sees; by default as in :class:`SandboxPool`.
            environment: Variables for its commands, beside ``PATH``, ``HOME`` and their like.

        Raises:
            SandboxUnavailable: There is no such sandbox here.
            NotADirectoryError: ``base`` is not a directory.
            SandboxBroke: The session could not be started.
        """
        return Opening(
            lambda: Session.open_sync(base, sandbox=sandbox, limits=limits, runtime=runtime, environment=environment)
        )

    @staticmethod
    def open_sync(
        base: Path | None = None,
        *,
        sandbox: str | SandboxPool = "auto",
        limits: SessionLimits | None = None,
        runtime: Runtime | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Session:
        """:meth:`open`, blocking."""
        from rllm_gym.sandbox.pool import SandboxPool, shared_pool

        pool = sandbox if isinstance(sandbox, SandboxPool) else shared_pool(sandbox)
        return pool.open_session_sync(base, limits=limits, runtime=runtime, environment=environment)

    def close_sync(self) -> None:
        """End every process of the session and remove what it wrote. Safe to call twice, and while a command runs."""
        with self._now:
            if self._closed:
                return
            self._closed = True
        self._close()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def close(self) -> None:
        """:meth:`close_sync`, awaited."""
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

    # What it does ---------------------------------------------------------------------------------------------

    def exec_sync(self, command: str, timeout: float = 60.0) -> ExecResult:
        """Run a command, which may be hostile.

        Args:
            command: A line, or a script, for the shell.
            timeout: Seconds by the clock.

        Raises:
            ValueError: ``timeout`` is not above 0.
            SandboxBroke: The session itself failed. It is closed then.
        """
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout!r} seconds; it must be above 0")
        raw = command.encode("utf-8", "surrogateescape") if _encodable(command) else command.encode("utf-8", "replace")
        if b"\0" in raw or len(raw) > MAX_COMMAND:
            why = b"it has a NUL byte" if b"\0" in raw else b"it has more than %d bytes" % MAX_COMMAND
            text = b"the command cannot be run: " + why + b"\n"
            return ExecResult(text, len(text), 126, False, 0.0)
        return self._alone(lambda: self._exec(raw, timeout))

    async def exec(self, command: str, timeout: float = 60.0) -> ExecResult:
        """:meth:`exec_sync`, awaited. Cancelling it kills the command."""
        return await self._awaited(lambda: self.exec_sync(command, timeout))

    def read_sync(self, path: str, max_bytes: int = MAX_BYTES) -> bytes:
        """A regular file's content. ``path`` is relative to the workspace, or absolute inside it.

        Raises:
            OSError: It is not there, is not a regular file, or leads out of the workspace.
            TreeTooLarge: It has more than ``max_bytes``.
        """
        return self._alone(lambda: self._read(path, max_bytes))

    async def read(self, path: str, max_bytes: int = MAX_BYTES) -> bytes:
        """:meth:`read_sync`, awaited."""
        return await self._awaited(lambda: self.read_sync(path, max_bytes))

    def write_sync(self, path: str, data: bytes, *, executable: bool | None = None) -> None:
        """Write a file in one step, with the directories it needs. A link inside the workspace is written through.

        Args:
            path: As in :meth:`read_sync`.
            data: The whole new content.
            executable: Whether it may be run; ``None`` keeps what it has.

        Raises:
            OSError: There is no room, a directory is in the way, or ``path`` leads out of the workspace.
        """
        self._alone(lambda: self._write(path, bytes(data), executable))

    async def write(self, path: str, data: bytes, *, executable: bool | None = None) -> None:
        """:meth:`write_sync`, awaited."""
        await self._awaited(lambda: self.write_sync(path, data, executable=executable))

    def read_tree_sync(self, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> Tree:
        """All files and links of the workspace but ``.git``. Background processes are held still meanwhile.

        Raises:
            TreeTooLarge: It has more bytes or files than that, or is too deep.
            OSError: Something cannot be read.
        """
        return self._alone(lambda: self._read_tree(max_bytes, max_files, LEFT_OUT))

    async def read_tree(self, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> Tree:
        """:meth:`read_tree_sync`, awaited."""
        return await self._awaited(lambda: self.read_tree_sync(max_bytes=max_bytes, max_files=max_files))

    def changes_sync(self, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> Changes:
        """What makes the workspace of its base: ``changes.apply(base)`` is :meth:`read_tree`.

        Raises:
            TreeTooLarge: What was written has more bytes or files than that, or is too deep.
            OSError: Something cannot be read.
        """
        return self._alone(lambda: self._changes(max_bytes, max_files, LEFT_OUT))

    async def changes(self, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> Changes:
        """:meth:`changes_sync`, awaited."""
        return await self._awaited(lambda: self.changes_sync(max_bytes=max_bytes, max_files=max_files))

    # What a kind of session does its own way --------------------------------------------------------------------

    @abstractmethod
    def _exec(self, command: bytes, timeout: float) -> ExecResult: ...

    @abstractmethod
    def _read(self, path: str, max_bytes: int) -> bytes: ...

    @abstractmethod
    def _write(self, path: str, data: bytes, executable: bool | None) -> None: ...

    @abstractmethod
    def _read_tree(self, max_bytes: int, max_files: int, leave_out: frozenset[str]) -> Tree: ...

    @abstractmethod
    def _changes(self, max_bytes: int, max_files: int, leave_out: frozenset[str]) -> Changes: ...

    @abstractmethod
    def _stop(self) -> None:
        """Bring the running command to its end. Called from another thread; must not wait."""

    @abstractmethod
    def _close(self) -> None: ...

    # One thing at a time --------------------------------------------------------------------------------------

    def _alone(self, work: Callable[[], _T]) -> _T:
        with self._turn:
            self._check_open()
            return work()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the session is closed; open a new one")

    async def _awaited(self, work: Callable[[], _T]) -> _T:
        self._check_open()
        if self._executor is None:
            # A thread of its own: with a shared one, sixty-four sessions that wait would stand in each other's way.
            self._executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="session")
        token = object()

        def tracked() -> _T:
            with self._now:
                self._running = token
            try:
                return work()
            finally:
                with self._now:
                    self._running = None

        future = self._executor.submit(tracked)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            with self._now:
                if self._running is token and not self._closed:
                    self._stop()
            raise


class Opening(Awaitable[Session]):
    """A session that is being opened, for ``await`` and for ``async with``."""

    def __init__(self, start: Callable[[], Session]) -> None:
        self._start = start
        self._session: Session | None = None

    def __await__(self) -> Generator[Any, None, Session]:
        return self._opened().__await__()

    async def __aenter__(self) -> Session:
        self._session = await self._opened()
        return self._session

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def _opened(self) -> Session:
        opening = asyncio.ensure_future(asyncio.to_thread(self._start))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            # It is opened all the same, and belongs to nobody.
            opening.add_done_callback(_close_unwanted)
            raise


def _close_unwanted(opening: asyncio.Future[Session]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close_sync()


def _encodable(text: str) -> bool:
    with contextlib.suppress(UnicodeEncodeError):
        text.encode("utf-8", "surrogateescape")
        return True
    return False
