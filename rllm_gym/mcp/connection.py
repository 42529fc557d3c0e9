"""A connection through the client of the MCP SDK, in any transport of the SDK: see :class:`ServerConnection`.

Import this module only when a server needs it: the SDK takes more than a second to load.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import httpx2
from mcp import ClientSession
from mcp.shared.dispatcher import CallOptions, DispatchContext
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types import (
    CONNECTION_CLOSED,
    METHOD_NOT_FOUND,
    CallToolRequest,
    CallToolRequestParams,
    ErrorData,
    GetPromptRequest,
    GetPromptRequestParams,
    Implementation,
    ListPromptsRequest,
    ListResourcesRequest,
    ListResourceTemplatesRequest,
    PaginatedRequestParams,
    ReadResourceRequest,
    ReadResourceRequestParams,
)
from pydantic import BaseModel, TypeAdapter, ValidationError

from rllm_gym.mcp.errors import JsonRpcError, ServerFault
from rllm_gym.mcp.protocol import MAX_DEPTH, bounded_instructions, depth, printable, shown
from rllm_gym.mcp.server_requests import RequestAnswers, passed_on
from rllm_gym.version import __version__

CLIENT_INFO = Implementation(name="rllm-gym", version=__version__)
_AS_SENT: Any = TypeAdapter(dict[str, Any])
_REQUESTS: dict[str, tuple[Any, Any, str]] = {
    "tools/call": (CallToolRequest, CallToolRequestParams, "content"),
    "resources/list": (ListResourcesRequest, PaginatedRequestParams, "resources"),
    "resources/templates/list": (ListResourceTemplatesRequest, PaginatedRequestParams, "resourceTemplates"),
    "resources/read": (ReadResourceRequest, ReadResourceRequestParams, "contents"),
    "prompts/list": (ListPromptsRequest, PaginatedRequestParams, "prompts"),
    "prompts/get": (GetPromptRequest, GetPromptRequestParams, "messages"),
}
"""Each request that a tool stands for: its type, that of its parameters, and the list that its result must have."""
_DECLINED = -1
"""The code of the protocol for a request that the user declines."""
_MAX_VERSIONS = 100
_MAX_INPUT_ROUNDS = 10
_MAX_INPUTS = 20
_ASK_AGAIN_S = 0.1
_MAX_TOOLS = 1_000
_MAX_PAGES = 100
_MAX_TOOLS_BYTES = 8 << 20
_NOTICES_S = 2.0
_KEEP_ALIVE_S = 1.0
TOOLS_CHANGED = "notifications/tools/list_changed"


@dataclass
class Exchange:
    """What a server has sent for one request.

    Attributes:
        method: The request's method, where the transport needs it.
        number: Its id.
        fault: Why there is no answer, if the transport knows that better than the SDK.
        result: The result as it was sent.
        read: Number of bytes.
        messages: Number of messages.
        requests: Number of the server's own requests.
        resumed: How often its stream was resumed.
    """

    method: str = ""
    number: Any = None
    fault: ServerFault | None = None
    result: dict[str, Any] | None = None
    read: int = 0
    messages: int = 0
    requests: int = 0
    resumed: int = 0


exchange_of_task: ContextVar[Exchange] = ContextVar("exchange_of_task")
"""The exchange that a task works for: the SDK's transport runs in the context of the task that sends the request."""


class ToolDispatcher(JSONRPCDispatcher):
    """Keeps results as they are sent, answers a server's own requests by a policy, and ignores its notifications.

    The SDK's session validates everything: one part of a kind that it does not know makes the whole result invalid, and
    2 MB of short invalid values take 2 GiB of memory for error messages. So the session gets only what it needs.
    """

    def __init__(self, *streams: Any, answers: RequestAnswers) -> None:
        super().__init__(*streams)
        self._answers = answers

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None, **options: Any
    ) -> dict[str, Any]:
        exchange = exchange_of_task.get()
        raw = await super().send_raw_request(method, params, opts, **options)
        if exchange.result is None:  # else the transport has kept it
            exchange.result = raw
        return _needed(method, exchange.result)

    async def run(self, on_request: Any, on_notify: Any, on_notify_intercept: Any = None, **options: Any) -> None:
        await super().run(self._serve, _ignore, **options)

    async def _serve(self, context: DispatchContext[Any], method: str, params: Any) -> dict[str, Any]:
        answer = await self._answers.answer(method, params)
        if answer is not None:
            return answer
        if method == "sampling/createMessage":
            raise MCPError(_DECLINED, "the user declines the request")
        raise MCPError(METHOD_NOT_FOUND, f"this client runs tools and serves no {method[:200]!r}")


def _needed(method: str, raw: dict[str, Any]) -> dict[str, Any]:
    """Return a valid result with what the session uses: versions, instructions, and schemas for HTTP headers."""
    needed: dict[str, Any] = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    if method in _REQUESTS:
        return {**needed, _REQUESTS[method][2]: []}
    if method == "tools/list":
        listed = raw.get("tools")
        tools = [_schema_of(tool) for tool in listed[:_MAX_TOOLS]] if isinstance(listed, list) else []
        return {**needed, "tools": [tool for tool in tools if tool is not None]}
    capabilities = raw.get("capabilities")
    tools_capability = capabilities.get("tools") if isinstance(capabilities, dict) else None
    changing = isinstance(tools_capability, dict) and tools_capability.get("listChanged") is True
    needed |= {
        "capabilities": {"tools": {"listChanged": changing}},
        "instructions": bounded_instructions(raw.get("instructions")),
    }
    if method == "initialize":
        return {**needed, "protocolVersion": raw.get("protocolVersion"), "serverInfo": {"name": "", "version": ""}}
    versions = raw.get("supportedVersions")
    return {**needed, "supportedVersions": versions[:_MAX_VERSIONS] if isinstance(versions, list) else None}


def _schema_of(tool: Any) -> dict[str, Any] | None:
    name, schema = (tool.get("name"), tool.get("inputSchema")) if isinstance(tool, dict) else (None, None)
    return {"name": name, "inputSchema": schema} if isinstance(name, str) and isinstance(schema, dict) else None


def sdk_error(error: dict[str, Any]) -> ErrorData:
    """Return an error of a server as the SDK's type, with any code and message, of bounded length."""
    code, message = error.get("code"), error.get("message", "")
    text = message if isinstance(message, str) else shown(message)
    return ErrorData(code=code if type(code) is int else 0, message=printable(text[:10_000]))


async def _ignore(context: DispatchContext[Any], method: str, params: Mapping[str, Any] | None) -> None:
    pass


def checked_session(streams: Sequence[Any], answers: RequestAnswers) -> ClientSession:
    """Return a session that announces what is answered with more than a refusal."""

    async def answered_by_dispatcher(*arguments: Any) -> Any:
        raise NotImplementedError("the dispatcher answers; that there is a callback announces the capability")

    callback: Any = answered_by_dispatcher
    return ClientSession(
        dispatcher=ToolDispatcher(*streams, answers=answers),
        client_info=CLIENT_INFO,
        elicitation_callback=callback if answers.elicits else None,
        sampling_callback=callback if answers.samples else None,
    )


def http_transport() -> httpx2.AsyncHTTPTransport:
    """Return a transport that does not reuse a connection which the server is about to close.

    Servers close connections that were idle for some seconds: Uvicorn and Node.js for five, the client's own default,
    Gunicorn for two. A call that is sent at that moment is lost, and cannot be repeated, as it may have been executed.
    """
    return httpx2.AsyncHTTPTransport(trust_env=False, limits=httpx2.Limits(keepalive_expiry=_KEEP_ALIVE_S))


def retrieve(future: asyncio.Future[Any]) -> None:
    """Mark the exception as retrieved: there may be no caller left."""
    if not future.cancelled():
        future.exception()


class ServerConnection(ABC):
    """A connection to one server. The code that opens it closes it and sets deadlines.

    One task enters the SDK's client and leaves it, as its cancel scopes require; calls are tasks of their own.
    Subclasses implement :meth:`_client`.

    Attributes:
        label: The server's name in messages, such as ``MCP server 'files' (node …)``.
        instructions: What the server says about its use, known when the connection is open.
        raw_tools: The tools that it listed, as it describes them.
        tool_changes: How often it has said since then that its tools have changed; each session compares this number.
        answers: The answers to its own requests.
    """

    _end_s = 5.0
    """Seconds that the client gets to end."""

    def __init__(self, label: str, answers: RequestAnswers | None = None) -> None:
        self.label, self.answers = label, answers or RequestAnswers((), ())
        self.instructions = ""
        self.raw_tools: list[dict[str, Any]] = []
        self.tool_changes = 0
        self._fault: ServerFault | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._session: ClientSession | None = None
        self._closing = asyncio.Event()
        self._ready: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._calls: set[asyncio.Task[Any]] = set()

    @abstractmethod
    def _client(self) -> AbstractAsyncContextManager[ClientSession]:
        """Connect, do the handshake, and yield the session."""

    @property
    def broken(self) -> bool:
        """Whether the connection has failed, or was closed."""
        return self._fault is not None

    def check(self) -> None:
        """Raise the fault of a connection that is broken."""
        if self._fault is not None:
            raise ServerFault(self._fault.message, kind=self._fault.kind)

    def note_changed_tools(self) -> None:
        """Note that the server says that its tools have changed."""
        self.tool_changes += 1

    def error_context(self) -> str:
        """Return further details of a failure, as a clause that begins with a space, or ``""``."""
        return ""

    async def open(self) -> None:
        """Connect and do the handshake.

        Raises:
            ServerFault: The server cannot be started or reached, or is not an MCP server.
        """
        self._start()
        ready = asyncio.wrap_future(self._ready)
        ready.add_done_callback(retrieve)
        await asyncio.shield(ready)

    async def close(self) -> None:
        """End the connection. Safe to call twice."""
        self._break(ServerFault(f"{self.label} was closed", kind="server_died"))
        if self._loop is None:
            return
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._loop.call_soon_threadsafe(self._finish)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._end_s):
                await asyncio.shield(asyncio.wrap_future(self._ended))

    async def tools(self) -> list[dict[str, Any]]:
        """List every tool as the server describes it, all pages.

        Raises:
            ServerFault: There are too many of them, or the answer is not a list.
        """
        found: list[dict[str, Any]] = []
        size, cursor = 0, None
        for _ in range(_MAX_PAGES):
            try:
                page = await self.request("tools/list", {} if cursor is None else {"cursor": cursor})
            except JsonRpcError as error:
                if error.code == METHOD_NOT_FOUND and not found:
                    return []  # a server with only prompts or resources
                raise ServerFault(f"{self.label} does not list its tools: {error}", kind="server_protocol") from error
            tools = page.get("tools")
            if not isinstance(tools, list):
                words = f"{self.label} answers 'tools/list' without a list: {shown(page)}"
                raise ServerFault(words, kind="server_protocol")
            found += tools
            # Tools nested too deeply to serialise are cut later.
            size += sum(len(json.dumps(tool)) for tool in tools if depth(tool) <= MAX_DEPTH)
            cursor = page.get("nextCursor")
            if len(found) > _MAX_TOOLS or size > _MAX_TOOLS_BYTES:
                break
            if cursor is None or cursor == "":
                return found
        raise ServerFault(
            f"{self.label} lists at least {len(found)} tools ({size:,} bytes); the limits are {_MAX_TOOLS} tools, "
            f"{_MAX_TOOLS_BYTES:,} bytes and {_MAX_PAGES} pages",
            kind="server_protocol",
        )

    async def request_with_input(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request of the model and return its result; answer what the server asks for instead of a result.

        That is how a server of the protocol of 2026-07-28 asks for input or a completion; before, it sent a request.
        A result that asks for something that is declined, or asks too often, is returned as it is.

        Raises:
            JsonRpcError: The server refuses the request.
            ServerFault: It does not answer.
        """
        result = await self.request(method, params)
        parameters: Any = _REQUESTS[method][1]
        if "input_responses" not in parameters.model_fields:
            return result
        for number in range(_MAX_INPUT_ROUNDS):
            if result.get("resultType") != "input_required":
                break
            answers = await self._input_for(result.get("inputRequests"))
            if answers is None:
                break
            again = {**params, "input_responses": answers}
            if isinstance(state := result.get("requestState"), str):
                again["request_state"] = state
            if not answers:  # the server only wants to be asked again
                await asyncio.sleep(min(_ASK_AGAIN_S * (number + 1), 1.0))
            try:
                parameters(**again)
            except ValidationError:  # an answer of the model that the protocol does not allow
                break
            try:
                result = await self.request(method, again)
            except ServerFault as fault:
                # The call has reached the server before.
                kind = "server_died" if fault.kind == "server_unreachable" else fault.kind
                raise ServerFault(fault.message, kind=kind) from fault
        return result

    async def _input_for(self, requests: Any) -> dict[str, Any] | None:
        """Return the answer to each request, by its key; ``None`` if one is declined."""
        answers: dict[str, Any] = {}
        for key, asked in [*requests.items()][:_MAX_INPUTS] if isinstance(requests, dict) else ():
            asked_method = asked.get("method") if isinstance(asked, dict) else None
            if not isinstance(asked_method, str):
                return None
            params = passed_on({"id": 0, "method": asked_method, "params": asked.get("params")}).get("params")
            answer = await self.answers.answer(asked_method, params)
            if answer is None:
                return None
            answers[key] = answer
        return answers

    async def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its result.

        Raises:
            JsonRpcError: The server answers with an error.
            ServerFault: It does not answer, or the answer is invalid.
        """
        self.check()
        assert self._loop is not None
        if self._loop is asyncio.get_running_loop():
            task = self._loop.create_task(self._send(method, params))
            task.add_done_callback(retrieve)
            try:
                return await asyncio.shield(task)
            except asyncio.CancelledError:
                task.cancel()  # it tells the server, for which the caller does not wait
                raise
        coroutine = self._send(method, params)
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
            raise ServerFault(f"{self.label} has ended", kind="server_died") from None
        try:
            return await asyncio.wrap_future(future)
        except BaseException as error:
            caller = asyncio.current_task()
            if isinstance(error, Exception) or (caller is not None and caller.cancelling()):
                raise
            # The client's loop ended, with its tasks: a server in this process shares it.
            raise self._break(ServerFault(f"{self.label} ended during {method!r}", kind="server_died")) from None

    def _break(self, fault: ServerFault) -> ServerFault:
        """Mark the connection as failed; return its first fault."""
        self._fault = self._fault or fault
        return self._fault

    # Called on the client's loop

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._serve())
        self._task.add_done_callback(lambda _: self._finished())

    async def _serve(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            async with self._client() as session:
                self._session = session
                self.instructions = bounded_instructions(session.instructions)
                if self._fault is None:  # else it was closed meanwhile
                    self._ready.set_result(None)
                    await self._closing.wait()
                    await self._let_cancelled_calls_tell_the_server()
        # Whatever the transport, or a server in this process, raises is a failure of the connection.
        except BaseException as error:
            failure = self._failure(error)
            if not isinstance(failure, ModuleNotFoundError):
                self._break(failure)
            if not self._ready.done():
                self._ready.set_exception(failure)

    def _failure(self, error: BaseException) -> ServerFault | ModuleNotFoundError:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, ServerFault | ModuleNotFoundError):
            return error
        kind = "server_died" if self._ready.done() else "server_start"
        words = f"{self.label} failed: {type(error).__name__}: {str(error)[:1_000]}".rstrip(": ")
        fault = ServerFault(words, kind=kind)
        fault.__cause__ = error
        return fault

    def _finish(self) -> None:
        if self._session is not None:
            self._closing.set()
        elif self._task is not None:
            self._task.cancel()

    def _finished(self) -> None:
        fault = self._break(ServerFault(f"{self.label} has ended", kind="server_died"))
        if not self._ready.done():
            self._ready.set_exception(fault)
        self._ended.set_result(None)

    async def _let_cancelled_calls_tell_the_server(self) -> None:
        if cancelled := [task for task in self._calls if task.cancelling()]:
            await asyncio.wait(cancelled, timeout=_NOTICES_S)

    async def _send(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        task = asyncio.current_task()
        assert task is not None
        self._calls.add(task)
        try:
            return await self._answer(method, self._ask(method, params))
        finally:
            self._calls.discard(task)

    async def _ask(self, method: str, params: dict[str, Any]) -> Any:
        assert self._session is not None
        if method == "tools/list":
            return await self._session.list_tools(params=PaginatedRequestParams(**params))
        request, parameters, _ = _REQUESTS[method]
        return await self._session.send_request(request(params=parameters(**params)), _AS_SENT)

    async def _handshake(self, session: ClientSession) -> None:
        """Initialize the session, or discover the server if it supports only the protocol without a handshake."""
        try:
            await self._answer("initialize", session.initialize())
        except JsonRpcError as rejection:
            try:
                await self._answer("server/discover", session.discover())
            except JsonRpcError:
                words = f"{self.label} rejects the MCP handshake: {rejection}"
                raise ServerFault(words, kind="server_protocol") from rejection

    async def _answer(self, method: str, request: Awaitable[Any]) -> dict[str, Any]:
        """Return the result of a request, as it was sent where the transport has messages.

        Raises:
            JsonRpcError: The server answers with an error.
            ServerFault: It does not answer, or the answer is invalid.
        """
        exchange = Exchange()
        exchange_of_task.set(exchange)
        try:
            result = await request
        except MCPError as error:
            if exchange.fault is not None:
                raise exchange.fault from error
            raise self._meaning(error, method) from error
        except Exception as error:  # an answer that the SDK cannot read
            words = f"{self.label} answers {method!r} with an invalid result: {type(error).__name__}: {error}"[:1_000]
            raise ServerFault(words, kind="server_protocol") from error
        if exchange.result is not None:
            return exchange.result
        return (
            result.model_dump(mode="json", by_alias=True, exclude_none=True)
            if isinstance(result, BaseModel)
            else result
        )

    def _meaning(self, error: MCPError, method: str) -> ServerFault | JsonRpcError:
        """Return what an error of the SDK stands for: servers answer with the same codes, but in other words."""
        if error.code == CONNECTION_CLOSED and error.message == "Connection closed":
            words = f"{self.label} closed the connection without an answer to {method!r}"
            return self._fault or ServerFault(words, kind="server_died")
        return JsonRpcError(error.code, printable(error.message[:10_000]))
