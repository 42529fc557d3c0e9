"""Programs that cheat and exhaust resources as solutions of a stdio task: none is rewarded, no process is left."""

from __future__ import annotations

import secrets
import threading

import pytest
import stdio_attacks
from attack_runs import AT_A_TIME, graded, not_correct, rewarded

from rllm_gym.grading.code import CodeVerdict, StdioTest, StdioTests, grade_program_sync
from rllm_gym.sandbox import Limits, SandboxPool, Tier
from tests.sandbox.users import needs

# Time that a successful attack needs, with a wide margin.
LIMITS = Limits(cpu_s=1, wall_s=3)
# For programs that end only at the limit.
SHORT_ONES = dict.fromkeys(stdio_attacks.RESOURCES["time"], Limits(cpu_s=0.2, wall_s=1))


A_AND_LONG_B = [Tier.NAMESPACES, pytest.param(Tier.LANDLOCK, marks=pytest.mark.long)]


def _sum(limits: Limits) -> StdioTests:
    return StdioTests((StdioTest("19 23\n", "42\n"),), limits=limits)


# Waiting is measured in wall-clock time, and a busy machine must not fail honest programs.
HONEST_SUM = StdioTests((StdioTest("19 23\n", "42\n"), StdioTest("-1 1\n", "0\n")), limits=Limits(cpu_s=5, wall_s=60))


def _check(pool: SandboxPool, attacks: dict[str, str], short: dict[str, Limits]) -> None:
    """Assert that no attack is rewarded and that concurrent and later programs are not disturbed."""

    def grade(name: str) -> CodeVerdict:
        if name in attacks:
            return grade_program_sync(pool, stdio_attacks.PRELUDE + attacks[name], _sum(short.get(name, LIMITS)))
        return grade_program_sync(pool, stdio_attacks.PRELUDE + "win()", HONEST_SUM)

    beside = {f"honest {number}" for number in range(2)}
    found = graded([*attacks, *beside], grade)
    assert not not_correct({name: found.pop(name) for name in beside})
    assert not rewarded(found)
    assert not not_correct(graded([f"honest {number}" for number in range(AT_A_TIME)], grade))


@pytest.mark.parametrize("kind", stdio_attacks.RESOURCES)
def test_no_program_exceeds_its_limits(kind, pool, nothing_left):
    _check(pool, stdio_attacks.RESOURCES[kind], SHORT_ONES)


@pytest.mark.long
def test_no_program_exceeds_its_time_limit(pool, nothing_left):
    """Those that get little time above, with as much as the others."""
    attacks = {name: source for kind in stdio_attacks.RESOURCES.values() for name, source in kind.items()}
    _check(pool, {name: source for name, source in attacks.items() if name in SHORT_ONES}, {})


@pytest.mark.parametrize("pool", A_AND_LONG_B, ids=["A", "B"], indirect=True)
def test_no_program_that_cheats_is_rewarded(pool, nothing_left):
    def grade(name: str) -> CodeVerdict:
        words = [f"word-{secrets.token_hex(16)}" for _ in range(2)]
        tests = StdioTests(tuple(StdioTest(f"{n}\n", f"{word}\n") for n, word in enumerate(words)), limits=LIMITS)
        return grade_program_sync(pool, stdio_attacks.CHEATS[name], tests)

    assert not rewarded(graded(stdio_attacks.CHEATS, grade))


NO_NUMBERS = ["nan", "inf", "-inf", "1e999", "0x1p3", "1_0", "10 10", "", "10\n10", "٣", "1e400", "[10]"]


def test_a_tolerance_applies_only_to_finite_numbers():
    """The comparison of outputs is the same in every tier."""
    needs(Tier.NAMESPACES)
    tests = StdioTests((StdioTest("", "10"),), float_tolerance=0.5, limits=HONEST_SUM.limits)
    with SandboxPool(Tier.NAMESPACES, max_workers=1) as pool:
        taken = [words for words in NO_NUMBERS if grade_program_sync(pool, f"print({words!r})", tests).fraction != 0]
        assert grade_program_sync(pool, "print('10.4')", tests).correct
    assert not taken


def test_honest_programs_are_rewarded(pool, nothing_left):
    honest = dict(stdio_attacks.HONEST)
    if pool.tier is Tier.LANDLOCK:
        # docs/sandbox.md: named sockets are blocked in tier B, since those of the host could be reached
        del honest["with a unix socket"]

    def grade(name: str) -> CodeVerdict:
        return grade_program_sync(pool, stdio_attacks.PRELUDE + honest[name], HONEST_SUM)

    assert not not_correct(graded(honest, grade))


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.long)], ids=["eight", "sixteen"])
@pytest.mark.parametrize("tier", A_AND_LONG_B, ids=["A", "B"])
def test_hostile_programs_at_once_do_not_disturb_an_honest_one(tier, times):
    """Eight attacks, one of each kind, or sixteen."""
    needs(tier)
    attacks = {name: source for kind in stdio_attacks.RESOURCES.values() for name, source in kind.items()}
    hostile = ["fork bomb of fork bombs", "memory", "a loop", "disk", "output", "daemon", "ignored signals", "inodes"]
    limits = LIMITS if times > 1 else Limits(cpu_s=0.5, wall_s=3)
    with SandboxPool(tier, max_workers=len(hostile) * times + 1) as pool:
        threads = [
            threading.Thread(
                target=grade_program_sync, args=(pool, stdio_attacks.PRELUDE + attacks[name], _sum(limits))
            )
            for name in hostile * times
        ]
        for thread in threads:
            thread.start()
        verdicts = [grade_program_sync(pool, stdio_attacks.PRELUDE + "print(a + b)", HONEST_SUM) for _ in range(10)]
        for thread in threads:
            thread.join()
    assert all(verdict.correct for verdict in verdicts), verdicts
