"""Parsing foreign source does not depend on what else the process does, which breaks CPython 3.11 by itself."""

from __future__ import annotations

import ast
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rllm_gym.grading.python_source import parse_literal, parse_python

LITERAL = "[1, 2, ('x', {'a': 1})]"
SOURCE = "\n".join(f"assert f({n}, [1, {{'a': ({n}, 2.5, 'x')}}]) == g((1 + 2) * 3 if a else b)" for n in range(200))


@pytest.fixture
def frequent_thread_switches() -> Iterator[None]:
    """Make threads switch as often as possible, also in the middle of a parse."""

    def pause(*_: object) -> None:
        time.sleep(0)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    gc.callbacks.append(pause)
    yield
    gc.callbacks.remove(pause)
    sys.setswitchinterval(before)


def test_concurrent_threads_can_parse(frequent_thread_switches: None) -> None:
    wrong: list[Exception] = []
    parsed = threading.Event()

    def keep(parse: Callable[[str], Any], text: str) -> None:
        try:
            while not parsed.is_set():
                parse(text)
        except Exception as error:
            wrong.append(error)

    literals = [threading.Thread(target=keep, args=(parse_literal, LITERAL)) for _ in range(2)]
    for thread in literals:
        thread.start()
    try:
        for _ in range(50):
            assert len(parse_python(SOURCE).body) == 200
    finally:
        parsed.set()
        for thread in literals:
            thread.join()
    assert not wrong


class Parses:
    """An object in a cycle whose finalizer parses, as formatting a traceback does."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        ast.parse("(a + b)")


def test_a_finalizer_that_parses_does_no_harm() -> None:
    """A plain ``ast.parse`` raises ``SystemError: AST constructor recursion depth mismatch``."""
    before = gc.get_threshold()
    gc.set_threshold(50, 1, 1)
    try:
        for parse, text in ((parse_python, SOURCE), (parse_literal, str(list(range(3000))))) * 5:
            objects = [Parses() for _ in range(20)]
            del objects
            parse(text)
            assert gc.isenabled()
        gc.disable()
        parse_python("1")
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.set_threshold(*before)
