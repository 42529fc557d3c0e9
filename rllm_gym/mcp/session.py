"""The tools of an episode: the connections to all its servers, with a deadline for each call.

A model could end a server, or make it hang, with a call, so neither is a fault. A call that gets no answer returns an
error. A server that ended starts again if this loses no state, else it is lost, and the episode should end unsolved.
Faults are only what no call of the session can have caused: a server that ends, or cannot be reached, before a call has
reached any server.
"""

# ruff: noqa: ASYNC109 - the timeout is the contract

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.mcp.errors import JsonRpcError, ServerFault
from rllm_gym.mcp.offers import OFFERS, read_response
from rllm_gym.mcp.protocol import printable, sendable_json
from rllm_gym.mcp.results import ToolResult, refusal
from rllm_gym.mcp.server_requests import ServerRequest
from rllm_gym.mcp.servers import Server
from rllm_gym.mcp.tools import MCPTool, named_tools

if TYPE_CHECKING:  # it imports the SDK
    from rllm_gym.mcp.connection import ServerConnection

T = TypeVar("T")

_PROBE_S = 5.0
_logger = logging.getLogger(__name__)
_IN_A_CALL = {
    "server_died": "The server ended, or lost the connection, during this call.",
    "server_unreachable": "The server cannot be reached, and this call was not sent.",
    "server_deadline": "The tool timed out after {seconds:g} s. Whether the call has had an effect is unknown.",
    "server_protocol": "The server's answer to this call is invalid or too large.",
}
_RESTARTS = " The server starts again for the next call."
_STARTING = "The server of this tool is still starting again, and this call was not sent."
_LOST = "The server of this tool has ended, and what it kept in memory is lost."
_NO_RESTART = "The server of this tool has ended, and does not start again."


@dataclass(eq=False)
class SessionConnection:
    """A connection in a session.

    Attributes:
        server: The server it connects to.
        name: The server's name in this session.
        connection: The connection.
        shared: Whether other sessions use it after this one ends.
        restartable: Whether a new connection can replace it without a loss of state.
        seen_changes: The connection's number of changes of its tools when this session has listed them.
        restart: The task that makes a new connection; one that has failed remains.
    """

    server: Server
    name: str
    connection: ServerConnection
    shared: bool
    seen_changes: int = 0
    restart: asyncio.Task[None] | None = None

    @property
    def restartable(self) -> bool:
        return self.shared or self.server.restartable

    @property
    def tools_changed(self) -> bool:
        """Whether its tools may have changed since this session has listed them."""
        return self.connection.tool_changes != self.seen_changes


class ToolSession:
    """The tools of one episode. Its coroutines may be awaited from any event loop, several at a time.

    Attributes:
        tools: The tools, as they were listed when the session was opened or :meth:`refresh` was called.
        instructions: What each server says about its use, by the server's name; servers that say nothing are left out.
        workspace: The episode's directory.
        lost: The servers that ended after a call of the session and cannot go on: each one's name, and what happened.
    """

    def __init__(
        self,
        loop: BackgroundLoop,
        attached: Sequence[SessionConnection],
        workspace: Path,
        reserved: Collection[str],
        connect: Callable[[Server, ServerConnection], Awaitable[ServerConnection]],
        on_close: Callable[[], Awaitable[None]],
    ) -> None:
        self._loop = loop
        self._connections = attached
        self._connect = connect
        self._on_close = on_close
        self._ending: asyncio.Future[None] | None = None
        self._pid = os.getpid()
        self._reserved = reserved
        self.workspace = workspace
        self.lost: dict[str, str] = {}
        self._called, self._reached = False, False
        self.tools: list[MCPTool]
        self._name_tools()
        self.instructions = {one.name: text for one in attached if (text := one.connection.instructions)}
        self._by_server = {one.name: one for one in attached}

    def _name_tools(self) -> None:
        listed = [
            (one.name, [*one.connection.raw_tools, *(tool for offer in one.server.offers for tool in OFFERS[offer])])
            for one in self._connections
        ]
        self.tools = named_tools(listed, self._reserved)
        self._by_name = {tool.name: tool for tool in self.tools}

    async def call(self, name: str, arguments: dict[str, Any], *, timeout: float | None = None) -> ToolResult:
        """Call a tool.

        Args:
            name: One of :attr:`tools`.
            arguments: JSON types. They are sent unchanged; check them against the schema first.
            timeout: Seconds, including those for which the call waits until its server has started again, without those
                for which its server waits for the model (see :meth:`listen`); ``None`` for the server's own.

        Returns:
            The tool's result. ``is_error`` is set if the tool fails, if its server refuses the call, or if the server
            hangs, sends an invalid answer, or has ended: see :attr:`lost`.

        Raises:
            ServerFault: The server ended before the first call of the session, cannot be reached or started again
                although no call of the session has reached a server, or this session is closed.
        """
        return await asyncio.wrap_future(self.start(name, arguments, timeout=timeout))

    def start(
        self, name: str, arguments: dict[str, Any], *, timeout: float | None = None
    ) -> concurrent.futures.Future[ToolResult]:
        """Start a call; the future has what :meth:`call` returns or raises."""
        if self._pid != os.getpid():
            raise ServerFault(
                f"this ToolSession belongs to process {self._pid}; open a new session after a fork", kind="server_died"
            )
        self._check_open()
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout={timeout!r} must be a positive number of seconds")
        tool = self._by_name.get(name)
        if tool is None:
            return _done(refusal(f"There is no tool {printable(name)!r}."))
        try:
            sendable = sendable_json(arguments)
        except ValueError as error:
            return _done(refusal(f"The arguments cannot be sent: {error}."))
        one = self._by_server[tool.server]
        seconds = one.server.timeout if timeout is None else timeout
        return self._loop.start(self._call(one, tool, sendable, seconds))

    def listen(self, notify: Callable[[], None] | None) -> None:
        """Let requests of servers with ``elicitations="model"`` or ``samples="model"`` wait in :attr:`requests`.

        Args:
            notify: Called for each, from another thread. ``None``: the model answers no more, and requests are
                declined, also those that wait.
        """
        for one in self._connections:
            if not one.shared:
                one.connection.answers.listen(notify)

    @property
    def requests(self) -> list[tuple[str, ServerRequest]]:
        """The requests that wait for the model, and the name of the server of each."""
        return [
            (one.name, request)
            for one in self._connections
            for request in [*one.connection.answers.waiting]
            if not request.is_answered
        ]

    def end_of_trial(self) -> None:
        """Forget the calls so far, which were not the model's: what ends a server from now on may be a fault again.

        Raises:
            ServerFault: One of these calls has ended a server.
        """
        self._called = self._reached = False
        for name, words in self.lost.items():
            raise ServerFault(f"the server {name!r} ended before the model acted: {words}", kind="server_died")

    async def refresh(self, timeout: float | None = None) -> bool:
        """List the tools again of servers that have changed theirs; return whether :attr:`tools` are others now.

        A server that does not answer within ``timeout`` seconds (``None``: its own) keeps the tools that are known.

        Servers say so; over streamable HTTP, each call may change the tools of a server with the capability
        ``listChanged``. Changes of servers in this process are not noticed.
        """
        changed = [one for one in self._connections if one.tools_changed and not one.connection.broken]
        if not changed or self._ending is not None:
            return False
        before = self.tools
        await self._loop.arun(self._list_again(changed, timeout))
        return self.tools != before

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

    def _check_open(self) -> None:
        if self._ending is not None:
            raise ServerFault("this ToolSession is closed; open a new one", kind="server_died")

    # Called on the pool's loop

    async def _call(
        self, one: SessionConnection, tool: MCPTool, arguments: dict[str, Any], timeout: float
    ) -> ToolResult:
        self._check_open()  # again: a restart that begins now would outlive the session
        called, self._called = self._called, True
        seconds = timeout
        if one.connection.broken:
            if not called and not one.shared:
                one.connection.check()
            if not one.restartable:
                return self._lost(one, _LOST)
            began = time.monotonic()
            restart = one.restart = one.restart or asyncio.create_task(self._restart(one))
            await asyncio.wait([restart], timeout=timeout)
            self._check_open()
            if restart.done() and (error := restart.exception()) is not None:
                if not self._reached:
                    raise error
                _logger.warning("%s", error)
                return self._lost(one, _NO_RESTART)
            seconds -= time.monotonic() - began
            if not restart.done() or seconds <= 0:
                return refusal(_STARTING)
        connection = one.connection
        params = {"name": tool.remote_name, "arguments": arguments} if tool.method == "tools/call" else arguments
        sent = connection.request_with_input(tool.method, params)
        try:
            raw = await within(seconds, connection, f"answer {tool.remote_name!r}", sent)
        except JsonRpcError as error:
            self._reached = True
            return refusal(f"Error: {error}")
        except ServerFault as fault:
            self._reached |= fault.kind != "server_unreachable"
            if self._ending is not None or not (self._reached or one.restartable):
                raise
            _logger.warning("%s", fault)
            words = _IN_A_CALL[fault.kind].format(seconds=timeout)
            if fault.kind == "server_deadline" and one.restartable and not await _responds(connection, timeout):
                await connection.close()
            if not connection.broken:
                return refusal(words)
            return refusal(words + _RESTARTS) if one.restartable else self._lost(one, words)
        self._reached = True
        return read_response(tool.method, raw)

    def _lost(self, one: SessionConnection, words: str) -> ToolResult:
        """Note that a server cannot go on, and return the result of the call that met this."""
        self.lost.setdefault(one.name, words)
        return refusal(words)

    async def _restart(self, one: SessionConnection) -> None:
        if not one.shared:
            await one.connection.close()
        one.connection = await self._connect(one.server, one.connection)
        one.restart, one.seen_changes = None, -1  # it may have other tools

    async def _list_again(self, changed: Sequence[SessionConnection], timeout: float | None) -> None:
        async def list_again(one: SessionConnection) -> None:
            connection = one.connection
            one.seen_changes = connection.tool_changes
            seconds = one.server.timeout if timeout is None else timeout
            try:
                connection.raw_tools = await within(seconds, connection, "list its tools", connection.tools())
            except ServerFault as fault:  # the former list stays; if the server has ended, the next call meets that
                _logger.warning("%s", fault)

        await asyncio.gather(*map(list_again, changed))
        self._name_tools()

    async def _end(self) -> None:
        self.listen(None)  # a call that waits for the model would wait forever
        restarts = [one.restart for one in self._connections if one.restart is not None]
        for restart in restarts:
            restart.cancel()
        await asyncio.gather(*restarts, return_exceptions=True)
        own = [one.connection.close() for one in self._connections if not one.shared]
        await asyncio.gather(*own, return_exceptions=True)
        await self._on_close()


def _done(result: ToolResult) -> concurrent.futures.Future[ToolResult]:
    future: concurrent.futures.Future[ToolResult] = concurrent.futures.Future()
    future.set_result(result)
    return future


async def _responds(connection: ServerConnection, timeout: float) -> bool:
    """Return whether a server that did not answer a call in time answers another request."""
    try:
        await within(min(timeout, _PROBE_S), connection, "list its tools", connection.tools())
    except (JsonRpcError, ServerFault):
        return False
    return True


async def within(timeout: float, connection: ServerConnection, what: str, operation: Awaitable[T]) -> T:
    """Await something with a deadline.

    Raises:
        ServerFault: It took more than ``timeout`` seconds.
    """
    try:
        async with asyncio.timeout(timeout) as deadline:
            with connection.answers.suspending(deadline):
                return await operation
    except TimeoutError:
        words = f"{connection.label} did not {what} within {timeout:g} s{connection.error_context()}"
        raise ServerFault(words, kind="server_deadline") from None
