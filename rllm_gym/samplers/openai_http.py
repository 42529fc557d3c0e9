"""JSON over HTTP to one endpoint: kept connections, limits on everything, and a key that is sent to no other host.

Blocking; each request runs in a thread and can be aborted from another. ``openai_responses`` interprets the JSON.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import ipaddress
import selectors
import socket
import ssl
import threading
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

_CHUNK = 1 << 16
_ERROR_BYTES = 1 << 14
_MAX_REDIRECTS = 3


class RequestRefused(Exception):
    """The endpoint did not serve a request.

    Args:
        message: The reason, without the key.
        retryable: Whether the same request may succeed later.
        status: The HTTP status, 0 where there was none.
        retry_after: Seconds that the endpoint asks to wait.
    """

    def __init__(self, message: str, *, retryable: bool, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.status = status
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response: a status below 300 or above 399, lower-case header names, and the body (cut for errors)."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpExchange:
    """One request in progress, which :meth:`abort` ends from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self.aborted = False

    def attach(self, connected: socket.socket) -> None:
        """Register the socket to shut down when the request is aborted.

        Raises:
            RequestRefused: The request was already aborted.
        """
        with self._lock:
            if self.aborted:
                raise RequestRefused("the request was aborted", retryable=False)
            self._socket = connected

    def detach(self) -> None:
        """Unregister the socket: the request has finished, and other requests may use the connection."""
        with self._lock:
            self._socket = None

    def abort(self) -> None:
        """Abort the request now; its thread wakes up. Safe to call at any time."""
        with self._lock:
            self.aborted = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    # Shut down the plain socket: TLS needs no close message, and the other thread uses its object.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class Endpoint:
    """Exchanges JSON with the paths below one base URL. Must be closed.

    Args:
        base_url: Such as ``"http://localhost:8000/v1"``; a query (``?api-version=…``) is sent with every request.
        key: Sent as ``Authorization: Bearer``; ``""`` for none.
        connect_timeout: Seconds to connect, TLS included.
        silence_timeout: Seconds without a byte.
        max_bytes: Maximum size of a reply in bytes.

    Raises:
        ValueError: The URL or the key cannot be used; the key is not shown.
    """

    def __init__(
        self, base_url: str, key: str, *, connect_timeout: float, silence_timeout: float, max_bytes: int
    ) -> None:
        try:
            parts = urllib.parse.urlsplit(base_url)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"base_url={base_url!r} is not a URL: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"base_url={base_url!r} must start with http:// or https:// and contain a host")
        if parts.username is not None or parts.password is not None:
            raise ValueError("base_url contains a user name or password; pass the key as api_key")
        if not key.isprintable() or not key.isascii():
            raise ValueError("the API key has characters that an HTTP header cannot contain, such as a line break")
        self._scheme, self._host = parts.scheme, parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._path, self._query = parts.path.rstrip("/"), parts.query
        self.url = f"{parts.scheme}://{parts.netloc}{self._path}"
        self._key = key
        self._connect_timeout = connect_timeout
        self._silence_timeout = silence_timeout
        self._max_bytes = max_bytes
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._proxy = _proxy_for(parts.scheme, parts.hostname)
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._closed = False

    def exchange(self, http_exchange: HttpExchange, method: str, path: str, body: bytes | None = None) -> HttpResponse:
        """Send one request and return its reply. Blocks.

        Args:
            http_exchange: Handle to abort the request.
            method: ``GET`` or ``POST``.
            path: Below the base URL, such as ``/chat/completions``.
            body: JSON.

        Raises:
            RequestRefused: No connection, no HTTP, a reply that is too long, a silence timeout, or a redirect to
                another origin.
        """
        target = self._path + path + (f"?{self._query}" if self._query else "")
        for _ in range(_MAX_REDIRECTS + 1):
            answer = self._exchange(http_exchange, method, target, body)
            if not 300 <= answer.status < 400:
                return answer
            target = self._redirected(answer, target)
        raise RequestRefused(f"more than {_MAX_REDIRECTS} redirects", retryable=False)

    def clean(self, text: str) -> str:
        """Return the text without the key: some endpoints quote it."""
        return text.replace(self._key, "[key]") if len(self._key) >= 4 else text

    def close(self) -> None:
        """Close the idle connections. Requests in progress continue. Safe to call twice."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _exchange(self, exchange: HttpExchange, method: str, target: str, body: bytes | None) -> HttpResponse:
        kept = self._take()
        if kept is not None:
            try:
                return self._send(kept, exchange, method, target, body)
            except ConnectionError as error:
                # The server closed the connection just when it was taken. Nothing was answered, so retry on a new one.
                if exchange.aborted:
                    raise self._failure(error, exchange) from error
            except (OSError, http.client.HTTPException) as error:
                raise self._failure(error, exchange) from error
        try:
            return self._send(self._connect(), exchange, method, target, body)
        except (OSError, http.client.HTTPException) as error:
            raise self._failure(error, exchange) from error

    def _send(
        self,
        connection: http.client.HTTPConnection,
        exchange: HttpExchange,
        method: str,
        target: str,
        body: bytes | None,
    ) -> HttpResponse:
        keep = False
        try:
            if connection.sock is None:
                try:
                    connection.connect()
                except TimeoutError as error:
                    raise RequestRefused(f"no connection within {self._connect_timeout:g} s", retryable=True) from error
            connection.sock.settimeout(self._silence_timeout)
            exchange.attach(connection.sock)
            headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
            if body is not None:
                headers["Content-Type"] = "application/json"
            if self._key:
                headers["Authorization"] = f"Bearer {self._key}"
            if self._proxy is not None and self._tls is None:
                target = f"{self._scheme}://{_netloc(self._host, self._port)}{target}"
                headers |= self._proxy.headers
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            answer, complete = self._read(response)
            response.close()  # releases the connection for the next request
            if exchange.aborted:
                # The shutdown looks like the end of the reply, even of its headers.
                raise RequestRefused("the request was aborted", retryable=False)
            keep = complete and not response.will_close
            return answer
        finally:
            exchange.detach()
            if keep:
                self._keep(connection)
            else:
                connection.close()

    def _read(self, response: http.client.HTTPResponse) -> tuple[HttpResponse, bool]:
        """Return the answer, and whether all of it was read."""
        failed = response.status >= 300
        most = _ERROR_BYTES if failed else self._max_bytes
        data = bytearray()
        while len(data) <= most:
            piece = response.read1(_CHUNK)
            if not piece:
                break
            data += piece
        if len(data) > most and not failed:
            raise RequestRefused(f"the reply has more than {most} bytes", retryable=False)
        complete = len(data) <= most
        if complete and response.length:  # bytes that the header announced are missing
            raise http.client.IncompleteRead(b"", response.length)
        if response.getheader("Content-Encoding", "identity") not in ("identity", "") and not failed:
            raise RequestRefused(
                f"the reply has Content-Encoding {response.getheader('Content-Encoding')!r}, which was not requested",
                retryable=False,
            )
        headers = {name.lower(): value for name, value in response.getheaders()}
        return HttpResponse(response.status, headers, bytes(data[:most])), complete

    def _failure(self, error: Exception, exchange: HttpExchange) -> RequestRefused:
        if isinstance(error, TimeoutError):
            return RequestRefused(
                f"no data for {self._silence_timeout:g} s (silence_timeout)", retryable=not exchange.aborted
            )
        if isinstance(error, http.client.IncompleteRead):
            return RequestRefused("the connection was lost in the middle of the reply", retryable=not exchange.aborted)
        # A certificate error, or a server without TLS, is permanent.
        lasting = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)
        return RequestRefused(
            self.clean(f"{type(error).__name__}: {error}"), retryable=not lasting and not exchange.aborted
        )

    def _redirected(self, response: HttpResponse, target: str) -> str:
        """Return the target of a redirect within this origin: the key must not be sent elsewhere."""
        origin = f"{self._scheme}://{_netloc(self._host, self._port)}"
        location = response.headers.get("location", "")
        try:
            parts = urllib.parse.urlsplit(urllib.parse.urljoin(origin + target, location))
            same = (parts.scheme, parts.hostname) == (self._scheme, self._host)
            same = same and (parts.port or (443 if parts.scheme == "https" else 80)) == self._port
        except ValueError:
            same = False
        if not location or not same:
            raise RequestRefused(
                f"{response.status}: redirect to {self.clean(location[:200])!r}, but the key is sent only to {origin}; "
                "if that address is correct, give it as base_url",
                retryable=False,
                status=response.status,
            )
        return urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))

    def _take(self) -> http.client.HTTPConnection | None:
        """Return an idle connection that is still open, the most recently used first."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.sock is not None and not _readable(connection.sock):
                return connection
            connection.close()

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        host, port = (self._host, self._port) if self._proxy is None else (self._proxy.host, self._proxy.port)
        if self._tls is None:
            return http.client.HTTPConnection(host, port, timeout=self._connect_timeout)
        connection = http.client.HTTPSConnection(host, port, timeout=self._connect_timeout, context=self._tls)
        if self._proxy is not None:
            connection.set_tunnel(self._host, self._port, headers=dict(self._proxy.headers))
        return connection


@dataclass(frozen=True, slots=True)
class _Proxy:
    host: str
    port: int
    headers: Mapping[str, str]


def _proxy_for(scheme: str, host: str) -> _Proxy | None:
    """Return the proxy that the environment sets for a host, as urllib reads it; never for loopback addresses."""
    url = urllib.request.getproxies().get(scheme)
    if not url or _is_loopback(host) or urllib.request.proxy_bypass(host):
        return None
    parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(
            f"{scheme}_proxy of the environment is a {parts.scheme!r} proxy; only http:// proxies are supported"
        )
    headers = {}
    if parts.username is not None:
        pair = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        headers["Proxy-Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
    return _Proxy(parts.hostname, parts.port or 80, headers)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _netloc(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _readable(connected: socket.socket) -> bool:
    """Return whether data is ready to be read: on an idle connection that means its end."""
    with selectors.DefaultSelector() as selector:
        selector.register(connected, selectors.EVENT_READ)
        return bool(selector.select(0))
