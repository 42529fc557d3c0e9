"""Solutions that try to pass a function's tests without solving the task get no reward."""

from __future__ import annotations

import re
import secrets

import function_attacks
import pytest
from attack_runs import AT_A_TIME, graded, not_correct, rewarded

from rllm_gym.grading.code import CodeVerdict, FunctionTests, grade_program_sync
from rllm_gym.sandbox import Limits, SandboxPool, Tier

LIMITS = Limits(cpu_s=1, wall_s=3)
# For solutions that end only at the limit.
SHORT = Limits(cpu_s=0.5, wall_s=1.5)
HONEST_LIMITS = Limits(cpu_s=5, wall_s=60)


def _secret(test: str) -> str:
    """Return the same test with a word that cannot be computed."""
    return test.replace("<WORD>", f"word-{secrets.token_hex(16)}").replace("<DIGITS>", str(secrets.randbelow(10**12)))


def _tests(test: str, limits: Limits = LIMITS) -> FunctionTests:
    return FunctionTests("solve", _secret(test), "check", limits=limits)


ONLY_A = [Tier.NAMESPACES]
A_AND_LONG_B = [Tier.NAMESPACES, pytest.param(Tier.LANDLOCK, marks=pytest.mark.long)]


@pytest.mark.parametrize("kind", function_attacks.CHEATS)
@pytest.mark.parametrize("pool", A_AND_LONG_B, ids=["A", "B"], indirect=True)
def test_no_attack_on_function_tests_is_rewarded(kind, pool, nothing_left):
    attacks = function_attacks.CHEATS[kind]
    limits = SHORT if kind == "without end" else LIMITS

    def grade(name: str) -> CodeVerdict:
        return grade_program_sync(pool, attacks[name], _tests(function_attacks.TEST, limits))

    # Each is graded in two programs.
    assert not rewarded(graded(attacks, grade, AT_A_TIME // 2))
    # The next programs of all workers are graded normally.
    tests = FunctionTests("solve", function_attacks.HONEST_TEST, "check", limits=HONEST_LIMITS)
    after = graded("12", lambda name: grade_program_sync(pool, function_attacks.HONEST, tests), AT_A_TIME // 2)
    assert not not_correct(after)


EVEN, ODD, ALL = slice(0, None, 2), slice(1, None, 2), slice(None)


@pytest.mark.parametrize(
    ("style", "part"),
    [
        pytest.param("unittest", EVEN, id="unittest"),
        pytest.param("pytest", ODD, id="pytest", marks=pytest.mark.long),
        pytest.param("unittest", ODD, id="unittest, the others", marks=pytest.mark.long),
        pytest.param("pytest", EVEN, id="pytest, the others", marks=pytest.mark.long),
        pytest.param("assert", ALL, id="assert", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("pool", ONLY_A, ids=["A"], indirect=True)
def test_no_attack_on_tests_of_another_style_is_rewarded(style, part, pool, nothing_left):
    """The processes that run the tests are the same in every tier."""
    attacks = {name: source for kind in function_attacks.CHEATS.values() for name, source in kind.items()}
    names = list(attacks)[part]
    test = _secret(function_attacks.STYLES[style])

    def grade(name: str) -> CodeVerdict:
        limits = SHORT if name in function_attacks.CHEATS["without end"] else LIMITS
        return grade_program_sync(pool, attacks[name], FunctionTests("solve", test, style, limits=limits))

    assert not rewarded(graded(names, grade, AT_A_TIME // 2))


WAYS = [
    "RETURNS_AN_OBJECT",
    pytest.param("RETURNS_IT_INSIDE", marks=pytest.mark.long),
    # Most of these end the run of all weak tests at once, so that each test is run again alone.
    pytest.param("CHANGES_THE_ARGUMENT", marks=pytest.mark.long),
]


def _passed(pool: SandboxPool, solution: str, weak_tests: dict[str, str]) -> list[str]:
    """Return the names of the weak tests that a solution passes.

    All are graded at once, as the methods of a test case; those that passed there, and those that did not finish
    because an earlier one ended the process, are graded again one by one.
    """
    weak = list(weak_tests.values())
    renamed = [re.sub(r"^def check\(", f"def check_{at}(", test, flags=re.M) for at, test in enumerate(weak)]
    methods = [f"    def test_{at:02}(self): check_{at}(solve)\n" for at in range(len(weak))]
    test = "\n".join(
        [*map(_secret, renamed), "import unittest\nclass TestWeak(unittest.TestCase):\n" + "".join(methods)]
    )
    together = FunctionTests("solve", test, "unittest", limits=HONEST_LIMITS)
    failed = {test.name for test in grade_program_sync(pool, solution, together).outcomes if not test.passed}
    alone = [
        name for at, name in enumerate(weak_tests) if not any(reported.endswith(f"test_{at:02}") for reported in failed)
    ]
    return [
        name for name in alone if grade_program_sync(pool, solution, _tests(weak_tests[name], HONEST_LIMITS)).correct
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pool", A_AND_LONG_B, ids=["A", "B"], indirect=True)
def test_no_special_object_passes_the_comparisons(way, pool, nothing_left):
    """The comparison of values is the same in every tier."""

    def grade(name: str) -> list[str]:
        solution = function_attacks.OBJECTS[name] + getattr(function_attacks, way)
        return _passed(pool, solution, function_attacks.WEAK_TESTS)

    # A solution that does pass is detected.
    tests = {str(n): f"def check(candidate):\n    assert candidate(3) == {n}\n" for n in (2, 3, 4)}
    assert _passed(pool, "def solve(x):\n    return x\n", tests) == ["3"]

    passed = graded(function_attacks.OBJECTS, grade, AT_A_TIME // 2)
    assert not {name: tests for name, tests in passed.items() if tests != []}
