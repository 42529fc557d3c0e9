"""What the model is told of its program, bounded, with what was cut said; of hidden tests nothing but the verdict."""

from __future__ import annotations

from collections import Counter

from rllm_gym.grading.code import CodeVerdict, TestOutcome
from rllm_gym.sandbox import Ended, Limits, Program, SandboxPool

_TESTS_TOLD = 3
_MESSAGE_CHARS = 3_000
_OUTPUT_CHARS = 1_500

_COMPILE = "import sys\ncompile(sys.stdin.buffer.read(), 'program.py', 'exec')\n"
_ALONE = Limits(cpu_s=2, wall_s=10)

_LIMITS = {
    Ended.CPU: "more processor time than it has",
    Ended.WALL: "more time than it has",
    Ended.MEMORY: "more memory than it has",
    Ended.OUTPUT: "more output than is read",
}


def about_hidden(verdict: CodeVerdict, passed: int, total: int, *, counted: bool) -> str:
    """Whether the program is right; no word of what a hidden test gives, wants or got.

    Args:
        counted: Whether all tests were run, so that numbers can be given.
    """
    if verdict.correct:
        return "Every test passes."
    said = f"It passes {passed} of {total} hidden tests." if counted else "It fails a hidden test."
    over = Counter(_LIMITS[outcome.ended] for outcome in verdict.outcomes if outcome.ended in _LIMITS)
    return said + "".join(f" In {count} of them it used {what}." for what, count in over.items())


def about_public(verdict: CodeVerdict) -> str:
    """What became of the tests that are shown."""
    if verdict.error:
        return about_error(verdict.error)
    if verdict.correct:
        return "Every test passes."
    failed = [outcome for outcome in verdict.outcomes if not outcome.passed]
    passed = len(verdict.outcomes) - len(failed)
    parts = [f"It passes {passed} of the {verdict.total} tests that are shown."]
    parts += [_about_test(outcome) for outcome in failed[:_TESTS_TOLD]]
    if len(failed) > _TESTS_TOLD:
        parts.append(f"({len(failed) - _TESTS_TOLD} more failed tests are left out.)")
    if verdict.output.strip() and verdict.outcomes and not verdict.outcomes[0].passed:
        parts.append(f"In test {verdict.outcomes[0].name} it wrote:\n{_ends(verdict.output, _OUTPUT_CHARS)}")
    return "\n\n".join(parts)


def _about_test(outcome: TestOutcome) -> str:
    why = outcome.message
    if outcome.ended in _LIMITS:
        why = f"it used {_LIMITS[outcome.ended]}. {why}".strip()
    return f"Test {_ends(outcome.name, 300)} fails: {_ends(why, _MESSAGE_CHARS)}"


def about_error(error: str) -> str:
    """What keeps the program from being run."""
    return f"It cannot be run:\n{_ends(error, _MESSAGE_CHARS)}" if error else "It ends before it can be tested."


async def error_alone(pool: SandboxPool, source: str, kind: str) -> str:
    """Why a program cannot be run, found where there is no test that it could tell of: of one that reads input whether
    it compiles, of the definition of a function whether it runs. ``""`` where neither says anything."""
    if kind == "stdio":
        program = Program(_COMPILE, stdin=source.encode(), limits=_ALONE)
    else:
        program = Program(source, limits=_ALONE)
    result = await pool.run(program)
    if result.exit_code == 0:
        return ""
    return result.stderr.decode("utf-8", "replace").strip() or f"it ended: {result.ended.value}"


def _ends(text: str, limit: int) -> str:
    """Both ends of a text, with what was cut between them said; printable, whatever a program wrote."""
    text = text.encode("utf-8", "backslashreplace").decode().rstrip()
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters cut ...\n{text[-half:]}"
