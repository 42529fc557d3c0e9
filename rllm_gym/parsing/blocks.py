"""Find the last fenced block or tag of a reply, which models use to mark an action. Linear time for any input."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Block:
    """A delimited part of a reply.

    Attributes:
        content: The text inside, unchanged.
        label: The tag's name in lower case, or the rest of the line after an opening fence (``python``).
        closed: Whether the closing delimiter is present; a truncated reply may lack it.
    """

    content: str
    label: str
    closed: bool


def last_block(text: str, tags: Sequence[str] = ("action", "answer", "move")) -> Block | None:
    r"""Return the closed block that opens last, which is the innermost of nested blocks.

    A block is a fence of three or more backticks (inline too) or one of the tags, in upper or lower case. If no block
    is closed, return the last open one, up to the end of the text.

    >>> last_block("first ```up```, no: ```down```").content
    'down'
    >>> last_block("<action>left</action>").label
    'action'
    >>> last_block("```python\nx = 1\n```")
    Block(content='x = 1\n', label='python', closed=True)
    >>> last_block("no block") is None
    True
    """
    fence: tuple[int, int] | None = None  # end of the opening fence, its length
    open_tags: dict[str, int] = {}
    best: tuple[int, int, str] | None = None  # start and end of the content, tag name or "" for a fence
    for mark in _delimiters(tuple(tags)).finditer(text):
        name = mark["name"]
        if name is None:
            length = mark.end() - mark.start()
            if fence is None:
                fence = (mark.end(), length)
            elif length >= fence[1]:
                if best is None or fence[0] > best[0]:
                    best = (fence[0], mark.start(), "")
                fence = None
            continue
        name = name.lower()
        if not mark["slash"]:
            open_tags[name] = mark.end()
        elif name in open_tags:
            start = open_tags.pop(name)
            if best is None or start > best[0]:
                best = (start, mark.start(), name)
    if best is not None:
        start, end, name = best
        return _block(text[start:end], name, closed=True)
    still_open = [(start, name) for name, start in open_tags.items()]
    if fence is not None:
        still_open.append((fence[0], ""))
    if not still_open:
        return None
    start, name = max(still_open)
    return _block(text[start:], name, closed=False)


def _block(content: str, tag: str, *, closed: bool) -> Block:
    if tag:
        return Block(content, tag, closed)
    first_line, newline, rest = content.partition("\n")
    if newline:
        return Block(rest, first_line.strip(), closed)
    return Block(content, "", closed)


@lru_cache(maxsize=64)
def _delimiters(tags: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join(re.escape(tag) for tag in tags)
    tag = rf"|<(?P<slash>/?)(?P<name>{names})\s{{0,8}}>" if tags else r"|(?P<slash>(?!))(?P<name>(?!))"
    return re.compile(rf"`{{3,}}{tag}", re.IGNORECASE)
