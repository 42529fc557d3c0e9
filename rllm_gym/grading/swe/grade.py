"""The verdict on a changed repository: tests that must pass passed, tests that must fail failed, no sign of tampering.

Product code and test runner share a process, so what a run decides itself can be forged. With a trace of the reference
solution (:mod:`rllm_gym.grading.swe.trace`) it decides nothing: the tests run once, rewritten to send what they
observe, and their assertions are evaluated here. Without one, or with a test command of the repository's own, the tests
run several times, each in a fresh session over a fresh base. From inside, these runs look alike:

- the unchanged tests, with sentinels between them, which must fail;
- the same files, where each hidden test either has its expected values withheld, which must be computed
  (:mod:`rllm_gym.grading.swe.withheld_values`), or is mutated at one location, where it must fail
  (:mod:`rllm_gym.grading.swe.mutated_tests`);
- the files that only contain tests which must continue to pass;
- a few of the tests that the agent could read before, also mutated.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rllm_gym.grading.swe.change_filter import allowed_changes
from rllm_gym.grading.swe.hidden_run import HiddenRun, HiddenRuns, TestLocation
from rllm_gym.grading.swe.log_parsers import find_parser
from rllm_gym.grading.swe.mutated_tests import LineSpan
from rllm_gym.grading.swe.observed_grading import (
    names_in,
    names_tested,
    observe,
    observed_texts,
    problems_of,
    record_trace,
)
from rllm_gym.grading.swe.suspicious import suspicious_changes
from rllm_gym.grading.swe.test_run import HiddenTestOutcome, TestRun, TestRunner
from rllm_gym.grading.swe.trace import ObservedFiles, Trace
from rllm_gym.grading.swe.verdict import RepositoryTests, RepositoryVerdict
from rllm_gym.grading.swe.withheld_values import OPAQUE, RIGHT, WRONG, check_answers
from rllm_gym.runtime.run_coroutine import run_coroutine
from rllm_gym.sandbox.tree import Changes

if TYPE_CHECKING:
    from rllm_gym.sandbox.pool import SandboxPool
    from rllm_gym.sandbox.runtime import Runtime

_T = TypeVar("_T")

MAX_SINGLE_MUTATIONS = 2
MUTATED_RUN_TIMEOUT_FACTOR = 3.0
"""Factor on the timeout for runs in which tests fail, because reporting failures takes time too."""


async def grade_repository(
    pool: SandboxPool,
    base: Path,
    changes: Changes,
    tests: RepositoryTests,
    *,
    runtime: Runtime | None = None,
) -> RepositoryVerdict:
    """Grade ``changes`` to ``base``: do they make the hidden tests pass?

    Nothing of the agent's session is used: allowed changes and hidden tests are applied to a fresh base (see the module
    docstring). With a trace this takes one run; without one, a wrong change takes one and a right one two to four.

    Args:
        pool: The sandbox pool for sessions.
        base: The original tree; must not change meanwhile.
        changes: The differences of the agent's tree. May be hostile.
        tests: The hidden tests.
        runtime: The Python of the tests; ``None`` for the pool's default. It needs pytest, unless the task has its own
            test command.

    Returns:
        The verdict. Tests that loop, crash or flood their output count as failed.

    Raises:
        EnvironmentFault: The sandbox broke, or the runtime has no pytest. Never caused by the change.
        TaskError: ``tests`` names an unknown log parser.
    """
    grading = await asyncio.to_thread(_Grading, pool, base, changes, tests, runtime)
    return await grading.verdict()


def grade_repository_sync(
    pool: SandboxPool, base: Path, changes: Changes, tests: RepositoryTests, *, runtime: Runtime | None = None
) -> RepositoryVerdict:
    """Run :func:`grade_repository` from synchronous code, even if an event loop is running."""
    return run_coroutine(grade_repository(pool, base, changes, tests, runtime=runtime))


async def check_repository_task(
    pool: SandboxPool, base: Path, gold: Changes, tests: RepositoryTests, *, runtime: Runtime | None = None
) -> list[str]:
    """Check a task; return one line per problem. Empty if its solution is accepted and an empty change is not.

    Args:
        pool: The sandbox pool for sessions.
        base: The original tree.
        gold: The reference solution, as changes to ``base``.
        tests: The hidden tests.
        runtime: As in :func:`grade_repository`.

    Raises:
        EnvironmentFault: As in :func:`grade_repository`.
        TaskError: ``tests`` names an unknown log parser.
    """
    solved = await grade_repository(pool, base, gold, tests, runtime=runtime)
    nothing = Changes({}, frozenset())
    untouched = await (await asyncio.to_thread(_Grading, pool, base, nothing, tests, runtime)).verdict(run_all=True)
    found = []
    if not solved.correct:
        found.append(f"the reference solution is rejected: {solved.reason}")
        found += [f"with the reference solution, {test}: {message}" for test, message in solved.failed.items()]
    found += [f"of the reference solution, {line}" for line in solved.dropped]
    if untouched.correct:
        found.append("an empty change is accepted")
    passing = set(untouched.passed)
    found += [
        f"{test} is in fail_to_pass but passes without the solution" for test in tests.fail_to_pass if test in passing
    ]
    found += [
        f"{test} is in pass_to_pass but fails without the solution: {untouched.failed[test]}"
        for test in tests.pass_to_pass
        if test not in passing
    ]
    return found


def check_repository_task_sync(
    pool: SandboxPool, base: Path, gold: Changes, tests: RepositoryTests, *, runtime: Runtime | None = None
) -> list[str]:
    """Run :func:`check_repository_task` from synchronous code."""
    return run_coroutine(check_repository_task(pool, base, gold, tests, runtime=runtime))


def record_trace_sync(
    pool: SandboxPool, base: Path, gold: Changes, tests: RepositoryTests, *, runtime: Runtime | None = None
) -> str:
    """Run :func:`record_trace` from synchronous code."""
    return run_coroutine(record_trace(pool, base, gold, tests, runtime=runtime))


class _Grading:
    """The state of one verdict."""

    def __init__(
        self, pool: SandboxPool, base: Path, changes: Changes, tests: RepositoryTests, runtime: Runtime | None
    ) -> None:
        if tests.log_parser is not None:
            find_parser(tests.log_parser)
        self.allowed = allowed_changes(base, changes, tests)
        self.suspicious = suspicious_changes(base, self.allowed.changes)
        self.base = base
        self.tests = tests
        self.runner = TestRunner(pool, base, self.allowed, tests, runtime)
        self.trace = Trace.from_json(tests.trace) if tests.trace is not None and self.runner.own_run else None
        # Seeded from the system: the position of a mutation must not be predictable.
        rng = random.Random(secrets.randbits(128))
        self.hidden_runs = HiddenRuns(base, tests, node_ids=self.runner.own_run, rng=rng)
        self.shadowing: tuple[str, ...] = ()
        self.remarks: list[str] = []
        self.failed: dict[str, str] = {}
        self.passed: set[str] = set()

    async def verdict(self, *, run_all: bool = False) -> RepositoryVerdict:
        """Return the verdict. ``run_all``: also run what can no longer change it, to report every listed test."""
        if self.allowed.refusal:
            return self._conclude(f"product code accesses the test runner: {self.allowed.refusal}")
        if self.trace is not None:
            return self._conclude(await self._observed(self.trace))
        main, mutated_runs, ran = await self._first_runs()
        self.shadowing = main.shadowing
        wrong = self._wrong_with(main, self.hidden_runs.main)
        if wrong:
            if run_all:
                await self._others()
            return self._conclude(wrong)
        unmutated = self.hidden_runs.without_mutation(mutated_runs[0])
        if unmutated:
            self.remarks.append(f"{len(unmutated)} of the tests to fix could not be mutated")
        found = await _gather_all(
            self._others(),
            *(self._forgery_in(mutated, main, run) for mutated, run in zip(mutated_runs, ran)),
            self._forgery_in(self.hidden_runs.visible_mutated_run(), None, None),
        )
        return self._conclude(next((wrong for wrong in found if wrong), ""))

    async def _observed(self, trace: Trace) -> str:
        """Run the rewritten tests once and evaluate them here; return why the change is rejected."""
        runs = self.hidden_runs
        texts = await asyncio.to_thread(observed_texts, runs, self.tests)
        observed = await asyncio.to_thread(ObservedFiles, texts, trace.plans, recording=False)
        run = await observe(self.runner, runs.files, observed)
        self.shadowing = run.shadowing
        listed = {test: runs.id_of(test) for test in self.tests.listed}
        before = await asyncio.to_thread(names_in, self.base)
        to_fix = frozenset(self.tests.fail_to_pass)
        tested = await asyncio.to_thread(names_tested, texts)
        self.failed = await asyncio.to_thread(
            problems_of, run, trace, observed, listed, to_fix=to_fix, before=before, tested=tested
        )
        self.passed = set(self.tests.listed) - self.failed.keys()
        if run.broken:
            return run.broken
        for name, tests in (("fix", self.tests.fail_to_pass), ("keep", self.tests.pass_to_pass)):
            wrong = sum(test in self.failed for test in tests)
            if wrong:
                return f"{wrong} of {len(tests)} tests to {name} fail"
        return ""

    async def _first_runs(self) -> tuple[TestRun, list[HiddenRun], list[TestRun | None]]:
        """Return the main run, the mutated runs, and their results if they had to start together with it.

        A test without withheld values can be forged by code that knows, or guesses, which run is which. Timing would
        reveal it if one run followed the other, so they start together, and an additional mutated run makes guessing
        harder.
        """
        mutated_runs = [await asyncio.to_thread(self.hidden_runs.mutated_run)]
        if not self.hidden_runs.without_withheld(mutated_runs[0]):
            return await self.runner.run(self.hidden_runs.main), mutated_runs, [None]
        if self.runner.own_run and not mutated_runs[0].withheld:
            mutated_runs.append(await asyncio.to_thread(self.hidden_runs.mutated_run))
        mutated_runs = [mutated for mutated in mutated_runs if mutated.mutated or mutated.withheld] or mutated_runs[:1]
        runs_to_do = [
            (self.hidden_runs.main, 1.0),
            *((run, MUTATED_RUN_TIMEOUT_FACTOR) for run in mutated_runs if run.mutated or run.withheld),
        ]
        order = random.SystemRandom().sample(range(len(runs_to_do)), len(runs_to_do))
        ran = await _gather_all(*(self.runner.run(runs_to_do[n][0], timeout_factor=runs_to_do[n][1]) for n in order))
        runs = [run for _, run in sorted(zip(order, ran), key=lambda pair: pair[0])]
        return runs[0], mutated_runs, [*runs[1:]] or [None]

    def _conclude(self, wrong: str) -> RepositoryVerdict:
        for test in self.tests.listed:
            if test not in self.passed:
                self.failed.setdefault(test, "not run: the verdict was already decided")
        return RepositoryVerdict(
            correct=not wrong and not self.failed,
            passed=tuple(test for test in self.tests.listed if test in self.passed),
            failed={test: self.failed[test] for test in self.tests.listed if test in self.failed},
            dropped=self.allowed.dropped + self.shadowing,
            reason=wrong or self._why_right(),
            evidence="trace" if self.trace is not None else "report" if self.runner.own_run else "log",
            remarks=tuple(self.remarks),
            suspicious=self.suspicious,
        )

    def _why_right(self) -> str:
        if self.trace is not None:
            return "every listed test passes, evaluated outside the sandbox"
        return "every listed test passes and every mutated test fails"

    # Unchanged tests

    async def _others(self) -> str:
        """Run the files without tests to fix; return why they reject the change."""
        if self.hidden_runs.others is None:
            return ""
        return self._wrong_with(await self.runner.run(self.hidden_runs.others), self.hidden_runs.others)

    def _wrong_with(self, run: TestRun, hidden_run: HiddenRun) -> str:
        """Record the listed tests; return why the run rejects the change, empty if it does not."""
        listed = self.hidden_runs.tests_of(hidden_run)
        for test in listed:
            message = run.broken or self._why_not_passed(run, test)
            if message:
                self.failed[test] = message
            else:
                self.passed.add(test)
        if run.broken:
            return run.broken
        if run.tampered:
            return "the text of the test files was changed during the run"
        fixed = [test for test in self.tests.fail_to_pass if test in listed]
        for name, tests in (("fix", fixed), ("keep", [test for test in listed if test not in fixed])):
            wrong = sum(test in self.failed for test in tests)
            if wrong:
                return f"{wrong} of {len(tests)} tests to {name} fail"
        for test, span in hidden_run.sentinels.items():
            outcomes = run.outcomes.get(test, [])
            if len(outcomes) != 1 or not _failed_at(outcomes[0], span):
                return "a sentinel test, which must fail, did not fail at its assertion"
        if self.runner.own_run and run.code != 1:
            return f"the sentinel tests failed, but pytest's exit code is {run.code}"
        return ""

    def _why_not_passed(self, run: TestRun, test: str) -> str:
        wanted = self.hidden_runs.id_of(test)
        matching = {wanted: run.outcomes[wanted]} if wanted in run.outcomes else {}
        if not matching and "[" in wanted and not wanted.endswith("]"):
            # Ids of rows created from logs end at the first space.
            matching = {known: found for known, found in run.outcomes.items() if known.split(" ")[0] == wanted}
        if not matching:
            file = wanted.partition("::")[0]
            reason = next((message for path, message in run.uncollected.items() if path == file), "")
            return f"its file could not be collected: {reason}" if reason else "it was not run: the test does not exist"
        for outcomes in matching.values():
            if len(outcomes) != 1:
                return f"it was reported {len(outcomes)} times"
            if not outcomes[0].passed:
                return outcomes[0].message or "it did not pass"
        return ""

    # Mutated tests

    async def _forgery_in(self, mutated: HiddenRun, reference: TestRun | None, run: TestRun | None) -> str:
        """Check a run of mutated tests and tests with withheld values; return the problem, empty if there is none.

        ``run`` is its result if it has already been run.
        """
        if not mutated.mutated and not mutated.withheld:
            return ""
        run = run or await self.runner.run(mutated, timeout_factor=MUTATED_RUN_TIMEOUT_FACTOR)
        if run.broken:
            return f"a run with mutated tests did not complete like the original run: {run.broken}"
        doubtful: list[TestLocation] = []
        for location, span in mutated.mutated.items():
            outcomes = self._outcomes_at(run, location)
            if any(outcome.passed for outcome in outcomes):
                return "a mutated test passes"
            if not self._fails_as_mutated(
                outcomes, span, self._outcomes_at(reference, location) if reference else None
            ):
                doubtful.append(location)
        return await self._recheck(mutated, doubtful) or await self._wrong_answers_in(mutated, run, reference)

    async def _wrong_answers_in(self, mutated: HiddenRun, run: TestRun, reference: TestRun | None) -> str:
        """Return the problem with the computed values; empty if each equals its withheld value."""
        answers = self._answers(mutated, run, reference)
        wrong = [location for location, verdict in answers.items() if verdict == WRONG]
        if wrong:
            # Mutated tests between them may leave behind state that makes others fail.
            alone = self.hidden_runs.mutate(self._unmutated(mutated), wrong, withhold=True)
            answers |= self._answers(
                alone, await self.runner.run(alone, timeout_factor=MUTATED_RUN_TIMEOUT_FACTOR), None
            )
        opaque = [location for location, verdict in answers.items() if verdict == OPAQUE]
        if opaque and WRONG not in answers.values():
            # Only their own class can compare such values: have it select one of several literals.
            asked = self.hidden_runs.mutate(self._unmutated(mutated), opaque, withhold=True, choices=True)
            answers |= self._answers(
                asked, await self.runner.run(asked, timeout_factor=MUTATED_RUN_TIMEOUT_FACTOR), None
            )
        return "" if set(answers.values()) <= {RIGHT} else "a value computed for a test differs from the expected value"

    def _answers(self, hidden_run: HiddenRun, run: TestRun, reference: TestRun | None) -> dict[TestLocation, str]:
        """Return the verdict on each function's withheld values, over all its parameters."""
        found = {}
        for location, withheld in hidden_run.withheld.items():
            outcomes = self._outcomes_at(run, location)
            true = self._outcomes_at(reference, location) if reference else []
            if len(true) == len(outcomes):
                wanted = [outcome for outcome, item in zip(outcomes, true) if item.passed]
            else:
                wanted = [outcome for outcome in outcomes if not outcome.skipped] if reference is None else []
            verdicts = [check_answers(withheld, outcome.answers, hidden_run.choices) for outcome in wanted] or [WRONG]
            found[location] = next(item for item in (WRONG, OPAQUE, RIGHT) if item in verdicts)
        return found

    async def _recheck(self, mutated: HiddenRun, doubtful: list[TestLocation]) -> str:
        """Repeat mutated tests that failed at another line.

        Earlier failures may be the cause. Run alone they must fail at the mutation.
        """
        for location in doubtful[:MAX_SINGLE_MUTATIONS]:
            alone = self.hidden_runs.mutate(self._unmutated(mutated), [location])
            run = await self.runner.run(alone, timeout_factor=MUTATED_RUN_TIMEOUT_FACTOR)
            outcomes = self._outcomes_at(run, location)
            if run.broken or not self._fails_as_mutated(outcomes, alone.mutated[location], None):
                return "a mutated test does not fail at its mutation"
        if len(doubtful) > MAX_SINGLE_MUTATIONS:
            self.remarks.append(f"{len(doubtful)} mutated tests failed at another line when run together")
        return ""

    def _fails_as_mutated(
        self, outcomes: list[HiddenTestOutcome], span: LineSpan, reference: list[HiddenTestOutcome] | None
    ) -> bool:
        """Return whether each run of a mutated test whose original passes failed because of the mutation."""
        if reference is None:
            wanted = [outcome for outcome in outcomes if not outcome.skipped]
        elif len(reference) == len(outcomes):
            # With other parameters the ids differ, but not their order.
            wanted = [outcome for outcome, true in zip(outcomes, reference) if true.passed]
        else:
            return False
        return bool(outcomes) and all(_failed_at(outcome, span) for outcome in wanted)

    def _unmutated(self, mutated: HiddenRun) -> HiddenRun:
        """Return the run from which a mutated run was derived."""
        for hidden_run in (self.hidden_runs.main, self.hidden_runs.others):
            if hidden_run is not None and set(mutated.files) <= set(hidden_run.files):
                return HiddenRun(mutated.files, hidden_run.texts, hidden_run.sentinels)
        return HiddenRun(
            mutated.files,
            {**self.hidden_runs.main.texts, **(self.hidden_runs.others.texts if self.hidden_runs.others else {})},
        )

    def _outcomes_at(self, run: TestRun, location: TestLocation) -> list[HiddenTestOutcome]:
        return [
            outcome
            for test, outcomes in run.outcomes.items()
            if self.hidden_runs.is_at(test, location)
            for outcome in outcomes
        ]


def _failed_at(outcome: HiddenTestOutcome, span: LineSpan) -> bool:
    """Return whether a mutated test failed because of its mutation; from a log, only whether it failed."""
    if outcome.passed:
        return False
    if outcome.failed_in_call is None:
        return outcome.word in ("FAILED", "FAIL", "F", "ERROR", "E")
    return outcome.failed_in_call and any(span.first <= line <= span.last for line in outcome.lines)


async def _gather_all(*work: Coroutine[Any, Any, _T]) -> list[_T]:
    """Run all coroutines concurrently; if one raises, the others are cancelled first."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(item) for item in work]
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    return [task.result() for task in tasks]
