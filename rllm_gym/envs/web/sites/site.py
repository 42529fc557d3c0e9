"""A site: routing, forms answered with a redirect, messages that are shown once, and error pages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import unquote, urlsplit

from rllm_gym.envs.web.sites.errors import FormError, NotFound
from rllm_gym.envs.web.sites.http import Handler, Request, Response, UploadedFile
from rllm_gym.envs.web.sites.markup import h
from rllm_gym.envs.web.sites.pages import Flash, Frame, HtmlPage, render

MAX_POSTS = 300
"""Maximum number of forms per episode and site; further ones get an error page. It bounds the size of the state."""

MAX_BODY_BYTES = 100_000
MAX_URL_CHARS = 8_000

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Redirect:
    """The response to a form: the browser requests ``location`` next, and that page shows the message once."""

    location: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class Visit:
    """One request with its parsed fields."""

    request: Request
    query: Mapping[str, str]
    form: Mapping[str, str]

    def asked(self, name: str, limit: int = 200) -> str:
        """Return a parameter of the URL on one line, cut after ``limit`` characters."""
        return one_line(self.query.get(name, ""))[:limit]

    def page(self) -> int:
        """Return the requested page of a list, counted from 1."""
        return max(1, whole_number(self.query.get("page", "")) or 1)

    def line(self, name: str, label: str, *, limit: int = 200, required: bool = True) -> str:
        """Return a form field on one line.

        Raises:
            FormError: The field is empty but required, or longer than ``limit`` characters.
        """
        return self._checked(one_line(self.form.get(name, "")), label, limit, required)

    def text(self, name: str, label: str, *, limit: int = 5_000, required: bool = True) -> str:
        """Return a multi-line form field.

        Raises:
            FormError: The field is empty but required, or longer than ``limit`` characters.
        """
        lines = self.form.get(name, "").replace("\r\n", "\n").split("\n")
        return self._checked("\n".join(_printable(line).rstrip() for line in lines).strip(), label, limit, required)

    def number(self, name: str, label: str, *, low: int, high: int) -> int:
        """Return a form field as an integer.

        Raises:
            FormError: The field is not an integer, or is outside ``low`` to ``high``.
        """
        number = whole_number(self.form.get(name, ""))
        if number is None or not low <= number <= high:
            raise FormError(f"{label} must be a whole number from {low} to {high}.")
        return number

    def values(self, name: str) -> list[str]:
        """Return every value of the form's fields with this name (checkboxes that share a name)."""
        return self.request.form_lists.get(name, [])

    def file(self, name: str) -> UploadedFile | None:
        """Return an uploaded file, or ``None`` if no file was chosen.

        Raises:
            FormError: The form is malformed.
        """
        found = self.request.files.get(name)
        return found if found and found.name else None  # without a file, a browser sends one without a name

    def _checked(self, text: str, label: str, limit: int, required: bool) -> str:
        if required and not text:
            raise FormError(f"{label} must not be empty.")
        if len(text) > limit:
            raise FormError(f"{label} is too long: {len(text)} characters, at most {limit} are allowed.")
        return text


def one_line(text: str) -> str:
    """Return printable text with single spaces.

    >>> one_line(" a\\tb\\x00 ")
    'a b'
    """
    return " ".join(_printable(text).split())


def whole_number(text: str) -> int | None:
    """Return the integer in a field or a parameter, or ``None``. At most nine ASCII digits are accepted."""
    text = text.strip()
    return int(text) if re.fullmatch(r"-?[0-9]{1,9}", text) else None


def json_response(value: object) -> Response:
    """Return the JSON response to a ``fetch`` by a page's script."""
    return Response(json.dumps(value).encode(), headers={"content-type": "application/json"})


View = Callable[..., "HtmlPage | Redirect | Response"]


class Site(Generic[State]):
    """The routes of a site at ``origin``, one instance per module. :meth:`handler` serves the state of one episode.

    A view is a function ``view(state, visit, **parts of the path)`` that returns a :class:`HtmlPage`, a
    :class:`Redirect` or a :class:`Response`, and raises :class:`FormError` or :class:`NotFound`. Patterns contain
    ``<name>`` for one segment of a path, ``<int:name>`` for a number and ``<path:name>`` for the rest.
    """

    def __init__(self, origin: str, frame: Callable[[State], Frame]) -> None:
        self.origin = origin
        self.frame = frame
        self._routes: list[tuple[str, re.Pattern[str], tuple[str, ...], View]] = []

    def get(self, pattern: str) -> Callable[[View], View]:
        return self._route("GET", pattern)

    def post(self, pattern: str) -> Callable[[View], View]:
        return self._route("POST", pattern)

    def handler(self, state: State) -> Handler:
        """Return a handler for one episode, with its own pending messages and form counter."""
        return _SiteSession(self, state)

    def find(self, method: str, path: str) -> tuple[View, dict[str, Any]] | None:
        for route_method, pattern, numbers, view in self._routes:
            found = pattern.fullmatch(path) if route_method == method else None
            if found:
                parts: dict[str, Any] = {name: unquote(part) for name, part in found.groupdict().items()}
                return view, parts | {name: int(parts[name]) for name in numbers}
        return None

    def _route(self, method: str, pattern: str) -> Callable[[View], View]:
        numbers = tuple(re.findall(r"<int:(\w+)>", pattern))
        expression = re.sub(r"<int:(\w+)>", r"(?P<\1>[0-9]{1,9})", pattern)
        expression = re.sub(r"<path:(\w+)>", r"(?P<\1>.+)", expression)
        expression = re.sub(r"(?<!\?P)<(\w+)>", r"(?P<\1>[^/]+)", expression)

        def register(view: View) -> View:
            self._routes.append((method, re.compile(expression), numbers, view))
            return view

        return register


@dataclass
class SiteApp:
    """The part of a site's state that serves its pages; the other base of the subclass is the content of the site."""

    routes: ClassVar[Site[Any]]
    """The site, set by each subclass."""

    def handlers(self) -> Mapping[str, Handler]:
        """Return a new handler of the site by its origin."""
        return {self.routes.origin: self.routes.handler(self)}


@dataclass
class LinkedSiteApp(SiteApp):
    """As :class:`SiteApp`, for sites that an environment may combine.

    Attributes:
        neighbours: (label, URL) of other sites of the same environment, shown in the header.
    """

    neighbours: tuple[tuple[str, str], ...] = ()


class _SiteSession(Generic[State]):
    """The handler of one episode on one site."""

    def __init__(self, site: Site[State], state: State) -> None:
        self._site = site
        self._state = state
        self._posts = 0
        self._last_page = "/"
        self._flashes: list[Flash] = []

    def __call__(self, request: Request) -> Response:
        answer = self._answer(request)
        if isinstance(answer, Response):
            return answer
        if isinstance(answer, Redirect):
            if answer.message:
                self._flashes = [*self._flashes[-2:], Flash(answer.message)]
            return _see_other(answer.location)
        flashes, self._flashes = self._flashes, []
        if request.method == "GET" and answer.status == 200 and not answer.framed:
            self._last_page = _within_site(request.url)
        return Response(render(self._site.frame(self._state), answer, flashes).encode(), answer.status)

    def _answer(self, request: Request) -> HtmlPage | Redirect | Response:
        try:
            if len(request.url) > MAX_URL_CHARS:
                return _plain(414, "Address too long", f"Addresses here have at most {MAX_URL_CHARS:,} characters.")
            path, query = request.path, request.query
        except ValueError:
            return _plain(400, "Bad address", "This address cannot be read.")
        if request.method == "POST":
            if len(request.body) > MAX_BODY_BYTES:
                return _plain(413, "Too much text", f"A form may hold at most {MAX_BODY_BYTES:,} bytes.")
            self._posts += 1
            if self._posts > MAX_POSTS:
                return _plain(429, "Too many changes", f"At most {MAX_POSTS} forms can be sent in one visit.")
        elif path == "/favicon.ico":
            return Response(status=204)
        found = self._site.find(request.method, path)
        if found is None:
            return _plain(404, "Page not found", "There is no page at this address.")
        view, parts = found
        try:
            form = request.form if request.method == "POST" else {}
            return view(self._state, Visit(request, query, form), **parts)
        except NotFound as missing:
            return _plain(404, "Page not found", str(missing) or "There is no page at this address.")
        except FormError as refused:
            if request.method != "POST":
                return _plain(400, "This did not work", str(refused))
            self._flashes = [*self._flashes[-2:], Flash(str(refused), "problem")]
            return _see_other(self._came_from(request))

    def _came_from(self, request: Request) -> str:
        """Return the page that contains the rejected form: the referer, or otherwise the last page shown."""
        referer = request.headers.get("referer", "")[:MAX_URL_CHARS]
        try:
            same_site = urlsplit(referer).netloc == urlsplit(request.url).netloc
            return _within_site(referer) if same_site and referer else self._last_page
        except ValueError:
            return self._last_page


def _plain(status: int, title: str, message: str) -> HtmlPage:
    return HtmlPage(title, [h("p", message), h("p", h("a.button", "Back to the start page", href="/"))], status=status)


def _see_other(location: str) -> Response:
    return Response(status=303, headers={"location": location, "content-type": "text/html; charset=utf-8"})


def _within_site(address: str) -> str:
    parts = urlsplit(address)
    path = "/" + parts.path.lstrip("/")  # two slashes would name another host
    return f"{path}?{parts.query}" if parts.query else path


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
