"""Python source of others as a syntax tree; it is never run here."""

from __future__ import annotations

import ast
import threading
from typing import Any

_PARSER = threading.Lock()


def parse_python(source: str | bytes) -> ast.Module:
    """:func:`ast.parse`, for one thread at a time: two at once are a ``SystemError`` in CPython 3.11 (gh-106905)."""
    with _PARSER:
        return ast.parse(source)


def parse_literal(text: str) -> Any:
    """:func:`ast.literal_eval` of a text, which parses as well, for one thread at a time."""
    with _PARSER:
        return ast.literal_eval(text)
