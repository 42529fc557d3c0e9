"""Reads the markup inside a paragraph and writes it as HTML."""

from __future__ import annotations

import re
from html import escape

_ESCAPABLE = set("\\`*_{}[]()#+-.!~<>|\"'")
_AUTOLINK = re.compile(r"<(https?://[^\s<>]+|mailto:[^\s<>]+)>")
_CODE = re.compile(r"(`+)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_TARGET = re.compile(r"\(\s*(<[^<>\n]*>|[^\s()]*(?:\([^\s()]*\)[^\s()]*)*)(?:\s+\"([^\"]*)\")?\s*\)")
_UNSAFE = re.compile(r"\s*(javascript|vbscript|data):", re.IGNORECASE)
_MARKS = (("**", "strong"), ("~~", "del"), ("*", "em"), ("_", "em"))


def inline_html(text: str) -> str:
    """The HTML of a run of text; what is not markup is escaped."""
    out: list[str] = []
    place = 0
    while place < len(text):
        piece, place = _next_piece(text, place)
        out.append(piece)
    return "".join(out)


def _next_piece(text: str, place: int) -> tuple[str, int]:
    """The HTML of what begins at ``place``, and where it ends."""
    character = text[place]
    if character == "\\" and text[place + 1 : place + 2] in _ESCAPABLE:
        return escape(text[place + 1]), place + 2
    if character == "`" and (match := _CODE.match(text, place)):
        return f"<code>{escape(_code_text(match[2]), quote=False)}</code>", match.end()
    if character == "<" and (match := _AUTOLINK.match(text, place)):
        shown = match[1].removeprefix("mailto:")
        return f'<a href="{escape(match[1])}">{escape(shown)}</a>', match.end()
    if text.startswith("![", place) and (found := _link(text, place + 1)):
        alt, address, title, end = found
        return f'<img src="{address}" alt="{escape(plain_text(alt))}"{title}>', end
    if character == "[" and (found := _link(text, place)):
        label, address, title, end = found
        return f'<a href="{address}"{title}>{inline_html(label)}</a>', end
    for mark, tag in _MARKS:
        if text.startswith(mark, place) and (end := _closing(text, place, mark)) is not None:
            inside = text[place + len(mark) : end]
            return f"<{tag}>{inline_html(inside)}</{tag}>", end + len(mark)
    if match := re.compile(r" {2,}\n").match(text, place):
        return "<br>\n", match.end()
    # A run of a mark that nothing closes is text as a whole.
    if character in "*~`_":
        end = place
        while end < len(text) and text[end] == character:
            end += 1
        return text[place:end], end
    return escape(character, quote=False), place + 1


def _code_text(text: str) -> str:
    """One space on both sides is dropped, so that a span can begin with a backtick."""
    text = text.replace("\n", " ")
    if text.startswith(" ") and text.endswith(" ") and text.strip():
        return text[1:-1]
    return text


def _closing(text: str, place: int, mark: str) -> int | None:
    """Where the mark that opens at ``place`` is closed: not after a space, not in code, not escaped."""
    start = place + len(mark)
    if start >= len(text) or text[start].isspace():
        return None
    if mark == "_" and place > 0 and text[place - 1].isalnum():
        return None
    here = start
    while here < len(text):
        if text[here] == "\\":
            here += 2
        elif text[here] == "`" and (match := _CODE.match(text, here)):
            here = match.end()
        elif len(mark) == 1 and text.startswith(mark * 2, here):
            # A double mark inside a single one belongs to something else.
            here += 2
        elif text.startswith(mark, here) and here > start and not text[here - 1].isspace():
            if not (mark == "_" and text[here + 1 : here + 2].isalnum()):
                return here
            here += 1
        else:
            here += 1
    return None


def _link(text: str, place: int) -> tuple[str, str, str, int] | None:
    """Label, address, title attribute and end of the link whose ``[`` stands at ``place``."""
    depth = 0
    for end in range(place, len(text)):
        if text[end - 1 : end] == "\\":
            continue
        depth += {"[": 1, "]": -1}.get(text[end], 0)
        if depth == 0:
            break
    else:
        return None
    match = _TARGET.match(text, end + 1)
    if match is None:
        return None
    address = match[1].strip("<>")
    if _UNSAFE.match(address):
        address = ""
    title = f' title="{escape(match[2])}"' if match[2] else ""
    return text[place + 1 : end], escape(address), title, match.end()


def plain_text(text: str) -> str:
    """What a reader sees of a run of text, without any tags."""
    from html import unescape

    return unescape(re.sub(r"<[^<>]*>", "", inline_html(text)))
