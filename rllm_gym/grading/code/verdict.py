"""Tests of a program, and the verdict on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from rllm_gym.core import TaskError
from rllm_gym.sandbox.program import Ended, Limits

TestStyle = Literal["check", "unittest", "pytest", "assert"]

MAX_MESSAGE = 2000
"""Maximum characters of a message about a program: a syntax error, an exception, a difference."""

DEFAULT_LIMITS = Limits()

TESTS_MEMORY_MB = 1024
"""Memory of the process that runs hidden test code, which also holds the program's answers."""


@dataclass(frozen=True, slots=True)
class StdioTest:
    """The input of a program and its expected output; ``also`` are other outputs that are right."""

    stdin: str
    stdout: str
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StdioTests:
    """Tests of a program that reads standard input and writes standard output. It runs once per test.

    Attributes:
        tests: At least one test.
        float_tolerance: Maximum absolute or relative error of numbers that are not whole; ``None`` requires identical
            text.
        limits: Limits of each run.
        checker: ``"lines"``: lines are compared, see :func:`.difference`; ``"tokens"``: the words of the whole output,
            of which ``yes`` and ``no`` may be in any case; otherwise the source of a checker, see
            :mod:`rllm_gym.grading.code.checker`.
        stdin_file: Whether standard input is a regular file rather than a pipe: ``os.fstat(0).st_size`` is its size.
    """

    tests: tuple[StdioTest, ...]
    float_tolerance: float | None = None
    limits: Limits = DEFAULT_LIMITS
    checker: str = "lines"
    stdin_file: bool = False

    def __post_init__(self) -> None:
        if not self.tests:
            raise TaskError("a program cannot be graded without tests: pass at least one pair of stdin and stdout")
        tolerance = self.float_tolerance
        if tolerance is not None and not 0 <= tolerance < float("inf"):
            raise TaskError(f"float_tolerance={tolerance} must be a finite number >= 0, or None")


@dataclass(frozen=True, slots=True)
class FunctionTests:
    """Test code that calls what the program defines. It runs in a separate process, without the program.

    Attributes:
        entry_point: The tested object: ``"add"``, ``"Stack"``, ``"Solution().twoSum"``.
        test: The test code. ``"check"``: defines ``check(candidate)``; ``"unittest"``: ``TestCase`` classes;
            ``"pytest"``: ``test_`` functions, which may import from ``solution``; ``"assert"``: assert statements.
            Names that it uses and does not define are taken from the program.
        style: How the test code is run.
        setup: Code run before it, in the same namespace.
        limits: Limits of the program, all tests together.
    """

    entry_point: str
    test: str
    style: TestStyle
    setup: str = ""
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        if self.style not in get_args(TestStyle):
            raise TaskError(f"unknown test style {self.style!r}; choose from {', '.join(get_args(TestStyle))}")
        if not self.test.strip():
            raise TaskError(f"no test code for {self.entry_point!r}: a program cannot be graded without tests")


@dataclass(frozen=True, slots=True)
class TestOutcome:
    """The outcome of one test of a program.

    Attributes:
        name: Name of the test: its number for standard input tests, its function or statement otherwise.
        passed: Whether the program passed.
        message: Why it failed, of bounded length; empty if it passed. Contains the test's input, and the expected
            result only if grading was asked to show it.
        ended: Why the program ended, if it ended before answering; ``None`` otherwise.
    """

    __test__ = False

    name: str
    passed: bool
    message: str = ""
    ended: Ended | None = None


@dataclass(frozen=True, slots=True)
class CodeVerdict:
    """The verdict on a program.

    Attributes:
        outcomes: One per test, in order. Tests skipped after an earlier failure are not included.
        total: Number of tests; 0 if the program failed before the number was known.
        error: Why no test could be run, for example a syntax error; empty otherwise.
        output: The beginning of the program's output in its first test, for messages about public tests.
        unsupported: Operations of the tests on what the program returned that are not supported across two processes.
            A correct program whose tests need them is refused; a wrong one can cause them.
        ungradable: Why the tests themselves cannot be run across two processes, whatever the program; empty otherwise.
            If the verdict is not correct, it says nothing about the program. No program can cause it.
    """

    outcomes: tuple[TestOutcome, ...]
    total: int
    error: str = ""
    output: str = ""
    unsupported: tuple[str, ...] = ()
    ungradable: str = ""

    @property
    def correct(self) -> bool:
        """Whether there is at least one test, and every test was run and passed."""
        return not self.error and 0 < self.total == len(self.outcomes) and all(test.passed for test in self.outcomes)

    @property
    def fraction(self) -> float:
        """The fraction of all tests that passed, 0 to 1."""
        return sum(test.passed for test in self.outcomes) / self.total if self.total and not self.error else 0.0


def bounded(text: str, limit: int = MAX_MESSAGE) -> str:
    """Return the text, or its two ends with a note about the cut between them; always printable."""
    clean = text.encode("utf-8", "backslashreplace").decode()
    if len(clean) <= limit:
        return clean
    half = limit // 2
    return f"{clean[:half]}\n... {len(clean) - 2 * half} characters cut ...\n{clean[-half:]}"
