"""Function tests: hidden test code in one sandbox calls the program in another and decides the verdict."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from rllm_gym.core import TaskError
from rllm_gym.grading.code.determinism import may_vary
from rllm_gym.grading.code.inside.argument_mutation import ALTERATIONS, MUTATIONS
from rllm_gym.grading.code.inside.extreme_numbers import CHANGES
from rllm_gym.grading.code.relay import ProtocolViolation, Relay, TestReport
from rllm_gym.grading.code.timed_pool import OUT_OF_TIME, OutOfTime, TimedPool
from rllm_gym.grading.code.ungradable import ungradable_reason
from rllm_gym.grading.code.verdict import TESTS_MEMORY_MB, CodeVerdict, FunctionTests, TestOutcome, bounded
from rllm_gym.sandbox import Ended, Limits, Program, ProgramResult, RunningProgram, SandboxPool, Tier
from rllm_gym.sandbox.runtime import require_pytest

_PACKAGE = "_sides"


async def grade_function(
    pool: SandboxPool, source: str, tests: FunctionTests, *, stop_at_first_failure: bool, show_expected: bool
) -> CodeVerdict:
    """Grade a program by test code that calls it. See :func:`rllm_gym.grading.code.grade_program`."""
    if tests.style == "pytest" and pool.tier is not Tier.DOCKER:
        require_pytest()
    reason = ungradable_reason(tests)
    if reason:
        return CodeVerdict((), 0, error=reason, ungradable=reason)
    runs = TimedPool(pool)
    report, ended = await _run(runs, source, tests, stop_at_first_failure, show_expected)
    verdict = _verdict(report, ended)
    if not verdict.correct:
        return verdict
    try:
        return await _check_further(runs, source, tests, report, verdict, show_expected)
    except OutOfTime:
        return _failed(verdict, "time", OUT_OF_TIME)


async def _check_further(
    pool: TimedPool, source: str, tests: FunctionTests, report: TestReport, verdict: CodeVerdict, show_expected: bool
) -> CodeVerdict:
    """Run the tests of a program that passed them in other ways, as far as it may have passed them without solving the
    task."""
    varies = may_vary(source)
    if report.extreme:
        verdict = await _check_extreme_numbers(pool, source, tests, verdict)
    # A test whose assertions fail on purpose does not pass if the program learns of no failure.
    if (
        verdict.correct
        and report.suppressed
        and _verdict(*await _run(pool, source, tests, True, False, hide=True)).correct
    ):
        verdict = _failed(verdict, "calls", _SUPPRESSED)
    if verdict.correct and any(report.claims.values()):
        verdict = await _check_other_objects(pool, source, tests, report, verdict)
    if verdict.correct and (report.believed_equalities or report.same_objects):
        verdict = await _check_equality_claims(pool, source, tests, report, verdict, varies)
    if verdict.correct and report.measured:
        verdict = await _check_measured(pool, source, tests, report, verdict, varies)
    if verdict.correct and report.changing_calls:
        verdict = await _check_mutated_arguments(pool, source, tests, report, verdict, varies)
    # The answers of a long conversation cannot be guessed.
    lucky = report.believed_equalities or report.changing_calls or report.messages < _MANY_MESSAGES
    again = _MAX_AGAIN if varies and lucky else -(-_MIN_ORDERS // report.orders) - 1 if report.orders else 0
    for _ in range(again if verdict.correct else 0):
        verdict = _verdict(*await _run(pool, source, tests, True, show_expected))
        if not verdict.correct:
            break
    return verdict


async def _check_extreme_numbers(
    pool: TimedPool, source: str, tests: FunctionTests, verdict: CodeVerdict
) -> CodeVerdict:
    """Fail a program that passes because a number of it is infinite or undefined: of which sign makes no difference.

    A test that expects infinity fails with minus infinity too, and one that expects a large number with no large one.
    """
    seed = _random.randrange(1 << 62)
    by_sign, by_size = [
        (await _run(pool, source, tests, False, False, extreme=change, seed=seed))[0] for change in CHANGES
    ]
    if by_size.failures - by_sign.failures:
        return _failed(verdict, "numbers", _INFINITE)
    return verdict


async def _check_other_objects(
    pool: TimedPool, source: str, tests: FunctionTests, report: TestReport, verdict: CodeVerdict
) -> CodeVerdict:
    """Fail a program whose objects are equal to, or in order with, whatever they are compared with.

    Making other objects changes the state of a class that counts its objects, so these runs need not pass. But what
    was true of two objects of the test must not be false because of them.
    """
    for _ in range(_PROBES):
        probed, _ = await _run(pool, source, tests, False, False, probe=True)
        if not probed.done:
            return _failed(verdict, "comparisons", probed.broken or "the program ended when other objects were made")
        if probed.probed_orders and all(probed.probed_orders):
            return _failed(verdict, "comparisons", _MADE_FIRST)
        if any(answer and not probed.claims.get(claim, True) for claim, answer in report.claims.items()):
            return _failed(verdict, "comparisons", _OTHERS_MATTER)
    return verdict


async def _check_equality_claims(
    pool: TimedPool, source: str, tests: FunctionTests, report: TestReport, verdict: CodeVerdict, varies: bool
) -> CodeVerdict:
    """Fail a program whose objects stay equal when the test makes one of them from other values."""
    claims, same = (
        _random.sample(found, min(_MAX_CLAIMS, len(found)))
        for found in (report.believed_equalities, report.same_objects)
    )
    first = -(-(_MAX_AGAIN if varies else _MIN_CHECKS) // (len(claims) or 1))

    def comparison(
        requests: list[int], altered_requests: list[int], *, known: bool = False
    ) -> Callable[[int, int], Awaitable[bool | None]]:
        """Return a function that compares in a run with altered requests; with ``known`` values that are no errors."""
        order = _random.sample(altered_requests, len(altered_requests))

        async def equal(number: int, seed: int) -> bool | None:
            alteration = (order[number % len(order)], ALTERATIONS[number % len(ALTERATIONS)], requests)
            altered, ended = await _run(pool, source, tests, False, False, alteration=alteration, seed=seed)
            if known and altered.altered_refused:
                return None
            # Where the comparison was not reached, the tests noticed the other values before it.
            answer = altered.altered_equality
            if answer and altered.altered_to_same:
                return None
            return _verdict(altered, ended).correct if answer is None else answer

        return equal

    async def always_equal(one: list[int], both: list[int]) -> bool:
        if not await _nearly_always(comparison(one, one), first, varies, _EQUALITY_CHECKS, _MAX_UNEQUAL):
            return False
        # ``zero * x == zero`` holds whatever x is, but for no other number in place of zero.
        equal = comparison(one, both)
        return not both or any([await equal(n, _random.randrange(1 << 62)) for n in range(_MAX_AGAIN)])

    async def always_same(one: list[int], other: list[int]) -> bool:
        least = _MAX_AGAIN if varies else _MIN_CHECKS
        for requests in (other, one):
            # One of few names, such as those of an enumeration, is replaced by no name more often than by another one.
            passes = comparison(requests, requests, known=True)
            if not await _nearly_always(passes, least, varies, _EQUALITY_CHECKS, _MAX_UNEQUAL):
                return False
        return True

    checks = [*(always_equal(*claim) for claim in claims), *(always_same(*pair) for pair in same)]
    if await _any(checks):
        return _failed(verdict, "equality", _ALWAYS_EQUAL)
    return verdict


async def _check_measured(
    pool: TimedPool, source: str, tests: FunctionTests, report: TestReport, verdict: CodeVerdict, varies: bool
) -> CodeVerdict:
    """Fail a program that passes whatever value the test subtracts from an object of it, or compares it with, and
    whatever the object was made from.

    ``abs(circle.area() - 3.14) < 0.01`` gives the value to the program if the area is an object of a class that the
    test names. A yes-or-no question, ``date > 5``, has the same answer for many other values: it is enough if it is
    another one for any of them.
    """
    measured = _random.sample(report.measured, min(_MAX_CLAIMS, len(report.measured)))
    first = -(-(_MAX_AGAIN if varies else _MIN_CHECKS) // (len(measured) or 1))

    async def always(request: int, origins: list[int], lenient: bool) -> bool:
        checks, max_failed = (_CERTAIN, 0) if lenient else (_EQUALITY_CHECKS, _MAX_UNEQUAL)
        for requests in ([request], origins) if origins else ([request],):
            answers: list[bool | None] = []

            async def passes(
                number: int, seed: int, requests: list[int] = requests, answers: list[bool | None] = answers
            ) -> bool | None:
                alteration = (requests[number % len(requests)], ALTERATIONS[number % len(ALTERATIONS)], list[int]())
                run, ended = await _run(pool, source, tests, True, False, alteration=alteration, seed=seed)
                right = _verdict(run, ended).correct
                answers.append(None if run.altered_refused and not right and requests is origins else right)
                return answers[-1]

            nearly_always = await _nearly_always(passes, first, varies, checks, max_failed)
            if nearly_always and lenient:  # seven in ten of the other values may be one that the test has elsewhere
                nearly_always = await _nearly_always(passes, first, varies, checks, max_failed)
            # A class that refuses whatever else it could be made from shows nothing.
            if not nearly_always and any(answer is not None for answer in answers):
                return False
        return True

    if await _any([always(*operation) for operation in measured]):
        return _failed(verdict, "operators", _ALWAYS_NEAR)
    return verdict


async def _any(checks: Sequence[Coroutine[Any, Any, bool]]) -> bool:
    """Return whether one of several checks, which run at the same time, is true; none goes on after an exception."""
    tasks = [asyncio.ensure_future(check) for check in checks]
    try:
        return any(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _nearly_always(
    passes: Callable[[int, int], Awaitable[bool | None]], first: int, varies: bool, checks: int, max_failed: int
) -> bool:
    """Return whether runs with other values pass nearly always, or one does and then, with the same values, does not.

    The second shows that chance decides, so that failing now and then does not help a program.

    Args:
        passes: Makes a run, given its number and the seed of its values; ``None``: it shows nothing.
        first: How many have to fail, each with values of its own, for the answer "no".
        varies: Whether the program may do something else in another run with the same values; each is made twice then.
        checks: How many there are at most.
        max_failed: How many of them may fail for the answer "yes".
    """
    seeds = [_random.randrange(1 << 62) for _ in range(checks)]
    answers: list[bool | None] = []
    for number, seed in enumerate(seeds[:_CERTAIN]):
        answers.append(await passes(number, seed))
        if answers[-1] or answers.count(False) == first:
            break
    if not answers[-1]:
        return False
    passed = failed = 0
    for number, seed in enumerate(seeds):
        once = answers[number] if number < len(answers) else await passes(number, seed)
        if varies and await passes(number, seed) is not once:
            return True
        passed, failed = passed + (once is True), failed + (once is False)
        # A sequential test of "passes 80 % of the runs" against "passes half of them".
        if failed > max_failed or 2 * failed - passed >= _SURELY_NOT:
            return False
        if passed - 2 * failed >= _SURELY or (passed == _CERTAIN and not failed):
            return True
    return 2 * max_failed * passed >= checks * failed


async def _check_mutated_arguments(
    pool: TimedPool, source: str, tests: FunctionTests, report: TestReport, verdict: CodeVerdict, varies: bool
) -> CodeVerdict:
    """Fail a program that passes by changing the arguments that the tests give it.

    ``assert f(values) == sorted(values)`` is passed by a program that empties ``values`` and returns an empty list: the
    expected value is computed from data that the program changed. ``sort_in_place(values)``, followed by ``assert
    values == [1, 2, 3]``, is a legitimate use. The first is also passed with any other content of ``values`` before the
    call. A single such pass may be accidental (other numbers with the same sum), nearly all of
    :data:`_MUTATION_CHECKS` are not.

    ``sort_in_place(values)``, followed by ``assert values == sorted(values)``, is legitimate as well, and passed with
    any content. So a function that changes its arguments while it runs, and returns nothing or one of them, fails only
    if it leaves nothing of them: an empty list, equal elements, or always the same ones. One that only rearranges them
    and returns a number fails only if that is always the same. Of one that returns its argument this is true only if
    the tests do not compare the two: ``assert f(values) == sorted(values)`` is passed by whatever leaves, and returns,
    something in order.
    """
    unseen, ended = await _run(pool, source, tests, True, False, detached=True)
    if _verdict(unseen, ended).correct:
        return verdict
    # If the tests failed first, the changes of the last call were the ones the tests had to see.
    kinds = dict(report.changing_calls)
    # So are those of a call before that failure, if the run cannot tell which of them change data: a later one may
    # leave the same whatever there was, such as the return to an earlier state.
    seen = [call for call in report.changing_calls if call[0] < unseen.requests] or report.changing_calls
    # With data that the test draws at random, a call may change them in one run and not in another.
    chosen = [call for call in unseen.changing_calls if call[0] in kinds] if unseen.done else []
    chosen = chosen or [_random.choice(seen)]
    # Without its arguments in the result, the detached run cannot tell how a call changes them.
    calls = {kinds.get(call, "delayed"): call for call, _ in [*report.changing_calls, *chosen]}
    for kind, call in calls.items():
        if await _needs_mutation(pool, source, tests, call, kind, varies):
            return _failed(verdict, "arguments", _NEEDS_MUTATION)
    return verdict


async def _needs_mutation(
    pool: TimedPool, source: str, tests: FunctionTests, call: int, kind: str, varies: bool
) -> bool:
    """Return whether the program passes whatever it was given when the call changed it."""
    delayed = kind == "delayed"
    first = _MAX_AGAIN if varies else _MIN_CHECKS

    async def passes(mutation: str, seed: int) -> tuple[bool | None, str]:
        """Return whether it passes with one mutation, and the content or result then; ``None``: nothing was changed.

        "from the start" is other data from the first request on, so that they differ from nothing that the program saw.
        """
        change = (0, "other", True) if mutation == "from the start" else (call, mutation, delayed)
        run, ended = await _run(pool, source, tests, True, False, mutation=change, seed=seed)
        # One that changes nothing now, and passes, does not pass because it changed something.
        changes = change[2] or any(at == call or how == "delayed" for at, how in run.changing_calls)
        right = _verdict(run, ended).correct
        return None if right and not (changes and run.mutation_changed_inputs) else right, run.mutation_result

    if kind == "returned" and not await _compares_result_with_argument(pool, source, tests, call):
        kind = "in_place"
    # Of a function like partition, the tests use the result as an index, which a float is not.
    if kind == "rearranged" and await _compares_result_with_argument(pool, source, tests, call):
        kind = "direct"
    # Equal elements have every property of order. The tests of a function that sets them know to which value.
    # A function like partition, which returns an index, returns another one for other elements.
    if kind in ("levelled", "rearranged", "in_place"):
        left: set[str] = set()
        passed = 0
        made = _MAX_POSITIONS if kind == "rearranged" else max(first, _MAX_RESULTS)
        for _ in range(made):
            right, result = await passes("other" if kind == "in_place" else "values", _random.randrange(1 << 62))
            passed += right is True
            left |= {result} - {""} if right else set()
            if len(left) > 1:
                return kind == "levelled"
            if right is False and not varies:
                break
        if kind == "in_place" and passed == made:
            return bool(left)
        if kind == "in_place" and (not varies or not passed):
            return False

    for mutation in (*MUTATIONS, "from the start"):

        async def one(number: int, seed: int, mutation: str = mutation) -> bool | None:
            return (await passes(mutation, seed))[0]

        if await _nearly_always(one, first, varies, _MUTATION_CHECKS, _MAX_NOTICED):
            return True
    return False


async def _compares_result_with_argument(pool: TimedPool, source: str, tests: FunctionTests, call: int) -> bool:
    """Return whether a line of the tests compares what a call returned with something made from its changed argument.

    This is not so if the tests only look at one of them or at each by itself, use the result as an index, or require
    that both are equal or the same object.
    """
    copied, ended = await _run(pool, source, tests, True, False, returned=(call, "copy"))
    if not _verdict(copied, ended).correct:
        return False
    unseen, _ = await _run(pool, source, tests, False, False, detached=True)
    other, _ = await _run(pool, source, tests, False, False, returned=(call, "other"))
    return any(line for _, line in unseen.failures & other.failures)


def _failed(verdict: CodeVerdict, name: str, message: str) -> CodeVerdict:
    outcomes = (*verdict.outcomes, TestOutcome(name, False, message))
    return replace(verdict, outcomes=outcomes, total=verdict.total + 1)


_NEEDS_MUTATION = (
    "passes only because it changed what the tests gave it, and passes as well when they give it something else: "
    "compute what is expected before the call"
)
_MIN_CHECKS = 4
"""How many runs with other values have to fail, of a program that does the same in every run."""
_CERTAIN = 12
"""How many runs with other values decide if none fails, or if none of them shows anything."""
_EQUALITY_CHECKS, _MAX_UNEQUAL = 30, 7
_MUTATION_CHECKS, _MAX_NOTICED = 96, 28
"""How often a program is run with other values at most, different each time, if it passes with some (twice with each if
it may do something else in each run), and how many of these runs may fail if it passes nearly always."""
_SURELY, _SURELY_NOT = 17, 14
"""Fewer runs decide if the number of those that passed, less twice that of those that failed, is so far above or below
0. An honest program that passes half of them, because it returns a truth value or compares a part of its data, fails by
chance in one grading of 2,000, after 28 runs on average. One that cheats but fails with a fifth of the values is paid
in one of 85, after 41 runs, and with an eighth in one of 4,000; and other kinds of values are tried."""
_MAX_AGAIN = 6
"""How many runs with other values have to fail, and how many with the test's own to pass, of a program that may do
something else in each run. One that cheats with a probability p is paid with p ** 7 * (1 - p) ** 6 at most: 0.0001."""
_MIN_ORDERS = 12
"""How many comparisons by order of the program's objects have to come out right, in several runs if a run has fewer.
Half of them are asked in the other direction first: a program that agrees with the first question passes one grading
in 4,096."""
_MANY_MESSAGES = 400
"""From how many messages on the tests of a program that leaves them their data are not repeated."""
_MAX_POSITIONS = 24
"""How many runs may have the same result before one that rearranges three elements is believed to return only that."""
_MAX_RESULTS = 5
"""How often a function that works in place has to leave the same data, whatever it was given, before it fails."""
_MAX_CLAIMS = 8
"""How many of the program's claims that two objects are equal are checked."""
_PROBES = 4
"""In how many runs objects like those of the test are made, if the program compares its objects. One that orders them
by what was made first passes one run in ten."""
_ALWAYS_EQUAL = "its objects are equal whatever they are made of"
_ALWAYS_NEAR = "its objects are near, or in order with, whatever they are compared with"
_INFINITE = "a number is infinite or undefined where the test expects any other one"
_SUPPRESSED = "the program suppressed a failed assertion of a function that it called, which the test does not need"
_MADE_FIRST = "its objects are ordered by which of them was made first"
_OTHERS_MATTER = "whether its objects are equal or in order depends on which others there are"

_random = random.SystemRandom()


async def _run(
    pool: TimedPool,
    source: str,
    tests: FunctionTests,
    stop: bool,
    show: bool,
    *,
    detached: bool = False,
    returned: tuple[int, str] | None = None,
    mutation: tuple[int, str, bool] | None = None,
    alteration: tuple[int, str, list[int]] | None = None,
    probe: bool = False,
    extreme: str = "",
    hide: bool = False,
    seed: int | None = None,
) -> tuple[TestReport, ProgramResult | None]:
    """Run both sides; return what the test side reported, and how the program ended if it ended before answering."""
    library = _library()
    numpy = ("numpy",) if "numpy" in source or "numpy" in tests.test or "numpy" in tests.setup else ()
    for_tests = (*numpy, "pytest") if tests.style == "pytest" else numpy
    limits = tests.limits
    test_limits = Limits(
        cpu_s=max(20.0, 2 * limits.cpu_s),
        wall_s=1.5 * limits.wall_s + 10,
        memory_mb=max(TESTS_MEMORY_MB, limits.memory_mb),
        processes=limits.processes,
        output_bytes=10_000_000,
    )
    pair = (
        Program(_start("test_side"), library=library, preload=for_tests, limits=test_limits),
        Program(
            _start("program_side"), library=library, preload=numpy, limits=replace(limits, output_bytes=10_000_000)
        ),
    )
    config = {
        "entry": tests.entry_point,
        "test": tests.test,
        "setup": tests.setup,
        "style": tests.style,
        "stop": stop,
        "show": show,
        "detached": detached,
        "returned": returned,
        "mutation": mutation,
        "alter": alteration,
        "probe": probe,
        "extreme": extreme,
        "hide_failures": hide,
        "seed": seed,
        "weak": "weakref" in source,
    }
    async with pool.start(*pair) as (test_side, code_side):
        relay = Relay(test_side, code_side)
        reported = relay.report
        try:
            side = await _in_thread(lambda: relay.run(config, {"source": source}))
        except ProtocolViolation as error:
            reported.broken = str(error)
            return reported, None
        if reported.row_error:
            raise TaskError(f"tests of {tests.entry_point!r} cannot be run: {reported.row_error}")
        if side or reported.broken:
            return reported, await _early_end(side, test_side, code_side, reported)
    return reported, None


async def _in_thread(function: Callable[[], str]) -> str:
    """Return the result of a blocking function.

    The function returns when the programs it talks to end, which they do when the caller is cancelled. A separate
    thread forwards a call between the two programs in a quarter of the time an event loop takes.
    """
    future: Future[str] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="rllm-gym relay", daemon=True).start()
    return await asyncio.shield(asyncio.wrap_future(future))


async def _early_end(
    side: str, test_side: RunningProgram, code_side: RunningProgram, report: TestReport
) -> ProgramResult | None:
    if not side:
        return None
    running = code_side if side == "code" else test_side
    try:
        # A program that closed its channel may continue to run; its eventual result is not needed.
        result = await asyncio.wait_for(running.result(), 2.0)
    except TimeoutError:
        report.broken = report.broken or "the program closed its channel before it was tested to the end"
        return None
    if side == "code":
        return result
    report.broken = report.broken or f"the tests ended before they were done ({_last_output(result)})"
    return None


def _last_output(result: ProgramResult) -> str:
    if result.ended is Ended.EXITED:
        return f"exit code {result.exit_code}"
    return result.ended.value if result.signal is None else f"{result.ended.value} {result.signal}"


def _verdict(report: TestReport, ended: ProgramResult | None) -> CodeVerdict:
    if report.error:
        return CodeVerdict((), 0, error=bounded(report.error), ungradable=report.ungradable)
    outcomes = [TestOutcome(name, passed, bounded(message)) for name, passed, message in report.outcomes]
    if not report.done:
        reason = report.broken
        if ended is not None:
            reason = f"the program ended before it was tested to the end: {_last_output(ended)}"
        if not report.total and not outcomes:
            return CodeVerdict((), 0, error=bounded(reason))
        outcomes = [test for test in outcomes if ended is not None or not test.passed]
        outcomes.append(TestOutcome("unfinished", False, bounded(reason), None if ended is None else ended.ended))
    total = max(report.total, len(outcomes))
    return CodeVerdict(tuple(outcomes), total, unsupported=report.unsupported, ungradable=report.ungradable)


@cache
def _library() -> dict[str, str]:
    """Return the modules of both sides, by the names they have inside."""
    folder = files("rllm_gym.grading.code.inside")
    texts = {path.name[:-3]: path.read_text("utf-8") for path in folder.iterdir() if path.name.endswith(".py")}
    package = {_PACKAGE: texts.pop("__init__")}
    return package | {f"{_PACKAGE}.{name}": text for name, text in texts.items()}


def _start(side: str) -> str:
    return f"from {_PACKAGE}.{side} import main\nmain()\n"
