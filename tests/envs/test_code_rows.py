"""Dataset rows in the usual formats become tasks that are graded correctly; other rows are refused with a reason."""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsing.checks import assert_all_raise

from rllm_gym.core import Task, TaskError
from rllm_gym.data import Taskset
from rllm_gym.envs.code import CodeEnv, row_to_code_task
from rllm_gym.envs.code.contests import pickled_text

CASES = [
    {"input": "1 2\n", "output": "3\n", "testtype": "stdin"},
    {"input": "5 5\n", "output": "10\n", "testtype": "stdin"},
]
CALLS = [
    {"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"},
    {"input": "[]\n7", "output": "[]", "testtype": "functional"},
]
SUM = "a, b = map(int, input().split())\nprint(a + b)"
STARTER = "class Solution:\n    def shift(self, values: List[int], by: int) -> List[int]:\n        "
METHOD = "class Solution:\n    def shift(self, values, by):\n        return [value + by for value in values]"
FUNCTION = "def shift(values, by):\n    return [value + by for value in values]"

COUNTER = "class Counter:\n    def __init__(self, n):\n        self.total = n\n    def add(self, k):\n        "


def packed(cases: list[dict[str, Any]]) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


LIVE_CODE_BENCH = {"question_content": "Add.", "question_id": "abc", "starter_code": "", "metadata": "{}"}
ROWS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "ours": (
        {"id": "a", "prompt": "Add.", "kind": "stdio", "tests": [{"stdin": "1 2", "stdout": "3"}]},
        [SUM],
        ["print(4)"],
    ),
    "ours, with further public tests": (
        {
            "prompt": "Add.",
            "kind": "stdio",
            "tests": [{"stdin": "1 2", "stdout": "3"}],
            "public_tests": [{"stdin": "4 4", "stdout": "8"}],
        },
        [SUM],
        ["print(3)"],
    ),
    "apps": (
        {"question": "Add.", "input_output": json.dumps({"inputs": ["1 2\n", ["5 5"]], "outputs": ["3\n", ["10"]]})},
        [SUM],
        ["print(3)"],
    ),
    "apps, calls with wrapped results": (
        {
            "question": "Shift.",
            "starter_code": STARTER,
            "input_output": json.dumps(
                {"fn_name": "shift", "inputs": [[[1, 2], 3], [[], 7]], "outputs": [[[4, 5]], [[]]]}
            ),
        },
        [METHOD, FUNCTION, FUNCTION.replace("[value", "tuple([value").replace("values]", "values])")],
        ["def shift(values, by):\n    return values", "class Solution:\n    pass"],
    ),
    "live code bench": (
        LIVE_CODE_BENCH | {"public_test_cases": json.dumps(CASES[:1]), "private_test_cases": packed(CASES)},
        [SUM],
        ["print(3)"],
    ),
    "live code bench, calls": (
        LIVE_CODE_BENCH
        | {
            "starter_code": STARTER,
            "metadata": json.dumps({"func_name": "shift"}),
            "public_test_cases": json.dumps(CALLS[:1]),
            "private_test_cases": packed(CALLS[1:]),
        },
        [METHOD, FUNCTION],
        ["class Solution:\n    def shift(self, values, by):\n        return [4, 5]"],
    ),
    "code contests": (
        {
            "description": "Add.",
            "public_tests": {"input": ["1 2\n"], "output": ["3\n"]},
            "private_tests": {"input": [], "output": []},
            "generated_tests": {"input": ["5 5\n"], "output": ["10\n"]},
        },
        [SUM],
        ["print(3)"],
    ),
    "deepcoder": (
        {
            "problem": "Add.",
            "tests": json.dumps([{"type": "stdin_stdout", "input": "1 2\n", "output": "3\n"}]),
        },
        [SUM],
        ["print(4)"],
    ),
    "deepcoder, calls": (
        {
            "problem": "Shift.",
            "tests": [{"type": "function_call", "fn_name": "shift", "input": [[1], 2], "output": [3]}],
        },
        [FUNCTION],
        ["def shift(values, by):\n    return values"],
    ),
    "kodcode": (
        {
            "question": "Shift.",
            "test": "from solution import shift, SIZE\n\ndef test_one():\n    assert shift([1], 2) == [3] * SIZE\n",
        },
        [FUNCTION + "\nSIZE = 1"],
        ["def shift(values, by):\n    return values\nSIZE = 1"],
    ),
    "mbpp, sanitized": (
        {
            "prompt": "Round up.",
            "test_list": ["assert math.isclose(up(1.5), math.ceil(1.5))", "assert up(2) == 2"],
            "test_imports": ["import math"],
            "challenge_test_list": ["assert up(-0.5) == 0"],
        },
        ["import math\ndef up(x):\n    return math.ceil(x)"],
        ["def up(x):\n    return 2"],
    ),
    "mbpp plus": (
        {
            "prompt": "Double.",
            "code": "def twice(x):\n    return 2 * x",
            "test_list": ["assert twice(1) == 2"],
            "test": "inputs = [[1], [7]]\nresults = [2, 14]\nfor given, wanted in zip(inputs, results):\n"
            "    assert twice(*given) == wanted\n",
        },
        ["def twice(x):\n    return 2 * x"],
        ["def twice(x):\n    return 2"],
    ),
    "humaneval plus": (
        {
            "prompt": 'def twice(x):\n    """Double."""\n',
            "entry_point": "twice",
            "test": "inputs = [[1], [7]]\nresults = [2, 14]\n\ndef check(candidate):\n"
            "    for given, wanted in zip(inputs, results):\n        assert candidate(*given) == wanted\n",
        },
        ["def twice(x):\n    return 2 * x", "    return 2 * x", "return 2 * x"],
        ["    return 2"],
    ),
    "a checker": (
        {
            "prompt": "A divisor.",
            "kind": "stdio",
            "tests": [{"stdin": "30", "stdout": "5"}],
            "checker": "def check(stdin, stdout, expected):\n    return int(stdin) % int(stdout) == 0",
        },
        ["print(6)", "print(30)"],
        ["print(7)", "print('6 6')"],
    ),
    "several outputs, standard input in a file": (
        {
            "prompt": "Some number up to n.",
            "kind": "stdio",
            "tests": [{"stdin": "2", "stdout": ["1", "2"]}],
            "stdin_file": True,
        },
        ["import os\nprint(os.fstat(0).st_size)", "print(2)"],
        ["print(3)"],
    ),
    "a contest with its own checker": (
        {
            "description": "A divisor.",
            "public_tests": {"input": ["30"], "output": ["5"]},
            "generated_checker": "import sys\na, b = (int(open(sys.argv[i]).read()) for i in (1, 3))\n"
            "print(int(a % b == 0))",
        },
        ["print(6)"],
        ["print(7)"],
    ),
    "a class": (
        {
            "prompt": "A counter.",
            "kind": "function",
            "entry_point": "Counter",
            "test": "c = Counter(2)\nc.add(3)\nassert c.total == 5",
        },
        [f"{COUNTER}self.total += k"],
        [f"{COUNTER}pass"],
    ),
}


PATIENT = {"cpu_s": 30.0}
"""Limits that correct programs meet even on a machine that stalls."""


def test_rows_of_every_form_are_graded():
    async def rewards(row: dict[str, Any], programs: list[str]) -> list[float]:
        env = CodeEnv(tasks=[row], **PATIENT)
        found = []
        for program in programs:
            await env.async_reset(seed=0)
            found.append((await env.async_step(f"```python\n{program}\n```"))[1])
        return found

    async def grade_all() -> list[list[float]]:
        return await asyncio.gather(*(rewards(row, right + wrong) for row, right, wrong in ROWS.values()))

    expected = [[1.0] * len(right) + [0.0] * len(wrong) for _, right, wrong in ROWS.values()]
    assert dict(zip(ROWS, asyncio.run(grade_all()))) == dict(zip(ROWS, expected))


def test_a_row_survives_a_round_trip_as_a_task():
    for name, (row, _, _) in ROWS.items():
        task = row_to_code_task(row, "x")
        again = row_to_code_task(json.loads(json.dumps(task.to_json())), "x")
        assert again.to_json() == task.to_json(), name


def test_generic_tasks_with_other_fields_are_accepted():
    task = Task("t", "Add.", {"kind": "stdio", "tests": [{"stdin": "1 2", "stdout": "3"}], "source": "a book"})
    for tasks in ([task], Taskset.from_rows([ROWS["ours"][0] | {"source": "a book"}])):
        env = CodeEnv(tasks=tasks, **PATIENT)
        env.reset(seed=0)
        assert env.step(f"```python\n{SUM}\n```")[1] == 1.0


def test_rows_of_both_kinds_load_from_one_parquet_file(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    arrow = pytest.importorskip("pyarrow")
    rows = [
        {
            "id": "sum",
            "prompt": "Add.",
            "kind": "stdio",
            "tests": [{"stdin": "1 2", "stdout": "3"}],
            "entry_point": None,
        },
        {"id": "shift", "prompt": "Shift.", "kind": "function", "entry_point": "shift", "test": "assert shift([1], 2)"},
    ]
    parquet.write_table(arrow.Table.from_pylist(rows, arrow.schema([
        ("id", arrow.string()), ("prompt", arrow.string()), ("kind", arrow.string()), ("entry_point", arrow.string()),
        ("test", arrow.string()), ("public_tests", arrow.int64()), ("cpu_s", arrow.float64()),
        ("tests", arrow.list_(arrow.struct([("stdin", arrow.string()), ("stdout", arrow.string())]))),
    ])), tmp_path / "rows.parquet")  # fmt: skip
    env = CodeEnv(tasks=tmp_path / "rows.parquet", **PATIENT)
    for name, program in (("sum", SUM), ("shift", FUNCTION)):
        env.reset(options={"task": name})
        assert env.step(f"```python\n{program}\n```")[1] == 1.0


def test_the_solution_of_a_row_is_not_kept():
    row = ROWS["humaneval plus"][0] | {"canonical_solution": "    return 2 * x + 0\n"}
    assert "2 * x + 0" not in json.dumps(row_to_code_task(row, "x").to_json())


def stdio(**changes: Any) -> dict[str, Any]:
    return {"prompt": "?", "kind": "stdio", "tests": [{"stdin": "", "stdout": ""}]} | changes


def function(**changes: Any) -> dict[str, Any]:
    return {"prompt": "?", "kind": "function", "entry_point": "f", "test": "assert f() == 1"} | changes


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("a pickle of a row was loaded",)


def trap() -> str:
    return base64.b64encode(zlib.compress(pickle.dumps([Trap()]))).decode()


UNUSABLE: list[tuple[dict[str, Any], str]] = [
    ({"kind": "stdio", "tests": []}, r"no problem: .*\['kind', 'tests'\]"),
    (stdio(prompt=""), "'prompt' is ''"),
    (stdio(prompt="x" * 100_000), "100000 characters"),
    (stdio(kind="shell"), "'kind' is 'shell'"),
    (stdio(tests=[]), "'tests' is"),
    (stdio(tests="1"), "'tests' is '1'"),
    (stdio(tests=[{"stdin": "1"}]), r"tests\[0\]"),
    (stdio(tests=[{"stdin": "1", "stdout": 2}]), r"tests\[0\]"),
    (stdio(tests=[{"stdin": "\ud800", "stdout": ""}]), "surrogate"),
    (stdio(tests=[{"stdin": "", "stdout": ""}] * 10_001), "10001 tests"),
    (stdio(public_tests=2), "'public_tests' is 2"),
    (stdio(public_tests=True), "'public_tests' is True"),
    (stdio(float_tolerance=-1), "'float_tolerance' is -1"),
    (stdio(float_tolerance="1e-6"), "'float_tolerance'"),
    (stdio(cpu_s=0), "'cpu_s' is 0"),
    (stdio(time_limit_s=2), "is called 'cpu_s'"),
    (stdio(cpu_s="2 seconds"), "'cpu_s'"),
    (stdio(cpu_s=float("inf")), "'cpu_s'"),
    (stdio(tests=[{"stdin": "", "stdout": []}]), r"tests\[0\]"),
    (stdio(checker="words"), "'checker' is 'words'"),
    (stdio(checker="def check(:\n    pass"), "checker are not valid Python"),
    (stdio(stdin_file="yes"), "'stdin_file' is 'yes'"),
    (stdio(memory_mb=True), "'memory_mb' is True"),
    (function(entry_point="1f"), "'entry_point' is '1f'"),
    (function(entry_point="f; import os"), "'entry_point'"),
    (function(entry_point="def"), "'entry_point'"),
    (function(test=""), "'test' is ''"),
    (function(test=[]), "'test' has 0"),
    (function(test=["assert f()", 3]), r"test\[1\] is 3"),
    (function(test_style="doctest"), "'test_style' is 'doctest'"),
    (function(test_style="check"), "does not define check"),
    (function(test_style="pytest", public_tests=1), "cannot be split"),
    (function(public_tests=2), "'public_tests' is 2"),
    (function(setup=3), "'setup' is of type int"),
    ({"prompt": "?"}, r"no tests: .*\['prompt'\]"),
    ({"prompt": "?", "test_list": ["assert True"]}, "no function is called"),
    ({"prompt": "?", "test_list": ["assert ("]}, "not valid Python"),
    ({"prompt": "?", "test_list": ["assert " + "(" * 100_000]}, "not valid Python"),
    ({"prompt": "?", "test_list": ["assert " + "-" * 150_000 + "1"]}, "not valid Python|no function"),
    ({"prompt": "?", "test_list": ["assert f(" + "1," * 200_000 + ")"]}, "too many"),
    ({"question": "?", "input_output": "{"}, "not valid JSON"),
    ({"question": "?", "input_output": "[" * 100_000}, "not valid JSON"),
    ({"question": "?", "input_output": "[" * 70 + "]" * 70}, "levels deep"),
    ({"question": "?", "input_output": '{"inputs": ["1"], "outputs": []}'}, "1 inputs and 0 outputs"),
    ({"question": "?", "input_output": '{"inputs": [], "outputs": []}'}, "0 inputs"),
    ({"question": "?", "input_output": '{"inputs": [[1]], "outputs": [[1]], "fn_name": "a b"}'}, "'a b'"),
    ({"question": "?", "private_test_cases": "!"}, "neither JSON nor"),
    ({"question": "?", "private_test_cases": trap()}, "is not loaded"),
    ({"question": "?", "public_test_cases": "[]"}, "has no tests"),
    ({"question": "?", "public_test_cases": json.dumps([CASES[0], CALLS[0]])}, "of types"),
    ({"description": "?", "public_tests": {"input": []}}, "no tests in"),
    ({"problem": "?", "tests": "no"}, "not valid JSON"),
    ({"problem": "?", "tests": [3]}, r"tests\[0\] is 3"),
]


def test_an_unusable_row_is_an_error_with_the_key():
    good = {"id": "good", **stdio()}
    cases = [(row, rf"row 1 of 'code': .*{output}") for row, output in UNUSABLE]
    assert_all_raise(TaskError, lambda row: CodeEnv(tasks=[good, row]), cases)


def test_a_decompression_bomb_is_not_unpacked():
    bomb = base64.b64encode(zlib.compress(b"\x80" + bytes(65_000_000))).decode()
    with pytest.raises(TaskError, match="64000000 bytes"):
        row_to_code_task({"question": "?", "private_test_cases": bomb}, "x")


@given(st.text(max_size=300), st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_a_pickled_text_is_read_without_loading_it(text, protocol):
    data = pickle.dumps(text, protocol)
    if protocol:  # protocol 0 is a different text format, which these rows do not use
        assert pickled_text(data) == text


@given(st.one_of(st.integers(), st.lists(st.text(), min_size=1), st.binary(), st.dictionaries(st.text(), st.text())))
def test_any_other_pickle_is_refused(value):
    with pytest.raises(ValueError):
        pickled_text(pickle.dumps(value))


@given(st.binary(max_size=60))
def test_bytes_that_are_not_a_pickle_are_refused(data):
    try:
        text = pickled_text(data)
    except ValueError:
        return
    assert isinstance(text, str)
