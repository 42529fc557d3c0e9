"""Requests and responses of the built-in sites. No sockets are used: a site is a function from request to response."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True, slots=True)
class Request:
    """A browser's request to a site.

    Attributes:
        method: ``"GET"`` or ``"POST"``, in upper case.
        url: The complete URL.
        headers: Header values by lower-case name.
        body: The raw body.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def path(self) -> str:
        return urlsplit(self.url).path or "/"

    @property
    def query(self) -> dict[str, str]:
        """The parameters of the URL. The last value of each name is used."""
        return _last(urlsplit(self.url).query)

    @property
    def form(self) -> dict[str, str]:
        """The fields of an ``application/x-www-form-urlencoded`` form. The last value of each name is used."""
        return _last(self.body.decode("utf-8", "replace"))

    @property
    def form_lists(self) -> dict[str, list[str]]:
        """The fields of the form with every value of each name (checkboxes that share a name)."""
        return _parse(self.body.decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class Response:
    """A site's response.

    Attributes:
        body: The bytes of the page, style sheet or image.
        status: 200, 303 with a ``location`` header after a POST, 404 …
        headers: Header values by lower-case name.
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/html; charset=utf-8"})


Handler = Callable[[Request], Response]
"""A site: called for every request to its origin, one request at a time. It must not block."""


def _parse(text: str) -> dict[str, list[str]]:
    try:
        return parse_qs(text, keep_blank_values=True, max_num_fields=1_000)
    except ValueError:  # more fields than any form of these sites has
        return {}


def _last(text: str) -> dict[str, str]:
    return {name: values[-1] for name, values in _parse(text).items()}
