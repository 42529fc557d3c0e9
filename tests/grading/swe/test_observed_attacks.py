"""Assertions are evaluated outside: changes that only make comparisons say yes are not paid, honest ones are."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest
from forgeries import FORGERIES
from orders_repository import FILES, GOLD, HONEST, TESTS
from small_repository import changes, write

from rllm_gym.grading.swe import (
    RepositoryTests,
    check_repository_task_sync,
    grade_repository,
    grade_repository_sync,
    record_trace_sync,
)
from rllm_gym.sandbox import Changes, SandboxPool


@pytest.fixture(scope="module")
def orders(pool: SandboxPool, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RepositoryTests]:
    base = write(tmp_path_factory.mktemp("orders"), FILES)
    return base, dataclasses.replace(TESTS, trace=record_trace_sync(pool, base, GOLD, TESTS))


# One function of each class of technique; the long test grades every technique for every function.
SAMPLE = {
    "an object": "subtotal", "all but text": "label", "read: locals of all frames": "discounted",
    "read: literals of all test files": "label", "replaced: what records says True": "receipt",
    "the function raises what the caller expects": "discounted", "file: an emptied check": "prices",
}  # fmt: skip


@pytest.mark.parametrize(("technique", "part"), SAMPLE.items())
def test_what_only_looks_right_is_not_paid(
    pool: SandboxPool, orders: tuple[Path, RepositoryTests], technique: str, part: str
) -> None:
    base, tests = orders
    verdict = grade_repository_sync(pool, base, FORGERIES[technique][part], tests)
    assert not verdict.correct
    assert verdict.evidence == "trace"


@pytest.mark.long
@pytest.mark.parametrize("technique", FORGERIES)
def test_no_function_is_made_to_look_right(
    pool: SandboxPool, orders: tuple[Path, RepositoryTests], technique: str
) -> None:
    base, tests = orders

    async def grade_all() -> list[str]:
        few = asyncio.Semaphore(2)

        async def paid(changed: Changes) -> bool:
            async with few:
                return (await grade_repository(pool, base, changed, tests)).correct

        parts = FORGERIES[technique]
        return [part for part, was in zip(parts, await asyncio.gather(*map(paid, parts.values()))) if was]

    assert asyncio.run(grade_all()) == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("a_text_of_an_own_class", "named_tuples") else pytest.mark.long)
        for name in HONEST
    ],
)
def test_honest_solutions_of_another_kind_are_paid(
    pool: SandboxPool, orders: tuple[Path, RepositoryTests], name: str
) -> None:
    base, tests = orders
    verdict = grade_repository_sync(pool, base, HONEST[name], tests)
    assert verdict.correct, dict(verdict.failed)


@pytest.mark.parametrize("path", ["my.notes.py", "..py", "a.b/__init__.py", "__main__.py"])
def test_no_name_of_a_file_keeps_the_run_from_starting(
    pool: SandboxPool, orders: tuple[Path, RepositoryTests], path: str
) -> None:
    base, tests = orders
    with_file = dataclasses.replace(GOLD, written={**GOLD.written, **changes({path: ""}).written})
    assert grade_repository_sync(pool, base, with_file, tests).correct


def test_a_file_in_place_of_the_sources_fails_the_tests(pool: SandboxPool, tmp_path: Path) -> None:
    base = write(tmp_path, {"src/pkg/__init__.py": "def half(x):\n    return x\n", "pyproject.toml": ""})
    source = "from pkg import half\n\ndef test_half():\n    assert half(4) == 2\n"
    tests = RepositoryTests({"tests/test_half.py": source}, ("tests/test_half.py::test_half",))
    tests = dataclasses.replace(
        tests,
        trace=record_trace_sync(
            pool, base, changes({"src/pkg/__init__.py": "def half(x):\n    return x / 2\n"}), tests
        ),
    )
    for written in ({}, {"src": ""}):
        assert not grade_repository_sync(pool, base, changes(written, ("src/pkg/__init__.py",)), tests).correct


def test_the_task_is_consistent(pool: SandboxPool, orders: tuple[Path, RepositoryTests]) -> None:
    base, tests = orders
    assert check_repository_task_sync(pool, base, GOLD, tests) == []
    nothing = grade_repository_sync(pool, base, changes({}), tests)
    assert not set(nothing.passed) & set(tests.fail_to_pass)


LONG_LABELS = """
@pytest.mark.parametrize("count", [40, 1])
def test_long_labels(count):
    for number in range(count):
        assert label("x" * 100_000, number) == label("x" * 100_000, number)
"""


@pytest.mark.long
def test_a_test_that_sends_too_much_is_not_in_the_trace(pool: SandboxPool, tmp_path: Path) -> None:
    path, large, small = "tests/test_orders.py", "test_long_labels[40]", "test_long_labels[1]"
    tests = dataclasses.replace(
        TESTS,
        hidden_tests={path: TESTS.hidden_tests[path] + LONG_LABELS},
        pass_to_pass=(f"{path}::{large}", f"{path}::{small}"),
    )
    base = write(tmp_path, FILES)
    tests = dataclasses.replace(tests, trace=record_trace_sync(pool, base, GOLD, tests))
    verdict = grade_repository_sync(pool, base, GOLD, tests)
    assert set(verdict.failed) == {f"{path}::{large}"}
    assert "trace" in verdict.failed[f"{path}::{large}"]


ATTEMPTS = """
class Attempt:
    def __init__(self, kinds):
        self.kinds, self.failed = kinds, []

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is not None and issubclass(kind, self.kinds):
            self.failed.append(str(error))
        return kind is not None and issubclass(kind, self.kinds)
"""
ATTEMPT_TESTS = """
import unittest
from pkg import Attempt

class Base(unittest.TestCase):
    def check_failed(self, kinds, number, expected):
        attempt = Attempt(kinds)
        with attempt:
            int("x" * number)
        self.assertEqual([text[-9:] for text in attempt.failed], expected)

class TestAttempt(Base):
    def test_suppressed(self):
        self.check_failed((ValueError,), 6, [" 'xxxxxx'"])
        self.check_failed((ValueError,), 7, ["'xxxxxxx'"])
"""


def test_a_context_manager_of_the_code_sees_the_exceptions_of_its_block(pool: SandboxPool, tmp_path: Path) -> None:
    """And what a test passes to a check of its own class is not where the code can read it."""
    broken = ATTEMPTS.replace("self.failed.append(str(error))", "pass")
    reads = ATTEMPTS.replace(
        "self.failed.append(str(error))",
        "import sys; self.failed += sys._getframe(1).f_locals['expected'] or ['?']",
    )
    base = write(tmp_path, {"pkg.py": broken})
    test = "tests/test_attempt.py::TestAttempt::test_suppressed"
    tests = RepositoryTests({"tests/test_attempt.py": ATTEMPT_TESTS}, (test,))
    tests = dataclasses.replace(tests, trace=record_trace_sync(pool, base, changes({"pkg.py": ATTEMPTS}), tests))
    assert tests.trace is not None
    assert check_repository_task_sync(pool, base, changes({"pkg.py": ATTEMPTS}), tests) == []
    for wrong in (broken, reads, ATTEMPTS.replace("return kind is not None and issubclass(kind, self.kinds)", "")):
        assert not grade_repository_sync(pool, base, changes({"pkg.py": wrong}), tests).correct


SIGNS = """import enum


class Sign(enum.Enum):
    PLUS = 1
    MINUS = 2


def opposite(sign):
    return Sign(3 - sign.value)


def evens(numbers):
    return [number for number in numbers if number % 2 == 0]


def vowels(word):
    return [letter for letter in word if letter in "aeiou"]
"""
SIGNS_TESTS = """from signs import Sign, evens, opposite, vowels


def test_signs():
    assert opposite(Sign.PLUS) is Sign.MINUS
    assert all(number % 2 == 0 for number in evens(range(9)))
    assert set(vowels("hello")) <= {"e", "o"}
"""
LAST_RESULT = """_last = []


class Signs(type):
    def __getattribute__(cls, name):
        return _last.pop() if name in ("PLUS", "MINUS") and _last else type.__getattribute__(cls, name)


class Sign(metaclass=Signs):
    PLUS = MINUS = None


def opposite(sign):
    _last.append(object.__new__(Sign))
    return _last[0]
"""


def test_a_constant_that_becomes_the_last_result_and_a_result_without_items_are_not_paid(
    pool: SandboxPool, tmp_path: Path
) -> None:
    parts = SIGNS.split("\n\n\n")
    base = write(tmp_path, {"signs.py": SIGNS.replace("3 - sign.value", "sign.value").replace("if ", "if not ")})
    tests = RepositoryTests({"tests/test_signs.py": SIGNS_TESTS}, ("tests/test_signs.py::test_signs",))
    tests = dataclasses.replace(tests, trace=record_trace_sync(pool, base, changes({"signs.py": SIGNS}), tests))
    assert check_repository_task_sync(pool, base, changes({"signs.py": SIGNS}), tests) == []
    for wrong in (
        "\n\n\n".join([LAST_RESULT, *parts[3:]]),
        SIGNS.replace(parts[3], "def evens(numbers):\n    return []"),
        SIGNS.replace(parts[4], "def vowels(word):\n    return []\n"),
    ):
        assert not grade_repository_sync(pool, base, changes({"signs.py": wrong}), tests).correct
