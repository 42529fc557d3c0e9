"""A connection to a server at a URL, through the SDK's streamable HTTP transport, with bounds on what a server sends.

The SDK's transport alone trusts the server: it reads a JSON body of any size, expands compressed bodies, processes
messages without end, resumes a stream without end, waits for an answer with another id until the deadline, sends
nothing more while a server delays the response to a notification, and drops the status and body of an HTTP error.
:class:`CheckedTransport` deals with these below it. It also keeps each result in its :class:`Exchange` and gives the
SDK an empty one: the SDK validates and formats a whole message several times.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx2
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp_types import INTERNAL_ERROR

from rllm_gym.mcp.connection import (
    TOOLS_CHANGED,
    Exchange,
    ServerConnection,
    checked_session,
    exchange_of_task,
    http_transport,
    sdk_error,
)
from rllm_gym.mcp.errors import ServerFault
from rllm_gym.mcp.protocol import FLOOD_BYTES, FLOOD_MESSAGES, FLOOD_REQUESTS, MAX_MESSAGE_BYTES, decoded, shown
from rllm_gym.mcp.server_requests import RequestAnswers, passed_on

_ERROR_BYTES = 1 << 16
_NOTICE_S = 2.0
_MAX_RESUMED = 5
_SESSION = "mcp-session-id"


class HttpConnection(ServerConnection):
    """See :class:`~rllm_gym.mcp.connection.ServerConnection`. Has its own session with the server.

    Redirects are not followed, and proxies not used. A stream is kept open between requests only where the server's own
    requests are answered: many servers send them there.
    """

    def __init__(self, label: str, url: str, headers: Mapping[str, str], answers: RequestAnswers) -> None:
        super().__init__(label, answers)
        self._url = url
        self._headers = {"accept-encoding": "identity", **headers}

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[ClientSession]:
        listens = self.answers.elicits or self.answers.samples
        transport = CheckedTransport(self.label, self._break, self.note_changed_tools, listens=listens)
        async with (
            httpx2.AsyncClient(transport=transport, headers=self._headers, timeout=None, trust_env=False) as client,
            streamable_http_client(self._url, http_client=client) as streams,
            checked_session(streams, self.answers) as session,
        ):
            await self._handshake(session)
            yield session

    async def request_with_input(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        result = await super().request_with_input(method, params)
        # A notice may come on a stream that is not open here: each call may have changed the tools of such a server.
        capabilities = self._session.server_capabilities if self._session is not None else None
        if (
            method == "tools/call"
            and capabilities is not None
            and capabilities.tools
            and capabilities.tools.list_changed
        ):
            self.note_changed_tools()
        return result


class CheckedTransport(httpx2.AsyncBaseTransport):
    """Sends the SDK's requests, and passes on responses that are complete, bounded, and belong to their request.

    For any other response the fault is noted in the request's :class:`Exchange`, and the SDK gets an error.

    Args:
        label: The server's name in messages.
        lose: Called with the fault if the server cannot be reached any more, or has ended the session.
        note_changed_tools: Called when the server says in a stream that its tools have changed.
        listens: Whether to open a stream for what the server sends beside its answers.
    """

    def __init__(
        self,
        label: str,
        lose: Callable[[ServerFault], object],
        note_changed_tools: Callable[[], object],
        *,
        listens: bool,
    ) -> None:
        self._label = label
        self._lose = lose
        self._network = http_transport()
        self.note_changed_tools = note_changed_tools
        self._notices = asyncio.Lock()
        self._listens = listens
        self._unasked = Exchange(number=object())  # no answer has this id

    async def aclose(self) -> None:
        await self._network.aclose()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        message = json.loads(request.content) if request.method == "POST" else {}
        if request.method == "DELETE" or (message and not ("id" in message and "method" in message)):
            return await self._deliver(request)
        if request.method == "GET" and "last-event-id" not in request.headers:
            return await self._listen(request)
        exchange = exchange_of_task.get()
        try:
            if request.method == "GET":
                return await self._resumed(request, exchange)
            return await self._answer(request, message, exchange)
        except (httpx2.HTTPError, OSError) as error:
            exchange.fault = self.died(f"cannot be reached: {type(error).__name__}: {error}")
            not_connected = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            if not_connected and request.method == "POST":  # else it was sent, and its answer is resumed
                exchange.fault.kind = "server_unreachable"
            self._lose(exchange.fault)
        except ServerFault as fault:
            exchange.fault = fault
        return _error(400, message.get("id"), exchange.fault.message)

    async def _deliver(self, request: httpx2.Request) -> httpx2.Response:
        """Send a message that gets no answer; its response is ignored.

        One at a time: a server may process two requests out of order, so the end of the session waits for a notice.
        """
        with contextlib.suppress(TimeoutError, httpx2.HTTPError, OSError):
            async with asyncio.timeout(_NOTICE_S), self._notices:
                response = await self._network.handle_async_request(request)
                await response.aclose()
        return httpx2.Response(204)

    async def _listen(self, request: httpx2.Request) -> httpx2.Response:
        """Open the stream of what the server sends beside its answers, if it is needed."""
        if not self._listens or self._unasked.fault is not None:
            return httpx2.Response(405)
        response = await self._network.handle_async_request(request)
        if response.status_code == 200 and response.headers.get("content-type", "").startswith("text/event-stream"):
            return self._events(request, response, self._unasked)
        await response.aclose()
        return httpx2.Response(405)

    async def _resumed(self, request: httpx2.Request, exchange: Exchange) -> httpx2.Response:
        exchange.resumed += 1
        if exchange.resumed > _MAX_RESUMED:
            raise self.invalid(f"ended its stream more than {_MAX_RESUMED} times without an answer")
        response = await self._network.handle_async_request(request)
        return self._events(request, response, exchange)

    async def _answer(self, request: httpx2.Request, message: dict[str, Any], exchange: Exchange) -> httpx2.Response:
        exchange.method, exchange.number = message["method"], message["id"]
        response = await self._network.handle_async_request(request)
        status, kind = response.status_code, response.headers.get("content-type", "").lower()
        if status == 200 and kind.startswith("text/event-stream"):
            return self._events(request, response, exchange)
        body = await self._body(response, MAX_MESSAGE_BYTES if status == 200 else _ERROR_BYTES)
        if status != 200:
            return self._refusal(request, response, body, exchange)
        for one in self.messages(body.decode("utf-8", "replace")):
            if answer := self.answer_in(one, exchange):
                return _json(200, answer, _session_of(response))
        raise self.invalid(f"sent no answer to {exchange.method!r}: {shown(body)}")

    def messages(self, text: str) -> list[dict[str, Any]]:
        """Return the messages in a body or event.

        Raises:
            ServerFault: It contains something else.
        """
        try:
            return decoded(text)
        except ValueError as error:
            raise self.invalid(f"sent invalid JSON-RPC ({error}): {shown(text[:800])}") from None

    def answer_in(self, message: dict[str, Any], exchange: Exchange) -> dict[str, Any] | None:
        """Return the answer for the SDK, and keep its result in the exchange; ``None`` for any other message.

        Raises:
            ServerFault: The answer has neither a result nor an error.
        """
        if "method" in message or str(message.get("id")) != str(exchange.number):
            return None
        exchange.fault = None  # of a stream that ended before
        result, error = message.get("result"), message.get("error")
        head = {"jsonrpc": "2.0", "id": exchange.number}
        if isinstance(error, dict):
            return {**head, "error": sdk_error(error).model_dump(exclude_none=True)}
        if not isinstance(result, dict):
            raise self.invalid(f"answers with neither a result nor an error: {shown(message)}")
        exchange.result = result
        return {**head, "result": {}}

    def _refusal(
        self, request: httpx2.Request, response: httpx2.Response, body: bytearray, exchange: Exchange
    ) -> httpx2.Response:
        status, method, number = response.status_code, exchange.method, exchange.number
        if 300 <= status < 400:
            target = response.headers.get("location", "nowhere")[:500]
            raise self.invalid(f"redirects to {target}; use that URL if it belongs to the server")
        if status == 404 and _SESSION in request.headers:
            self._lose(fault := self.died("has ended the session (HTTP 404)"))
            raise fault
        if status >= 400 and response.headers.get("content-type", "").lower().startswith("application/json"):
            with contextlib.suppress(ValueError):
                for one in decoded(body.decode("utf-8", "replace")):
                    if isinstance(one.get("error"), dict):  # its id may be null
                        return _json(status, self.answer_in({**one, "id": number}, exchange) or {})
        if status in (400, 404, 405) and method in ("initialize", "server/discover"):
            hint = (
                "the URL must be a streamable HTTP endpoint, e.g. …/mcp; for a server of the older HTTP+SSE transport, "
                "set transport='sse'"
            )
            return _error(status, number, f"HTTP {status}: {shown(body)}; {hint}")
        raise self.invalid(f"answers {method!r} with HTTP {status}: {shown(body)}")

    async def _body(self, response: httpx2.Response, limit: int) -> bytearray:
        body = bytearray()
        try:
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            async for piece in response.stream:  # not decompressed
                body += piece
                if len(body) > limit:
                    raise self.invalid(f"sends a body of more than {limit:,} bytes, beginning {shown(body[:800])}")
        finally:
            await response.aclose()
        return body

    def _events(self, request: httpx2.Request, response: httpx2.Response, exchange: Exchange) -> httpx2.Response:
        headers = {"content-type": "text/event-stream", **_session_of(response)}
        stream = _CheckedEvents(self, request, response, exchange)
        return httpx2.Response(response.status_code, headers=headers, stream=stream)

    def invalid(self, words: str) -> ServerFault:
        """Return the fault of an answer that cannot be used."""
        return ServerFault(f"{self._label} {words}", kind="server_protocol")

    def died(self, words: str) -> ServerFault:
        """Return the fault of a lost connection or stream."""
        return ServerFault(f"{self._label} {words}".rstrip(": "), kind="server_died")


class _CheckedEvents(httpx2.AsyncByteStream):
    """The events of a stream that the SDK needs: the answer, requests of the server, and points to resume at."""

    def __init__(
        self, owner: CheckedTransport, request: httpx2.Request, response: httpx2.Response, exchange: Exchange
    ) -> None:
        self._owner = owner
        self._request = request
        self._response = response
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        exchange = self._exchange
        asked = isinstance(exchange.number, int | str)
        # Without the server's headers, so that nothing is decompressed.
        headers = {"content-type": "text/event-stream"}
        bounded = httpx2.Response(200, headers=headers, content=self._pieces(), request=self._request)
        try:
            async for event in httpx2.EventSource(bounded, max_event_size=MAX_MESSAGE_BYTES):
                exchange.messages += 1
                if exchange.messages > FLOOD_MESSAGES:
                    raise self._flooded()
                if asked and (event.id or event.retry is not None):
                    retry = "" if event.retry is None else f"retry: {event.retry}\n"
                    yield f"id: {event.id}\n{retry}\n".encode()
                has_messages = event.event == "message" and event.data
                for message in self._owner.messages(event.data) if has_messages else ():
                    if answer := self._owner.answer_in(message, exchange):
                        yield _event(answer)
                        return
                    if message.get("method") == TOOLS_CHANGED:
                        self._owner.note_changed_tools()
                    if isinstance(message.get("method"), str) and type(message.get("id")) in (int, str):
                        exchange.requests += 1
                        if exchange.requests > FLOOD_REQUESTS:
                            raise self._flooded()
                        yield _event(passed_on(message))
        except httpx2.SSEError:  # a message that is too long
            exchange.fault = self._flooded()
        except ServerFault as fault:
            exchange.fault = fault
        except (httpx2.HTTPError, OSError) as error:
            words = f"broke off its answer to {exchange.method!r}: {type(error).__name__}: {error}"
            exchange.fault = self._owner.died(words)
            raise
        else:
            if asked:
                exchange.fault = self._owner.died(f"ended its stream without an answer to {exchange.method!r}")
            return
        if not asked:
            return
        yield _event(_error_message(exchange.number, exchange.fault.message))  # else the SDK resumes the stream

    async def _pieces(self) -> AsyncIterator[bytes]:
        assert isinstance(self._response.stream, httpx2.AsyncByteStream)
        async for piece in self._response.stream:
            self._exchange.read += len(piece)
            if self._exchange.read > FLOOD_BYTES:
                raise self._flooded()
            yield piece

    def _flooded(self) -> ServerFault:
        exchange = self._exchange
        return self._owner.invalid(f"sends {exchange.messages:,} messages, {exchange.read:,} bytes and no answer")

    async def aclose(self) -> None:
        await self._response.aclose()


def _session_of(response: httpx2.Response) -> dict[str, str]:
    return {_SESSION: response.headers[_SESSION]} if _SESSION in response.headers else {}


def _json(status: int, message: dict[str, Any], headers: Mapping[str, str] | None = None) -> httpx2.Response:
    headers = {"content-type": "application/json", **(headers or {})}
    return httpx2.Response(status, headers=headers, content=json.dumps(message).encode())


def _event(message: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(message)}\n\n".encode()


def _error(status: int, number: Any, words: str) -> httpx2.Response:
    return _json(status, _error_message(number, words))


def _error_message(number: Any, words: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": INTERNAL_ERROR, "message": words}}
