"""A connection to a server at a URL: each request is a POST, its answer a JSON body or a stream of events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from rllm_gym.mcp.errors import JsonRpcError, ServerFault
from rllm_gym.mcp.protocol import (
    FLOOD_BYTES,
    FLOOD_MESSAGES,
    MAX_MESSAGE_BYTES,
    STATELESS_VERSION,
    JsonRpcConnection,
    LineSplitter,
    decoded,
    encoded,
    reply_to,
    result_of,
    shown,
)

_ERROR_BYTES = 1 << 16
_DELETE_S = 2.0
_MAX_ASKED = 100
_MAX_RESUMED = 5
_SESSION = "mcp-session-id"


@dataclass
class _EventStream:
    """Progress of a stream of events."""

    last_id: str = ""
    retry_s: float = 1.0
    asked: int = 0
    read: int = 0
    messages: int = 0


class HttpConnection(JsonRpcConnection):
    """See :class:`~rllm_gym.mcp.protocol.MCPConnection`. Has its own session with the server.

    Redirects are not followed, proxies not used, and no stream is kept open between requests.
    """

    sent_invalid = False

    def __init__(self, label: str, url: str, headers: Mapping[str, str]) -> None:
        super().__init__(label)
        self._url = url
        self._headers = dict(headers)
        self._http: Any = None
        self._client: Any = None
        self._session = ""
        self._numbered = 0
        self._fault: ServerFault | None = None
        self._tools: dict[str, dict[str, Any]] = {}
        self._pending_cancellations: set[asyncio.Task[None]] = set()

    @property
    def broken(self) -> bool:
        return self._fault is not None

    def error_context(self) -> str:
        return ""

    async def open(self) -> None:
        """Connect and do the handshake.

        Raises:
            ServerFault: The server cannot be reached, or is not an MCP server.
            ModuleNotFoundError: The extra is not installed.
        """
        self._http = await asyncio.to_thread(_import_http)
        self._client = self._http.AsyncClient(
            headers=self._headers, trust_env=False, follow_redirects=False, timeout=None
        )
        await self._handshake()

    async def tools(self) -> list[dict[str, Any]]:
        tools = await super().tools()
        self._tools = {tool["name"]: tool for tool in tools if isinstance(tool, dict) and "name" in tool}
        return tools

    async def close(self) -> None:
        """End the session. Safe to call twice."""
        self._fault = self._fault or ServerFault(f"{self.label} was closed", kind="server_died")
        try:
            # Wait for cancellation notices to be sent: a server may process two requests out of order.
            await asyncio.gather(*self._pending_cancellations, return_exceptions=True)
            await self._end_session()
        finally:
            client, self._client = self._client, None
            if client is not None:
                await client.aclose()

    async def _end_session(self) -> None:
        session, self._session = self._session, ""
        if self._client is None or not session:
            return
        headers = {**self._standard_headers(), _SESSION: session}
        with contextlib.suppress(TimeoutError, self._http.HTTPError):
            async with asyncio.timeout(_DELETE_S):
                async with self._client.stream("DELETE", self._url, headers=headers):
                    pass

    # Requests

    async def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if self._fault is not None:
            raise ServerFault(self._fault.message, kind=self._fault.kind)
        self._numbered += 1
        number = self._numbered
        message = {"id": number, "method": method, "params": self._stamped(params)}
        try:
            async with self._exchange(message) as response:
                reply = await self._reply(response, number, method)
        except asyncio.CancelledError:
            if method == "tools/call" and self._version != STATELESS_VERSION:
                self._send_cancelled(number)
            raise
        return result_of(reply, self.label, method)

    async def _notify(self, method: str, params: dict[str, Any]) -> None:
        await self._post({"method": method, "params": params})

    async def _post(self, message: dict[str, Any]) -> None:
        """Send a message that gets no answer."""
        async with self._exchange(message):
            pass

    def _send_cancelled(self, number: int) -> None:
        async def send() -> None:
            with contextlib.suppress(ServerFault, TimeoutError):
                async with asyncio.timeout(_DELETE_S):
                    await self._notify("notifications/cancelled", {"requestId": number})

        task = asyncio.create_task(send())
        self._pending_cancellations.add(task)
        task.add_done_callback(self._pending_cancellations.discard)

    @contextlib.asynccontextmanager
    async def _exchange(self, message: dict[str, Any] | None, **headers: str) -> AsyncIterator[Any]:
        """Send a message and yield the response; ``None`` resumes a stream."""
        if self._client is None:
            raise ServerFault(f"{self.label} was closed", kind="server_died")
        verb, body = ("GET", None) if message is None else ("POST", encoded(message))
        try:
            async with self._client.stream(
                verb,
                self._url,
                content=body,
                headers={**self._standard_headers(), **self._stateless_headers(message or {}), **headers},
            ) as response:
                yield response
        except (self._http.HTTPError, self._http.StreamError, OSError) as error:
            words = f"{self.label} cannot be reached: {type(error).__name__}: {error}".rstrip(": ")
            self._fault = ServerFault(words, kind="server_died")
            raise self._fault from error

    def _standard_headers(self) -> dict[str, str]:
        headers = {
            "accept": "application/json, text/event-stream",
            "accept-encoding": "identity",
            "content-type": "application/json",
        }
        if self._session:
            headers[_SESSION] = self._session
        if self._version is not None:
            headers["mcp-protocol-version"] = self._version
        return headers

    def _stateless_headers(self, message: dict[str, Any]) -> dict[str, str]:
        if self._version != STATELESS_VERSION or "method" not in message:
            return {}
        from mcp.shared.inbound import encode_header_value, mcp_param_headers, x_mcp_header_map

        headers = {"mcp-method": message["method"]}
        params = message.get("params", {})
        if message["method"] == "tools/call":
            headers["mcp-name"] = encode_header_value(params["name"])
            schema = self._tools.get(params["name"], {}).get("inputSchema")
            if isinstance(schema, dict):
                headers |= mcp_param_headers(x_mcp_header_map(schema), params["arguments"])
        return headers

    # Responses

    async def _reply(self, response: Any, number: int, method: str) -> dict[str, Any]:
        kind = response.headers.get("content-type", "").lower()
        if response.status_code != 200:
            return await self._refusal(response, kind, number, method)
        if method == "initialize":
            self._session = response.headers.get(_SESSION, "")
        if kind.startswith("text/event-stream"):
            return await self._reply_in_events(response, number, method)
        body = await self._body(response, MAX_MESSAGE_BYTES)
        if (reply := self._find(self._read(body), number)) is None:
            raise self._invalid(f"sent no answer to {method!r}: {shown(body)}")
        return reply

    async def _refusal(self, response: Any, kind: str, number: int, method: str) -> dict[str, Any]:
        status = response.status_code
        if 300 <= status < 400:
            target = response.headers.get("location", "nowhere")[:500]
            raise self._invalid(f"redirects to {target}; use that URL if it belongs to the server")
        body = await self._body(response, _ERROR_BYTES)
        if status >= 400 and kind.startswith("application/json"):
            with contextlib.suppress(ValueError):
                for message in decoded(body):
                    if isinstance(message.get("error"), dict) and not self._session_lost(status):
                        return {**message, "id": number}
        if self._session_lost(status):
            self._fault = ServerFault(f"{self.label} has ended the session (HTTP 404)", kind="server_died")
            raise self._fault
        if status in (400, 404, 405) and method in ("initialize", "server/discover"):
            hint = (
                "the URL must be a streamable HTTP endpoint, e.g. …/mcp; the older HTTP+SSE transport is not supported"
            )
            raise JsonRpcError(status, f"HTTP {status}: {shown(body)}; {hint}")
        raise self._invalid(f"answers {method!r} with HTTP {status}: {shown(body)}")

    def _session_lost(self, status: int) -> bool:
        return status == 404 and bool(self._session)

    async def _body(self, response: Any, limit: int) -> bytes:
        body = bytearray()
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > limit:
                raise self._invalid(f"sends a body of more than {limit:,} bytes, beginning {shown(bytes(body[:800]))}")
        return bytes(body)

    def _read(self, data: bytes) -> list[dict[str, Any]]:
        try:
            return decoded(data)
        except ValueError as error:
            raise self._invalid(f"sent invalid JSON-RPC ({error}): {shown(data)}") from None

    def _find(self, messages: list[dict[str, Any]], number: int) -> dict[str, Any] | None:
        return next((one for one in messages if "method" not in one and str(one.get("id")) == str(number)), None)

    def _invalid(self, words: str) -> ServerFault:
        return ServerFault(f"{self.label} {words}", kind="server_protocol")

    # Streams of events

    async def _reply_in_events(self, response: Any, number: int, method: str) -> dict[str, Any]:
        stream = _EventStream()
        if (reply := await self._reply_within(response, stream, number)) is not None:
            return reply
        for _ in range(_MAX_RESUMED):
            if not stream.last_id:
                break
            await asyncio.sleep(stream.retry_s)  # as long as the server asks for, within the caller's deadline
            async with self._exchange(None, **{"last-event-id": stream.last_id}) as again:
                if again.status_code != 200:
                    break
                if (reply := await self._reply_within(again, stream, number)) is not None:
                    return reply
        raise ServerFault(f"{self.label} ended its stream without an answer to {method!r}", kind="server_died")

    async def _reply_within(self, response: Any, stream: _EventStream, number: int) -> dict[str, Any] | None:
        async for data in self._events(response, stream):
            messages = self._read(data)
            if (reply := self._find(messages, number)) is not None:
                return reply
            for message in messages:
                if "method" in message and isinstance(message.get("id"), int | str):
                    stream.asked += 1
                    if stream.asked > _MAX_ASKED:
                        raise self._invalid(f"sent {stream.asked} requests instead of an answer")
                    await self._post(reply_to(message))
        return None

    async def _events(self, response: Any, stream: _EventStream) -> AsyncIterator[bytes]:
        """Yield the data of each event that has any."""
        lines, data, size = LineSplitter(), list[bytes](), 0
        async for piece in response.aiter_raw():
            stream.read += len(piece)
            for line in lines.take(piece):
                field, _, value = line.partition(b":")
                value = value.removeprefix(b" ")
                if field == b"data":
                    data.append(value)
                    size += len(value)
                elif field == b"id":
                    stream.last_id = value.decode("ascii", "ignore")[:1_000]
                elif field == b"retry" and value.isdigit():
                    stream.retry_s = min(int(value[:9]) / 1000, 60.0)
                elif not line:
                    if any(data):
                        stream.messages += 1
                        yield b"\n".join(data)
                    data, size = [], 0
            waiting = len(lines.partial) + size
            if waiting > MAX_MESSAGE_BYTES or stream.read > FLOOD_BYTES or stream.messages > FLOOD_MESSAGES:
                raise self._invalid(f"sends {stream.messages:,} messages, {stream.read:,} bytes and no answer")


def _import_http() -> Any:
    try:
        import httpx2
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"MCP servers at a URL need the package 'mcp' ({error}): pip install 'rllm-gym[mcp]'", name="mcp"
        ) from error
    return httpx2
