"""The verdict on a changed repository: tests that must pass passed, tests that must fail failed, no sign of tampering.

Product code and test runner share a process, so the result of a single run can be forged. Therefore the tests run
several times, each in a fresh session over a fresh base. From inside, the runs look alike:

- the unchanged tests, with sentinels between them, which must fail;
- the same files, where each hidden test has blanks for expected values, which must be filled in
  (:mod:`rllm_gym.grading.swe.blanks`), or else is mutated at one place, where it must fail
  (:mod:`rllm_gym.grading.swe.twins`);
- the files that only contain tests which must continue to pass;
- a few of the tests that the agent could read before, also mutated.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import secrets
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rllm_gym.grading.swe.allowed import allowed_changes
from rllm_gym.grading.swe.blanks import OPAQUE, RIGHT, WRONG, judge
from rllm_gym.grading.swe.exam import Exam, Place, Sheet
from rllm_gym.grading.swe.log_parsers import find_parser
from rllm_gym.grading.swe.runs import Bench, Outcome, Run
from rllm_gym.grading.swe.twins import Span
from rllm_gym.grading.swe.verdict import RepositoryTests, RepositoryVerdict
from rllm_gym.sandbox.tree import Changes

if TYPE_CHECKING:
    from rllm_gym.sandbox.pool import SandboxPool
    from rllm_gym.sandbox.runtime import Runtime

_T = TypeVar("_T")

MAX_SINGLE_TWINS = 2
TWIN_PATIENCE = 3.0
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

    Nothing of the agent's session is used: allowed changes and hidden tests are applied to a fresh base, several times
    (see the module docstring). A wrong change takes one run, a right one two to four.

    Args:
        pool: The sandbox pool for sessions.
        base: The pristine tree; must not change meanwhile.
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
    return _wait_for(grade_repository(pool, base, changes, tests, runtime=runtime))


async def check_repository_task(
    pool: SandboxPool, base: Path, gold: Changes, tests: RepositoryTests, *, runtime: Runtime | None = None
) -> list[str]:
    """Check a task; return one line per problem. Empty if its solution is accepted and an empty change is not.

    Args:
        pool: The sandbox pool for sessions.
        base: The pristine tree.
        gold: The reference solution, as changes to ``base``.
        tests: The hidden tests.
        runtime: As in :func:`grade_repository`.

    Raises:
        EnvironmentFault: As in :func:`grade_repository`.
        TaskError: ``tests`` names an unknown log parser.
    """
    solved = await grade_repository(pool, base, gold, tests, runtime=runtime)
    nothing = Changes({}, frozenset())
    untouched = await (await asyncio.to_thread(_Grading, pool, base, nothing, tests, runtime)).verdict(whole=True)
    found = []
    if not solved.correct:
        found.append(f"the reference solution is not accepted: {solved.reason}")
        found += [f"with the reference solution, {test}: {why}" for test, why in solved.failed.items()]
    found += [f"of the reference solution, {line}" for line in solved.dropped]
    if untouched.correct:
        found.append("doing nothing is accepted")
    passing = set(untouched.passed)
    found += [f"{test} is in fail_to_pass, and passes before" for test in tests.fail_to_pass if test in passing]
    found += [
        f"{test} is in pass_to_pass, and fails before: {untouched.failed[test]}"
        for test in tests.pass_to_pass
        if test not in passing
    ]
    return found


def check_repository_task_sync(
    pool: SandboxPool, base: Path, gold: Changes, tests: RepositoryTests, *, runtime: Runtime | None = None
) -> list[str]:
    """Run :func:`check_repository_task` from synchronous code."""
    return _wait_for(check_repository_task(pool, base, gold, tests, runtime=runtime))


class _Grading:
    """The state of one verdict."""

    def __init__(
        self, pool: SandboxPool, base: Path, changes: Changes, tests: RepositoryTests, runtime: Runtime | None
    ) -> None:
        if tests.log_parser is not None:
            find_parser(tests.log_parser)
        self.allowed = allowed_changes(base, changes, tests)
        self.tests = tests
        self.bench = Bench(pool, base, self.allowed, tests, runtime)
        # Seeded from the system: the position of a mutation must not be predictable.
        rng = random.Random(secrets.randbits(128))
        self.exam = Exam(base, tests, node_ids=self.bench.own_run, rng=rng)
        self.shadowing: tuple[str, ...] = ()
        self.remarks: list[str] = []
        self.failed: dict[str, str] = {}
        self.passed: set[str] = set()

    async def verdict(self, *, whole: bool = False) -> RepositoryVerdict:
        """Return the verdict. ``whole``: also run what can no longer change it, to report every listed test."""
        if self.allowed.refusal:
            return self._conclude(f"product code reaches for the test runner: {self.allowed.refusal}")
        main, twins, ran = await self._first_runs()
        self.shadowing = main.shadowing
        wrong = self._wrong_with(main, self.exam.main)
        if wrong:
            if whole:
                await self._others()
            return self._conclude(wrong)
        without = self.exam.without_twin(twins[0])
        if without:
            self.remarks.append(f"no false twin could be made of {len(without)} of the tests to fix")
        found = await _together(
            self._others(),
            *(self._forged(twin, main, run) for twin, run in zip(twins, ran)),
            self._forged(self.exam.seen_twin(), None, None),
        )
        return self._conclude(next((wrong for wrong in found if wrong), ""))

    async def _first_runs(self) -> tuple[Run, list[Sheet], list[Run | None]]:
        """Return the main run, the mutated sheets, and their runs if they had to start together with it.

        A test without blanks can be forged by code that knows, or guesses, which run is which. Timing would reveal it
        if one run followed the other, so they start together, and an additional mutated run makes guessing harder.
        """
        twins = [await asyncio.to_thread(self.exam.twin)]
        if not self.exam.without_blanks(twins[0]):
            return await self.bench.run(self.exam.main), twins, [None]
        if self.bench.own_run and not twins[0].blanks:
            twins.append(await asyncio.to_thread(self.exam.twin))
        twins = [twin for twin in twins if twin.altered or twin.blanks] or twins[:1]
        sheets = [(self.exam.main, 1.0), *((twin, TWIN_PATIENCE) for twin in twins if twin.altered or twin.blanks)]
        order = random.SystemRandom().sample(range(len(sheets)), len(sheets))
        ran = await _together(*(self.bench.run(sheets[n][0], patience=sheets[n][1]) for n in order))
        runs = [run for _, run in sorted(zip(order, ran), key=lambda pair: pair[0])]
        return runs[0], twins, [*runs[1:]] or [None]

    def _conclude(self, wrong: str) -> RepositoryVerdict:
        for test in self.tests.listed:
            if test not in self.passed:
                self.failed.setdefault(test, "not run: the verdict was clear before")
        return RepositoryVerdict(
            correct=not wrong and not self.failed,
            passed=tuple(test for test in self.tests.listed if test in self.passed),
            failed={test: self.failed[test] for test in self.tests.listed if test in self.failed},
            dropped=self.allowed.dropped + self.shadowing,
            reason=wrong or "every listed test passes, and every false one fails",
            evidence="report" if self.bench.own_run else "log",
            remarks=tuple(self.remarks),
        )

    # Unchanged tests

    async def _others(self) -> str:
        """Run the files without tests to fix; return why they reject the change."""
        if self.exam.others is None:
            return ""
        return self._wrong_with(await self.bench.run(self.exam.others), self.exam.others)

    def _wrong_with(self, run: Run, sheet: Sheet) -> str:
        """Record the listed tests; return why the run rejects the change, empty if it does not."""
        listed = self.exam.tests_on(sheet)
        for test in listed:
            why = run.broken or self._why_not_passed(run, test)
            if why:
                self.failed[test] = why
            else:
                self.passed.add(test)
        if run.broken:
            return run.broken
        if run.spoiled:
            return "the text of the test files was changed during the run"
        fixed = [test for test in self.tests.fail_to_pass if test in listed]
        for name, tests in (("fix", fixed), ("keep", [test for test in listed if test not in fixed])):
            wrong = sum(test in self.failed for test in tests)
            if wrong:
                return f"{wrong} of {len(tests)} tests to {name} fail"
        for test, span in sheet.sentinels.items():
            outcomes = run.outcomes.get(test, [])
            if len(outcomes) != 1 or not _failed_at(outcomes[0], span):
                return "a test that must fail does not fail as it must"
        if self.bench.own_run and run.code != 1:
            return f"tests that must fail did, and yet pytest's exit code is {run.code}"
        return ""

    def _why_not_passed(self, run: Run, test: str) -> str:
        wanted = self.exam.id_of(test)
        matching = {wanted: run.outcomes[wanted]} if wanted in run.outcomes else {}
        if not matching and "[" in wanted and not wanted.endswith("]"):
            # Ids of rows created from logs end at a blank.
            matching = {known: found for known, found in run.outcomes.items() if known.split(" ")[0] == wanted}
        if not matching:
            file = wanted.partition("::")[0]
            why = next((message for place, message in run.uncollected.items() if place == file), "")
            return f"its file could not be collected: {why}" if why else "it was not run: there is no such test"
        for outcomes in matching.values():
            if len(outcomes) != 1:
                return f"it was reported {len(outcomes)} times"
            if not outcomes[0].passed:
                return outcomes[0].why or "it did not pass"
        return ""

    # Mutated tests

    async def _forged(self, twin: Sheet, honest: Run | None, run: Run | None) -> str:
        """Check a sheet of mutated tests and tests with blanks; return the problem, empty if it went as required.

        ``run`` is its run if it has already been run.
        """
        if not twin.altered and not twin.blanks:
            return ""
        run = run or await self.bench.run(twin, patience=TWIN_PATIENCE)
        if run.broken:
            return f"a run with false tests did not go like the honest one: {run.broken}"
        doubtful: list[Place] = []
        for place, span in twin.altered.items():
            outcomes = self._outcomes_at(run, place)
            if any(outcome.passed for outcome in outcomes):
                return "a false test passes"
            if not self._false_as_wanted(outcomes, span, self._outcomes_at(honest, place) if honest else None):
                doubtful.append(place)
        return await self._doubts(twin, doubtful) or await self._filled_in(twin, run, honest)

    async def _filled_in(self, twin: Sheet, run: Run, honest: Run | None) -> str:
        """Return the problem with the blanks' answers; empty if every blank has its expected value."""
        answers = self._answers(twin, run, honest)
        wrong = [place for place, verdict in answers.items() if verdict == WRONG]
        if wrong:
            # Mutated tests between them may leave behind state that makes others fail.
            alone = self.exam.altered(self._true(twin), wrong, blank=True)
            answers |= self._answers(alone, await self.bench.run(alone, patience=TWIN_PATIENCE), None)
        opaque = [place for place, verdict in answers.items() if verdict == OPAQUE]
        if opaque and WRONG not in answers.values():
            # Only their own class can compare such values: have it select one of several literals.
            asked = self.exam.altered(self._true(twin), opaque, blank=True, choices=True)
            answers |= self._answers(asked, await self.bench.run(asked, patience=TWIN_PATIENCE), None)
        return "" if set(answers.values()) <= {RIGHT} else "what a test expects was not what it was given"

    def _answers(self, sheet: Sheet, run: Run, honest: Run | None) -> dict[Place, str]:
        """Return the verdict on each function's blanks, over all its parameters."""
        found = {}
        for place, blanks in sheet.blanks.items():
            outcomes = self._outcomes_at(run, place)
            true = self._outcomes_at(honest, place) if honest else []
            if len(true) == len(outcomes):
                wanted = [outcome for outcome, each in zip(outcomes, true) if each.passed]
            else:
                wanted = [outcome for outcome in outcomes if not outcome.skipped] if honest is None else []
            verdicts = [judge(blanks, outcome.answers, sheet.choices) for outcome in wanted] or [WRONG]
            found[place] = next(each for each in (WRONG, OPAQUE, RIGHT) if each in verdicts)
        return found

    async def _doubts(self, twin: Sheet, doubtful: list[Place]) -> str:
        """Repeat mutated tests that failed at another place.

        Earlier failures may be the cause. Run alone they must fail at the mutation.
        """
        for place in doubtful[:MAX_SINGLE_TWINS]:
            alone = self.exam.altered(self._true(twin), [place])
            run = await self.bench.run(alone, patience=TWIN_PATIENCE)
            outcomes = self._outcomes_at(run, place)
            if run.broken or not self._false_as_wanted(outcomes, alone.altered[place], None):
                return "a false test does not fail where it is false"
        if len(doubtful) > MAX_SINGLE_TWINS:
            self.remarks.append(f"{len(doubtful)} false tests failed elsewhere when run together")
        return ""

    def _false_as_wanted(self, outcomes: list[Outcome], span: Span, honest: list[Outcome] | None) -> bool:
        """Return whether each run of a mutated test whose original passes failed because of the mutation."""
        if honest is None:
            wanted = [outcome for outcome in outcomes if not outcome.skipped]
        elif len(honest) == len(outcomes):
            # With other parameters the ids differ, but not their order.
            wanted = [outcome for outcome, true in zip(outcomes, honest) if true.passed]
        else:
            return False
        return bool(outcomes) and all(_failed_at(outcome, span) for outcome in wanted)

    def _true(self, twin: Sheet) -> Sheet:
        """Return the sheet that a mutated sheet was made from."""
        for sheet in (self.exam.main, self.exam.others):
            if sheet is not None and set(twin.files) <= set(sheet.files):
                return Sheet(twin.files, sheet.texts, sheet.sentinels)
        return Sheet(twin.files, {**self.exam.main.texts, **(self.exam.others.texts if self.exam.others else {})})

    def _outcomes_at(self, run: Run, place: Place) -> list[Outcome]:
        return [
            outcome for test, outcomes in run.outcomes.items() if self.exam.is_at(test, place) for outcome in outcomes
        ]


def _failed_at(outcome: Outcome, span: Span) -> bool:
    """Return whether a mutated test failed because of its mutation; from a log, only whether it failed."""
    if outcome.passed:
        return False
    if outcome.failed_in_call is None:
        return outcome.word in ("FAILED", "FAIL", "F", "ERROR", "E")
    return outcome.failed_in_call and any(span.first <= line <= span.last for line in outcome.lines)


async def _together(*work: Coroutine[Any, Any, _T]) -> list[_T]:
    """Run all coroutines concurrently; if one raises, the others are cancelled first."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in work]
    except ExceptionGroup as several:
        raise several.exceptions[0] from None
    return [task.result() for task in tasks]


def _wait_for(work: Coroutine[Any, Any, _T]) -> _T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, work).result()
