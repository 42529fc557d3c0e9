"""Every HumanEval and MBPP reference solution passes, and none passes after it has been broken."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from pathlib import Path

import pytest
from grade_many import grade_many

from rllm_gym.grading.code import FunctionTests, validate
from rllm_gym.grading.python_source import parse_python
from rllm_gym.sandbox import SandboxPool

# The datasets write "\\w" without an r before it.
pytestmark = pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")

# The rows of MBPP lack their "test_setup_code"; only row 367 needs it, for these trees.
TREES = """
def tree(*paths):
    root = Node(1)
    for value, path in enumerate(paths, 2):
        node = root
        for step in path[:-1]:
            node = getattr(node, step)
        setattr(node, path[-1], Node(value))
    return root

l, r = "left", "right"
root = tree((l,), (r,), (l, l), (l, r), (l, l, l))
root1 = tree((l,), (r,), (l, l), (l, r), (r, l), (l, l, l))
root2 = tree((l,), (r,), (l, l), (l, r), (l, l, l))
"""

Row = tuple[str, str, FunctionTests]


def rows(data: Path) -> list[Row]:
    """Return id, reference solution and tests of all 664 rows."""
    found: list[Row] = []
    for line in (data / "humaneval.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        tests = FunctionTests(row["entry_point"], row["test"], "check", setup=row["prompt"])
        found.append((row["task_id"], row["prompt"] + row["canonical_solution"], tests))
    for line in (data / "mbpp_test.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        text = "\n".join(row["test"])
        names = [node.name for node in parse_python(row["code"]).body if isinstance(node, ast.FunctionDef)]
        entry = next(name for name in names if re.search(rf"\b{name}\b", text))
        setup = TREES if row["task_id"] == 367 else ""
        found.append((f"MBPP/{row['task_id']}", row["code"], FunctionTests(entry, text, "assert", setup=setup)))
    return found


def returning_none(source: str) -> str:
    """Return the program with every function returning at once."""
    tree = parse_python(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body = [ast.Return(ast.Constant(None))]
    return ast.unparse(ast.fix_missing_locations(tree))


class _WrongResult(ast.NodeTransformer):
    def visit_Return(self, node: ast.Return) -> ast.AST:
        wrong = ast.Name("_wrong", ast.Load())
        node.value = ast.Call(wrong, [node.value or ast.Constant(None)], [])
        return node


WRONG = """
def _wrong(value):
    if type(value) is bool: return not value
    if isinstance(value, (int, float, complex)): return value + 1
    if type(value) is str: return value + "x"
    if type(value) in (list, tuple): return type(value)([*value, 12345])
    if isinstance(value, set): return value | {12345}
    if isinstance(value, dict): return {**value, 12345: 1}
    return 12345
"""


def returning_wrong(source: str, entry: str) -> str:
    """Return the program with a different return value in every tested function."""
    tree = parse_python(source)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == entry:
            for statement in node.body:
                _WrongResult().visit(statement)
    return ast.unparse(ast.fix_missing_locations(tree)) + WRONG


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.long)])
def test_all_reference_solutions_pass(pool: SandboxPool, shared_data: Path, every: int) -> None:
    found = rows(shared_data)
    assert len(found) == 664
    found = found[::every]
    verdicts = grade_many(pool, [(source, tests) for _, source, tests in found])
    failed = {name: verdict for (name, _, _), verdict in zip(found, verdicts) if not verdict.correct}
    assert not failed
    assert all(verdict.fraction == 1 for verdict in verdicts)


@pytest.mark.parametrize("every", [20, pytest.param(1, marks=pytest.mark.long)])
def test_no_solution_passes_if_it_returns_at_once(pool: SandboxPool, shared_data: Path, every: int) -> None:
    found = rows(shared_data)[::every]
    programs = [(returning_none(source), tests) for _, source, tests in found]
    verdicts = grade_many(pool, programs, stop_at_first_failure=True)
    assert not [name for (name, _, _), verdict in zip(found, verdicts) if verdict.correct]


@pytest.mark.parametrize("every", [20, pytest.param(5, marks=pytest.mark.long)])
def test_no_solution_passes_if_it_returns_another_value(pool: SandboxPool, shared_data: Path, every: int) -> None:
    found = rows(shared_data)[::every]
    programs = [(returning_wrong(source, tests.entry_point), tests) for _, source, tests in found]
    verdicts = grade_many(pool, programs, stop_at_first_failure=True)
    assert not [name for (name, _, _), verdict in zip(found, verdicts) if verdict.correct]


def test_a_row_without_its_setup_is_refused_with_its_name(pool: SandboxPool, shared_data: Path) -> None:
    source, tests = next((source, tests) for name, source, tests in rows(shared_data) if name == "MBPP/367")
    bare = FunctionTests(tests.entry_point, tests.test, tests.style)
    reason = asyncio.run(validate(pool, bare, source))
    assert reason is not None
    assert "name 'root' is not defined" in reason
