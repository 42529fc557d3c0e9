"""Requests and responses of the built-in sites. No sockets are used: a site is a function from request to response."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from rllm_gym.envs.web.sites.errors import FormError

_MAX_PARTS = 100
_MAX_PART_HEADER = 1_000
# As browsers write it, with %22 for a quotation mark. The parser of the standard library also takes encoded and split
# names, and raises TypeError for some of these.
_DISPOSITION = re.compile(
    r'(?im)^content-disposition: form-data; name="([^"\r\n]*)"(; filename="([^"\r\n]*)")?\r?$',
)


@dataclass(frozen=True, slots=True)
class UploadedFile:
    """A file of a form. ``name`` is what the browser calls it: data of the visitor, never a path."""

    name: str
    content: bytes


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
        """The fields of a form without its files. The last value of each name is used.

        Raises:
            FormError: A ``multipart/form-data`` form is malformed.
        """
        return {name: values[-1] for name, values in self.form_lists.items()}

    @property
    def form_lists(self) -> dict[str, list[str]]:
        """The fields of the form with every value of each name (checkboxes that share a name).

        Raises:
            FormError: A ``multipart/form-data`` form is malformed.
        """
        if not self._is_multipart:
            return _parse(self.body.decode("utf-8", "replace"))
        values: dict[str, list[str]] = {}
        for name, file_name, content in _parts(self.headers["content-type"], self.body):
            if file_name is None:
                values.setdefault(name, []).append(content.decode("utf-8", "replace"))
        return values

    @property
    def files(self) -> dict[str, UploadedFile]:
        """The files of a ``multipart/form-data`` form by the name of their field, the last of each name.

        Raises:
            FormError: The form is malformed.
        """
        if not self._is_multipart:
            return {}
        parts = _parts(self.headers["content-type"], self.body)
        return {name: UploadedFile(file, content) for name, file, content in parts if file is not None}

    @property
    def _is_multipart(self) -> bool:
        return self.headers.get("content-type", "").startswith("multipart/")


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


def _parts(kind: str, body: bytes) -> list[tuple[str, str | None, bytes]]:
    """Return (field, file name or ``None``, content) of the parts of a form.

    The parts of a form are not nested, so they are split at the boundary. A parser of whole e-mail messages would
    follow the nesting that a hostile body can have.
    """
    found = re.fullmatch(r"multipart/form-data; ?boundary=\"?([0-9A-Za-z'()+_,./:=?-]{1,70})\"?", kind)
    if found is None:
        raise FormError("The form could not be read: it has no valid boundary.")
    preamble, *pieces = (b"\r\n" + body).split(b"\r\n--" + found[1].encode(), _MAX_PARTS + 1)
    if preamble or not pieces or pieces.pop() not in (b"--", b"--\r\n"):
        raise FormError("The form could not be read: it is incomplete, or has too many parts.")
    return [_part(piece) for piece in pieces]


def _part(piece: bytes) -> tuple[str, str | None, bytes]:
    head, gap, content = piece.partition(b"\r\n\r\n")
    if not gap or len(head) > _MAX_PART_HEADER:
        raise FormError("The form could not be read: a part has no header, or too long a one.")
    found = _DISPOSITION.findall(head.decode("utf-8", "replace"))
    if len(found) != 1:
        raise FormError("The form could not be read: a part has no name, or not as browsers write it.")
    name, has_file, file_name = found[0]
    return name, file_name if has_file else None, content


def _last(text: str) -> dict[str, str]:
    return {name: values[-1] for name, values in _parse(text).items()}
