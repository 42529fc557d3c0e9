"""Feedback for the model on its program, of bounded length. For hidden tests it contains only the verdict."""

from __future__ import annotations

from collections import Counter

from rllm_gym.grading.code import CodeVerdict, TestOutcome
from rllm_gym.sandbox import Ended, Limits, Program, SandboxPool

_MAX_TESTS_SHOWN = 3
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


def hidden_feedback(verdict: CodeVerdict, passed: int, total: int, *, counted: bool) -> str:
    """Return whether the program is right, without any input, expected result or output of a hidden test.

    Args:
        counted: Whether all tests were run, so that numbers can be given.
    """
    if verdict.correct:
        return "Every test passes."
    text = f"It passes {passed} of {total} hidden tests." if counted else "It fails a hidden test."
    over = Counter(_LIMITS[outcome.ended] for outcome in verdict.outcomes if outcome.ended in _LIMITS)
    return text + "".join(f" In {count} of them it used {what}." for what, count in over.items())


def public_feedback(verdict: CodeVerdict) -> str:
    """Return the results of the public tests."""
    if verdict.error:
        return error_feedback(verdict.error)
    if verdict.correct:
        return "Every test passes."
    failed = [outcome for outcome in verdict.outcomes if not outcome.passed]
    passed = len(verdict.outcomes) - len(failed)
    parts = [f"It passes {passed} of the {verdict.total} tests that are shown."]
    parts += [_about_test(outcome) for outcome in failed[:_MAX_TESTS_SHOWN]]
    if len(failed) > _MAX_TESTS_SHOWN:
        parts.append(f"({len(failed) - _MAX_TESTS_SHOWN} more failed tests are left out.)")
    if verdict.output.strip() and verdict.outcomes and not verdict.outcomes[0].passed:
        parts.append(f"In test {verdict.outcomes[0].name} it wrote:\n{_ends(verdict.output, _OUTPUT_CHARS)}")
    return "\n\n".join(parts)


def _about_test(outcome: TestOutcome) -> str:
    message = outcome.message
    if outcome.ended in _LIMITS:
        message = f"it used {_LIMITS[outcome.ended]}. {message}".strip()
    return f"Test {_ends(outcome.name, 300)} fails: {_ends(message, _MESSAGE_CHARS)}"


def error_feedback(error: str) -> str:
    """Return the error that prevents the program from running."""
    return f"It cannot be run:\n{_ends(error, _MESSAGE_CHARS)}" if error else "It ends before it can be tested."


async def error_without_tests(pool: SandboxPool, source: str, kind: str) -> str:
    """Return why a program cannot be run, found without any test whose content the error could reveal: a program that
    reads input is compiled, the definition of a function is executed. ``""`` if neither gives an error."""
    if kind == "stdio":
        program = Program(_COMPILE, stdin=source.encode(), limits=_ALONE)
    else:
        program = Program(source, limits=_ALONE)
    result = await pool.run(program)
    if result.exit_code == 0:
        return ""
    return result.stderr.decode("utf-8", "replace").strip() or f"it ended: {result.ended.value}"


def _ends(text: str, limit: int) -> str:
    """Return both ends of a text, with a note on what was cut between them; the result is always printable."""
    text = text.encode("utf-8", "backslashreplace").decode().rstrip()
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters cut ...\n{text[-half:]}"
