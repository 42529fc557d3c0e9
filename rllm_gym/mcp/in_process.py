"""A connection to a server in this process, in a separate thread, so that a blocking tool stalls nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

from mcp import Client, ClientSession
from mcp.server import MCPServer, Server
from mcp_types import INTERNAL_ERROR

from rllm_gym.mcp.connection import CLIENT_INFO, ServerConnection
from rllm_gym.mcp.errors import JsonRpcError, ServerFault

_creation_lock = threading.Lock()


class InProcessConnection(ServerConnection):
    """See :class:`~rllm_gym.mcp.connection.ServerConnection`.

    The server is created, served and ended in one thread with its own event loop, by the task that holds the client.
    Its synchronous tools run in further threads, as the SDK does it. A server whose tool blocks the loop is abandoned
    when the connection is closed, in a daemon thread.
    """

    _end_s = 1.0

    def __init__(self, label: str, make: Callable[[], Any]) -> None:
        super().__init__(label)
        self._make = make

    def _start(self) -> None:
        threading.Thread(target=self._run_thread, name="mcp-server", daemon=True).start()

    def _run_thread(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # a task of a tool has ended the event loop
            self.failed_by_itself = True
            self._break(ServerFault(f"{self.label} ended: {type(error).__name__}", kind="server_died"))
        finally:
            self._finished()

    async def _send(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        task = asyncio.current_task()
        try:
            return await super()._send(method, params)
        except BaseException as error:
            # Tools may raise anything; SystemExit, for example, would end the event loop.
            if isinstance(error, Exception) or (task is not None and task.cancelling()):
                raise
            raise JsonRpcError(INTERNAL_ERROR, f"the tool raised {type(error).__name__}") from error

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[ClientSession]:
        server = self._make_server()
        if not isinstance(server, MCPServer | Server):
            raise TypeError(f"make() returned {type(server).__name__}; it must return an mcp.server.MCPServer")
        async with Client(server, client_info=CLIENT_INFO) as client:
            yield client.session

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
