"""The runs of one program have a limit together: a program that sleeps must not be able to make an episode a fault."""

from __future__ import annotations

import asyncio

import pytest
from grade_many import grade_many

from rllm_gym.grading.code import FunctionTests, StdioTest, StdioTests, function, timed_pool
from rllm_gym.sandbox import SandboxPool

TESTS = FunctionTests("f", "assert f(1) == 2\nassert f(5) == 6\n", "assert")
PLAIN = "def f(x):\n    return x + 1\n"


def test_a_function_that_needs_further_runs_fails_if_no_time_is_left(
    pool: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may do something else in each run, so the tests have to pass several times; a plain one runs once."""
    varying = f"import random\n{PLAIN}"
    assert [verdict.correct for verdict in grade_many(pool, [(PLAIN, TESTS), (varying, TESTS)])] == [True, True]
    monkeypatch.setattr(timed_pool, "MAX_RUNS_S", 1e-6)
    plain, late = grade_many(pool, [(PLAIN, TESTS), (varying, TESTS)])
    assert plain.correct
    assert (late.correct, late.ungradable, late.error) == (False, "", "")
    assert late.outcomes[-1].message == timed_pool.OUT_OF_TIME


def test_output_tests_that_do_not_run_any_more_have_failed(pool: SandboxPool, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = StdioTests(tuple(StdioTest(f"{number}\n", f"{number}\n") for number in range(6)))
    program = "print(input())\n"
    (verdict,) = grade_many(pool, [(program, tests)])
    assert verdict.correct
    monkeypatch.setattr(timed_pool, "MAX_RUNS_S", 1e-6)
    (verdict,) = grade_many(pool, [(program, tests)])
    assert len(verdict.outcomes) == 6
    assert verdict.outcomes[0].passed
    assert {outcome.message for outcome in verdict.outcomes[1:]} == {timed_pool.OUT_OF_TIME}


def test_runs_of_a_checker_count(pool: SandboxPool, monkeypatch: pytest.MonkeyPatch) -> None:
    checker = "def check(stdin, stdout, expected):\n    return stdout == expected\n"
    tests = StdioTests(tuple(StdioTest(f"{number}\n", f"{number}\n") for number in range(3)), checker=checker)
    (verdict,) = grade_many(pool, [("print(input())\n", tests)])
    assert verdict.correct
    monkeypatch.setattr(timed_pool, "MAX_RUNS_S", 1e-6)
    (verdict,) = grade_many(pool, [("print(input())\n", tests)])
    assert [outcome.message for outcome in verdict.outcomes] == [timed_pool.OUT_OF_TIME] * 3


def test_no_check_goes_on_after_the_time_is_over() -> None:
    """It would keep a worker of the sandbox after the verdict."""
    ended: list[str] = []

    async def waits() -> bool:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")
        return False

    async def late() -> bool:
        raise timed_pool.OutOfTime

    async def scenario() -> None:
        with pytest.raises(timed_pool.OutOfTime):
            await function._any([waits(), late()])
        assert ended == ["cancelled"]

    asyncio.run(scenario())
