"""Standard input and output tests: the program runs once per test. The expected output never enters the sandbox."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace

from rllm_gym.grading.code.checker import check_output
from rllm_gym.grading.code.compare import difference, max_output_bytes
from rllm_gym.grading.code.timed_pool import OUT_OF_TIME, OutOfTime, TimedPool
from rllm_gym.grading.code.verdict import CodeVerdict, StdioTest, StdioTests, TestOutcome, bounded
from rllm_gym.sandbox import Ended, Program, ProgramResult, SandboxPool

MAX_CONCURRENT = 4
"""Maximum number of tests of one program that run concurrently."""

_SHOWN = 500
_CHECKED_BYTES = 1_000_000

_WITH_FILE = """
def _program():
    import os, sys
    with open("stdin.txt", "rb") as file:
        os.dup2(file.fileno(), 0)
    with open("main.py", encoding="utf-8", newline="") as file:
        source = file.read()
    os.unlink("stdin.txt")
    os.unlink("main.py")
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)
    return compile(source, "main.py", "exec", dont_inherit=True)
exec(globals().pop("_program")())
"""
"""Runs a program with its standard input in a file."""
_PATH = re.compile(r'File "/[^"\n]{0,200}/main\.py"')


async def grade_stdio(
    pool: SandboxPool, source: str, tests: StdioTests, *, stop_at_first_failure: bool, show_expected: bool
) -> CodeVerdict:
    """Grade a program by its output. See :func:`rllm_gym.grading.code.grade_program`."""
    total = len(tests.tests)
    numpy = ("numpy",) if "numpy" in source else ()
    own = tests.checker not in ("lines", "tokens")
    runs = TimedPool(pool, min(MAX_CONCURRENT, pool.max_workers))

    async def run(index: int) -> tuple[TestOutcome, ProgramResult]:
        test = tests.tests[index]
        # Output beyond the length of a correct answer need not be read; a correct answer is read whatever its length.
        output_bytes = max(map(max_output_bytes, (test.stdout, *test.also)))
        if own:
            output_bytes = max(output_bytes, _CHECKED_BYTES)
        limits = replace(tests.limits, output_bytes=output_bytes)
        stdin = test.stdin.encode("utf-8", "surrogatepass")
        if tests.stdin_file:
            files = {"main.py": source.encode(), "stdin.txt": stdin}
            program = Program(_WITH_FILE, files=files, preload=numpy, limits=limits)
        else:
            program = Program(source, stdin=stdin, preload=numpy, limits=limits)
        result = await runs.run(program)
        accepted = None
        if own and not _failure(result) and result.stdout_bytes <= len(result.stdout):
            try:
                accepted = await check_output(runs, tests.checker, test, result.stdout)
            except OutOfTime:
                return TestOutcome(str(index + 1), False, OUT_OF_TIME), result
        return _outcome(index, test, result, tests, accepted, show_expected), result

    # Run the first test alone: most wrong programs fail it, and one that cannot start need not run again.
    first, result = await run(0)
    error = _syntax_error(result)
    if error:
        return CodeVerdict((), total, error=error)
    outcomes = {0: first}
    if first.passed or not stop_at_first_failure:
        await _run_rest(run, outcomes, total, stop_at_first_failure)
    ordered = tuple(outcomes[index] for index in sorted(outcomes))
    return CodeVerdict(ordered, total, output=_text(result.stdout, 2000))


async def _run_rest(run, outcomes: dict[int, TestOutcome], total: int, stop: bool) -> None:  # type: ignore[no-untyped-def]
    waiting = iter(range(1, total))

    async def work() -> None:
        for index in waiting:
            try:
                outcomes[index], _ = await run(index)
            except OutOfTime:
                outcomes[index] = TestOutcome(str(index + 1), False, OUT_OF_TIME)
            if stop and not outcomes[index].passed:
                for _ in waiting:
                    pass

    async with asyncio.TaskGroup() as group:
        for _ in range(min(MAX_CONCURRENT, total - 1)):
            group.create_task(work())


def _outcome(
    index: int, test: StdioTest, result: ProgramResult, tests: StdioTests, accepted: bool | None, show: bool
) -> TestOutcome:
    name = str(index + 1)
    reason = _failure(result)
    if not reason:
        if result.stdout_bytes > len(result.stdout):
            reason = f"wrote {result.stdout_bytes:,} bytes, far more than expected"
        elif accepted is not None:
            if accepted:
                return TestOutcome(name, True)
            reason = f"wrong output: {_cut(_text(result.stdout, _SHOWN))}"
        else:
            tokens = tests.checker == "tokens"
            differences = [
                difference(result.stdout, expected, tests.float_tolerance, tokens=tokens)
                for expected in (test.stdout, *test.also)
            ]
            found = differences[0]
            if found is None or None in differences:
                return TestOutcome(name, True)
            expected = f", expected {found.expected!r}" if show else ""
            reason = f"wrong output at line {found.line}: got {found.got!r}{expected}"
    message = f"input:\n{_cut(test.stdin)}\n{reason}"
    return TestOutcome(name, False, bounded(message), None if result.ended is Ended.EXITED else result.ended)


def _failure(result: ProgramResult) -> str:
    """Return why a run failed before its output is compared; empty if it exited with code 0."""
    if result.ended is Ended.SIGNALLED:
        return f"ended by signal {result.signal}"
    if result.ended is not Ended.EXITED:
        return f"ended by the {result.ended.value}"
    if result.exit_code != 0:
        return f"exit code {result.exit_code}\n{_text(result.stderr[-1000:], 1000)}".rstrip()
    return ""


def _syntax_error(result: ProgramResult) -> str:
    """Return the syntax error because of which a program could not start, as printed by the interpreter.

    It is used as a message only: a program that prints this itself, and exits with 1, has failed anyway.
    """
    if result.ended is not Ended.EXITED or result.exit_code != 1:
        return ""
    lines = _text(result.stderr[-4000:], 4000).rstrip().splitlines()
    if not lines or not lines[-1].startswith(("SyntaxError:", "IndentationError:", "TabError:")):
        return ""
    starts = [index for index, line in enumerate(lines) if line.startswith("  File ")]
    return bounded("\n".join(lines[starts[-1] :])) if len(starts) == 1 else ""


def _text(data: bytes, limit: int) -> str:
    # The path of the program inside the sandbox does not help its author.
    return bounded(_PATH.sub('File "main.py"', data[: 4 * limit].decode("utf-8", "replace")), limit)


def _cut(text: str) -> str:
    return bounded(text, _SHOWN)
