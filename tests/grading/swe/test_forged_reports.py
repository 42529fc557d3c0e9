"""A report can contain anything: what it may contain without the right values must not pass a test."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rllm_gym.grading.swe import test_run
from rllm_gym.grading.swe.observed_values import FieldNames
from rllm_gym.grading.swe.trace import ObservedFiles
from rllm_gym.grading.swe.trace_check import TestCheck
from rllm_gym.grading.swe.trace_recorder import TraceRecorder, with_counts

ERROR = [["builtins:UserWarning", "builtins:Warning", "builtins:Exception"], "a b is old", None]
KIND = ["T", "builtins:UserWarning", ["builtins:UserWarning", "builtins:Warning", "builtins:Exception"]]
# By kind of statement: the test's last line, the operands with the reference solution, then honest and forged ones.
ASSERTIONS: dict[str, tuple[str, list[Any], list[list[Any]], list[list[Any]]]] = {
    "both sides are computed from a fixture": (
        "assert (price(1), 2) == (book.total(), 2)",
        [7, 7],
        [[7, 7], [7.0, 7]],
        [[5, 5], [None, None], ["", ""], [7, 5]],
    ),
    "an item of what a fixture has": ("assert price(1) == book.prices['a']", [7, 7], [[7, 7]], [[5, 5], [True, True]]),
    "a part of the input": ("assert price(1) == book.items[:2]", [["l", 1]] * 2, [[["l", 1]] * 2], [[["l"]] * 2]),
    "two approximate values": ("assert price(1) == pytest.approx(book.total())", [7.5, 7.5], [[7.5, 7.5]], [[0, 0]]),
    "a word of a text": (
        "assert 'apple' in price(1)",
        ["an apple a day"],
        [["one apple"], ["apple and another apple, at the price of an orange"]],
        [["an orange"], ["apple " * 100], [["x", "range", [0, 100_000, 1]]], [["l", "apple", *map(str, range(100))]]],
    ),
    "a number in a list": (
        "assert 17 in price(1)",
        [["l", 3, 17]],
        [[["l", 17]], [["t", 1, 2, 3, 17]]],
        [[["l", *range(1000)]], [["x", "range", [0, 1000, 1]]], [["d", *range(2000)]]],
    ),
    "any item": (
        "assert any(item == 17 for item in price(1))",
        [["l", 3, 17]],
        [[["l", 17, 4, 5]]],
        [[["l", *range(1000)]], [["x", "range", [0, 1000, 1]]]],
    ),
    "a pattern": (
        "assert re.search('a (b|c)', price(1))",
        ["it is a b"],
        [["a c"]],
        [["a d"], ["a a a b " * 50]],
    ),
}


def recorded(line: str, gold: list[Any], *, whole: bool = False) -> tuple[ObservedFiles, TestCheck]:
    """Return the files of a graded run, and the check of a test to fix with this line."""
    texts = {"a.py": HEAD + "    pass\n", "t.py": f"{HEAD}    {line}\n"}
    recorder = TraceRecorder(texts)
    files = recorder.files()
    number = 1 << 20
    event = ["w", number, gold, KIND] if whole else [number, gold]
    runs = [{"t.py::test_a": [event]}] * 2
    trace = recorder.trace(files, runs)
    graded = ObservedFiles(texts, trace.plans, recording=False)
    trace, wrong = with_counts(trace, graded, {"t.py::test_a": [event[:3]]})
    assert wrong == {}
    return graded, TestCheck(graded, trace.tests["t.py::test_a"], FieldNames(), strict=True)


HEAD = "import re, pytest\nfrom shop import price\n\ndef test_a(book):\n"


@pytest.mark.parametrize("name", ASSERTIONS)
def test_values_that_agree_with_each_other_or_contain_everything_do_not_pass(name: str) -> None:
    line, gold, honest, forged = ASSERTIONS[name]
    _, check = recorded(line, gold)
    assert [operands for operands in honest if check.problem([[1 << 20, operands]])] == []
    assert [operands for operands in forged if not check.problem([[1 << 20, operands]])] == []


def test_many_warnings_are_not_the_expected_one() -> None:
    _, check = recorded("with pytest.warns(UserWarning): price(1)", [ERROR], whole=True)
    other = [["builtins:DeprecationWarning", "builtins:Warning"], "x", None]
    assert check.problem([["w", 1 << 20, [ERROR]]]) == ""
    assert check.problem([["w", 1 << 20, [other, ERROR]]]) == ""
    assert check.problem([["w", 1 << 20, [other]]])
    assert check.problem([["w", 1 << 20, [*[other] * 50, ERROR]]])


def test_a_statement_of_another_file_is_not_that_of_the_test() -> None:
    texts = {"a.py": f"{HEAD}    assert price(1)\n", "t.py": f"{HEAD}    assert price(1) == 17\n"}
    recorder = TraceRecorder(texts)
    trace = recorder.trace(recorder.files(), [{"t.py::test_a": [[1 << 20, [17]]]}] * 2)
    graded = ObservedFiles(texts, trace.plans, recording=False)
    check = TestCheck(graded, trace.tests["t.py::test_a"], FieldNames(), strict=True)
    assert check.problem([[1 << 20, [17]]]) == ""
    assert check.problem([[1 << 20, [True]]])
    assert check.problem([[0, [True]]])  # the same number in the other file, which any value satisfies


def test_a_value_of_the_test_that_is_computed_inside_is_that_of_the_reference_solution() -> None:
    texts = {"t.py": f"{HEAD}    assert price(1) == 4 * 4 + 1 + len(str(2))\n"}
    recorder = TraceRecorder(texts)
    files = recorder.files()
    recorder.keep(files, [[0, [18, 18]]])  # as if what follows depended on its evaluation
    files = recorder.files()
    trace = recorder.trace(files, [{"t.py::test_a": [[0, [18, 18]]]}] * 2)
    graded = ObservedFiles(texts, trace.plans, recording=False)
    assert graded.files["t.py"].sites[0].sent == [0, 1]
    check = TestCheck(graded, trace.tests["t.py::test_a"], FieldNames(), strict=True)
    assert check.problem([[0, [18, 18]]]) == ""
    assert check.problem([[0, [5, 5]]])
    # Not where it differs from run to run: then it is not known.
    trace = recorder.trace(files, [{"t.py::test_a": [[0, [at, at]]]} for at in (18, 19)])
    check = TestCheck(graded, trace.tests["t.py::test_a"], FieldNames(), strict=True)
    assert check.problem([[0, [5, 5]]]) == ""


def test_a_report_that_is_too_large_is_named_so() -> None:
    events = [{"event": "test", "id": f"t.py::{'x' * 3_000_000}", "n": number} for number in range(5)]
    output = "".join(f"\n@word {json.dumps(event)}\n" for event in events).encode()
    run = test_run.TestRun(code=0)
    test_run._read_report(run, test_run._events(output, "word")[0])
    assert "more than 12,000,000 bytes" in run.broken
