"""Writes blocks as HTML."""

from __future__ import annotations

from html import escape

from marktext.inline import inline_html
from marktext.nodes import Block, CodeBlock, Heading, ListBlock, Paragraph, Quote, Rule


def render(blocks: list[Block]) -> str:
    """The HTML of a document, one block after another."""
    return "\n".join(_block(block) for block in blocks)


def _block(block: Block) -> str:
    match block:
        case Heading(level, text, slug):
            return f'<h{level} id="{slug}">{inline_html(text)}</h{level}>'
        case Paragraph(text):
            return f"<p>{inline_html(text)}</p>"
        case CodeBlock(text, language):
            attribute = f' class="language-{escape(language)}"' if language else ""
            end = "\n" if text else ""
            return f"<pre><code{attribute}>{escape(text, quote=False)}{end}</code></pre>"
        case Quote(blocks):
            return f"<blockquote>\n{render(blocks)}\n</blockquote>"
        case Rule():
            return "<hr>"
        case ListBlock():
            return _list(block)


def _list(block: ListBlock) -> str:
    tag = "ol" if block.ordered else "ul"
    start = f' start="{block.start}"' if block.ordered and block.start != 1 else ""
    items = "\n".join(f"<li>{_item(item)}</li>" for item in block.items)
    return f"<{tag}{start}>\n{items}\n</{tag}>"


def _item(blocks: list[Block]) -> str:
    """An item; its first paragraph stands without ``<p>`` unless there is another one."""
    paragraphs = sum(isinstance(block, Paragraph) for block in blocks)
    if paragraphs == 1 and isinstance(blocks[0], Paragraph):
        rest = render(blocks[1:])
        return inline_html(blocks[0].text) + (f"\n{rest}\n" if rest else "")
    return f"\n{render(blocks)}\n" if blocks else ""
