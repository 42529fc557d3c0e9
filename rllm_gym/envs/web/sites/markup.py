"""Functions that build HTML from Python values. Text that is not :class:`Markup` is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from html import escape
from urllib.parse import quote, urlencode


class Markup(str):
    """Text that is already HTML. It is created only by :func:`h`, by :func:`join` and as constants of this package."""

    __slots__ = ()


Content = Markup | str | int | float | None | Iterable["Content"]
"""Content of an element: markup, text that is escaped, ``None`` for nothing, or nested iterables of these."""

_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})


def h(tag: str, *children: Content, **attributes: object) -> Markup:
    """Return an HTML element.

    Args:
        tag: Name of the element, optionally with classes: ``"p.note"``.
        *children: Its content.
        **attributes: Its attributes; ``class_``, ``for_`` and ``data_x`` become class, for and data-x. ``True`` is an
            attribute without a value; ``None`` and ``False`` omit the attribute.

    >>> h("p.note", "1 < 2 ", h("b", "yes"), title='"so"')
    '<p class="note" title="&quot;so&quot;">1 &lt; 2 <b>yes</b></p>'
    """
    name, opening = _opening(tag)
    parts = [opening]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        parts.append(f" {attribute}" if value is True else f' {attribute}="{escape(str(value))}"')
    parts.append(">")
    if name in _VOID:
        return Markup("".join(parts))
    for child in children:
        _render(child, parts)
    parts.append(f"</{name}>")
    return Markup("".join(parts))


def join(*children: Content) -> Markup:
    """Return the markup of the pieces, concatenated."""
    parts: list[str] = []
    for child in children:
        _render(child, parts)
    return Markup("".join(parts))


def url(path: str, **query: object) -> str:
    """Return a path within the site with its query. Parameters that are ``None`` or ``""`` are omitted.

    >>> url("/search", q="tea & pot", page=None)
    '/search?q=tea+%26+pot'
    """
    kept = {key: str(value) for key, value in query.items() if value is not None and value != ""}
    quoted = quote(path, safe="/:,()'-._~")
    return f"{quoted}?{urlencode(kept)}" if kept else quoted


@lru_cache(maxsize=512)
def _opening(tag: str) -> tuple[str, str]:
    name, *classes = tag.split(".")
    return name, f'<{name} class="{" ".join(classes)}"' if classes else f"<{name}"


def _render(child: Content, parts: list[str]) -> None:
    if isinstance(child, Markup):
        parts.append(child)
    elif isinstance(child, str):
        parts.append(escape(child, quote=False))
    elif child is None or child is False:
        return
    elif isinstance(child, int | float):
        parts.append(str(child))
    else:
        for item in child:
            _render(item, parts)
