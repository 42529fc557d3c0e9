"""The network policy of one episode: its sites, which this process serves, its origins, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

from rllm_gym.envs.web.browser.errors import SiteFault
from rllm_gym.envs.web.sites.http import Handler

_MAX_RECORDED = 100
_URL_CHARS = 300
_DEFAULT_PORTS = {"http": 80, "https": 443}


def origin_of(url: str) -> str:
    """Return the origin of an ``http`` or ``https`` URL as Chromium writes it: lower case, no default port.

    Raises:
        ValueError: It is not such a URL; the message names it.
    """
    scheme, host, port = _parts(url)
    return f"{scheme}://{host}" if port == _DEFAULT_PORTS[scheme] else f"{scheme}://{host}:{port}"


def _parts(url: str) -> tuple[str, str, int]:
    problem = f"{url[:_URL_CHARS]!r} is not an http:// or https:// URL with a host and without a user name"
    try:
        split = urlsplit(url)
        port, host = split.port, split.hostname
    except ValueError as error:
        raise ValueError(f"{problem}: {error}") from None
    if split.scheme not in _DEFAULT_PORTS or not host or "@" in split.netloc or "\\" in url:
        raise ValueError(problem)
    if ":" in host:
        host = f"[{host}]"
    elif not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError as error:
            raise ValueError(f"{problem}: {error}") from None
    return split.scheme, host, port if port is not None else _DEFAULT_PORTS[split.scheme]


class NetworkPolicy:
    """The network policy of one browser context, and the recorded violations.

    Attributes:
        sites: Handlers by origin.
        origins: Origins of real servers.
        ports: Ports of 127.0.0.1 by host and port of an origin that a program of the episode serves.
        blocked: The first hundred blocked requests of the pages.
        fault: The exception that a site raised. It fails the whole episode.
        on_blocked_page: Called for each blocked navigation.
    """

    def __init__(self) -> None:
        self.sites: dict[str, Handler] = {}
        self.origins: frozenset[str] = frozenset()
        self.ports: dict[tuple[str, int], int] = {}
        self.blocked: list[str] = []
        self.fault: SiteFault | None = None
        self.on_blocked_page: Callable[[str], None] = lambda url: None

    def allow(
        self, sites: Mapping[str, Handler], origins: Sequence[str], servers: Mapping[str, int] | None = None
    ) -> None:
        """Allow the sites, the origins, and those of ``servers``, whose values are ports of 127.0.0.1.

        Raises:
            ValueError: An origin has a path, is not http(s), or is given twice; a site is not ``http://``.
        """
        servers = servers or {}
        if isinstance(origins, str):
            raise ValueError(f"origins={origins!r} must be a sequence of origins, e.g. [{origins!r}]")
        for item in (*sites, *origins, *servers):
            if urlsplit(item).path not in ("", "/") or urlsplit(item).query or urlsplit(item).fragment:
                raise ValueError(f"{item!r} is not an origin: remove everything after the host and port")
        self.sites = {origin_of(origin): handler for origin, handler in sites.items()}
        self.origins = frozenset(origin_of(origin) for origin in (*origins, *servers))
        self.ports = {_parts(origin)[1:]: port for origin, port in servers.items()}
        if secure := [origin for origin in self.sites if not origin.startswith("http://")]:
            raise ValueError(f"site {secure[0]!r} must use http://: sites of this process are served without TLS")
        if both := sorted(self.origins & self.sites.keys()):
            raise ValueError(f"{both[0]!r} is in both sites and origins; remove it from one of them")

    def is_allowed(self, url: str) -> bool:
        """Return whether a URL, as written by Chromium, is allowed."""
        try:
            origin = origin_of(url)
        except ValueError:
            return False
        return origin in self.sites or origin in self.origins

    def is_tunnel_allowed(self, host: str, port: int) -> bool:
        """Return whether a raw connection to a host is allowed. TLS and WebSockets use one."""
        name = f"[{host}]" if ":" in host else host.lower()
        return (name, port) in {_parts(origin)[1:] for origin in self.origins}

    def address(self, host: str, port: int) -> tuple[str, int]:
        """Return where to connect for an allowed host and port."""
        served = self.ports.get((f"[{host}]" if ":" in host else host.lower(), port))
        return (host, port) if served is None else ("127.0.0.1", served)

    def record_blocked(self, what: str, *, navigation: bool = False) -> None:
        if len(self.blocked) < _MAX_RECORDED:
            self.blocked.append(what[:_URL_CHARS])
        if navigation:
            self.on_blocked_page(what[:_URL_CHARS])
