"""Cuts a document into blocks, line by line."""

from __future__ import annotations

import re

from marktext.nodes import Block, CodeBlock, Heading, ListBlock, Paragraph, Quote, Rule
from marktext.slugs import Slugs

_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))??(?:[ \t]+#+)?[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^`\s]*).*")
_RULE = re.compile(r" {0,3}(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})")
_QUOTE = re.compile(r" {0,3}> ?")
_ITEM = re.compile(r"( *)([-*+]|\d{1,9}[.)])( +)(?=\S)")


def parse_blocks(text: str) -> list[Block]:
    """The blocks of a document; every heading gets an id of its own."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").expandtabs(4).split("\n")
    return _parse(lines, Slugs())


def _parse(lines: list[str], slugs: Slugs) -> list[Block]:
    blocks: list[Block] = []
    paragraph: list[str] = []

    def close_paragraph() -> None:
        if paragraph:
            blocks.append(Paragraph("\n".join(paragraph).rstrip()))
            paragraph.clear()

    place = 0
    while place < len(lines):
        line = lines[place]
        if not line.strip():
            close_paragraph()
            place += 1
        elif match := _FENCE.fullmatch(line):
            close_paragraph()
            block, place = _code(lines, place, match)
            blocks.append(block)
        elif match := _HEADING.fullmatch(line):
            close_paragraph()
            title = (match[2] or "").strip()
            blocks.append(Heading(len(match[1]), title, slugs.unique(title)))
            place += 1
        elif _RULE.fullmatch(line):
            close_paragraph()
            blocks.append(Rule())
            place += 1
        elif _QUOTE.match(line):
            close_paragraph()
            inner, place = _quoted(lines, place)
            blocks.append(Quote(_parse(inner, slugs)))
        elif _ITEM.match(line):
            close_paragraph()
            block, place = _list(lines, place, slugs)
            blocks.append(block)
        else:
            # The two spaces of a line break count at the end only.
            paragraph.append(line.lstrip())
            place += 1
    close_paragraph()
    return blocks


def _code(lines: list[str], place: int, opening: re.Match[str]) -> tuple[CodeBlock, int]:
    """A fenced block; without a closing fence it goes on to the end."""
    fence, language = opening[1], opening[2]
    inside: list[str] = []
    for end in range(place + 1, len(lines)):
        stripped = lines[end].strip()
        if len(stripped) >= len(fence) and stripped == fence[0] * len(stripped):
            return CodeBlock("\n".join(inside), language), end + 1
        inside.append(lines[end])
    return CodeBlock("\n".join(inside), language), len(lines)


def _quoted(lines: list[str], place: int) -> tuple[list[str], int]:
    inner = []
    while place < len(lines) and (match := _QUOTE.match(lines[place])):
        inner.append(lines[place][match.end() :])
        place += 1
    return inner, place


def _list(lines: list[str], place: int, slugs: Slugs) -> tuple[ListBlock, int]:
    """A list, with everything that is indented under its items."""
    first = _ITEM.match(lines[place])
    assert first is not None
    indent, ordered = len(first[1]), first[2][0].isdigit()
    block = ListBlock(ordered, int(first[2][:-1]) if ordered else 1)
    while place < len(lines):
        match = _ITEM.match(lines[place])
        if match is None or not indent <= len(match[1]) < indent + 2 or match[2][0].isdigit() != ordered:
            break
        content = [lines[place][match.end() :]]
        place += 1
        while place < len(lines) and _belongs(lines, place, indent):
            content.append(_dedent(lines[place], match.end()))
            place += 1
        block.items.append(_parse(content, slugs))
        following = place
        while following < len(lines) and not lines[following].strip():
            following += 1
        # Blank lines between two items belong to the list, those after the last one do not.
        if following < len(lines) and _ITEM.match(lines[following]):
            place = following
    return block, place


def _belongs(lines: list[str], place: int, indent: int) -> bool:
    """Whether a line continues an item: it is indented deeper, or blank before a line that is."""
    line = lines[place]
    if line.strip():
        return len(line) - len(line.lstrip()) >= indent + 2
    return place + 1 < len(lines) and bool(lines[place + 1].strip()) and _belongs(lines, place + 1, indent)


def _dedent(line: str, width: int) -> str:
    return line[min(width, len(line) - len(line.lstrip())) :]
