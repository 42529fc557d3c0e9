"""A connection to a server in this process, in a separate thread, so that a blocking tool stalls nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Any

from rllm_gym.mcp.errors import JsonRpcError, ServerFault

_END_S = 1.0
"""Seconds that a server gets to end; one that blocks is abandoned in a daemon thread."""

_creation_lock = threading.Lock()


class InProcessConnection:
    """See :class:`~rllm_gym.mcp.protocol.MCPConnection`.

    The server is created, served and ended in one thread with its own event loop, where one task holds the SDK's
    client. Its synchronous tools run in further threads, as the SDK does it.
    """

    def __init__(self, label: str, make: Callable[[], Any]) -> None:
        self.label = label
        self._make = make
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._over: asyncio.Event | None = None
        self._ready: asyncio.Future[None] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._fault: ServerFault | None = None

    broken = property(lambda self: self._fault is not None)
    sent_invalid = False

    def error_context(self) -> str:
        return ""

    async def open(self) -> None:
        """Create the server and connect to it.

        Raises:
            ServerFault: It cannot be created.
            ModuleNotFoundError: The extra is not installed.
        """
        here = asyncio.get_running_loop()
        self._ready, self._ended = here.create_future(), here.create_future()
        threading.Thread(target=self._run_thread, args=(here,), name="mcp-server", daemon=True).start()
        await asyncio.shield(self._ready)

    async def tools(self) -> list[dict[str, Any]]:
        tools: list[dict[str, Any]] = await self._on_server_loop(self._list())
        return tools

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = await self._on_server_loop(self._call(name, arguments))
        return result

    async def close(self) -> None:
        """End the server; one whose tool blocks is abandoned. Safe to call twice."""
        self._fault = self._fault or ServerFault(f"{self.label} was closed", kind="server_died")
        if self._loop is None or self._over is None or self._ended is None:
            return
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._over.set)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                await asyncio.shield(self._ended)

    # Called in the server's thread

    def _run_thread(self, owner: asyncio.AbstractEventLoop) -> None:
        try:
            asyncio.run(self._serve(owner))
        # Exceptions of its constructor or while serving are the server's own failures.
        except BaseException as error:
            fault = error if isinstance(error, ServerFault | ModuleNotFoundError) else self._failed(error)
            _settle(owner, self._ready, fault)
        finally:
            _settle(owner, self._ready, ServerFault(f"{self.label} ended", kind="server_start"))
            _settle(owner, self._ended, None)

    async def _serve(self, owner: asyncio.AbstractEventLoop) -> None:
        client = _client_of(self._make_server())
        async with client:
            self._client, self._over, self._loop = client, asyncio.Event(), asyncio.get_running_loop()
            _settle(owner, self._ready, None)
            if self._fault is None:  # else it was closed while it was created
                await self._over.wait()

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

    def _failed(self, error: BaseException) -> ServerFault:
        fault = ServerFault(
            f"{self.label} could not be created or served: {type(error).__name__}: {error}", kind="server_start"
        )
        fault.__cause__ = error
        return fault

    async def _on_server_loop(self, coroutine: Any) -> Any:
        if self._fault is not None or self._loop is None:
            coroutine.close()
            fault = self._fault or ServerFault(f"{self.label} was not opened", kind="server_start")
            raise ServerFault(fault.message, kind=fault.kind)
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise ServerFault(f"{self.label} has ended", kind="server_died") from None
        return await asyncio.wrap_future(future)

    async def _list(self) -> list[dict[str, Any]]:
        tools, cursor = [], None
        while True:
            page = await self._client.list_tools(cursor=cursor)
            tools += [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in page.tools]
            cursor = page.next_cursor
            if not cursor:
                return tools

    async def _call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        from mcp.shared.exceptions import MCPError

        try:
            result = await self._client.call_tool(name, arguments)
        except MCPError as error:
            raise JsonRpcError(error.code, error.message) from error
        except Exception as error:
            raise ServerFault(
                f"{self.label} failed in tool {name!r}: {type(error).__name__}: {error}", kind="server_protocol"
            ) from error
        return result.model_dump(mode="json", by_alias=True, exclude_none=True)  # type: ignore[no-any-return]


def _client_of(server: Any) -> Any:
    try:
        from mcp import Client
        from mcp.server import MCPServer, Server
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"servers in this process need the package 'mcp' ({error}): pip install 'rllm-gym[mcp]'", name="mcp"
        ) from error
    if not isinstance(server, MCPServer | Server):
        raise TypeError(f"make() returned {type(server).__name__}; it must return an mcp.server.MCPServer")
    return Client(server)


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None] | None, error: BaseException | None) -> None:
    def settle() -> None:
        if future is None or future.done():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
            future.exception()  # marks it as retrieved, also if there is no caller left

    with contextlib.suppress(RuntimeError):  # the owner's loop has ended
        loop.call_soon_threadsafe(settle)
