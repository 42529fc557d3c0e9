"""Function tests: hidden test code in one sandbox calls the program in another and decides the verdict."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from importlib.resources import files

from rllm_gym.core import TaskError
from rllm_gym.grading.code.inside.ruin import ALTERED, WAYS
from rllm_gym.grading.code.relay import Relay, Told, Violation
from rllm_gym.grading.code.verdict import MEMORY_FOR_TESTS_MB, CodeVerdict, FunctionTests, TestOutcome, bounded
from rllm_gym.sandbox import Ended, Limits, Program, Result, Running, SandboxPool

_PACKAGE = "_sides"


async def grade_function(
    pool: SandboxPool, source: str, tests: FunctionTests, *, stop_at_first_failure: bool, show_expected: bool
) -> CodeVerdict:
    """Grade a program by test code that calls it. See :func:`rllm_gym.grading.code.grade_program`."""
    told, ended = await _run(pool, source, tests, stop_at_first_failure, show_expected)
    verdict = _verdict(told, ended)
    if verdict.correct and told.believed:
        verdict = await _unless_anything_is_equal(pool, source, tests, told, verdict)
    if verdict.correct and told.changing:
        verdict = await _unless_ruined(pool, source, tests, told, verdict)
    return verdict


async def _unless_anything_is_equal(
    pool: SandboxPool, source: str, tests: FunctionTests, told: Told, verdict: CodeVerdict
) -> CodeVerdict:
    """Fail a program whose objects stay equal when the test creates one of them from other values."""
    made = _random.choice(told.believed)
    for which in ALTERED:
        if not _verdict(*await _run(pool, source, tests, True, False, alter=(made, which))).correct:
            return verdict
    return _failed(verdict, "equality", _EQUAL)


async def _unless_ruined(
    pool: SandboxPool, source: str, tests: FunctionTests, told: Told, verdict: CodeVerdict
) -> CodeVerdict:
    """Fail a program that passes by changing the arguments that the tests give it.

    ``assert f(values) == sorted(values)`` is passed by a program that empties ``values`` and returns an empty list: the
    expected value is computed from data that the program changed. ``sort_in_place(values)``, followed by ``assert
    values == [1, 2, 3]``, is a legitimate use. The first is also passed with any other content of ``values`` before the
    call. A single such pass may be accidental (other numbers with the same sum), :data:`_TIMES` passes are not.
    """
    unseen, ended = await _run(pool, source, tests, True, False, detached=True)
    if _verdict(unseen, ended).correct:
        return verdict
    # If the tests failed first, the changes of the last call were the ones the tests had to see.
    call = unseen.changing[-1] if unseen.done and unseen.changing else _random.choice(told.changing)
    passing: tuple[str, ...] = WAYS
    for _ in range(_TIMES):
        runs = await asyncio.gather(*[_run(pool, source, tests, True, False, ruin=(call, way)) for way in passing])
        passing = tuple(way for way, (told, end) in zip(passing, runs) if told.ruined and _verdict(told, end).correct)
        if not passing:
            return verdict
    return _failed(verdict, "arguments", _RUINED)


def _failed(verdict: CodeVerdict, name: str, why: str) -> CodeVerdict:
    outcomes = (*verdict.outcomes, TestOutcome(name, False, why))
    return replace(verdict, outcomes=outcomes, total=verdict.total + 1)


_RUINED = (
    "passes only because it changed what the tests gave it, and passes as well when they give it something else: "
    "compute what is expected before the call"
)
_TIMES = 20
"""How often a program has to pass with other arguments, different each time, before it fails."""
_EQUAL = "its objects are equal whatever they are made of"

_random = random.SystemRandom()


async def _run(
    pool: SandboxPool,
    source: str,
    tests: FunctionTests,
    stop: bool,
    show: bool,
    *,
    detached: bool = False,
    ruin: tuple[int, str] | None = None,
    alter: tuple[int, str] | None = None,
) -> tuple[Told, Result | None]:
    """Run both sides; return what the test side reported, and how the program ended if it ended before answering."""
    library = _library()
    numpy = ("numpy",) if "numpy" in source or "numpy" in tests.test or "numpy" in tests.setup else ()
    for_tests = (*numpy, "pytest") if tests.style == "pytest" else numpy
    limits = tests.limits
    test_limits = Limits(
        cpu_s=max(20.0, 2 * limits.cpu_s),
        wall_s=1.5 * limits.wall_s + 10,
        memory_mb=max(MEMORY_FOR_TESTS_MB, limits.memory_mb),
        processes=limits.processes,
        output_bytes=10_000_000,
    )
    pair = (
        Program(_start("test_side"), library=library, preload=for_tests, limits=test_limits),
        Program(_start("code_side"), library=library, preload=numpy, limits=replace(limits, output_bytes=10_000_000)),
    )
    config = {
        "entry": tests.entry_point,
        "test": tests.test,
        "setup": tests.setup,
        "style": tests.style,
        "stop": stop,
        "show": show,
        "detached": detached,
        "ruin": ruin,
        "alter": alter,
    }
    async with pool.start(*pair) as (test_side, code_side):
        relay = Relay(test_side, code_side)
        told = relay.told
        try:
            side = await _in_thread(lambda: relay.run(config, {"source": source}))
        except Violation as error:
            told.broken = str(error)
            return told, None
        if told.row_error:
            raise TaskError(f"tests of {tests.entry_point!r} cannot be run: {told.row_error}")
        if side or told.broken:
            return told, await _how_it_ended(side, test_side, code_side, told)
    return told, None


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


async def _how_it_ended(side: str, test_side: Running, code_side: Running, told: Told) -> Result | None:
    if not side:
        return None
    running = code_side if side == "code" else test_side
    try:
        # A program that closed its channel may continue to run; its eventual result is not needed.
        result = await asyncio.wait_for(running.result(), 2.0)
    except TimeoutError:
        told.broken = told.broken or "the program closed its channel before it was tested to the end"
        return None
    if side == "code":
        return result
    told.broken = told.broken or f"the tests ended before they were done ({_said(result)})"
    return None


def _said(result: Result) -> str:
    if result.ended is Ended.EXITED:
        return f"exit code {result.exit_code}"
    return result.ended.value if result.signal is None else f"{result.ended.value} {result.signal}"


def _verdict(told: Told, ended: Result | None) -> CodeVerdict:
    if told.error:
        return CodeVerdict((), 0, error=bounded(told.error))
    outcomes = [TestOutcome(name, passed, bounded(message)) for name, passed, message in told.outcomes]
    if not told.done:
        why = told.broken
        if ended is not None:
            why = f"the program ended before it was tested to the end: {_said(ended)}"
        if not told.total and not outcomes:
            return CodeVerdict((), 0, error=bounded(why))
        outcomes = [test for test in outcomes if ended is not None or not test.passed]
        outcomes.append(TestOutcome("unfinished", False, bounded(why), None if ended is None else ended.ended))
    total = max(told.total, len(outcomes))
    return CodeVerdict(tuple(outcomes), total, unsupported=told.unsupported)


@cache
def _library() -> dict[str, str]:
    """Return the modules of both sides, by the names they have inside."""
    folder = files("rllm_gym.grading.code.inside")
    texts = {path.name[:-3]: path.read_text("utf-8") for path in folder.iterdir() if path.name.endswith(".py")}
    package = {_PACKAGE: texts.pop("__init__")}
    return package | {f"{_PACKAGE}.{name}": text for name, text in texts.items()}


def _start(side: str) -> str:
    return f"from {_PACKAGE}.{side} import main\nmain()\n"
