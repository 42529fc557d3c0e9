"""Comparisons of a program's own objects: the tests' side decides them, whatever the objects would answer."""

from __future__ import annotations

import asyncio

import pytest
from grade_many import grade_many

from rllm_gym.core import TaskError
from rllm_gym.grading.code import FunctionTests, grade_program_sync, validate
from rllm_gym.sandbox import Limits, SandboxPool

LIMITS = Limits(cpu_s=10, wall_s=100)

POINT = """
class Point:
    def __init__(self, x, y):
        self.x, self.y = x, y
    def __add__(self, other):
        return Point(self.x + other.x, self.y + other.y)
    def __hash__(self):
        return 0
    def __eq__(self, other):
        return {equal}
"""
POINTS = """
assert Point(1, 2) + Point(3, 4) == Point(4, 6)
assert Point(1, 2) == Point(1, 2)
assert [Point(1, 2)] == [Point(1, 2)]
assert Point(4, 6) in [Point(1, 2) + Point(3, 4)]
"""


# What a class defines about equality, and whether its ``__eq__`` is trusted.
EQUALITIES = [
    ("isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)", True),
    ("(self.x, self.y) == (other.x, other.y)", True),
    ("True", False),
    ("isinstance(other, Point)", False),
    ("isinstance(other, Point) and not hasattr(other, 'seen') and not setattr(other, 'seen', 1)", False),
    ("NotImplemented", False),
]


def test_equality_is_trusted_for_classes_that_distinguish_objects(pool: SandboxPool) -> None:
    tests = FunctionTests("Point", POINTS, "assert", limits=LIMITS)
    verdicts = grade_many(pool, [(POINT.replace("{equal}", equal), tests) for equal, _ in EQUALITIES])
    assert [(equal, verdict.correct) for (equal, _), verdict in zip(EQUALITIES, verdicts)] == EQUALITIES


DATACLASSES = [
    "from dataclasses import dataclass\n@dataclass\nclass Point:\n    def __init__(self, x, y): pass\n"
    "    def __add__(self, other): return Point(0, 0)",
    "class Any:\n    def __eq__(self, other): return True\nfrom dataclasses import dataclass\n"
    "@dataclass\nclass Point:\n"
    "    x: int\n    y: int\n    def __post_init__(self): self.x = self.y = Any()\n"
    "    def __add__(self, other): return Point(0, 0)",
]


def test_dataclasses_without_fields_are_not_equal(pool: SandboxPool) -> None:
    tests = FunctionTests("Point", POINTS, "assert", limits=LIMITS)
    verdicts = grade_many(pool, [(program, tests) for program in DATACLASSES])
    assert [program for program, verdict in zip(DATACLASSES, verdicts) if verdict.correct] == []


NUMBERS = "assert f(3) == 7\nassert f(4) in [9, 11]\nassert {f(3): 1} == {7: 1}\nassert f(3) >= 7 and not f(3) > 7"


# Programs, and whether they pass.
SUBCLASSES = [
    ("import enum\nclass A(enum.IntEnum):\n    S = 7\n    N = 9\ndef f(x): return A.S if x == 3 else A.N", True),
    ("class A(int): pass\ndef f(x): return A(7) if x == 3 else A(11)", True),
    (
        "class A(int):\n    def __eq__(self, other): return True\n    def __hash__(self): return 7\n"
        "    def __ge__(self, other): return True\n    def __gt__(self, other): return False\n"
        "def f(x): return A(0)",
        False,
    ),
    (
        "n = [0]\nclass A(int):\n    def __index__(self):\n        n[0] += 1\n        return n[0]\n"
        "    __int__ = __index__\ndef f(x): return A(0)",
        False,
    ),
]


def test_subclasses_of_numbers_are_compared_by_value(pool: SandboxPool) -> None:
    tests = FunctionTests("f", NUMBERS, "assert", limits=LIMITS)
    verdicts = grade_many(pool, [(program, tests) for program, _ in SUBCLASSES])
    assert [(program, verdict.correct) for (program, _), verdict in zip(SUBCLASSES, verdicts)] == SUBCLASSES


def test_a_program_without_the_tested_function_is_reported(pool: SandboxPool) -> None:
    for style, text in {
        "check": "def check(candidate):\n    assert candidate(1) == 1",
        "assert": "assert f(1) == 1",
        "unittest": "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(1), 1)",
        "pytest": "def test():\n    assert f(1) == 1",
    }.items():
        tests = FunctionTests("f", text, style, limits=LIMITS)  # type: ignore[arg-type]
        verdict = grade_program_sync(pool, "def g(x): return x", tests)
        assert not verdict.correct, style
        assert "does not define f" in verdict.error, style


def test_a_test_that_is_not_python_is_an_error_of_the_task(pool: SandboxPool) -> None:
    with pytest.raises(TaskError, match="not Python"):
        grade_program_sync(pool, "def f(x): return x", FunctionTests("f", "assert f(1 ==", "assert", limits=LIMITS))
    with pytest.raises(TaskError, match="entry_point"):
        grade_program_sync(pool, "def f(x): return x", FunctionTests("f(1)", "assert f(1)", "assert", limits=LIMITS))
    with pytest.raises(TaskError, match="style"):
        FunctionTests("f", "assert f(1)", "doctest")  # type: ignore[arg-type]


def test_tests_that_cannot_be_graded_are_refused_with_the_reason(pool: SandboxPool) -> None:
    program = "class Base:\n    def area(self): raise NotImplementedError"
    test = "class Named: pass\nclass Square(Named, Base):\n    def area(self): return 1\nassert Square().area() == 1"
    reason = asyncio.run(validate(pool, FunctionTests("Base", test, "assert", limits=LIMITS), program))
    assert reason is not None
    assert "class Square derives from Base, which the program defines, and from a class of the tests" in reason


def test_functions_of_the_program_named_like_tests_are_not_tests(pool: SandboxPool) -> None:
    program = "def test_own(): pass\nclass TestOwn:\n    def test_a(self): pass\ndef f(x): return {value}"
    tests = FunctionTests("f", "from solution import *\ndef test():\n    assert f(1) == 1", "pytest", limits=LIMITS)
    right = grade_program_sync(pool, program.replace("{value}", "1"), tests)
    assert (right.correct, right.total) == (True, 1)
    assert grade_program_sync(pool, program.replace("{value}", "2"), tests).fraction == 0


PATCHED = """
import io
from unittest import mock
import solution

def test_input(monkeypatch):
    monkeypatch.setattr("builtins.input", lambda prompt="": "5")
    assert solution.ask() == 5

def test_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("7\\n"))
    assert solution.ask() == 7

def test_open():
    with mock.patch("builtins.open", mock.mock_open(read_data="a")) as opened:
        assert solution.read("x.txt") == "a"
        opened.assert_called_once_with("x.txt")

def test_print():
    with mock.patch("sys.stdout", new_callable=io.StringIO) as out:
        solution.say("x")
        assert out.getvalue() == "x\\n"
"""


def test_monkeypatches_of_a_test_reach_the_program(pool: SandboxPool) -> None:
    program = (
        "def ask(): return int(input('n? '))\ndef say(x): print(x)\n"
        "def read(p):\n    with open(p) as f: return f.read()"
    )
    verdict = grade_program_sync(pool, program, FunctionTests("ask", PATCHED, "pytest", limits=LIMITS))
    assert [item.name for item in verdict.outcomes if not item.passed] == []
    assert verdict.total == 4


def test_the_fraction_of_passed_tests_is_reported(pool: SandboxPool) -> None:
    tests = FunctionTests(
        "f", "assert f(1) == 1\nassert f(2) == 2\nassert f(3) == 0\nassert f(4) == 4", "assert", limits=LIMITS
    )
    assert grade_program_sync(pool, "def f(x): return x", tests).fraction == 0.75
    died = grade_program_sync(pool, "import os\ndef f(x): return x if x < 3 else os._exit(0)", tests)
    assert died.fraction == 0.5
    stopped = grade_program_sync(pool, "def f(x): return 0", tests, stop_at_first_failure=True)
    assert len(stopped.outcomes) == 1


def test_expected_values_are_reported_only_when_asked(pool: SandboxPool) -> None:
    tests = FunctionTests("f", "def check(candidate):\n    assert candidate(5) == 31337", "check", limits=LIMITS)
    hidden = grade_program_sync(pool, "def f(x): return 1", tests)
    assert "31337" not in hidden.outcomes[0].message
    shown = grade_program_sync(pool, "def f(x): return 1", tests, show_expected=True)
    assert "got 1, expected 31337" in shown.outcomes[0].message
    raised = grade_program_sync(pool, "def f(x): return [][x]", tests)
    assert "IndexError: list index out of range" in raised.outcomes[0].message
