"""Solutions that try to pass a function's tests without doing what they ask: none is rewarded; honest ones are."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator

import function_attacks
import pytest

from rllm_gym.grading.code import FunctionTests, grade_program, grade_program_sync
from rllm_gym.sandbox import Limits, SandboxPool, Tier
from tests.sandbox.users import needs

LIMITS = Limits(cpu_s=1, wall_s=3)
HONEST_LIMITS = Limits(cpu_s=5, wall_s=60)


@pytest.fixture(scope="module", params=[Tier.NAMESPACES, Tier.LANDLOCK], ids=["A", "B"])
def pool(request: pytest.FixtureRequest) -> Iterator[SandboxPool]:
    needs(request.param)
    with SandboxPool(request.param) as pool:
        yield pool


def _tests(test: str) -> FunctionTests:
    """Tests that ask for a word nobody can compute."""
    test = test.replace("<WORD>", f"word-{secrets.token_hex(16)}").replace("<DIGITS>", str(secrets.randbelow(10**12)))
    return FunctionTests("solve", test, "check", limits=LIMITS)


@pytest.mark.parametrize("name", function_attacks.CHEATS)
def test_no_solution_is_rewarded_for_what_it_cannot_know(name, pool, nothing_left):
    verdict = grade_program_sync(pool, function_attacks.CHEATS[name], _tests(function_attacks.TEST))
    assert verdict.fraction == 0, verdict
    # The next one is graded as if nothing had been.
    honest, test = function_attacks.HONEST["function"]
    assert grade_program_sync(pool, honest, FunctionTests("solve", test, "check", limits=HONEST_LIMITS)).correct


WAYS = ("RETURNS_AN_OBJECT", "RETURNS_IT_INSIDE", "CHANGES_THE_ARGUMENT")
# How values are compared is the same in both tiers: in the second, each object goes one of the ways.
OBJECTS = [(Tier.NAMESPACES, name, way) for name in function_attacks.OBJECTS for way in WAYS]
OBJECTS += [(Tier.LANDLOCK, name, WAYS[number % 3]) for number, name in enumerate(function_attacks.OBJECTS)]


@pytest.mark.parametrize(
    ("pool", "name", "way"),
    OBJECTS,
    indirect=["pool"],
    ids=[f"{name}-{way}-{tier.name}" for tier, name, way in OBJECTS],
)
def test_no_object_answers_for_the_tests(name, way, pool, nothing_left):
    solution = function_attacks.OBJECTS[name] + getattr(function_attacks, way)

    async def grade_all() -> list[bool]:
        tests = [_tests(test) for test in function_attacks.WEAK_TESTS.values()]
        return [verdict.correct for verdict in await asyncio.gather(*(grade_program(pool, solution, t) for t in tests))]

    passed = asyncio.run(grade_all())
    assert not any(passed), [test for test, won in zip(function_attacks.WEAK_TESTS, passed, strict=True) if won]


@pytest.mark.parametrize("name", function_attacks.HONEST)
def test_honest_solutions_are_rewarded(name, pool, nothing_left):
    solution, test = function_attacks.HONEST[name]
    verdict = grade_program_sync(pool, solution, FunctionTests("solve", test, "check", limits=HONEST_LIMITS))
    assert verdict.correct, verdict
