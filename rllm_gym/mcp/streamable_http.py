"""A connection to a server at a URL, through the SDK's streamable HTTP transport, with bounds on what a server sends.

The SDK's transport alone trusts the server: it reads a JSON body of any size, expands compressed bodies, processes
messages without end, resumes a stream without end, waits for an answer with another id until the deadline, sends
nothing more while a server delays the response to a notification, and drops the status and body of an HTTP error.
:class:`CheckedTransport` deals with these below it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx2
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp_types import INTERNAL_ERROR

from rllm_gym.mcp.connection import CLIENT_INFO, Exchange, ServerConnection, ToolDispatcher, exchange_of_task
from rllm_gym.mcp.errors import ServerFault
from rllm_gym.mcp.protocol import FLOOD_BYTES, MAX_MESSAGE_BYTES, decoded, printable, shown

# The SDK logs what a server sends, of any length, with tracebacks; each failure is raised as a ServerFault.
logging.getLogger("mcp.client.streamable_http").setLevel(logging.CRITICAL)

_ERROR_BYTES = 1 << 16
_NOTICE_S = 2.0
_MAX_EVENTS = 10_000
_MAX_RESUMED = 5
_BLANK_LINES = (b"\n\n", b"\n\r\n")
_SESSION = "mcp-session-id"


class HttpConnection(ServerConnection):
    """See :class:`~rllm_gym.mcp.connection.ServerConnection`. Has its own session with the server.

    Redirects are not followed, proxies not used, and no stream is kept open between requests.
    """

    def __init__(self, label: str, url: str, headers: Mapping[str, str]) -> None:
        super().__init__(label)
        self._url = url
        self._headers = {"accept-encoding": "identity", **headers}

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[ClientSession]:
        transport = CheckedTransport(self.label, self._lose)
        async with (
            httpx2.AsyncClient(transport=transport, headers=self._headers, timeout=None, trust_env=False) as client,
            streamable_http_client(self._url, http_client=client, max_sse_event_size=None) as streams,
            ClientSession(dispatcher=ToolDispatcher(*streams), client_info=CLIENT_INFO) as session,
        ):
            await self._handshake(session)
            yield session

    def _lose(self, fault: ServerFault) -> None:
        self._fault = self._fault or fault


class CheckedTransport(httpx2.AsyncBaseTransport):
    """Sends the SDK's requests, and passes on responses that are complete, bounded, and belong to their request.

    For any other response the fault is noted in the request's :class:`Exchange`, and the SDK gets an error.

    Args:
        label: The server's name in messages.
        lose: Called with the fault if the server cannot be reached any more, or has ended the session.
    """

    def __init__(self, label: str, lose: Callable[[ServerFault], None]) -> None:
        self._label = label
        self._lose = lose
        self._network = httpx2.AsyncHTTPTransport(trust_env=False)
        self._notices = asyncio.Lock()

    async def aclose(self) -> None:
        await self._network.aclose()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        message = json.loads(request.content) if request.method == "POST" else {}
        if request.method == "DELETE" or (message and not ("id" in message and "method" in message)):
            return await self._deliver(request)
        if request.method == "GET" and "last-event-id" not in request.headers:
            return httpx2.Response(405)  # a stream of messages between requests, which would all be ignored
        exchange = exchange_of_task.get()
        try:
            if request.method == "GET":
                return await self._resumed(request, exchange)
            return await self._answer(request, message, exchange)
        except (httpx2.HTTPError, OSError) as error:
            exchange.fault = self.died(f"cannot be reached: {type(error).__name__}: {error}")
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

    async def _resumed(self, request: httpx2.Request, exchange: Exchange) -> httpx2.Response:
        exchange.resumed += 1
        if exchange.resumed > _MAX_RESUMED:
            raise self.invalid(f"ended its stream more than {_MAX_RESUMED} times without an answer")
        response = await self._network.handle_async_request(request)
        return self._events(response, exchange, "GET")

    async def _answer(self, request: httpx2.Request, message: dict[str, Any], exchange: Exchange) -> httpx2.Response:
        method, number = message["method"], message["id"]
        response = await self._network.handle_async_request(request)
        status, kind = response.status_code, response.headers.get("content-type", "").lower()
        if status == 200 and kind.startswith("text/event-stream"):
            return self._events(response, exchange, method)
        body = await self._body(response, MAX_MESSAGE_BYTES if status == 200 else _ERROR_BYTES)
        if status != 200:
            return self._refusal(request, response, body, method, number)
        try:
            for one in decoded(body):
                if "method" not in one and str(one.get("id")) == str(number):
                    return _json(200, {**one, "id": number}, _session_of(response))
        except (ValueError, RecursionError) as error:
            raise self.invalid(f"sent invalid JSON-RPC ({error}): {shown(body)}") from None
        raise self.invalid(f"sent no answer to {method!r}: {shown(body)}")

    def _refusal(
        self, request: httpx2.Request, response: httpx2.Response, body: bytes, method: str, number: Any
    ) -> httpx2.Response:
        status = response.status_code
        if 300 <= status < 400:
            target = response.headers.get("location", "nowhere")[:500]
            raise self.invalid(f"redirects to {target}; use that URL if it belongs to the server")
        if status == 404 and _SESSION in request.headers:
            self._lose(fault := self.died("has ended the session (HTTP 404)"))
            raise fault
        if status >= 400 and response.headers.get("content-type", "").lower().startswith("application/json"):
            with contextlib.suppress(ValueError):
                for one in decoded(body):
                    if isinstance(one.get("error"), dict):
                        return _json(status, {**one, "id": number})
        if status in (400, 404, 405) and method in ("initialize", "server/discover"):
            hint = (
                "the URL must be a streamable HTTP endpoint, e.g. …/mcp; the older HTTP+SSE transport is not supported"
            )
            return _error(status, number, f"HTTP {status}: {shown(body)}; {hint}")
        raise self.invalid(f"answers {method!r} with HTTP {status}: {shown(body)}")

    async def _body(self, response: httpx2.Response, limit: int) -> bytes:
        body = bytearray()
        try:
            assert isinstance(response.stream, httpx2.AsyncByteStream)
            async for piece in response.stream:  # not decompressed
                body += piece
                if len(body) > limit:
                    raise self.invalid(f"sends a body of more than {limit:,} bytes, beginning {shown(body[:800])}")
        finally:
            await response.aclose()
        return bytes(body)

    def _events(self, response: httpx2.Response, exchange: Exchange, method: str) -> httpx2.Response:
        headers = {"content-type": response.headers.get("content-type", ""), **_session_of(response)}
        stream = _BoundedStream(self, response, exchange, method)
        return httpx2.Response(response.status_code, headers=headers, stream=stream)

    def invalid(self, words: str) -> ServerFault:
        """Return the fault of an answer that cannot be used."""
        return ServerFault(f"{self._label} {words}", kind="server_protocol")

    def died(self, words: str) -> ServerFault:
        """Return the fault of a lost connection or stream."""
        return ServerFault(f"{self._label} {words}".rstrip(": "), kind="server_died")


class _BoundedStream(httpx2.AsyncByteStream):
    """A stream of events, counted in its exchange, and not decompressed."""

    def __init__(self, owner: CheckedTransport, response: httpx2.Response, exchange: Exchange, method: str) -> None:
        self._owner = owner
        self._response = response
        self._exchange = exchange
        self._method = method

    async def __aiter__(self) -> AsyncIterator[bytes]:
        exchange, waiting = self._exchange, 0
        assert isinstance(self._response.stream, httpx2.AsyncByteStream)
        try:
            async for piece in self._response.stream:
                end = max(piece.rfind(blank) for blank in _BLANK_LINES)
                waiting = len(piece) - end if end >= 0 else waiting + len(piece)  # of an incomplete event
                exchange.read += len(piece)
                exchange.messages += sum(piece.count(blank) for blank in _BLANK_LINES)
                if waiting > MAX_MESSAGE_BYTES or exchange.read > FLOOD_BYTES or exchange.messages > _MAX_EVENTS:
                    words = f"sends {exchange.messages:,} messages, {exchange.read:,} bytes and no answer"
                    raise self._owner.invalid(words)
                yield piece
            # Reached only if the events contain no answer.
            exchange.fault = self._owner.died(f"ended its stream without an answer to {self._method!r}")
        except ServerFault as fault:
            exchange.fault = fault
            raise
        except (httpx2.HTTPError, OSError) as error:
            words = f"broke off its answer to {self._method!r}: {type(error).__name__}: {error}"
            exchange.fault = self._owner.died(words)
            raise

    async def aclose(self) -> None:
        await self._response.aclose()


def _session_of(response: httpx2.Response) -> dict[str, str]:
    return {_SESSION: response.headers[_SESSION]} if _SESSION in response.headers else {}


def _json(status: int, message: dict[str, Any], headers: Mapping[str, str] | None = None) -> httpx2.Response:
    body = printable(json.dumps(message, ensure_ascii=False)).encode()
    return httpx2.Response(status, headers={"content-type": "application/json", **(headers or {})}, content=body)


def _error(status: int, number: Any, words: str) -> httpx2.Response:
    return _json(status, {"jsonrpc": "2.0", "id": number, "error": {"code": INTERNAL_ERROR, "message": words}})
