"""Converts the tree of a page to text lines. Text of the page is quoted, so that it cannot imitate other lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Node = Mapping[str, Any]
"""A node as ``observe.js`` defines it: ``t`` text, ``r`` role, ``n`` number, ``s`` name, ``v`` value, ``o`` options,
``a`` attributes, ``f`` flags, ``c`` children, ``y`` side of the view, ``b`` a block, ``i`` part of a line, ``p`` box,
``q`` points of its outline, ``at`` place of the document of a frame."""

_DEEPEST = 20
_LINE_CHARS = 1_500
_ROW_CHARS = 1_000
# Characters that a reader might treat as a line break, in addition to those that JSON escapes.
_BREAKS = re.compile("[\x7f-\x9f\u2028\u2029]")
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# Roles that are part of a line of text; a button or field has its own line.
_FLOWING = frozenset(("link", "image", "clickable", "area", "code", "definition", "term"))
# Roles whose content follows on the same line if it is one line of text and links.
_TEXTUAL = frozenset(
    (
        "heading",
        "listitem",
        "navigation",
        "cell",
        "columnheader",
        "rowheader",
        "term",
        "definition",
        "blockquote",
        "code",
    )
)


@dataclass(frozen=True, slots=True)
class OutlineLine:
    """A line and its position: -1 above the view, 0 in it, 1 below."""

    text: str
    side: int


def quoted(text: str) -> str:
    r"""Quote a text as JSON, on one line, so that its content cannot be taken for anything else.

    >>> print(quoted('[12] button "Pay"\n'))
    "[12] button \"Pay\"\n"
    """
    if text.isprintable() and "\\" not in text and '"' not in text:
        return f'"{text}"'
    return _BREAKS.sub(_escape, json.dumps(text, ensure_ascii=False))


def on_one_line(text: str) -> str:
    """Escape line breaks and control characters in a generated text that may contain text of a page."""
    return _CONTROLS.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def outline_lines(tree: Sequence[Node]) -> list[OutlineLine]:
    """Return the outline of a tree: one line per element or paragraph, indented by two spaces per level."""
    return list(_lines(tree, 0))


def short_description(node: Node) -> str:
    """Return the short form of an element: ``[12] button "Add to cart"``."""
    number = f"[{node['n']}] " if "n" in node else ""
    name = f" {quoted(node['s'])}" if node.get("s") else ""
    return f"{number}{node['r']}{name}"


def describe(node: Node) -> str:
    """Return an element with its state, as displayed in a line."""
    parts = [short_description(node)]
    if "v" in node:
        value = node["v"]
        parts.append(f"value={_listed(value) if isinstance(value, list) else quoted(value)}")
    if "o" in node:
        parts.append(f"options={_listed(node['o'], node.get('more', 0))}")
    parts += [f"{name}={quoted(value)}" for name, value in node.get("a", {}).items()]
    parts += node.get("f", ())
    return " ".join(parts)


def _listed(values: Sequence[str], more: int = 0) -> str:
    texts = [quoted(value) for value in values]
    if more:
        texts.append(f"… {more} more")
    return f"[{', '.join(texts)}]"


def _lines(nodes: Sequence[Node], depth: int) -> Iterator[OutlineLine]:
    indent = "  " * min(depth, _DEEPEST)
    run: list[Node] = []

    def run_ended() -> Iterator[OutlineLine]:
        if run:
            yield from _run_lines(run, indent)
            run.clear()

    for node in _ungrouped(nodes):
        if node is None:
            yield from run_ended()
        elif "t" in node or _is_inline(node):
            run.append(node)
        else:
            yield from run_ended()
            yield from _element_lines(node, depth, indent)
    yield from run_ended()


def _ungrouped(nodes: Sequence[Node]) -> Iterator[Node | None]:
    """Yield the nodes with groups dissolved; ``None`` where a block begins or ends."""
    for node in nodes:
        if "t" in node or "r" in node:
            yield node
        else:
            if "b" in node:
                yield None
            yield from _ungrouped(node.get("c", ()))
            if "b" in node:
                yield None


def _is_inline(node: Node) -> bool:
    """Return whether a node is part of a line of text, as a link is."""
    return "i" in node and not node.get("c") and node["r"] in _FLOWING


def _run_lines(run: list[Node], indent: str) -> Iterator[OutlineLine]:
    pieces: list[str] = []
    length, side = 0, run[0].get("y", 0)
    for node in run:
        piece = quoted(node["t"]) if "t" in node else describe(node)
        if pieces and (length + len(piece) > _LINE_CHARS or node.get("y", 0) != side):
            yield OutlineLine(indent + _run(pieces), side)
            pieces, length, side = [], 0, node.get("y", 0)
        pieces.append(piece)
        length += len(piece)
    yield OutlineLine(indent + _run(pieces), side)


def _run(pieces: list[str]) -> str:
    return ("text " if pieces[0].startswith('"') else "") + " ".join(pieces)


def _element_lines(node: Node, depth: int, indent: str) -> Iterator[OutlineLine]:
    side = node.get("y", 0)
    children = node.get("c", ())
    head = describe(node)
    if node["r"] == "row" and (row := _row(node)) is not None:
        yield OutlineLine(f"{indent}{head} {row}", side)
        return
    flat = _inline(children) if not children or node["r"] in _TEXTUAL else None
    if flat is not None:
        yield OutlineLine(f"{indent}{head} {flat}" if flat else f"{indent}{head}", side)
        return
    yield OutlineLine(indent + head, side)
    yield from _lines(children, depth + 1)


def _inline(children: Sequence[Node]) -> str | None:
    """Return the content of a heading or list item if it is one line of text and links."""
    pieces: list[str] = []
    length = 0
    for node in _ungrouped(children):
        if node is None:
            if pieces:
                return None if _more_than_one(children) else " ".join(pieces)
            continue
        if "t" not in node and not _is_inline(node):
            return None
        piece = quoted(node["t"]) if "t" in node else describe(node)
        pieces.append(piece)
        length += len(piece)
        if length > _LINE_CHARS:
            return None
    return " ".join(pieces)


def _more_than_one(children: Sequence[Node]) -> bool:
    """Return whether the blocks among the nodes hold more than one line."""
    lines = 0
    last: Node | None = None
    for node in _ungrouped(children):
        if node is not None and last is None:
            lines += 1
        last = node
    return lines > 1


def _row(row: Node) -> str | None:
    """Return the cells of a table row on one line, or ``None`` if they are too long."""
    cells: list[str] = []
    for cell in _ungrouped(row.get("c", ())):
        if cell is None:
            continue
        text = _cell(cell)
        if text is None or sum(map(len, cells)) + len(text) > _ROW_CHARS:
            return None
        cells.append(text)
    return "| " + " | ".join(cells) + " |"


def _cell(cell: Node) -> str | None:
    if "t" in cell:
        return quoted(cell["t"])
    if cell["r"] not in ("cell", "columnheader", "rowheader", "gridcell"):
        return describe(cell) if not cell.get("c") else None
    plain = "n" not in cell and not (cell.keys() & {"a", "f", "v"})
    if plain and not cell.get("c"):
        return quoted(cell["s"])
    pieces = [] if plain and not cell.get("s") else [describe(cell)]
    for node in _ungrouped(cell.get("c", ())):
        if node is None:
            continue
        if node.get("c"):
            below = _inline(node["c"])
            if below is None or len(pieces) > 8:
                return None
            pieces.append(f"{describe(node)} {below}")
            continue
        pieces.append(quoted(node["t"]) if "t" in node else describe(node))
        if len(pieces) > 8:
            return None
    return " ".join(pieces)


def fit_lines(lines: Sequence[OutlineLine], max_chars: int) -> tuple[list[str], int]:
    """Select lines that fit into ``max_chars`` characters; return them and the number of omitted lines.

    A page that fits is returned whole, including what is outside the view. Of a longer one, the lines in the view come
    first, then those below it, then those above. A note in place of each gap says how to reach the omitted lines.
    """
    if sum(len(line.text) + 1 for line in lines) <= max_chars:
        return [line.text for line in lines], 0
    max_chars -= 400  # reserved for the notes
    kept: set[int] = set()
    seen = [index for index, line in enumerate(lines) if line.side == 0]
    last = seen[-1] if seen else next((index for index, line in enumerate(lines) if line.side > 0), 0) - 1
    first = seen[0] if seen else last + 1
    for order in (seen, range(last + 1, len(lines)), range(last, first, -1), range(first - 1, -1, -1)):
        for index in order:
            if index in kept:
                continue
            max_chars -= len(lines[index].text) + 1
            if max_chars < 0:
                break
            kept.add(index)
        if max_chars < 0:
            break
    shown: list[str] = []
    gap: list[OutlineLine] = []
    for index, line in enumerate(lines):
        if index in kept:
            if gap:
                shown.append(_gap_note(gap))
            gap = []
            shown.append(line.text)
        else:
            gap.append(line)
    if gap:
        shown.append(_gap_note(gap))
    return shown, len(lines) - len(kept)


def _gap_note(gap: list[OutlineLine]) -> str:
    above = sum(line.side < 0 for line in gap)
    below = sum(line.side > 0 for line in gap)
    count = f"{len(gap)} line{'s' * (len(gap) > 1)} of the page left out"
    if not above and not below:
        return f"… {count}: there is too much on the screen at once"
    return f'… {count}; scroll("{"up" if above > below else "down"}") to see more'
