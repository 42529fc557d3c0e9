"""Function tests: hidden test code in one sandbox calls the program in another and decides the verdict."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from importlib.resources import files

from rllm_gym.core import TaskError
from rllm_gym.grading.code.inside.argument_mutation import ALTERATIONS, MUTATIONS
from rllm_gym.grading.code.relay import ProtocolViolation, Relay, TestReport
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
    report, ended = await _run(pool, source, tests, stop_at_first_failure, show_expected)
    verdict = _verdict(report, ended)
    if verdict.correct and report.believed_equalities:
        verdict = await _check_equality_claims(pool, source, tests, report, verdict)
    if verdict.correct and report.changing_calls:
        verdict = await _check_mutated_arguments(pool, source, tests, report, verdict)
    return verdict


async def _check_equality_claims(
    pool: SandboxPool, source: str, tests: FunctionTests, report: TestReport, verdict: CodeVerdict
) -> CodeVerdict:
    """Fail a program whose objects stay equal when the test makes one of them from other values."""
    claims = report.believed_equalities
    chosen = _random.sample(claims, min(_MAX_CLAIMS, len(claims)))

    async def stays_equal(requests: list[int]) -> bool:
        order = _random.sample(requests, len(requests))
        unnoticed = equal = different = 0
        for which, request in zip(ALTERATIONS, itertools.cycle(order)):
            altered, ended = await _run(pool, source, tests, False, False, alteration=(request, which, requests))
            equal += altered.altered_equality is True
            different += altered.altered_equality is False
            # Where the comparison was not reached, the tests noticed the other values before it.
            unnoticed += altered.altered_equality is None and _verdict(altered, ended).correct
            if different > _MAX_EXCEPTIONS or (different == 2 and not equal):
                return not await _passes_again(pool, source, tests, _MAX_AGAIN if equal else 1)
        return 4 * (equal + unnoticed) >= 3 * len(ALTERATIONS)

    if any(await asyncio.gather(*(stays_equal(claim) for claim in chosen))):
        return _failed(verdict, "equality", _ALWAYS_EQUAL)
    return verdict


async def _check_mutated_arguments(
    pool: SandboxPool, source: str, tests: FunctionTests, report: TestReport, verdict: CodeVerdict
) -> CodeVerdict:
    """Fail a program that passes by changing the arguments that the tests give it.

    ``assert f(values) == sorted(values)`` is passed by a program that empties ``values`` and returns an empty list: the
    expected value is computed from data that the program changed. ``sort_in_place(values)``, followed by ``assert
    values == [1, 2, 3]``, is a legitimate use. The first is also passed with any other content of ``values`` before the
    call. A single such pass may be accidental (other numbers with the same sum), nearly :data:`_MAX_CHECKS` are not.

    ``sort_in_place(values)``, followed by ``assert values == sorted(values)``, is legitimate as well, and passed with
    any content. So a function that changes its arguments while it runs, and returns nothing or one of them, fails only
    if it leaves nothing of them: an empty list, equal elements, or always the same ones. One that only rearranges them
    and returns a number fails only if that is always the same.
    """
    unseen, ended = await _run(pool, source, tests, True, False, detached=True)
    if _verdict(unseen, ended).correct:
        return verdict
    # If the tests failed first, the changes of the last call were the ones the tests had to see.
    kinds = dict(report.changing_calls)
    chosen = unseen.changing_calls if unseen.done and unseen.changing_calls else [_random.choice(report.changing_calls)]
    # Without its arguments in the result, the detached run cannot tell how a call changes them.
    calls = {kinds.get(call, "delayed"): call for call, _ in [*report.changing_calls, *chosen]}
    needed = [_needs_mutation(pool, source, tests, call, kind) for kind, call in calls.items()]
    return _failed(verdict, "arguments", _NEEDS_MUTATION) if any(await asyncio.gather(*needed)) else verdict


async def _needs_mutation(pool: SandboxPool, source: str, tests: FunctionTests, call: int, kind: str) -> bool:
    """Return whether the program passes whatever it was given when the call changed it."""

    async def passes(mutation: str) -> tuple[bool | None, str]:
        """Return whether it passes with one mutation, and the content or result then; ``None``: nothing was changed."""
        run, ended = await _run(pool, source, tests, True, False, mutation=(call, mutation, kind == "delayed"))
        # One that changes nothing now, and passes, does not pass because it changed something.
        changes = kind == "delayed" or any(at == call or how == "delayed" for at, how in run.changing_calls)
        right = _verdict(run, ended).correct
        return None if right and not (changes and run.mutation_changed_inputs) else right, run.mutation_result

    async def passes_mostly(mutation: str) -> bool:
        """Return whether it does with one kind of mutation. That it may fail by chance must not be of use to it."""
        passed = failed = 0
        for number in range(_MAX_CHECKS):
            right, _ = await passes(mutation)
            passed, failed = passed + (right is True), failed + (right is False)
            if number >= _MAX_RESULTS and not passed:
                return False
            if failed > _MAX_EXCEPTIONS or (failed == 2 and not passed):
                return not await _passes_again(pool, source, tests, _MAX_AGAIN if passed or kind == "delayed" else 1)
        return True

    if kind in ("levelled", "rearranged"):
        # Equal elements have every property of order. The tests of a function that sets them know to which value.
        # A function like partition, which returns an index, returns another one for other elements.
        left: set[str] = set()
        for _ in range(_MAX_RESULTS):
            right, result = await passes("values")
            if not right:
                break
            left |= {result} - {""}
            if len(left) > 1:
                return kind == "levelled"
    if kind == "in_place":
        results: set[str] = set()
        for _ in range(_MAX_RESULTS):
            right, result = await passes("other")
            results.add(result)
            if len(results) > 1 or not right:
                return False
        return not results <= {""}
    return any(await asyncio.gather(*(passes_mostly(mutation) for mutation in MUTATIONS)))


async def _passes_again(pool: SandboxPool, source: str, tests: FunctionTests, times: int) -> bool:
    """Return whether a program passes its tests whenever they are run, and not only by chance."""
    for _ in range(times):
        if not _verdict(*await _run(pool, source, tests, True, False)).correct:
            return False
    return True


def _failed(verdict: CodeVerdict, name: str, message: str) -> CodeVerdict:
    outcomes = (*verdict.outcomes, TestOutcome(name, False, message))
    return replace(verdict, outcomes=outcomes, total=verdict.total + 1)


_NEEDS_MUTATION = (
    "passes only because it changed what the tests gave it, and passes as well when they give it something else: "
    "compute what is expected before the call"
)
_MAX_CHECKS = 20
"""How often a program is run with other arguments, different each time; it fails if it passes nearly always."""
_MAX_EXCEPTIONS = 3
"""How often a program that is not honest may fail by chance, while it is found out."""
_MAX_AGAIN = 8
"""How often the tests of a program that may be lucky are run again."""
_MAX_RESULTS = 5
"""How often a function that works in place has to leave the same data, whatever it was given, before it fails."""
_MAX_CLAIMS = 3
"""How many of the program's claims that two objects are equal are checked."""
_ALWAYS_EQUAL = "its objects are equal whatever they are made of"

_random = random.SystemRandom()


async def _run(
    pool: SandboxPool,
    source: str,
    tests: FunctionTests,
    stop: bool,
    show: bool,
    *,
    detached: bool = False,
    mutation: tuple[int, str, bool] | None = None,
    alteration: tuple[int, str, list[int]] | None = None,
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
        "mutation": mutation,
        "alter": alteration,
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
