"""The tools of an episode: the connections to all its servers, with a deadline for each call.

A server that breaks while it works on a call is no fault, because a model could cause it at will: the call returns an
error, and the server starts again for the next one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.mcp.errors import JsonRpcError, ServerFault
from rllm_gym.mcp.protocol import MAX_DEPTH, depth, printable
from rllm_gym.mcp.results import ToolResult, read_result, refusal
from rllm_gym.mcp.servers import HttpServer, Server
from rllm_gym.mcp.tools import MCPTool, named_tools

if TYPE_CHECKING:  # it imports the SDK
    from rllm_gym.mcp.connection import ServerConnection

T = TypeVar("T")

_PROBE_S = 5.0
_logger = logging.getLogger(__name__)
_IN_A_CALL = {
    "server_died": "The server ended, or lost the connection, during this call.",
    "server_deadline": "The tool did not answer in time. Whether the call has had an effect is unknown.",
    "server_protocol": "The server's answer to this call is invalid or too large.",
}
_AFTER_A_CALL = "The server ended after an earlier call, and this one was not sent."
_RESTARTS = " The server starts again for the next call; what it kept in memory is lost."
_CANNOT_RESTART = "The server of this tool broke during an earlier call and cannot be started again."


@dataclass(eq=False)
class SessionConnection:
    """A connection in a session.

    Attributes:
        server: The server it connects to.
        name: The server's name in this session.
        connection: The connection.
        shared: Whether other sessions use it after this one ends.
        restart: The task that makes a new connection.
    """

    server: Server
    name: str
    connection: ServerConnection
    shared: bool
    restart: asyncio.Task[None] | None = None


class ToolSession:
    """The tools of one episode. Its coroutines may be awaited from any event loop, several at a time.

    The tools are those listed when the session was opened: later changes of a server's list are ignored.

    Attributes:
        tools: The tools.
        instructions: What each server says about its use, by the server's name; servers that say nothing are left out.
        workspace: The episode's directory.
        lost_memory: The servers that broke because of a call, and so lost what they kept in memory.
    """

    def __init__(
        self,
        loop: BackgroundLoop,
        attached: Sequence[SessionConnection],
        workspace: Path,
        reserved: Collection[str],
        connect: Callable[[Server], Awaitable[ServerConnection]],
        on_close: Callable[[], Awaitable[None]],
    ) -> None:
        self._loop = loop
        self._connections = attached
        self._connect = connect
        self._on_close = on_close
        self._ending: asyncio.Future[None] | None = None
        self._pid = os.getpid()
        self.workspace = workspace
        self.lost_memory: set[str] = set()
        self.tools: list[MCPTool] = named_tools([(one.name, one.connection.raw_tools) for one in attached], reserved)
        self.instructions = {one.name: text for one in attached if (text := one.connection.instructions)}
        self._by_name = {tool.name: tool for tool in self.tools}
        self._by_server = {one.name: one for one in attached}

    async def call(self, name: str, arguments: dict[str, Any], *, timeout_s: float | None = None) -> ToolResult:
        """Call a tool.

        Args:
            name: One of :attr:`tools`.
            arguments: JSON types. They are sent unchanged; check them against the schema first.
            timeout_s: Seconds, ``None`` for the server's own.

        Returns:
            The tool's result. ``is_error`` is set if the tool fails, if its server refuses the call, or if the server
            dies, hangs or sends an invalid answer: then it starts again for the next call.

        Raises:
            ServerFault: The server was killed while it had no call to work on, an HTTP server cannot be reached
                again, or this session is closed.
        """
        if self._pid != os.getpid():
            raise ServerFault(
                f"this ToolSession belongs to process {self._pid}; open a new session after a fork", kind="server_died"
            )
        if self._ending is not None:
            raise ServerFault("this ToolSession is closed; open a new one", kind="server_died")
        if timeout_s is not None and not timeout_s > 0:
            raise ValueError(f"timeout_s={timeout_s!r} must be a positive number of seconds")
        tool = self._by_name.get(name)
        if tool is None:
            return refusal(f"There is no tool {printable(name)!r}.")
        try:
            sendable = _sendable(arguments)
        except ValueError as error:
            return refusal(f"The arguments cannot be sent: {error}.")
        one = self._by_server[tool.server]
        seconds = one.server.timeout_s if timeout_s is None else timeout_s
        return await self._loop.arun(self._call(one, tool.remote_name, sendable, seconds))

    async def close(self) -> None:
        """Close the session: when this returns, the processes of its servers are gone. Safe to call twice."""
        over = self._ending is not None and self._ending.done()
        if self._pid == os.getpid() and not over:
            await asyncio.shield(asyncio.wrap_future(self._loop.start(self.end())))

    async def end(self) -> None:
        """Close the session from the pool's loop; see :meth:`close`."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._end())
        await asyncio.shield(self._ending)

    # Called on the pool's loop

    async def _call(self, one: SessionConnection, name: str, arguments: dict[str, Any], timeout_s: float) -> ToolResult:
        connection = one.connection
        if connection.broken and (one.shared or connection.broke_in_call):
            if one.restart is None or one.restart.done():
                one.restart = asyncio.create_task(self._restart(one))
            await asyncio.wait([one.restart])
            if self._ending is not None:
                raise ServerFault("this ToolSession was closed", kind="server_died")
            if (error := one.restart.exception()) is not None:
                if isinstance(one.server, HttpServer):
                    raise error  # it is operated by others: the model cannot have ended it
                _logger.warning("%s", error)
                return refusal(_CANNOT_RESTART)
            connection = one.connection
        elif connection.broken and connection.called and connection.failed_by_itself:
            # A call may have made it end later.
            connection.broke_in_call = True
            self.lost_memory.add(one.name)
            return refusal(_AFTER_A_CALL + _RESTARTS)
        broke_by_itself = connection.broken
        try:
            raw = await within(timeout_s, connection, f"answer {name!r}", connection.call(name, arguments))
        except JsonRpcError as error:
            return refusal(f"Error: {error}")
        except ServerFault as fault:
            if broke_by_itself or self._ending is not None:
                raise
            _logger.warning("%s", fault)
            if fault.kind == "server_deadline" and not await _responds(connection, timeout_s):
                connection.broke_in_call = True
                await connection.close()
            if connection.broken and not isinstance(one.server, HttpServer):
                self.lost_memory.add(one.name)
            return refusal(_IN_A_CALL[fault.kind] + (_RESTARTS if connection.broken else ""))
        return read_result(raw)

    async def _restart(self, one: SessionConnection) -> None:
        if not one.shared:
            await one.connection.close()
        one.connection = await self._connect(one.server)

    async def _end(self) -> None:
        restarts = [one.restart for one in self._connections if one.restart is not None]
        for restart in restarts:
            restart.cancel()
        await asyncio.gather(*restarts, return_exceptions=True)
        own = [one.connection.close() for one in self._connections if not one.shared]
        await asyncio.gather(*own, return_exceptions=True)
        await self._on_close()


async def _responds(connection: ServerConnection, timeout_s: float) -> bool:
    """Return whether a server that did not answer a call in time answers another request."""
    try:
        await within(min(timeout_s, _PROBE_S), connection, "list its tools", connection.tools())
    except (JsonRpcError, ServerFault):
        return False
    return True


async def within(timeout_s: float, connection: ServerConnection, what: str, operation: Awaitable[T]) -> T:
    """Await something with a deadline.

    Raises:
        ServerFault: It took more than ``timeout_s`` seconds.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await operation
    except TimeoutError:
        kind = "server_protocol" if connection.sent_invalid else "server_deadline"
        words = f"{connection.label} did not {what} within {timeout_s:g} s{connection.error_context()}"
        raise ServerFault(words, kind=kind) from None


def _sendable(arguments: Any) -> dict[str, Any]:
    """Return the arguments without lone surrogates: a server might not answer at all.

    Raises:
        ValueError: They are not a JSON object, or JSON that servers cannot parse.
    """
    if not isinstance(arguments, dict):
        raise ValueError(f"they are of type {type(arguments).__name__}, not a JSON object")
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise ValueError("they are nested too deeply") from None
    except TypeError as error:
        raise ValueError(str(error)) from None
    if (deep := depth(arguments)) > MAX_DEPTH:
        raise ValueError(f"they are nested {deep} deep, and at most {MAX_DEPTH} are read")
    return json.loads(printable(text))  # type: ignore[no-any-return]
