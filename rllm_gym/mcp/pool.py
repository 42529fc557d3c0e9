"""The pool of sessions: one event loop for all connections of a process, and servers started ahead of time."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import tempfile
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.core.per_process import PerProcess
from rllm_gym.mcp.errors import ServerFault
from rllm_gym.mcp.server_requests import RequestAnswers
from rllm_gym.mcp.servers import HttpServer, InProcessServer, Server, StdioServer
from rllm_gym.mcp.session import SessionConnection, ToolSession, within
from rllm_gym.runtime.program_launcher import LaunchSpec, ProgramLauncher, server_spec
from rllm_gym.runtime.scratch import scratch_root

if TYPE_CHECKING:  # it imports the SDK
    from rllm_gym.mcp.connection import ServerConnection

_SLOT_S = 5.0
"""Seconds that a starting program may delay the start of others."""
_PRESTARTED_PER_KIND = 2
_MAX_PRESTARTED_KINDS = 8

Servers = tuple[Server, ...]


@dataclass
class _PooledWorkspace:
    """A directory of the pool, the ``HOME`` of its programs, and the servers started ahead in it, by position."""

    path: Path
    home: Path
    started: dict[int, asyncio.Task[ServerConnection]] = field(default_factory=dict)


class ServerPool:
    """Opens sessions. Close it; it also closes at interpreter exit, and its servers end with the process.

    It does not survive a fork: a child must open its own.
    """

    def __init__(self) -> None:
        self._loop = BackgroundLoop("mcp-servers")
        self._root = tempfile.mkdtemp(prefix="mcp-", dir=scratch_root())
        self._launcher = ProgramLauncher(self._root)
        self._slots = asyncio.Semaphore(max(4, 2 * (os.cpu_count() or 1)))
        self._sessions: set[ToolSession] = set()
        self._shared: dict[Server, asyncio.Task[ServerConnection]] = {}
        self._workspaces: dict[Path, _PooledWorkspace] = {}
        self._prestarted: OrderedDict[Servers, deque[_PooledWorkspace]] = OrderedDict()
        self._closed = False
        self._pid = os.getpid()

    async def workspace(self, servers: Sequence[Server]) -> Path:
        """Return an empty directory for an episode of these servers.

        Fill it, and pass it to :meth:`open`, whose session removes it; or pass it to :meth:`discard`. From the second
        episode on, servers with ``prestart`` are already starting in it.
        """
        self._check()
        return await self._loop.arun(self._take_workspace(tuple(servers)))

    async def discard(self, workspace: Path) -> None:
        """Remove a directory of :meth:`workspace` for which no session was opened, and end its processes."""
        self._check()
        await self._loop.arun(self._remove(workspace))

    async def open(
        self,
        servers: Sequence[Server],
        *,
        workspace: str | os.PathLike[str],
        seed: int = 0,
        reserved: Collection[str] = (),
    ) -> ToolSession:
        """Connect to all servers of an episode concurrently. May be awaited from any event loop.

        Args:
            servers: At least one.
            workspace: The episode's directory, with the files that the servers need. Its creator removes it; the
                session removes a directory of :meth:`workspace`.
            seed: For servers that use ``{seed}``, or are created with a seed.
            reserved: Names that no tool may have.

        Raises:
            ServerFault: A server did not start; the others are ended.
            ValueError: There are no servers.
        """
        self._check()
        if not servers:
            raise ValueError("servers=() must name at least one MCP server")
        opened: list[ToolSession] = []
        opening = self._open(tuple(servers), _absolute(workspace), int(seed), tuple(reserved), opened)
        try:
            return await self._loop.arun(opening)
        except asyncio.CancelledError:
            # The session may have been opened just then; close it, since there is no caller left.
            self._loop.start(self._drop(opened))
            raise

    def close(self) -> None:
        """End every session and server. Safe to call twice; does nothing in a forked child."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        self._loop.run(self._end_all())
        self._loop.close()
        self._launcher.close()
        shutil.rmtree(self._root, ignore_errors=True)
        atexit.unregister(self.close)

    @property
    def closed(self) -> bool:
        return self._closed

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise ServerFault(
                f"this ServerPool belongs to process {self._pid}; create a new pool after a fork", kind="server_start"
            )
        if self._closed:
            raise ServerFault("this ServerPool is closed; create a new one", kind="server_start")

    # Called on the pool's loop

    async def _open(
        self, servers: Servers, path: Path, seed: int, reserved: tuple[str, ...], opened: list[ToolSession]
    ) -> ToolSession:
        ours = self._workspaces.get(path)
        prestarted = ours.started if ours is not None else {}
        home = ours.home if ours is not None else Path(tempfile.mkdtemp(prefix="home-", dir=self._root))
        names = _names(servers)
        tasks = [
            prestarted.pop(index)
            if index in prestarted and not _has_failed(prestarted[index])  # else it is ended with the workspace
            else asyncio.create_task(self._connected(server, path, home, seed))
            for index, server in enumerate(servers)
        ]
        try:
            connected = await asyncio.gather(*tasks)
        except BaseException:
            await asyncio.shield(self._give_up(servers, tasks, path, home))
            raise
        attached = [
            SessionConnection(server, name, connection, shared=_is_shared(server))
            for server, name, connection in zip(servers, names, connected)
        ]

        async def connect_again(server: Server, before: ServerConnection) -> ServerConnection:
            return await self._connected(server, path, home, seed, before.answers)

        async def forget() -> None:
            self._sessions.discard(session)
            await self._remove(path, home)

        session = ToolSession(self._loop, attached, path, reserved, connect_again, forget)
        self._sessions.add(session)
        opened.append(session)
        return session

    async def _drop(self, opened: Sequence[ToolSession]) -> None:
        for session in opened:
            await session.end()

    async def _give_up(
        self, servers: Servers, tasks: Sequence[asyncio.Task[ServerConnection]], path: Path, home: Path
    ) -> None:
        own = [task for server, task in zip(servers, tasks) if not _is_shared(server)]
        await _end(own)
        await self._remove(path, home)

    async def _connected(
        self, server: Server, workspace: Path, home: Path, seed: int, answers: RequestAnswers | None = None
    ) -> ServerConnection:
        if not _is_shared(server):
            return await self._connect(server, workspace, home, seed, answers)
        task = self._shared.get(server)
        if task is None or _has_failed(task):
            task = self._shared[server] = asyncio.create_task(self._connect_shared(server, seed, instead_of=task))
        return await asyncio.shield(task)

    async def _connect_shared(
        self, server: Server, seed: int, instead_of: asyncio.Task[ServerConnection] | None
    ) -> ServerConnection:
        if instead_of is not None:
            await _end([instead_of])
        ours = self._make_workspace()
        return await self._connect(server, ours.path, ours.home, seed)

    async def _connect(
        self, server: Server, workspace: Path, home: Path, seed: int, answers: RequestAnswers | None = None
    ) -> ServerConnection:
        await asyncio.to_thread(_load_sdk)
        connection = self._connection(server, workspace, home, seed, answers)
        try:
            async with self._slot(server):
                await within(server.timeout, connection, "start", connection.open())
                connection.raw_tools = await within(server.timeout, connection, "list its tools", connection.tools())
        except ServerFault as fault:
            await asyncio.shield(connection.close())
            if fault.kind == "server_protocol":
                raise
            raise ServerFault(fault.message, kind="server_start") from fault
        except BaseException:
            await asyncio.shield(connection.close())
            raise
        return connection

    def _connection(
        self, server: Server, workspace: Path, home: Path, seed: int, answers: RequestAnswers | None
    ) -> ServerConnection:
        if answers is None:
            scripts = ((), ()) if isinstance(server, InProcessServer) else (server.elicitations, server.samples)
            answers = RequestAnswers(*scripts)
        if isinstance(server, StdioServer):
            try:
                home.mkdir(mode=0o700, exist_ok=True)
            except OSError as error:
                raise ServerFault(
                    f"cannot create the HOME directory of an MCP server: {error}", kind="server_start"
                ) from error
            from rllm_gym.mcp.stdio import StdioConnection

            launch = launch_spec(server, workspace, home, seed)
            return StdioConnection(_label(server, launch.argv[0]), launch, self._launcher, answers)
        if isinstance(server, HttpServer):
            from rllm_gym.mcp.sse import SseConnection
            from rllm_gym.mcp.streamable_http import HttpConnection

            connection = SseConnection if server.transport == "sse" else HttpConnection
            return connection(_label(server, server.url), server.url, server.headers, answers)
        from rllm_gym.mcp.in_process import InProcessConnection

        factory = getattr(server.make, "__qualname__", type(server.make).__name__)
        return InProcessConnection(_label(server, f"created by {factory}"), lambda: server.make(workspace, seed))

    @contextlib.asynccontextmanager
    async def _slot(self, server: Server) -> AsyncIterator[None]:
        """Limit how many programs start at once: sixty-four concurrent starts would all be late."""
        if not isinstance(server, StdioServer):
            yield
            return
        await self._slots.acquire()
        # A program that hangs must not block the others.
        timer = asyncio.get_running_loop().call_later(_SLOT_S, self._slots.release)
        try:
            yield
        finally:
            if timer.when() > asyncio.get_running_loop().time():
                timer.cancel()
                self._slots.release()

    # Workspaces, and servers started ahead of time

    async def _take_workspace(self, servers: Servers) -> Path:
        early = [index for index, server in enumerate(servers) if isinstance(server, StdioServer) and server.prestart]
        waiting = self._prestarted.pop(servers, deque()) if early else deque()
        ours = waiting.popleft() if waiting else self._make_workspace()
        if early:
            self._prestarted[servers] = waiting
            while len(waiting) < _PRESTARTED_PER_KIND:
                waiting.append(self._prestart(servers, early))
            if len(self._prestarted) > _MAX_PRESTARTED_KINDS:
                _, unused = self._prestarted.popitem(last=False)
                for one in unused:
                    await self._remove(one.path)
        return ours.path

    def _make_workspace(self) -> _PooledWorkspace:
        path = _absolute(tempfile.mkdtemp(prefix="workspace-", dir=self._root))
        ours = self._workspaces[path] = _PooledWorkspace(path, path.with_name(f"{path.name}-home"))
        return ours

    def _prestart(self, servers: Servers, early: Sequence[int]) -> _PooledWorkspace:
        ours = self._make_workspace()
        for index in early:
            task = asyncio.create_task(self._connect(servers[index], ours.path, ours.home, 0))
            # Its failure is ignored: the episode that uses the server starts it again.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            ours.started[index] = task
        return ours

    async def _remove(self, path: Path, home: Path | None = None) -> None:
        """End the processes of a workspace and delete it and its ``HOME``; for a user's own, delete only ``home``."""
        ours = self._workspaces.pop(path, None)
        folders = [] if home is None else [home]
        if ours is not None:
            await _end(list(ours.started.values()))
            folders = [path, ours.home]
        if self._closed:  # at interpreter exit no thread can be started any more
            _delete(folders)
        else:
            await asyncio.to_thread(_delete, folders)

    async def _end_all(self) -> None:
        sessions = list(self._sessions)
        started = [task for ours in self._workspaces.values() for task in ours.started.values()]
        await asyncio.gather(*(session.end() for session in sessions), _end([*started, *self._shared.values()]))


def _load_sdk() -> None:
    """Import the SDK, which takes more than a second.

    Raises:
        ModuleNotFoundError: The extra is not installed.
    """
    try:
        import rllm_gym.mcp.connection  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"MCP servers need the package 'mcp' ({error}): pip install 'rllm-gym[mcp]'",
            name="mcp",
        ) from error


def _has_failed(task: asyncio.Task[ServerConnection]) -> bool:
    """Return whether a connection could not be opened, or has failed since."""
    return task.done() and (task.cancelled() or task.exception() is not None or task.result().broken)


async def _end(tasks: Sequence[asyncio.Task[ServerConnection]]) -> None:
    """Cancel tasks in progress and close the connections that the others have opened."""
    for task in tasks:
        task.cancel()
    opened = await asyncio.gather(*tasks, return_exceptions=True)
    closing = (one.close() for one in opened if not isinstance(one, BaseException))
    await asyncio.gather(*closing, return_exceptions=True)


def _delete(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def launch_spec(server: StdioServer, workspace: Path, home: Path, seed: int) -> LaunchSpec:
    """Return the command with its placeholders filled in."""
    values = {"workspace": str(workspace), "seed": str(seed)}
    return server_spec((server.command, *server.args), server.env, server.cwd, home=str(home), values=values)


def _absolute(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.abspath(path))


def _is_shared(server: Server) -> bool:
    return not isinstance(server, InProcessServer) and server.shared


def _names(servers: Servers) -> list[str]:
    """Return a unique name for each server: its own, or ``server`` and its number."""
    names: list[str] = []
    for number, server in enumerate(servers, 1):
        name = server.name or f"server{number}"
        while name in names:
            name += f"_{number}"
        names.append(name)
    return names


def _label(server: Server, what: str) -> str:
    name = f" {server.name!r}" if server.name else ""
    return f"MCP server{name} ({what})"


# One pool per process


def _new_pool() -> ServerPool:
    pool = ServerPool()
    atexit.register(pool.close)
    return pool


_pool = PerProcess(_new_pool, is_usable=lambda pool: not pool.closed)


def shared_pool() -> ServerPool:
    """Return this process's pool: created on first use, and again after a fork or when it was closed."""
    return _pool()
