"""Verify the built-in repositories of ``rllm/SWE-v0`` by running them, and write their tables.

    python scripts/verify_swe_repositories.py [NAME ...]

For each repository: all tests of the finished one pass; with each hand-written change some fail, and the remaining
tests in the tree an agent starts from pass; the same for mutations of the finished code, of which those are kept that
some tests and some of the calls in ``<name>.toml`` detect. An issue shows up to two of these calls, chosen such that a
fix for nothing but them fails a test (``--examples`` only chooses again and drops mutations without such a call). The
result is ``<name>.json``, so that nothing has to be run when tasks are created; ``<name>.trace`` is what the hidden
tests observe (``--traces`` writes only that). The script runs only this project's own code, one process per run, and
takes a few minutes.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import tomllib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from swe_special_cases import CallKey, SpecialCases, instrumented, shown_calls

from rllm_gym.envs.swe.checkout import prepare
from rllm_gym.envs.swe.repositories import catalog
from rllm_gym.envs.swe.repositories.catalog import RepoChange, RepoEdit, Repository, read_files
from rllm_gym.grading.swe import RepositoryTests, record_trace_sync
from rllm_gym.sandbox import shared_pool
from rllm_gym.sandbox.tree import Changes

FOLDER = Path(catalog.__file__).parent
MAX_MUTATIONS = 36
MAX_PER_FUNCTION = 5
TRIED = 150
TIMEOUT_S = 60
DID_NOT_END = "it did not end"
CPU_S = 4
# A mutation with one of these errors is found by reading the traceback, without understanding the code.
_DULL = (
    "AttributeError",
    "NameError",
    "UnboundLocalError",
    "TypeError",
    "RecursionError",
    "KeyError",
    "AssertionError",
)


def main() -> int:
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # which would take most of the time of a run
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="repositories; all by default")
    parser.add_argument("--traces", action="store_true", help="write only what the tests observe")
    parser.add_argument("--examples", action="store_true", help="only choose the calls that issues show")
    options = parser.parse_args()
    for name in options.names or catalog.NAMES:
        if options.traces:
            print(f"{name}: {write_trace(name)} characters observed", flush=True)
            continue
        table = table_of(name) if options.examples else verify(name)
        choose_examples(name, table)
        (FOLDER / f"{name}.json").write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        by_hand = {key: len(tests) for key, tests in table["fail_to_pass"].items()}
        if not options.examples:
            write_trace(name)
        print(f"{name}: {len(table['tests'])} tests, failing by hand {by_hand}, {len(table['mutations'])} mutations")
    return 0


def write_trace(name: str) -> int:
    """Record what the tests observe in the finished repository; return the size of the trace in characters."""
    table = table_of(name)
    files = dict(read_files(FOLDER / name))
    tests = tuple(table["tests"])
    hidden = {path: files[path] for path in dict.fromkeys(test.partition("::")[0] for test in tests)}
    nothing = Changes({}, frozenset())
    trace = record_trace_sync(shared_pool(), prepare(files).path, nothing, RepositoryTests(hidden, tests))
    (FOLDER / f"{name}.trace").write_text(trace + "\n", encoding="utf-8")
    return len(trace)


def table_of(name: str) -> dict[str, Any]:
    """Return the table of a repository as it was written."""
    table: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return table


def probes_of(name: str) -> list[str]:
    """Return the calls that may be shown in the issues of a repository."""
    card = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    return [probe["code"].strip() for probe in card["probe"]]


def verify(name: str) -> dict[str, Any]:
    """Return the table of a repository; an assertion fails if the repository is inconsistent."""
    card = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    files = dict(read_files(FOLDER / name))
    probes = probes_of(name)
    outcome = run(files, probes)
    assert not outcome.failed, f"{name}: the finished repository fails {outcome.failed}"
    tests = sorted(outcome.passed)
    expected = outcome.answers
    again = run(files, probes)
    assert (again.passed, again.answers) == (outcome.passed, outcome.answers), f"{name} is not the same every time"

    failing: dict[str, list[int]] = {}
    trees = set()
    for task in card["task"]:
        edits = tuple(RepoEdit(edit["path"], edit.get("finished", ""), edit.get("broken", "")) for edit in task["edit"])
        change = RepoChange(task["key"], task["kind"], "", edits, ())
        repository = Repository(name, files, {}, tuple(tests), {})
        broken = run(_edited(files, change), [])
        lost = sorted(set(tests) - broken.passed)
        assert lost, f"{name}/{change.key}: no test fails"
        change = RepoChange(task["key"], task["kind"], "", edits, tuple(lost))
        seen = run(repository.broken_files(change), [])
        assert not seen.failed, f"{name}/{change.key}: tests the agent sees fail: {seen.failed}"
        failing[change.key] = [tests.index(test) for test in lost]
        trees.add(tuple(sorted(_edited(files, change).items())))
    mutations = _kept_mutations(name, files, tests, probes, expected, trees)
    return {"tests": tests, "expected": expected, "fail_to_pass": failing, "mutations": mutations}


def _edited(files: Mapping[str, str], change: RepoChange) -> dict[str, str]:
    edited = dict(files)
    for edit in change.edits:
        text = edit.undo(edited.pop(edit.path))
        if text is not None:
            edited[edit.path] = text
    return edited


# Running


@dataclass
class Outcome:
    passed: set[str]
    failed: dict[str, str]
    answers: list[str]
    calls: list[list[tuple[int, CallKey]]] = field(default_factory=list)
    changed: set[tuple[str, str]] = field(default_factory=set)


def run(
    files: Mapping[str, str],
    probes: list[str],
    *,
    with_tests: bool | list[str] = True,
    special: tuple[Mapping[str, str], set[CallKey]] | None = None,
) -> Outcome:
    """Run the tests of a tree, or some of them, and the calls, in a separate process.

    Args:
        files: The tree.
        probes: Calls whose results are returned.
        with_tests: Whether tests are run, or their ids.
        special: Sources with a bug, by path, and the calls that have the right result nevertheless; see
            :class:`SpecialCases`. The product's calls are recorded.
    """
    folder = Path(tempfile.mkdtemp(prefix="swe-verify-"))
    try:
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
        receiving, sending = multiprocessing.Pipe(duplex=False)
        child = os.fork()
        if child == 0:
            try:
                sending.send(_in_child(folder, probes, with_tests, special))
            except BaseException as error:
                sending.send(Outcome(set(), {"": repr(error)}, [repr(error)] * len(probes)))
            os._exit(0)
        sending.close()
        try:
            answer = receiving.recv() if receiving.poll(TIMEOUT_S) else None
        except EOFError:
            answer = None
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return answer or Outcome(set(), {"": DID_NOT_END}, [DID_NOT_END] * len(probes))
    finally:
        shutil.rmtree(folder)


def _in_child(
    folder: Path,
    probes: list[str],
    with_tests: bool | list[str],
    special: tuple[Mapping[str, str], set[CallKey]] | None,
) -> Outcome:
    os.chdir(folder)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    sys.dont_write_bytecode = True
    for name in ("", "src"):
        sys.path.insert(0, str(folder / name))
    cases = SpecialCases(*special) if special is not None else None
    reporter = _Reporter()
    if with_tests:
        options = ["-q", "-p", "no:cacheprovider", "--rootdir=.", "--assert=plain"]
        pytest.main([*options, *(with_tests if isinstance(with_tests, list) else [])], plugins=[reporter])
    outcome = Outcome(reporter.passed - set(reporter.failed), reporter.failed, [])
    for code in probes:
        before = len(cases.calls) if cases is not None else 0
        outcome.answers.append(_answer(code))
        outcome.calls.append(list(dict.fromkeys(cases.calls[before:])) if cases is not None else [])
    outcome.changed = cases.changed if cases is not None else set()
    return outcome


class _Reporter:
    def __init__(self) -> None:
        self.passed: set[str] = set()
        self.failed: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            self.failed[report.nodeid] = str(report.longrepr)[-300:]
        elif report.when == "call":
            self.passed.add(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed[report.nodeid] = str(report.longrepr)[-300:]


def _answer(code: str) -> str:
    """Return what an interactive session shows for the code, whose last statement is an expression."""
    *before, last = ast.parse(code).body
    assert isinstance(last, ast.Expr), code
    space: dict[str, Any] = {"__name__": "example"}
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module(before, []), "<example>", "exec"), space)  # noqa: S102 - our own text
            value = eval(compile(ast.Expression(last.value), "<example>", "eval"), space)  # noqa: S307 - likewise
        shown = re.sub(r" at 0x[0-9a-f]+>", " at 0x...>", "" if value is None else repr(value))  # differs between runs
        return (printed.getvalue() + shown).rstrip("\n")
    except Exception as error:
        return "Traceback (most recent call last):\n  ...\n" + "".join(traceback.format_exception_only(error)).strip()


# Mutations


@dataclass(frozen=True)
class Mutation:
    """A replacement of the text between two offsets of a file, and the function that contains it."""

    path: str
    function: str
    kind: str
    start: int
    end: int
    text: str


def _kept_mutations(
    name: str,
    files: Mapping[str, str],
    tests: list[str],
    probes: list[str],
    expected: list[str],
    taken: set[tuple[tuple[str, str], ...]],
) -> list[dict[str, Any]]:
    found = [
        mutation
        for path in sorted(files)
        if path.endswith(".py") and "tests/" not in path and Path(path).name not in ("__init__.py", "__main__.py")
        for mutation in mutations_of(path, files[path])
    ]
    random.Random(name).shuffle(found)
    per_function: Counter[str] = Counter()
    rows: list[dict[str, Any]] = []
    for mutation in _taking_turns(found):
        place = mutation.path + mutation.function
        tree = {**files, mutation.path: _applied(files[mutation.path], mutation)}
        if per_function[place] >= MAX_PER_FUNCTION or tuple(sorted(tree.items())) in taken:
            continue
        answers = run(tree, probes, with_tests=False).answers
        examples = _examples(answers, expected)
        outcome = run(tree, []) if examples else None
        lost = sorted(set(tests) - outcome.passed) if outcome else []
        if outcome is None or not lost or len(lost) > len(tests) // 2 or "" in outcome.failed:
            continue
        finished, broken = _snippets(files[mutation.path], tree[mutation.path])
        assert RepoEdit(mutation.path, finished, broken).undo(files[mutation.path]) == tree[mutation.path]
        per_function[place] += 1
        rows.append(
            {
                "key": _key(mutation, rows),
                "kind": mutation.kind,
                "path": mutation.path,
                "finished": finished,
                "broken": broken,
                "fail_to_pass": [tests.index(test) for test in lost],
                "examples": examples,
            }
        )
        if len(rows) == MAX_MUTATIONS:
            break
    return rows


class IssueCalls:
    """The calls that issues of a repository may show, and fixes that know nothing but some of them."""

    def __init__(self, name: str) -> None:
        self.files = dict(read_files(FOLDER / name))
        self.probes = probes_of(name)
        self._tree = instrumented(self.files)
        self._calls: dict[int, list[tuple[int, CallKey]]] = {}

    def broken(self, row: Mapping[str, Any]) -> dict[str, str]:
        """Return the file with the bug, by path."""
        edit = RepoEdit(row["path"], row["finished"], row["broken"])
        return {edit.path: edit.undo(self.files[edit.path]) or ""}

    def changed(self, row: Mapping[str, Any]) -> set[tuple[str, str]]:
        """Return the functions that have the bug."""
        return run(self._tree, self.probes[:1], with_tests=False, special=(self.broken(row), set())).changed

    def solve(
        self, row: Mapping[str, Any], tests: list[str], places: list[int], functions: set[tuple[str, str]]
    ) -> bool:
        """Return whether the tests pass if only these calls have the right result, and what they ask ``functions``."""
        keys: set[CallKey] = set()
        for place in places:
            if place not in self._calls:
                special: tuple[dict[str, str], set[CallKey]] = ({}, set())
                outcome = run(self._tree, [self.probes[place]], with_tests=False, special=special)
                self._calls[place] = outcome.calls[0]
            keys |= shown_calls(self._calls[place], functions)
        outcome = run(self._tree, [], with_tests=tests, special=(self.broken(row), keys))
        assert outcome.failed.get("", DID_NOT_END) == DID_NOT_END, outcome.failed
        assert outcome.passed or outcome.failed, f"{tests} were not run"
        return set(tests) <= outcome.passed


def choose_examples(name: str, table: dict[str, Any]) -> None:
    """Choose the calls that the issues of mutations show: a fix for only these must not pass all tests to fix.

    This also holds for the arguments with which it reaches the function that has the bug: a mutation whose tests reach
    that function only with arguments of the issue is dropped.
    """
    calls = IssueCalls(name)
    table["expected"] = run(calls.files, calls.probes, with_tests=False).answers
    kept = []
    for row in table["mutations"]:
        answers = run({**calls.files, **calls.broken(row)}, calls.probes, with_tests=False).answers
        examples = sorted(_examples(answers, table["expected"]), key=lambda example: len(example[1]))
        tests = [table["tests"][place] for place in row["fail_to_pass"]]
        functions = calls.changed(row)
        chosen = [place for place, _ in examples[:2]]
        if chosen and calls.solve(row, tests, chosen, functions):
            chosen = []
            for place, _ in examples:
                if len(chosen) < 2 and not calls.solve(row, tests, [*chosen, place], functions):
                    chosen.append(place)
        if not chosen:
            print(
                f"{name}/{row['key']} is dropped: each call that shows it is all its tests need: {examples}", flush=True
            )
            continue
        kept.append({**row, "examples": [example for example in examples if example[0] in chosen]})
    table["mutations"] = kept


def solved_by_special_cases(name: str, keys: list[str] | None = None) -> list[str]:
    """Return the mutations, all or those with ``keys``, that a fix solves that only knows the calls of the issue.

    It knows them as they are written in the issue, and as they reach the function that has the bug.
    """
    calls, table = IssueCalls(name), table_of(name)

    def solved(row: Mapping[str, Any]) -> bool:
        tests, places = [table["tests"][test] for test in row["fail_to_pass"]], [place for place, _ in row["examples"]]
        return any(
            calls.solve(row, tests, places, functions) for functions in (set[tuple[str, str]](), calls.changed(row))
        )

    return [row["key"] for row in table["mutations"] if (keys is None or row["key"] in keys) and solved(row)]


def _examples(answers: list[str], expected: list[str]) -> list[list[Any]]:
    return [
        [place, got]
        for place, (got, wanted) in enumerate(zip(answers, expected))
        if got != wanted and _is_informative(got)
    ]


def _taking_turns(found: list[Mutation]) -> list[Mutation]:
    """Alternate between the kinds of mutations, so that the many comparisons do not crowd out the others."""
    turn: Counter[str] = Counter()
    numbered = []
    for mutation in found:
        turn[mutation.kind] += 1
        numbered.append((turn[mutation.kind], mutation))
    return [mutation for _, mutation in sorted(numbered, key=lambda pair: pair[0])][:TRIED]


def _is_informative(got: str) -> bool:
    if DID_NOT_END in got or len(got) > 1500:
        return False
    return not (got.startswith("Traceback") and got.splitlines()[-1].partition(":")[0].rpartition(".")[2] in _DULL)


def _key(mutation: Mutation, rows: list[dict[str, Any]]) -> str:
    stem = f"m-{Path(mutation.path).stem}-{mutation.function}".replace("_", "-").lower().strip("-")
    taken = {row["key"] for row in rows}
    number = 1
    while f"{stem}-{number}" in taken:
        number += 1
    return f"{stem}-{number}"


def _applied(text: str, mutation: Mutation) -> str:
    return text[: mutation.start] + mutation.text + text[mutation.end :]


def _snippets(finished: str, broken: str) -> tuple[str, str]:
    """Return the lines that differ, with as much context as makes the finished ones unique."""
    old, new = finished.splitlines(keepends=True), broken.splitlines(keepends=True)
    first = next(place for place, (a, b) in enumerate(zip(old, new)) if a != b)
    tail = 0
    while tail < min(len(old), len(new)) - first and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    for more in range(20):
        start = max(0, first - more)
        left, right = "".join(old[start : len(old) - tail]), "".join(new[start : len(new) - tail])
        if left and finished.count(left) == 1:
            return left, right
        tail = max(0, tail - 1)
    raise AssertionError("no unique text around the mutation")


_COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
_COMPARISON_TEXT = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_OPERATORS = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
}
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_METHODS = {
    "strip": "lstrip", "rstrip": "lstrip", "lstrip": "rstrip", "startswith": "endswith", "removeprefix": "removesuffix",
    "partition": "rpartition", "rpartition": "partition", "ljust": "rjust", "rjust": "ljust", "fullmatch": "match",
}  # fmt: skip
_DROPPED_METHODS = ("lower", "strip", "rstrip", "lstrip", "casefold")


def mutations_of(path: str, source: str) -> Iterator[Mutation]:
    """Yield small changes, like common mistakes, in every function of a module."""
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))

    def place(line: int, column: int) -> int:
        # Columns of ast count bytes.
        text = source[offsets[line - 1] : offsets[line]]
        return offsets[line - 1] + len(text.encode()[:column].decode())

    for function in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)):
        docstring = function.body[0] if ast.get_docstring(function) else None
        for statement in function.body:
            if statement is docstring:
                continue
            for node in ast.walk(statement):
                if not hasattr(node, "lineno") or isinstance(node, ast.FunctionDef):
                    continue
                start, end = place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)
                yield from (
                    Mutation(path, function.name, kind, first, last, text)
                    for kind, first, last, text in _changes(node, source, start, end, place)
                )


def _changes(
    node: ast.AST, source: str, start: int, end: int, place: Callable[[int, int], int]
) -> Iterator[tuple[str, int, int, str]]:
    def span(part: Any) -> tuple[int, int]:
        return place(part.lineno, part.col_offset), place(part.end_lineno, part.end_col_offset)

    def swap(left: Any, right: Any, old: str, new: str, kind: str) -> Iterator[tuple[str, int, int, str]]:
        first, last = span(left)[1], span(right)[0]
        if source[first:last].count(old) == 1:
            at = first + source[first:last].index(old)
            yield kind, at, at + len(old), new

    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _COMPARISONS:
            old, new = _COMPARISON_TEXT[type(operator)], _COMPARISONS[type(operator)]
            yield from swap(left, right, f" {old} ", f" {new} ", "comparison")
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            yield from swap(left, right, *(f" {text} " for text in _OPERATORS[type(operator)]), "operator")
        case ast.BoolOp(op=operator, values=[left, right]):
            words = (" and ", " or ") if isinstance(operator, ast.And) else (" or ", " and ")
            yield from swap(left, right, *words, "logic")
            yield "condition", start, end, source[slice(*span(left))]
            yield "condition", start, end, source[slice(*span(right))]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "negation", start, end, source[slice(*span(operand))]
        case ast.UnaryOp(op=ast.USub(), operand=operand) if not isinstance(operand, ast.Constant):
            yield "sign", start, end, source[slice(*span(operand))]
        case ast.Constant(value=bool(value)):
            yield "constant", start, end, str(not value)
        case ast.Constant(value=int(value)):
            yield "constant", start, end, str(value + 1)
            if value > 0:
                yield "constant", start, end, str(value - 1)
        case ast.Call(func=ast.Name(id=name)) if name in _CALLS:
            yield "call", start, start + len(name), _CALLS[name]
        case ast.Call(func=ast.Name(id="sorted"), args=[argument, *_]):
            yield "call", start, end, f"list({source[slice(*span(argument))]})"
        case ast.Call(func=ast.Attribute(value=value, attr=name)):
            after = span(value)[1]
            if name in _METHODS and source[after : after + len(name) + 1] == f".{name}":
                yield "method", after + 1, after + 1 + len(name), _METHODS[name]
            if name in _DROPPED_METHODS:
                yield "dropped call", start, end, source[slice(*span(value))]
        case ast.If(orelse=[]):
            # Removes whole lines; if the block becomes empty, no test passes and the mutation is dropped.
            yield "branch", place(node.lineno, 0), end + 1, ""
        case ast.Continue():
            yield "loop", start, end, "break"
        case ast.Break():
            yield "loop", start, end, "continue"
        case ast.AugAssign(op=ast.Add() | ast.Sub()):
            old, new = ("+=", "-=") if isinstance(node.op, ast.Add) else ("-=", "+=")
            yield from swap(node.target, node.value, old, new, "update")
            yield "update", start, end, f"{source[slice(*span(node.target))]} = {source[slice(*span(node.value))]}"
        case ast.IfExp(test=_, body=body, orelse=orelse):
            yield "choice", start, end, source[slice(*span(body))]
            yield "choice", start, end, source[slice(*span(orelse))]
        case ast.Subscript(slice=ast.Slice(lower=ast.Constant(), upper=None) as part):
            yield "slice", *span(part), ":"


if __name__ == "__main__":
    sys.exit(main())
