"""JSON over HTTP to one endpoint, on aiohttp: limits on everything, and a key that is sent to no other host.

aiohttp keeps the connections, reads proxies and certificates, and cancels a request with its task. This module adds
what a key and an untrusted endpoint need. ``openai_responses`` interprets the JSON.
"""

from __future__ import annotations

import ipaddress
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

try:
    import aiohttp
    from yarl import URL
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "requests to an OpenAI-compatible endpoint need aiohttp: pip install 'rllm-gym[openai]'", name="aiohttp"
    ) from error

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


class Endpoint:
    """Exchanges JSON with the paths below one base URL. Used and closed in one event loop; created anywhere.

    Args:
        base_url: Such as ``"http://localhost:8000/v1"``; a query (``?api-version=…``) is sent with every request.
        key: Sent as ``Authorization: Bearer``; ``""`` for none.
        connect_timeout: Seconds to connect, TLS included.
        silence_timeout: Seconds without a byte; ``None`` for no limit.
        max_bytes: Maximum size of a reply in bytes.

    Raises:
        ValueError: The URL or the key cannot be used; the key is not shown.
    """

    def __init__(
        self, base_url: str, key: str, *, connect_timeout: float, silence_timeout: float | None, max_bytes: int
    ) -> None:
        try:
            url = URL(base_url)
        except ValueError as error:
            raise ValueError(f"base_url={base_url!r} is not a URL: {error}") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"base_url={base_url!r} must start with http:// or https:// and contain a host")
        if url.user is not None or url.password is not None:
            raise ValueError("base_url contains a user name or password; pass the key as api_key")
        if not key.isprintable() or not key.isascii():
            raise ValueError("the API key has characters that an HTTP header cannot contain, such as a line break")
        self._base = url
        self.url = str(url.with_query(None)).rstrip("/")
        self._key = key
        self._connect_timeout = connect_timeout
        self._silence_timeout = silence_timeout
        self._max_bytes = max_bytes
        self._proxy = _proxy_for(url)
        self._session: aiohttp.ClientSession | None = None

    async def exchange(self, method: str, path: str, body: bytes | None = None) -> HttpResponse:
        """Send one request and return its reply. Cancelling the task closes the connection.

        Args:
            method: ``GET`` or ``POST``.
            path: Below the base URL, such as ``/chat/completions``.
            body: JSON.

        Raises:
            RequestRefused: No connection, no HTTP, a reply that is too long, a silence timeout, or a redirect to
                another origin.
        """
        url = self._base.joinpath(path.lstrip("/")).with_query(self._base.query)
        for _ in range(_MAX_REDIRECTS + 1):
            reused: list[bool] = []
            try:
                try:
                    answer = await self._send(method, url, body, reused)
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                    if not reused:
                        raise
                    # A kept connection may have been closed just when it was taken. aiohttp repeats no POST.
                    answer = await self._send(method, url, body, [])
            except (aiohttp.ClientError, OSError) as error:
                raise self._failure(error) from None  # the text of aiohttp's error may contain the key
            if not 300 <= answer.status < 400:
                return answer
            url = self._redirected(answer, url)
        raise RequestRefused(f"more than {_MAX_REDIRECTS} redirects", retryable=False)

    def clean(self, text: str) -> str:
        """Return the text without the key: some endpoints quote it."""
        return text.replace(self._key, "[key]") if len(self._key) >= 4 else text

    async def close(self) -> None:
        """Close all connections. Safe to call twice."""
        if self._session is not None:
            await self._session.close()

    async def _send(self, method: str, url: URL, body: bytes | None, reused: list[bool]) -> HttpResponse:
        """Send one request; ``reused`` gets an element if it is sent on a kept connection."""
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_connection_reuseconn.append(_note_reuse)
            headers = {"Accept": "application/json", "Accept-Encoding": "identity", "Content-Type": "application/json"}
            if self._key:
                headers["Authorization"] = f"Bearer {self._key}"
            self._session = aiohttp.ClientSession(
                trace_configs=[trace],
                connector=aiohttp.TCPConnector(limit=0),  # the sampler limits the number of requests
                headers=headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(
                    total=None, connect=self._connect_timeout, sock_read=self._silence_timeout
                ),
            )
        async with self._session.request(
            method, url, data=body, allow_redirects=False, proxy=self._proxy, trace_request_ctx=reused
        ) as answer:
            return await self._read(answer)

    async def _read(self, answer: aiohttp.ClientResponse) -> HttpResponse:
        failed = answer.status >= 300
        most = _ERROR_BYTES if failed else self._max_bytes
        data = bytearray()
        async for piece in answer.content.iter_any():
            data += piece
            if len(data) > most:
                answer.close()  # with its connection, on which the rest would arrive
                if not failed:
                    raise RequestRefused(f"the reply has more than {most} bytes", retryable=False)
                break
        encoding = answer.headers.get("Content-Encoding", "identity")
        if encoding not in ("identity", "") and not failed:
            raise RequestRefused(
                f"the reply has Content-Encoding {encoding!r}, which was not requested", retryable=False
            )
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return HttpResponse(answer.status, headers, bytes(data[:most]))

    def _failure(self, error: Exception) -> RequestRefused:
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return RequestRefused(f"no connection within {self._connect_timeout:g} s", retryable=True)
        if isinstance(error, aiohttp.SocketTimeoutError):
            return RequestRefused(f"no data for {self._silence_timeout:g} s (silence_timeout)", retryable=True)
        if isinstance(error, aiohttp.ClientPayloadError):
            return RequestRefused("the connection was lost in the middle of the reply", retryable=True)
        if isinstance(error, aiohttp.ServerDisconnectedError):
            return RequestRefused("the connection was closed without a reply", retryable=True)
        if isinstance(error, aiohttp.ClientHttpProxyError):
            return RequestRefused(f"the proxy answered {error.status}: {self._one_line(error.message)}", retryable=True)
        if isinstance(error, aiohttp.ClientResponseError):  # as text it contains the URL, and a query may be secret
            return RequestRefused(f"no valid HTTP reply: {self._one_line(error.message)}", retryable=True)
        # A certificate error, or a server without TLS, is permanent.
        lasting = isinstance(error, aiohttp.ClientSSLError) and not isinstance(error.__cause__, ssl.SSLEOFError)
        cause = error.__cause__ or error
        return RequestRefused(self._one_line(f"{type(cause).__name__}: {cause}"), retryable=not lasting)

    def _one_line(self, text: str) -> str:
        return self.clean(" ".join(text.split()))[:500]

    def _redirected(self, response: HttpResponse, url: URL) -> URL:
        """Return the target of a redirect within this origin: the key must not be sent elsewhere."""
        location = response.headers.get("location", "")
        try:
            target = url.join(URL(location))
            same = bool(location) and target.origin() == url.origin()
        except ValueError:
            same = False
        if not same:
            raise RequestRefused(
                f"{response.status}: redirect to {self.clean(location)[:200]!r}, but the key is sent only to "
                f"{url.origin()}; if that address is correct, give it as base_url",
                retryable=False,
                status=response.status,
            )
        return target.with_user(None)  # aiohttp refuses a URL with credentials besides the key


async def _note_reuse(session: Any, context: Any, params: Any) -> None:
    context.trace_request_ctx.append(True)


def _proxy_for(url: URL) -> URL | None:
    """Return the proxy that the environment sets for a URL, as urllib reads it; never for loopback addresses.

    aiohttp's own ``trust_env`` would also read ``.netrc``, and send its passwords where there is no key.
    """
    proxy = urllib.request.getproxies().get(url.scheme)
    if not proxy or _is_loopback(url.host or "") or urllib.request.proxy_bypass(url.host or ""):
        return None
    parsed = URL(proxy if "://" in proxy else f"http://{proxy}")
    if parsed.scheme != "http" or not parsed.host:
        raise ValueError(
            f"{url.scheme}_proxy of the environment is a {parsed.scheme!r} proxy; only http:// proxies are supported"
        )
    return parsed


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
