"""The only network access of the browser: a proxy in this process that serves the sites and forwards to the origins."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from http import HTTPStatus
from urllib.parse import urlsplit

from rllm_gym.envs.web.browser.errors import SiteFault
from rllm_gym.envs.web.browser.network_policy import NetworkPolicy, origin_of
from rllm_gym.envs.web.browser.socket_owner import is_current_user
from rllm_gym.envs.web.sites.http import Handler, Request, Response

_HEAD_BYTES = 256 * 1024
_BODY_BYTES = 16 * 2**20
_RESPONSE_BYTES = 64 * 2**20
_TUNNEL_BYTES = 2**30
_IDLE_S = 300.0
_CONNECT_S = 20.0
_PIECE = 64 * 1024
_HOP_BY_HOP = frozenset(
    (
        "connection",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)


class NetworkProxy:
    """A proxy on a loopback port, for one browser context. Started and closed on one event loop.

    Requests wait in the browser while the proxy is busy, so that a page with endless requests delays only itself.
    (Interception through Playwright was measured too: it queues every request of such a page in the driver, where the
    other episodes then waited half a minute.) Other users of the machine cannot use the proxy.
    """

    def __init__(self, policy: NetworkPolicy) -> None:
        self._policy = policy
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_HEAD_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Close all connections. Does not wait; may be called twice."""
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if is_current_user(writer.get_extra_info("peername"), writer.get_extra_info("sockname")):
                while await self._serve_one(reader, writer):
                    pass
        except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # the browser closed the connection or sent nothing, or the context is closed
        finally:
            self._connections.discard(task)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Returns whether the connection stays open for another."""
        async with asyncio.timeout(_IDLE_S):
            head = await reader.readuntil(b"\r\n\r\n")
        policy = self._policy
        try:
            method, target, headers = _read_head(head)
            if method == "CONNECT":
                return await _tunnel(policy, target, reader, writer)
            origin = origin_of(target)
        except ValueError:
            return await _send(writer, 400, b"this is not a request for a page", keep=False)
        if origin in policy.origins:
            return await _forward(policy, method, target, headers, reader, writer)
        handler = policy.sites.get(origin)
        if handler is not None:
            return await _answer(policy, handler, method, target, headers, reader, writer)
        policy.record_blocked(f"{method} {target}", navigation="upgrade-insecure-requests" in headers)
        if "upgrade-insecure-requests" in headers:
            # For a navigation, the browser ignores this response and keeps the current page.
            return await _send(writer, 204, b"", keep=False)
        return await _send(writer, 403, f"{origin} is not one of the task's origins.".encode(), keep=False)


async def _answer(
    policy: NetworkPolicy,
    handler: Handler,
    method: str,
    url: str,
    headers: Mapping[str, str],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> bool:
    """Answer a request with a site of this process."""
    if "transfer-encoding" in headers:
        return await _send(writer, 411, b"", keep=False)
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > _BODY_BYTES:
        return await _send(writer, 413, f"at most {_BODY_BYTES} bytes are taken".encode(), keep=False)
    async with asyncio.timeout(_IDLE_S):
        body = await reader.readexactly(int(length))
    if method not in ("GET", "HEAD", "POST"):
        return await _send(writer, 405, b"", keep=True, headers={"allow": "GET, HEAD, POST"})
    own = {name: value for name, value in headers.items() if name not in _HOP_BY_HOP}
    request = Request("GET" if method == "HEAD" else method, url, own, body)
    try:
        response = handler(request)
        _check(response)
    except Exception as error:
        policy.fault = policy.fault or _site_fault(request, error)
        return await _send(writer, 500, b"", keep=False)
    allowed_headers = {name: value for name, value in response.headers.items() if name not in _HOP_BY_HOP}
    kind = allowed_headers.get("content-type", "")
    if kind.startswith("text/") and "charset" not in kind.lower() and _is_utf8(response.body):
        allowed_headers["content-type"] = f"{kind}; charset=utf-8"  # Chromium takes it for windows-1252 otherwise
    return await _send(
        writer, response.status, response.body, keep=True, headers=allowed_headers, bare=method == "HEAD"
    )


def _is_utf8(body: bytes) -> bool:
    """Return whether a body has other than ASCII characters, all in UTF-8."""
    if body.isascii():
        return False
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _check(response: Response) -> None:
    if not isinstance(response, Response):
        raise TypeError(f"a site must return a Response, not {type(response).__name__}")
    if not isinstance(response.body, bytes) or not 200 <= response.status <= 599:
        raise ValueError(
            f"invalid Response: status {response.status!r} with a body of type {type(response.body).__name__}"
        )
    for name, value in response.headers.items():
        if any(mark in name + value for mark in "\r\n\0") or name != name.lower():
            raise ValueError(f"invalid header {name!r}: {value!r}: names must be lower case, values a single line")


def _site_fault(request: Request, error: Exception) -> SiteFault:
    fault = SiteFault(f"the site failed on {request.method} {request.url[:300]}: {type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault


async def _forward(
    policy: NetworkPolicy,
    method: str,
    url: str,
    headers: Mapping[str, str],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> bool:
    """Send one request to a real server, over a new connection."""
    split = urlsplit(url)
    upstream = await _connect(*policy.address(split.hostname or "", split.port or 80))
    if upstream is None:
        return await _send(writer, 502, f"no connection to {split.netloc} could be made".encode(), keep=False)
    server_reader, server_writer = upstream
    try:
        target = url.partition("//")[2].removeprefix(split.netloc) or "/"
        own = {name: value for name, value in headers.items() if name not in _HOP_BY_HOP}
        if "transfer-encoding" in headers:
            own["transfer-encoding"] = headers["transfer-encoding"]
        server_writer.write(_head(f"{method} {target} HTTP/1.1", own | {"connection": "close"}, "latin-1"))
        upload = asyncio.ensure_future(_copy(reader, server_writer, _TUNNEL_BYTES))
        try:
            head = b"HTTP/1.1 100 "
            while head.startswith(b"HTTP/1.1 1"):
                head = await server_reader.readuntil(b"\r\n\r\n")
            lines = head[:-4].split(b"\r\n")
            kept = [line for line in lines if not line.lower().startswith((b"connection:", b"keep-alive:", b"proxy-"))]
            writer.write(b"\r\n".join([*kept, b"Connection: close", b"", b""]))
            download = asyncio.ensure_future(_copy(server_reader, writer, _RESPONSE_BYTES))
            await _first_of(policy, url, download, upload)
        finally:
            upload.cancel()
    finally:
        server_writer.close()
    return False


async def _tunnel(
    policy: NetworkPolicy, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bool:
    """Relay bytes between the browser and a server of the task."""
    host, _, port = target.rpartition(":")
    host = host.strip("[]")
    if not port.isdecimal() or not policy.is_tunnel_allowed(host, int(port)):
        policy.record_blocked(f"CONNECT {target}")
        return await _send(writer, 403, b"", keep=False)
    upstream = await _connect(*policy.address(host, int(port)))
    if upstream is None:
        return await _send(writer, 502, b"", keep=False)
    server_reader, server_writer = upstream
    try:
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        download = asyncio.ensure_future(_copy(server_reader, writer, _TUNNEL_BYTES))
        upload = asyncio.ensure_future(_copy(reader, server_writer, _TUNNEL_BYTES))
        await _first_of(policy, target, download, upload)
    finally:
        server_writer.close()
    return False


async def _connect(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    try:
        async with asyncio.timeout(_CONNECT_S):
            return await asyncio.open_connection(host, port, limit=_HEAD_BYTES)
    except (OSError, TimeoutError):
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, max_bytes: int) -> bool:
    """Copy bytes until one side ends. Returns whether the limit was exceeded."""
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE):
            writer.write(piece)
            await writer.drain()
            max_bytes -= len(piece)
            if max_bytes <= 0:
                return True
    return False


async def _first_of(policy: NetworkPolicy, what: str, download: asyncio.Task[bool], upload: asyncio.Task[bool]) -> None:
    try:
        await asyncio.wait({download, upload}, return_when=asyncio.FIRST_COMPLETED)
        if download.done() and download.result():
            policy.record_blocked(f"{what}: cut off, it sent too much")
    finally:
        download.cancel()
        upload.cancel()
        await asyncio.gather(download, upload, return_exceptions=True)


def _read_head(head: bytes) -> tuple[str, str, dict[str, str]]:
    request_line, *lines = head[:-4].decode("latin-1").split("\r\n")
    method, target, version = request_line.split(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(f"{version!r} is not HTTP/1")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"{line!r} is not a header")
        headers[name.strip().lower()] = value.strip()
    return method, target, headers


async def _send(
    writer: asyncio.StreamWriter,
    status: int,
    body: bytes,
    *,
    keep: bool,
    headers: Mapping[str, str] | None = None,
    bare: bool = False,
) -> bool:
    """Send a response to the browser. ``bare``: with the length of the body, but without the body. Returns ``keep``."""
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = "Status"
    lines = {
        "content-type": "text/plain; charset=utf-8",
        **(headers or {}),
        "connection": "keep-alive" if keep else "close",
    }
    empty = status in (204, 304)
    if not empty:
        lines["content-length"] = str(len(body))
    head = _head(f"HTTP/1.1 {status} {phrase}", lines)
    # In one write, so that the browser's network process wakes up once.
    writer.writelines((head,) if bare or empty else (head, body))
    await writer.drain()
    return keep


def _head(first: str, headers: Mapping[str, str], encoding: str = "utf-8") -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode(encoding, "replace")
