"""Grades one program. This is the entry point of the package."""

from __future__ import annotations

from typing import Any

from rllm_gym.grading.code.function import grade_function
from rllm_gym.grading.code.stdio import grade_stdio
from rllm_gym.grading.code.verdict import CodeVerdict, FunctionTests, StdioTests
from rllm_gym.runtime.run_coroutine import run_coroutine
from rllm_gym.sandbox import SandboxPool

MAX_SOURCE = 1_000_000
"""Maximum length of a program in characters."""


async def grade_program(
    pool: SandboxPool,
    source: str,
    tests: StdioTests | FunctionTests,
    *,
    stop_at_first_failure: bool = False,
    show_expected: bool = False,
) -> CodeVerdict:
    """Run a program against its tests.

    This process does not compile, run or decode anything of the program, and the expected results never enter the
    process in which the program runs. A misbehaving program fails its tests and never raises an exception in the
    caller.

    Args:
        pool: The sandbox pool to run it in.
        source: The program, as the model wrote it. May be hostile.
        tests: Its tests.
        stop_at_first_failure: Skip tests that can no longer change whether the program is correct; ``fraction`` is then
            not the fraction of all tests.
        show_expected: Whether messages may contain expected results. For public tests.

    Raises:
        SandboxFault: The sandbox failed.
        TaskError: The test code itself cannot be run.
        ModuleNotFoundError: Tests of the style ``pytest``, without pytest: ``pip install 'rllm-gym[swe]'``.
    """
    if len(source) > MAX_SOURCE:
        return CodeVerdict((), 0, error=f"the program has {len(source):,} characters; at most {MAX_SOURCE:,} are run")
    # Lone surrogates, which a model cannot generate but a data row can contain, are not valid Python source either.
    source = source.encode("utf-8", "replace").decode()
    grade: Any = grade_stdio if isinstance(tests, StdioTests) else grade_function
    verdict: CodeVerdict = await grade(
        pool, source, tests, stop_at_first_failure=stop_at_first_failure, show_expected=show_expected
    )
    return verdict


def grade_program_sync(
    pool: SandboxPool,
    source: str,
    tests: StdioTests | FunctionTests,
    *,
    stop_at_first_failure: bool = False,
    show_expected: bool = False,
) -> CodeVerdict:
    """Run :func:`grade_program` from synchronous code, even if an event loop is already running."""
    return run_coroutine(
        grade_program(pool, source, tests, stop_at_first_failure=stop_at_first_failure, show_expected=show_expected)
    )


async def validate(pool: SandboxPool, tests: StdioTests | FunctionTests, reference: str) -> str | None:
    """Return why a task's reference solution does not pass; ``None`` if it passes."""
    verdict = await grade_program(pool, reference, tests, show_expected=True)
    if verdict.correct:
        return None
    if verdict.error:
        return f"the reference solution does not run: {verdict.error}"
    failed = next((test for test in verdict.outcomes if not test.passed), None)
    message = "there are no tests" if failed is None else f"test {failed.name}: {failed.message}"
    if verdict.unsupported:
        message = f"{message}\nNot supported by this grader: {'; '.join(verdict.unsupported)}"
    return f"the reference solution fails its own tests: {message}"
