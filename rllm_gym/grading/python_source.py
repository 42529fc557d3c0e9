"""Parses foreign Python source to a syntax tree without running it."""

from __future__ import annotations

import ast
import threading
from typing import Any

_PARSER = threading.Lock()


def parse_python(source: str | bytes) -> ast.Module:
    """Run :func:`ast.parse` in one thread at a time: two calls raise ``SystemError`` in CPython 3.11 (gh-106905)."""
    with _PARSER:
        return ast.parse(source)


def parse_literal(text: str) -> Any:
    """Run :func:`ast.literal_eval` on a text in one thread at a time, since it also parses."""
    with _PARSER:
        return ast.literal_eval(text)
