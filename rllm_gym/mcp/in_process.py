"""A connection to a server in this process, in a separate thread, so that a blocking tool stalls nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.to_thread
from mcp import Client, ClientSession
from mcp.server import MCPServer, Server
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

from rllm_gym.mcp.connection import CLIENT_INFO, ServerConnection, retrieve
from rllm_gym.mcp.errors import ServerFault

_MAX_HANGING = 100
"""Maximum number of closed servers of this process whose thread has not ended."""
_hanging: set[threading.Thread] = set()
_creation_lock = threading.Lock()


class InProcessConnection(ServerConnection):
    """See :class:`~rllm_gym.mcp.connection.ServerConnection`.

    The server is created, served and ended in one thread with its own event loop, by the task that holds the client.
    Its synchronous tools run in further threads, at most 40 of them, as the SDK does it. A server whose tool never
    returns is abandoned when the connection is closed, in daemon threads; :data:`_MAX_HANGING` bounds such servers.
    """

    _end_s = 1.0
    _thread: threading.Thread | None = None

    def __init__(self, label: str, make: Callable[[], Any]) -> None:
        super().__init__(label)
        self._make = make

    def _start(self) -> None:
        _hanging.difference_update([thread for thread in [*_hanging] if not thread.is_alive()])
        if len(_hanging) >= _MAX_HANGING:
            raise ServerFault(
                f"{self.label} is not started: {len(_hanging)} servers in this process hang in a tool although they "
                "were closed, and their threads cannot be killed; give their tools a deadline, or run them as programs "
                "(StdioServer)",
                kind="server_start",
            )
        self._thread = threading.Thread(target=self._run_thread, name="mcp-server", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        await super().close()
        if self._thread is not None and self._thread.is_alive():
            _hanging.add(self._thread)

    def _run_thread(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # a task of a tool has ended the event loop
            self._break(ServerFault(f"{self.label} ended: {type(error).__name__}", kind="server_died"))
        finally:
            self._finished()

    async def _ask(self, method: str, params: dict[str, Any]) -> Any:
        scope = anyio.CancelScope()
        call = asyncio.get_running_loop().create_task(self._ask_within(scope, method, params))
        call.add_done_callback(retrieve)
        try:
            return await asyncio.shield(call)
        finally:
            scope.cancel()

    async def _ask_within(self, scope: anyio.CancelScope, method: str, params: dict[str, Any]) -> Any:
        """Run the tool in a scope: cancelled with it, a thread counts for the limit of threads until it has ended."""
        task = asyncio.current_task()
        with scope:
            try:
                return await super()._ask(method, params)
            except BaseException as error:
                # Tools may raise anything; SystemExit, for example, would end the event loop.
                if isinstance(error, Exception) or (task is not None and task.cancelling()):
                    raise
                raise MCPError(INTERNAL_ERROR, f"the tool raised {type(error).__name__}") from error

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[ClientSession]:
        server = self._make_server()
        if not isinstance(server, MCPServer | Server):
            raise TypeError(f"make() returned {type(server).__name__}; it must return an mcp.server.MCPServer")
        async with Client(server, client_info=CLIENT_INFO) as client:
            try:
                yield client.session
            finally:
                for call in self._calls:
                    call.cancel()
                # Wait for the threads of tools, so that this thread counts as hanging as long as one of them does.
                with anyio.CancelScope(shield=True):
                    threads = anyio.to_thread.current_default_thread_limiter()
                    limit, threads.total_tokens = threads.total_tokens, 1
                    async with threads:
                        pass
                    threads.total_tokens = limit  # for the server's own end

    def _make_server(self) -> Any:
        # The SDK's server makes the root logger print everything, as if it were a program of its own.
        root = logging.getLogger()
        with _creation_lock:
            handlers, level = list(root.handlers), root.level
            try:
                return self._make()
            finally:
                root.handlers[:] = handlers
                root.setLevel(level)
