"""A connection to a server at a URL of the older HTTP+SSE transport, with bounds on what a server sends.

All answers come in one stream of events. The SDK's transport alone reads events without end, and waits until a deadline
when a request is refused. :class:`CheckedSseTransport` deals with these below it, as
:class:`~rllm_gym.mcp.streamable_http.CheckedTransport` does for streamable HTTP.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx2
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp_types import INTERNAL_ERROR

from rllm_gym.mcp.connection import (
    TOOLS_CHANGED,
    Exchange,
    ServerConnection,
    checked_session,
    exchange_of_task,
    http_transport,
    retrieve,
    sdk_error,
)
from rllm_gym.mcp.errors import ServerFault
from rllm_gym.mcp.protocol import FLOOD_BYTES, FLOOD_MESSAGES, FLOOD_REQUESTS, MAX_MESSAGE_BYTES, decoded, shown
from rllm_gym.mcp.server_requests import RequestAnswers, passed_on

_EVENTS = {"content-type": "text/event-stream"}


class SseConnection(ServerConnection):
    """See :class:`~rllm_gym.mcp.connection.ServerConnection`. Redirects are not followed, and proxies not used."""

    def __init__(self, label: str, url: str, headers: Mapping[str, str], answers: RequestAnswers) -> None:
        super().__init__(label, answers)
        self._url, self._headers = url, {"accept-encoding": "identity", **headers}

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[ClientSession]:
        def client(headers: Any = None, timeout: Any = None, auth: Any = None) -> httpx2.AsyncClient:
            return httpx2.AsyncClient(transport=transport, headers=headers, timeout=None, trust_env=False)

        transport = CheckedSseTransport(self.label, self._break, self.note_changed_tools)
        async with (
            sse_client(self._url, self._headers, httpx_client_factory=client) as streams,
            checked_session(streams, self.answers) as session,
        ):
            await self._handshake(session)
            yield session


class CheckedSseTransport(httpx2.AsyncBaseTransport):
    """Sends the SDK's requests, and passes on what it needs of the events.

    Args:
        label: The server's name in messages.
        lose: Called with the fault if the connection is of no use any more.
        note_changed_tools: Called when the server says that its tools have changed.
    """

    def __init__(
        self, label: str, lose: Callable[[ServerFault], object], note_changed_tools: Callable[[], object]
    ) -> None:
        self._label, self._lose, self._note_changed_tools = label, lose, note_changed_tools
        self._network = http_transport()
        self._waiting: dict[str, Exchange] = {}
        self._failed = asyncio.Event()
        self._unasked = Exchange()
        """What the server has sent since the last request."""

    async def aclose(self) -> None:
        await self._network.aclose()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            response = await self._network.handle_async_request(request)
            kind = response.headers.get("content-type", "").lower()
            if response.status_code == 200 and kind.startswith("text/event-stream"):
                return httpx2.Response(200, headers=_EVENTS, stream=_CheckedStream(self, request, response))
            await response.aclose()
            words = f"answers with HTTP {response.status_code} and no stream of events; the URL must be that of an SSE"
            raise self._fault(f"{words} endpoint, e.g. …/sse", "server_protocol")
        message = json.loads(request.content)
        if "method" in message and "id" in message:
            self._unasked = Exchange(method=message["method"])
            self._waiting[str(message["id"])] = exchange_of_task.get()
        try:
            response = await self._network.handle_async_request(request)
            await response.aclose()
            if response.status_code >= 300:
                raise self._fault(f"refuses a message with HTTP {response.status_code}", "server_protocol")
        except (httpx2.HTTPError, OSError) as error:
            unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            kind = "server_unreachable" if unsent else "server_died"
            self.fail(self._fault(f"cannot be reached: {type(error).__name__}: {error}", kind))
        except ServerFault as fault:
            self.fail(fault)
        return httpx2.Response(202)

    def fail(self, fault: ServerFault) -> None:
        """End the connection with this fault, and so all requests that wait for an answer."""
        for exchange in self._waiting.values():
            exchange.fault = fault
        self._lose(fault)
        self._failed.set()

    def _fault(self, words: str, kind: str) -> ServerFault:
        return ServerFault(f"{self._label} {words}".rstrip(": "), kind=kind)

    async def events(self, request: httpx2.Request, response: httpx2.Response) -> AsyncIterator[bytes]:
        """Yield the events that the SDK needs, until the server ends the stream or :meth:`fail` was called."""
        bounded = httpx2.Response(200, headers=_EVENTS, content=self._pieces(response), request=request)
        events = aiter(httpx2.EventSource(bounded, max_event_size=MAX_MESSAGE_BYTES))
        failed = asyncio.ensure_future(self._failed.wait())
        try:
            while not failed.done():
                coming = asyncio.ensure_future(anext(events))
                coming.add_done_callback(retrieve)
                await asyncio.wait([coming, failed], return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    coming.cancel()
                    break
                for passed in self._passed(coming.result()):
                    yield f"event: {passed[0]}\ndata: {passed[1]}\n\n".encode()
        except StopAsyncIteration:
            self.fail(self._fault("ended its stream of events", "server_died"))
        except httpx2.SSEError as error:  # an event that is too long
            self.fail(self._fault(f"sends an invalid stream of events: {error}", "server_protocol"))
        except (httpx2.HTTPError, OSError) as error:
            self.fail(self._fault(f"broke off its stream of events: {type(error).__name__}: {error}", "server_died"))
        except ServerFault as fault:
            self.fail(fault)
        finally:
            failed.cancel()
        for number in [*self._waiting]:  # else the SDK would say only that the connection is closed
            refused = {"code": INTERNAL_ERROR, "message": "no answer"}
            yield f"data: {json.dumps({'jsonrpc': '2.0', 'id': int(number), 'error': refused})}\n\n".encode()

    def _passed(self, event: httpx2.ServerSentEvent) -> list[tuple[str, str]]:
        """Return the events to pass on for one of the server.

        Raises:
            ServerFault: It floods, or sends something else than messages.
        """
        self._unasked.messages += 1
        self._check_flood()
        if event.event == "endpoint":
            return [("endpoint", line) for line in event.data.splitlines()[:1]]
        if event.event != "message" or not event.data:
            return []
        try:
            messages = decoded(event.data)
        except ValueError as error:
            words = f"sent invalid JSON-RPC ({error}): {shown(event.data[:800])}"
            raise self._fault(words, "server_protocol") from None
        return [("message", json.dumps(taken)) for message in messages if (taken := self._taken(message)) is not None]

    def _taken(self, message: dict[str, Any]) -> dict[str, Any] | None:
        method, number = message.get("method"), message.get("id")
        if method == TOOLS_CHANGED:
            self._note_changed_tools()
        if "method" in message:
            if not isinstance(method, str) or type(number) not in (int, str):
                return None
            self._unasked.requests += 1
            self._check_flood()
            return passed_on(message)
        exchange = self._waiting.pop(str(number), None)
        if exchange is None:
            return None
        result, error = message.get("result"), message.get("error")
        head = {"jsonrpc": "2.0", "id": int(str(number))}
        if isinstance(error, dict):
            return {**head, "error": sdk_error(error).model_dump(exclude_none=True)}
        if not isinstance(result, dict):
            self._waiting[str(number)] = exchange
            raise self._fault(f"answers with neither a result nor an error: {shown(message)}", "server_protocol")
        exchange.result = result
        return {**head, "result": {}}

    async def _pieces(self, response: httpx2.Response) -> AsyncIterator[bytes]:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        async for piece in response.stream:
            self._unasked.read += len(piece)
            self._check_flood()
            yield piece

    def _check_flood(self) -> None:
        sent = self._unasked
        if sent.read > FLOOD_BYTES or sent.messages > FLOOD_MESSAGES or sent.requests > FLOOD_REQUESTS:
            words = f"sends {sent.messages:,} messages ({sent.requests:,} requests) of {sent.read:,} bytes"
            raise self._fault(f"{words} and no answer", "server_protocol")


class _CheckedStream(httpx2.AsyncByteStream):
    def __init__(self, owner: CheckedSseTransport, request: httpx2.Request, response: httpx2.Response) -> None:
        self._owner, self._request, self._response = owner, request, response

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._owner.events(self._request, self._response)

    async def aclose(self) -> None:
        await self._response.aclose()
