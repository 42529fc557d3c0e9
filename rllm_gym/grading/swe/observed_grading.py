"""Grading with a trace: one run of rewritten tests, whose assertions are evaluated outside the sandbox."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllm_gym.core import TaskError
from rllm_gym.grading.swe.change_filter import allowed_changes
from rllm_gym.grading.swe.hidden_run import HiddenRun, HiddenRuns
from rllm_gym.grading.swe.instrument import MAX_BYTES, MODULE
from rllm_gym.grading.swe.observed_values import FieldNames, collect_fields
from rllm_gym.grading.swe.test_run import TestRun, TestRunner
from rllm_gym.grading.swe.test_source import function_key
from rllm_gym.grading.swe.trace import UNOBSERVED, ObservedFiles, Trace, by_listed_id
from rllm_gym.grading.swe.trace_check import TestCheck
from rllm_gym.grading.swe.trace_recorder import TraceRecorder, with_counts
from rllm_gym.grading.swe.verdict import RepositoryTests
from rllm_gym.sandbox.tree import Changes

if TYPE_CHECKING:
    from rllm_gym.sandbox.pool import SandboxPool
    from rllm_gym.sandbox.runtime import Runtime

MAX_REFINEMENTS = 4

_NAMES = re.compile(
    r"^\s*class (\w+)|\.(\w+)|^\s+(\w+)\s*[:=]|^\s+def (__len__|__iter__)\b|property\s+def (\w+)", re.MULTILINE
)
_TESTED = re.compile(r"\.(\w+)|(\w+)=(?!=)")


def observed_texts(runs: HiddenRuns, tests: RepositoryTests) -> dict[str, str]:
    """Return the test files that are rewritten, by path: the hidden ones, and those of listed tests."""
    return {path: text for path in runs.paths(tests.hidden_tests) if (text := runs.text(path)) is not None}


async def observe(runner: TestRunner, files: tuple[str, ...], observed: ObservedFiles) -> TestRun:
    """Run rewritten tests. ``files``: those to run; the others are imported."""
    return await runner.run(HiddenRun(files, observed.texts(), observed=MODULE))


def problems_of(
    run: TestRun,
    trace: Trace,
    observed: ObservedFiles,
    listed: Mapping[str, str],
    *,
    to_fix: Collection[str],
    before: frozenset[str],
    tested: frozenset[str],
) -> dict[str, str]:
    """Return why each listed test does not pass, inside or outside.

    Args:
        run: The run of rewritten tests.
        trace: The trace.
        observed: The rewritten files.
        listed: The node ids of the tests, by the ids of the task.
        to_fix: Those that the change has to fix.
        before: The names of classes and attributes in the original tree.
        tested: The attributes and keywords in the hidden tests.
    """
    present: dict[str, set[str]] = {}
    for outcomes in run.outcomes.values():
        for outcome in outcomes:
            collect_fields(list(outcome.observed), present)
    names = FieldNames(before, present, tested)
    errors = trace.errors()
    now = by_listed_id(run.outcomes, trace)
    found: dict[str, str] = {}
    for test, wanted in listed.items():
        outcomes = run.outcomes.get(now.get(wanted, wanted), [])
        if run.broken:
            found[test] = run.broken
        elif trace.tests.get(wanted, UNOBSERVED) == UNOBSERVED:
            found[test] = "it is not in the trace of the task: it could not be observed, or was not listed"
        elif len(outcomes) != 1:
            path = wanted.partition("::")[0]
            reason = run.uncollected.get(path)
            missing = f"its file could not be collected: {reason}" if reason else "it was not run: it does not exist"
            found[test] = f"it was reported {len(outcomes)} times" if outcomes else missing
        elif not outcomes[0].passed:
            found[test] = outcomes[0].message or "it did not pass"
        else:
            check = TestCheck(observed, trace.tests[wanted], names, errors, strict=test in to_fix)
            if problem := check.problem(outcomes[0].observed):
                found[test] = problem
    return found


def names_tested(texts: Mapping[str, str]) -> frozenset[str]:
    """Return the attributes and keywords in test files."""
    return frozenset(match[1] or match[2] for text in texts.values() for match in _TESTED.finditer(text))


def names_in(base: Path) -> frozenset[str]:
    """Return the names of classes and attributes that occur in the Python files of a tree."""
    found: set[str] = set()
    for folder, folders, files in os.walk(base, followlinks=False):
        folders[:] = [name for name in folders if name != ".git"]
        for name in files:
            path = Path(folder, name)
            if name.endswith(".py") and not path.is_symlink():
                with path.open("rb") as stream:
                    text = stream.read(MAX_BYTES).decode(errors="replace")
                found.update(match[match.lastindex or 0] for match in _NAMES.finditer(text))
    shown = {f"{name.strip('_')}()" for name in ("__len__", "__iter__") if name in found}  # as the observer names them
    return frozenset(found | shown)


async def record_trace(
    pool: SandboxPool, base: Path, gold: Changes, tests: RepositoryTests, *, runtime: Runtime | None = None
) -> str:
    """Run the hidden tests with the reference solution and record what they observe.

    Args:
        pool: The sandbox pool for sessions.
        base: The original tree.
        gold: The reference solution, as changes to ``base``. Trusted.
        tests: The hidden tests.
        runtime: The Python of the tests; ``None`` for the pool's default.

    Returns:
        The trace, for ``RepositoryTests.trace``. It contains expected values: do not show it to the model. Tests to
        keep that cannot be observed are not in it, and a task that lists them is not solved by its solution.

    Raises:
        TaskError: The tests to fix cannot be observed: they have a test command of their own, do not pass, or nothing
            in one can be compared with a value that the code under test cannot read.
        EnvironmentFault: The sandbox broke, or the runtime has no pytest.
    """
    trace, problems = await observe_solution(pool, base, gold, tests, runtime=runtime)
    for test, problem in problems.items():
        raise TaskError(f"{test} cannot be graded: {problem}")
    return trace


async def observe_solution(
    pool: SandboxPool, base: Path, gold: Changes, tests: RepositoryTests, *, runtime: Runtime | None = None
) -> tuple[str, dict[str, str]]:
    """Return the trace of :func:`record_trace`, and why each test to fix that cannot be graded cannot.

    Raises:
        TaskError: No test can be observed.
        EnvironmentFault: The sandbox broke, or the runtime has no pytest.
    """
    tests = replace(tests, trace=None)
    allowed = await asyncio.to_thread(allowed_changes, base, gold, tests)
    runner = TestRunner(pool, base, allowed, tests, runtime)
    if not runner.own_run:
        raise TaskError(
            f"test_command={tests.test_command!r}: only tests that our own pytest call runs can be observed"
        )
    runs = HiddenRuns(base, tests, node_ids=True)
    recorder = TraceRecorder(await asyncio.to_thread(observed_texts, runs, tests))

    ids: list[str] = []

    async def events(observed: ObservedFiles) -> dict[str, tuple[Any, ...]]:
        run = await observe(runner, runs.files, observed)
        if run.broken:
            raise TaskError(f"the tests cannot be observed with the reference solution: {run.broken}")
        ids[:] = run.outcomes
        return {test: found[0].observed for test, found in run.outcomes.items() if len(found) == 1 and found[0].passed}

    observed = await asyncio.to_thread(recorder.files)
    first = await events(observed)
    for _ in range(MAX_REFINEMENTS):
        if not recorder.refine(observed, first):
            break
        observed = await asyncio.to_thread(recorder.files)
        first = await events(observed)
    trace = recorder.trace(observed, [first, await events(observed)])
    listed = {runs.id_of(test) for test in tests.listed}
    functions = set(map(function_key, listed))
    trace = replace(
        trace, tests={test: trace.tests.get(test, UNOBSERVED) for test in ids if function_key(test) in functions}
    )
    recorded = trace
    for last in (False, True):
        graded = await asyncio.to_thread(ObservedFiles, recorder.texts, trace.plans, recording=False)
        run = await observe(runner, runs.files, graded)
        now = by_listed_id(run.outcomes, recorded)
        seen = {test: run.outcomes[name][0].observed for test, name in now.items() if run.outcomes[name][0].passed}
        trace, wrong = with_counts(replace(recorded, plans=trace.plans), graded, seen)
        again = [test for test in wrong if recorded.tests[test] != UNOBSERVED and test in first]
        if last or not again:
            break
        for test in again:
            recorder.keep(observed, first[test])
        trace = replace(trace, plans=recorder.plans)
    problems: dict[str, str] = {}
    for test in tests.fail_to_pass:
        wanted = runs.id_of(test)
        problem = wrong.get(wanted, "" if wanted in trace.tests else "it was not run")
        if not problem and not trace.tests[wanted].conclusive:
            problem = "nothing in it is compared with a value that the code under test cannot read"
        if problem:
            problems[test] = problem
    found = {test: one if test in listed - wrong.keys() else UNOBSERVED for test, one in trace.tests.items()}
    return replace(trace, tests=found).to_json(), problems
