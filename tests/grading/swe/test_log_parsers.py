"""Logs of test commands: a pass is read only where one was printed, and two results of a test are not one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm_gym.core import TaskError
from rllm_gym.grading.swe import LOG_PARSERS
from rllm_gym.grading.swe.log_parsers import find_parser, parse_pytest_log, parse_sympy_log, parse_unittest_log

PYTEST_TESTS = """import pytest

def test_a(): print("PASSED test_x.py::test_b")
def test_b(): assert 1 == 2, "x - y"
@pytest.mark.skip
def test_c(): pass
@pytest.mark.xfail
def test_d(): assert 0
@pytest.mark.parametrize("p", ["a b", "[c] - d"])
def test_e(p): pass
@pytest.fixture
def broken(): raise KeyError
def test_f(broken): pass
"""

UNITTEST_TESTS = """import unittest

class T(unittest.TestCase):
    def test_a(self): print("something", end="")
    def test_b(self):
        '''Says what it does.'''
    def test_c(self): self.fail("no")
    def test_d(self): raise KeyError
    @unittest.skip("why ok")
    def test_e(self): pass
    @unittest.expectedFailure
    def test_f(self): self.fail()
    @unittest.expectedFailure
    def test_g(self): pass
    def test_h(self):
        '''Fails ... ok'''
        self.fail()
"""


def log_of(folder: Path, text: str, *command: str) -> str:
    (folder / "test_x.py").write_text(text)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # which take seconds to import
    done = subprocess.run(
        [sys.executable, "-B", "-m", *command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
    )
    return done.stdout.decode()


@pytest.mark.parametrize("options", [("-v",), ("-v", "-rA", "--tb=no")])
def test_a_real_pytest_log(tmp_path: Path, options: tuple[str, ...]) -> None:
    found = parse_pytest_log(log_of(tmp_path, PYTEST_TESTS, "pytest", "-p", "no:cacheprovider", *options))
    passed = {test.id for test in found if test.passed}
    others = {test.id for test in found if not test.passed}
    assert passed == {"test_x.py::test_a", "test_x.py::test_e[a b]", "test_x.py::test_e[[c] - d]"}
    assert {"test_x.py::test_b", "test_x.py::test_f", "test_x.py::test_d"} <= others


def test_a_real_unittest_log(tmp_path: Path) -> None:
    found = {
        test.id: test.passed
        for test in parse_unittest_log(log_of(tmp_path, UNITTEST_TESTS, "unittest", "-v", "test_x"))
    }
    assert {name for name, passed in found.items() if passed} == {
        "test_x.T.test_a",
        "test_x.T.test_b",
        "Says what it does.",
    }
    assert {f"test_x.T.test_{letter}" for letter in "cdefgh"} <= set(found)


def test_a_printed_pass_next_to_the_real_outcome_counts_as_two_results() -> None:
    log = "test_a (t.T.test_a) ... ok\ntest_a (t.T.test_a) ... FAIL\n"
    assert [test.passed for test in parse_unittest_log(log)] == [True, False]
    log = "test_a (t.T.test_a) ... \nok\nFAIL\n=====\nFAIL: test_a (t.T.test_a)\n"
    assert [test.passed for test in parse_unittest_log(log)] == [True, False]
    log = "= short test summary info =\nPASSED t.py::a\nFAILED t.py::a - assert 0\n"
    assert [test.passed for test in parse_pytest_log(log)] == [True, False]


def test_sympys_own_runner() -> None:
    log = "sympy/core/tests/test_a.py[3] \ntest_one ok\ntest_two F\ntest_three E  [FAIL]\ntest_two ok\n"
    assert {test.id: test.passed for test in parse_sympy_log(log)} == {
        "test_one": True,
        "test_two": False,
        "test_three": False,
    }


def test_an_unknown_parser_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TaskError, match="parse_log_django"):
        find_parser("nose")


@given(st.sampled_from(sorted(LOG_PARSERS)), st.text(max_size=400))
def test_any_log_can_be_parsed(name: str, log: str) -> None:
    for test in LOG_PARSERS[name](log):
        assert test.word


def test_long_lines_are_parsed_in_time() -> None:
    for parser in set(LOG_PARSERS.values()):
        for line in ("PASSED " + " " * 2_000_000, "a" * 2_000_000, "test_a (" + "a." * 1_000_000, "a.py::" * 300_000):
            parser(line)
            parser((line[:3000] + "\n") * 500)
