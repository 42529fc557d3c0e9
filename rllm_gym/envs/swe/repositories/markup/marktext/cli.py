"""The command line."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from marktext.blocks import parse_blocks
from marktext.contents import contents_html, table_of_contents
from marktext.html import render


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="marktext", description="Convert Markdown to HTML.")
    parser.add_argument("file", nargs="?", default="-", help="what to convert; - or nothing: standard input")
    parser.add_argument("--toc", action="store_true", help="begin with a table of contents")
    options = parser.parse_args(arguments)
    try:
        text = sys.stdin.read() if options.file == "-" else Path(options.file).read_text(encoding="utf-8")
    except OSError as error:
        print(f"marktext: {error}", file=sys.stderr)
        return 1
    blocks = parse_blocks(text)
    if options.toc:
        print(contents_html(table_of_contents(blocks)))
    print(render(blocks))
    return 0
