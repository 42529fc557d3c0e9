"""Parses foreign Python source to a syntax tree without running it."""

from __future__ import annotations

import ast
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_PARSER = threading.Lock()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let no other Python code run while a syntax tree is built.

    CPython 3.11 raises ``SystemError: AST constructor recursion depth mismatch`` (gh-106905) if another call of the
    parser begins or ends meanwhile. That happens when the garbage collector runs a finalizer: it may format a
    traceback, which parses, or let another thread continue.
    """
    with _PARSER:
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


def parse_python(source: str | bytes) -> ast.Module:
    """Run :func:`ast.parse` undisturbed."""
    with _undisturbed():
        return ast.parse(source)


def parse_literal(text: str) -> Any:
    """Run :func:`ast.literal_eval`, which also parses, undisturbed."""
    with _undisturbed():
        return ast.literal_eval(text)
