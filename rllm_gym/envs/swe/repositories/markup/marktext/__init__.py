"""A small Markdown-to-HTML converter."""

from marktext.blocks import parse_blocks
from marktext.contents import Entry, table_of_contents
from marktext.html import render

__all__ = ["Entry", "parse_blocks", "render", "table_of_contents", "to_html"]


def to_html(text: str) -> str:
    """The HTML of a Markdown document."""
    return render(parse_blocks(text))
