"""Components of pages: the common layout, forms, lists, tables and elements that need the script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Generic, TypeVar

from rllm_gym.envs.web.sites.markup import Content, Markup, h, join, url
from rllm_gym.envs.web.sites.wording import long_date, weekday

Item = TypeVar("Item")

_HERE = Path(__file__).parent
# Inlined in every page, so that a page is a single request and its appearance does not depend on load order.
_STYLE = _HERE.joinpath("style.css").read_text("utf-8")
_SCRIPT = Markup(f"<script>{_HERE.joinpath('script.js').read_text('utf-8')}</script>")


@dataclass(frozen=True, slots=True)
class Frame:
    """The common layout around every page of a site.

    Attributes:
        name: Name of the site, in the header and in the title of every page.
        colour: CSS colour of the header, dark enough for white text.
        navigation: (label, path) of the links in the header.
        today: The site's fixed date, shown in the footer; pages do not read the clock.
        user: The signed-in user.
        search: (label, path) of the search in the header; it requests ``path?q=…``.
        wide: Whether pages use the full width, for tables and calendars.
        style: The site's own style sheet, read with :func:`read_style`.
    """

    name: str
    colour: str
    navigation: Sequence[tuple[str, str]]
    today: date
    user: str | None = None
    search: tuple[str, str] | None = None
    wide: bool = False
    style: str = ""


def read_style(module: str) -> str:
    """Return the style sheet ``style.css`` beside a module, which is given as its ``__file__``."""
    return Path(module).with_name("style.css").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class HtmlPage:
    """The page that a view returns; the site adds the layout.

    Attributes:
        title: The heading; with the site's name also the title of the tab.
        body: The content below the heading.
        trail: (label, path) of the parent pages.
        aside: A column beside the body, for filters or a summary.
        actions: Content to the right of the heading: actions on the whole page.
        status: HTTP status.
        query: The text in the search field of the header.
        framed: Whether the page is shown in a frame of another page: without header, heading and footer.
    """

    title: str
    body: Content
    trail: Sequence[tuple[str, str]] = ()
    aside: Content = None
    actions: Content = None
    status: int = 200
    query: str = ""
    framed: bool = False


@dataclass(frozen=True, slots=True)
class Flash:
    """A message shown once, on the next page. ``tone`` is ``"done"`` or ``"problem"``."""

    text: str
    tone: str = "done"


def render(frame: Frame, page: HtmlPage, flashes: Sequence[Flash] = ()) -> str:
    """Return the complete HTML document."""
    search = frame.search and h(
        "form.search",
        h("input", type="search", name="q", aria_label=frame.search[0], placeholder=frame.search[0], value=page.query),
        h("button", "Search", type="submit"),
        action=frame.search[1],
        role="search",
    )
    header = h(
        "header",
        h(
            "div.bar",
            h("a.brand", frame.name, href="/"),
            h("nav", [h("a", label, href=path) for label, path in frame.navigation], aria_label="Main"),
            search,
            frame.user and h("span.user", f"Signed in as {frame.user}"),
        ),
    )
    trail = page.trail and h(
        "nav.trail",
        [[h("a", label, href=path), h("span", " › ", aria_hidden="true")] for label, path in page.trail],
        h("span", page.title),
        aria_label="Breadcrumb",
    )
    main = h(
        "main",
        trail,
        [
            h(f"div.flash.{flash.tone}", flash.text, role="alert" if flash.tone == "problem" else "status")
            for flash in flashes
        ],
        None if page.framed else h("div.heading", h("h1", page.title), page.actions and h("div.actions", page.actions)),
        h("div.columns", h("aside", page.aside), h("div.content", page.body)) if page.aside else page.body,
        class_="wide" if frame.wide else None,
    )
    footer = h("footer", f"{frame.name} · Today is {weekday(frame.today)}, {long_date(frame.today)}")
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("title", f"{page.title} · {frame.name}"),
        Markup(f"<style>{_STYLE}{frame.style}</style>"),
    )
    parts = (main,) if page.framed else (header, main, footer)
    body = h("body", parts, _SCRIPT, class_="framed" if page.framed else None, style=f"--accent:{frame.colour}")
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>'


# Forms


def form(
    action: str, *children: Content, method: str = "post", confirm: str | None = None, **attributes: object
) -> Markup:
    """Return a form.

    Args:
        confirm: Question of the browser's dialog that is shown before the form is sent.
    """
    return h("form", *children, action=action, method=method, data_confirm=confirm, **attributes)


def field(
    label: str,
    name: str,
    value: object = "",
    *,
    type: str = "text",
    hint: str | None = None,
    key: object = None,
    **attributes: object,
) -> Markup:
    """Return a labelled input. ``key`` distinguishes fields with the same name on one page."""
    identity = _identity(name, key)
    return h(
        "div.field",
        h("label", label, for_=identity),
        h("input", type=type, id=identity, name=name, value=value, autocomplete="off", **attributes),
        hint and h("p.hint", hint),
    )


def file_field(label: str, name: str, *, hint: str | None = None) -> Markup:
    """Return a labelled field for a file. Its form needs ``enctype="multipart/form-data"``."""
    identity = _identity(name, None)
    chooser = h("input", type="file", id=identity, name=name)
    return h("div.field", h("label", label, for_=identity), chooser, hint and h("p.hint", hint))


def frame(title: str, path: str, *, height: int) -> Markup:
    """Return a frame that shows another page of the site, which should be ``framed``."""
    return h("iframe", src=path, title=title, height=height)


def text_area(label: str, name: str, value: str = "", *, rows: int = 6, hint: str | None = None) -> Markup:
    """Return a labelled multi-line field."""
    identity = _identity(name, None)
    return h(
        "div.field",
        h("label", label, for_=identity),
        # An HTML parser drops a line break right after the tag: it drops this one instead of the text's own.
        h("textarea", Markup("\n"), value, id=identity, name=name, rows=rows),
        hint and h("p.hint", hint),
    )


def choice(
    label: str,
    name: str,
    options: Iterable[tuple[object, str]] | Iterable[str],
    chosen: object = None,
    *,
    key: object = None,
    **attributes: object,
) -> Markup:
    """Return a labelled drop-down list of (value, text) pairs, or of texts that are their own values."""
    identity = _identity(name, key)
    pairs = [(option, option) if isinstance(option, str) else option for option in options]
    return h(
        "div.field",
        h("label", label, for_=identity),
        h(
            "select",
            [h("option", text, value=value, selected=str(value) == str(chosen)) for value, text in pairs],
            id=identity,
            name=name,
            **attributes,
        ),
    )


def radios(legend: str, name: str, options: Iterable[tuple[object, str]], chosen: object = None) -> Markup:
    """Return a group of radio buttons."""
    return h(
        "fieldset",
        h("legend", legend),
        [_toggle("radio", text, name, value, str(value) == str(chosen)) for value, text in options],
    )


def checkbox(label: str, name: str, *, value: object = "1", checked: bool = False) -> Markup:
    """Return a checkbox. If it is not checked, the form does not contain its field."""
    return _toggle("checkbox", label, name, value, checked)


def hidden(name: str, value: object) -> Markup:
    return h("input", type="hidden", name=name, value=value)


def button(label: str, *, tone: str = "", **attributes: object) -> Markup:
    """Return a button that submits its form. ``tone`` is ``""`` (the main one), ``"quiet"`` or ``"danger"``."""
    return h("button", label, type="submit", class_=tone or None, **attributes)


def post_button(
    label: str,
    action: str,
    *,
    fields: Mapping[str, object] | None = None,
    tone: str = "quiet",
    confirm: str | None = None,
) -> Markup:
    """Return a form that consists of one button."""
    fixed = [hidden(name, value) for name, value in (fields or {}).items()]
    return form(action, fixed, button(label, tone=tone), confirm=confirm, class_="inline")


def link_button(label: str, path: str, *, tone: str = "quiet") -> Markup:
    """Return a link that looks like a button."""
    return h(f"a.button.{tone}" if tone else "a.button", label, href=path)


# Lists


@dataclass(frozen=True, slots=True)
class PageSlice(Generic[Item]):
    """One page of a list."""

    items: Sequence[Item]
    page: int
    pages: int
    total: int


def paginate(items: Sequence[Item], page: int, size: int) -> PageSlice[Item]:
    """Return the requested page of the list, or the last one if there are fewer pages."""
    pages = max(1, -(-len(items) // size))
    page = min(max(page, 1), pages)
    return PageSlice(items[(page - 1) * size : page * size], page, pages, len(items))


def page_links(part: PageSlice[Item], path: str, **query: object) -> Markup | None:
    """Return links to the other pages, or ``None`` if there is only one. ``path`` must not be quoted yet."""
    if part.pages == 1:
        return None
    near = [n for n in range(1, part.pages + 1) if n in (1, part.pages) or abs(n - part.page) <= 2]
    links: list[Content] = []
    if part.page > 1:
        links.append(h("a", "‹ Previous", href=url(path, **query, page=part.page - 1)))
    for before, number in zip([0, *near], near):
        if number > before + 1:
            links.append(h("span.gap", "…"))
        current = number == part.page
        links.append(
            h("span.current", number, aria_current="page")
            if current
            else h("a", number, href=url(path, **query, page=number), aria_label=f"Page {number}")
        )
    if part.page < part.pages:
        links.append(h("a", "Next ›", href=url(path, **query, page=part.page + 1)))
    return h("nav.pages", links, aria_label="Pages")


def table(headings: Sequence[Content], rows: Iterable[Sequence[Content]], *, numeric: Iterable[int] = ()) -> Markup:
    """Return a table. ``numeric`` contains the indices (from 0) of right-aligned columns."""
    right = frozenset(numeric)
    cells = [(h("td.number", cell) if i in right else h("td", cell) for i, cell in enumerate(row)) for row in rows]
    return h(
        "div.table",
        h(
            "table",
            h(
                "thead",
                h("tr", [h("th.number" if i in right else "th", cell, scope="col") for i, cell in enumerate(headings)]),
            ),
            h("tbody", [h("tr", row) for row in cells]),
        ),
    )


def sort_heading(label: str, column: str, current: str, path: str, **query: object) -> Markup:
    """Return a heading that sorts its column: ascending, or descending if it is already sorted ascending.

    Args:
        current: The current sort order, ``"price"`` or ``"-price"``.
        path: Path of the page, not quoted yet.
    """
    up, down = current == column, current == f"-{column}"
    target = url(path, **query, sort=f"-{column}" if up else column)
    mark = " ▲" if up else " ▼" if down else ""
    return h("a.sort", label, mark and h("span", mark, aria_hidden="true"), href=target)


def described(pairs: Iterable[tuple[str, Content]]) -> Markup:
    """Return a list of names with their values, one pair per line."""
    return h("dl", [[h("dt", name), h("dd", value)] for name, value in pairs])


def card(*children: Content, **attributes: object) -> Markup:
    return h("section.card", *children, **attributes)


def badge(text: str, tone: str = "") -> Markup:
    """Return a small label. ``tone`` is ``""``, ``"good"``, ``"bad"`` or ``"warn"``."""
    return h(f"span.badge.{tone}" if tone else "span.badge", text)


def paragraphs(text: str) -> Markup:
    """Return plain text as paragraphs, separated by blank lines; other line breaks are kept."""
    blocks = [block for block in text.split("\n\n") if block.strip()]
    return join(
        [h("p", [(h("br") if i else None, line) for i, line in enumerate(block.split("\n"))]) for block in blocks]
    )


# Elements that need the script


def tabs(*panels: tuple[str, Content]) -> Markup:
    """Return panels of which one is shown; a click on a tab shows another."""
    heads = [
        h("button", label, type="button", role="tab", aria_selected="false" if i else "true", data_tab=i)
        for i, (label, _) in enumerate(panels)
    ]
    bodies = [h("div", content, role="tabpanel", hidden=i > 0) for i, (_, content) in enumerate(panels)]
    return h("div.tabs", h("div.tablist", heads, role="tablist"), bodies)


def dialog(identity: str, opener: str, title: str, *children: Content) -> Markup:
    """Return a button that opens a modal dialog, and the dialog."""
    return join(
        h("button", opener, type="button", class_="quiet", data_open=identity),
        h(
            "dialog",
            h("div.dialoghead", h("h2", title), h("button.quiet", "Close", type="button", data_close=True)),
            children,
            id=identity,
            aria_label=title,
        ),
    )


def menu(label: str, *items: Content) -> Markup:
    """Return a menu that is open while the pointer or the focus is on it."""
    return h(
        "div.menu",
        h("button.quiet", label, " ▾", type="button", aria_haspopup="true"),
        h("div.menuitems", [h("div", item) for item in items]),
    )


def suggest_field(label: str, name: str, path: str, value: str = "", *, hint: str | None = None) -> Markup:
    """Return an input with suggestions: the JSON list of texts that ``path?q=…`` returns for the typed text."""
    return h(
        "div.suggesting",
        field(label, name, value, hint=hint, data_suggest=path),
        h("ul.suggestions", role="listbox", hidden=True),
    )


def load_more(label: str, path: str) -> Markup:
    """Return a button that is replaced by the HTML fragment at ``path``, which may contain the next such button."""
    return h("div.more", h("button.quiet", label, type="button", data_more=path))


def _identity(name: str, key: object) -> str:
    return f"field-{name}" if key is None else f"field-{name}-{key}"


def _toggle(type: str, label: str, name: str, value: object, checked: bool) -> Markup:
    identity = _identity(name, value)
    return h(
        "div.toggle",
        h("input", type=type, id=identity, name=name, value=value, checked=checked),
        h("label", label, for_=identity),
    )
