"""A request and a response, as the built-in sites see them. No sockets: a site is a function from one to the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True, slots=True)
class Request:
    """What a browser asks a site for.

    Attributes:
        method: ``"GET"`` or ``"POST"``, upper case.
        url: The whole URL.
        headers: By lower-case name.
        body: As it was sent.
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
        """The parameters of the URL; the last of several with one name."""
        return _last(urlsplit(self.url).query)

    @property
    def form(self) -> dict[str, str]:
        """The fields of a form sent as ``application/x-www-form-urlencoded``; the last of several with one name."""
        return _last(self.body.decode("utf-8", "replace"))

    @property
    def form_lists(self) -> dict[str, list[str]]:
        """As :attr:`form`, with every value of a name (checkboxes that share one)."""
        return _parse(self.body.decode("utf-8", "replace"))


@dataclass(frozen=True, slots=True)
class Response:
    """What a site answers.

    Attributes:
        body: The bytes of the page, style sheet or picture.
        status: 200, 303 with a ``location`` header after a POST, 404 …
        headers: By lower-case name.
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/html; charset=utf-8"})


Handler = Callable[[Request], Response]
"""A site: called for every request to its origin, one at a time, and never blocks."""


def _parse(text: str) -> dict[str, list[str]]:
    try:
        return parse_qs(text, keep_blank_values=True, max_num_fields=1_000)
    except ValueError:  # more fields than any form has
        return {}


def _last(text: str) -> dict[str, str]:
    return {name: values[-1] for name, values in _parse(text).items()}
