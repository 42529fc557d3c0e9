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


LIBRARY_RESULTS = """
import argparse, collections, functools, io, ipaddress, statistics, types, urllib.parse
import xml.etree.ElementTree as ET
assert f("types.SimpleNamespace(a=1)") == types.SimpleNamespace(a=1)
assert f("argparse.Namespace(a=[1])") == argparse.Namespace(a=[1])
assert f("argparse.Namespace(a=[1])") != argparse.Namespace(a=[2])
assert f("collections.ChainMap({1: 2}, {3: 4})") == collections.ChainMap({1: 2, 3: 4})
assert f("collections.UserDict(a=1)") == {"a": 1} == f("types.MappingProxyType({'a': 1})")
assert f("collections.UserList([1, 2])") == [1, 2] != f("collections.UserList([2, 1])")
assert f("statistics.NormalDist(0, 2)") == statistics.NormalDist(0, 2)
assert f("statistics.NormalDist(0, 2)") == f("statistics.NormalDist(0, 2)") != f("statistics.NormalDist(1, 2)")
assert isinstance(f("ipaddress.ip_address('1.2.3.4')"), ipaddress.IPv4Address)
assert isinstance(f("io.StringIO('a')"), io.StringIO) and not isinstance(f("io.BytesIO()"), io.StringIO)
assert isinstance(f("ET.fromstring('<a/>')"), ET.Element)
assert isinstance(f("functools.partial(int)"), functools.partial)
assert isinstance(f("urllib.parse.urlparse('http://a')"), urllib.parse.ParseResult)
assert isinstance(f("Words('a b')"), collections.abc.Sequence)
assert not isinstance(f("Words('a b')"), collections.abc.Mapping)
"""
LIBRARY_ARGUMENTS = """
import argparse, ast, collections, ipaddress
class Own(collections.UserDict): pass
def measure(value: Own, unit: str = "m") -> int: return len(value)
assert f("list(x.__annotations__)", measure) == ["value", "unit", "return"]  # functools.singledispatch reads them
assert f("isinstance(x, argparse.Namespace) and vars(x)", argparse.Namespace(a=1)) == {"a": 1}
assert f("[node.id for node in ast.walk(x) if isinstance(node, ast.Name)]", ast.parse("a + b")) == ["a", "b"]
assert f("isinstance(x, collections.abc.Mapping) and dict(x)", Own(a=1)) == {"a": 1}
assert f("isinstance(x, ipaddress.IPv6Address)", ipaddress.ip_address("::1")) is True
"""
LIBRARY_PROGRAM = """
import argparse, ast, collections, functools, io, ipaddress, statistics, types, urllib.parse
import xml.etree.ElementTree as ET
class Words(collections.abc.Sequence):
    def __init__(self, text): self.words = text.split()
    def __getitem__(self, at): return self.words[at]
    def __len__(self): return len(self.words)
def f(text, x=None): return eval(text, {**globals(), "x": x})
"""


def test_objects_of_the_standard_library_are_of_their_class_and_equal_by_content(pool: SandboxPool) -> None:
    for test in (LIBRARY_RESULTS, LIBRARY_ARGUMENTS):
        verdict = grade_program_sync(pool, LIBRARY_PROGRAM, FunctionTests("f", test, "assert", limits=LIMITS))
        assert [(item.name, item.message) for item in verdict.outcomes if not item.passed] == []


CLAIMED = """
class {name}:
    __dict__ = __eq__ = keys = property(lambda self: {{}})
    __module__, mean, stdev = "{module}", 0, 0
    def __eq__(self, other): return True
    def __iter__(self): return iter(())
    def __len__(self): return 0
def f(): return {name}()
"""


def test_a_class_with_a_name_of_the_library_decides_nothing(pool: SandboxPool) -> None:
    for name, expected in (
        ("argparse.Namespace", "argparse.Namespace(a=1)"),
        ("types.SimpleNamespace", "types.SimpleNamespace(a=1)"),
        ("collections.UserDict", "{1: 2}"),
        ("collections.UserList", "[3]"),
        ("statistics.NormalDist", "statistics.NormalDist(0, 1)"),
        ("decimal.Decimal", "decimal.Decimal(5)"),
        ("unittest.mock._ANY", "5"),
    ):
        module, _, cls = name.rpartition(".")
        test = f"import {module}\nassert f() == {expected}"
        program = CLAIMED.format(name=cls, module=module)
        assert not grade_program_sync(pool, program, FunctionTests("f", test, "assert", limits=LIMITS)).correct, name
