"""Several threads of a grader parse untrusted source at once, which CPython 3.11 does not survive by itself."""

from __future__ import annotations

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
