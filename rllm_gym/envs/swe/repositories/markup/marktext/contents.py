"""The table of contents of a document."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

from marktext.inline import plain_text
from marktext.nodes import Block, Heading, Quote


@dataclass
class Entry:
    """A heading and those below it."""

    title: str
    id: str
    level: int
    children: list[Entry] = field(default_factory=list)


def table_of_contents(blocks: list[Block], *, max_level: int = 6) -> list[Entry]:
    """The headings as a tree. A heading that skips levels stands under the nearest one above it."""
    top: list[Entry] = []
    open_entries: list[Entry] = []
    for heading in _headings(blocks):
        if heading.level > max_level:
            continue
        entry = Entry(plain_text(heading.text), heading.id, heading.level)
        while open_entries and open_entries[-1].level >= entry.level:
            open_entries.pop()
        siblings = open_entries[-1].children if open_entries else top
        siblings.append(entry)
        open_entries.append(entry)
    return top


def _headings(blocks: list[Block]) -> list[Heading]:
    found: list[Heading] = []
    for block in blocks:
        if isinstance(block, Heading):
            found.append(block)
        elif isinstance(block, Quote):
            found.extend(_headings(block.blocks))
    return found


def contents_html(entries: list[Entry]) -> str:
    """The tree as nested lists of links."""
    if not entries:
        return ""
    items = "".join(
        f'<li><a href="#{entry.id}">{escape(entry.title)}</a>{contents_html(entry.children)}</li>' for entry in entries
    )
    return f"<ul>{items}</ul>"
