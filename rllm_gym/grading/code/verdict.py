"""What a program is graded by, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from rllm_gym.core import TaskError
from rllm_gym.sandbox.program import Ended, Limits

TestStyle = Literal["check", "unittest", "pytest", "assert"]

MAX_MESSAGE = 2000
"""Characters of the longest message about a program: a syntax error, an exception, a difference."""

DEFAULT_LIMITS = Limits()

MEMORY_FOR_TESTS_MB = 1024
"""Memory of the process that runs hidden test code, which carries what the program answered."""


@dataclass(frozen=True, slots=True)
class StdioTest:
    """What a program reads, and what it must then have written."""

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True)
class StdioTests:
    """A program that reads standard input and writes standard output, run once a test.

    Attributes:
        tests: At least one.
        float_tolerance: Numbers may differ by this, absolutely or relatively to the expected one; ``None`` for text
            that must be the same.
        limits: What each run may use.
    """

    tests: tuple[StdioTest, ...]
    float_tolerance: float | None = None
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        if not self.tests:
            raise TaskError("a program cannot be graded by no tests: give at least one stdin and stdout")
        tolerance = self.float_tolerance
        if tolerance is not None and not 0 <= tolerance < float("inf"):
            raise TaskError(f"float_tolerance is {tolerance}; it must be a finite number of at least 0, or None")


@dataclass(frozen=True, slots=True)
class FunctionTests:
    """Test code that calls what the program defines. It runs in a process of its own, without the program.

    Attributes:
        entry_point: What is tested: ``"add"``, ``"Stack"``, ``"Solution().twoSum"``.
        test: The test code. ``"check"``: defines ``check(candidate)``; ``"unittest"``: ``TestCase`` classes;
            ``"pytest"``: ``test_`` functions, which may import from ``solution``; ``"assert"``: assert statements.
            Names that it uses and does not define are the program's.
        style: How the test code is run.
        setup: Code run before it, in the same namespace.
        limits: What the program may use, all tests together.
    """

    entry_point: str
    test: str
    style: TestStyle
    setup: str = ""
    limits: Limits = DEFAULT_LIMITS

    def __post_init__(self) -> None:
        if self.style not in get_args(TestStyle):
            raise TaskError(f"test style {self.style!r} is not known; one of {', '.join(get_args(TestStyle))}")
        if not self.test.strip():
            raise TaskError(f"no test code for {self.entry_point!r}: a program cannot be graded by no tests")


@dataclass(frozen=True, slots=True)
class TestOutcome:
    """One test of a program.

    Attributes:
        name: The test's: its number for standard input, its function or statement otherwise.
        passed: Whether the program did what the test asks.
        message: Why it did not, bounded; empty when it did. Names what the test gave the program, and what it
            expected only if grading was asked to show that.
        ended: Why the program ended, where it did not live to answer; ``None`` otherwise.
    """

    __test__ = False

    name: str
    passed: bool
    message: str = ""
    ended: Ended | None = None


@dataclass(frozen=True, slots=True)
class CodeVerdict:
    """Whether a program is right.

    Attributes:
        outcomes: One a test, in their order. Tests that were not run because an earlier one failed are not here.
        total: How many tests there are; 0 if the program did not come far enough for that to be known.
        error: Why no test could be run, as a syntax error; empty otherwise.
        output: The beginning of what the program wrote in its first test, for messages about public tests.
        unsupported: What the tests did that cannot be done when they and the program are in two processes.
    """

    outcomes: tuple[TestOutcome, ...]
    total: int
    error: str = ""
    output: str = ""
    unsupported: tuple[str, ...] = ()

    @property
    def correct(self) -> bool:
        """Every test was run and passed, and there was one."""
        return not self.error and 0 < self.total == len(self.outcomes) and all(test.passed for test in self.outcomes)

    @property
    def fraction(self) -> float:
        """The share of all tests that passed, 0 to 1."""
        return sum(test.passed for test in self.outcomes) / self.total if self.total and not self.error else 0.0


def bounded(text: str, limit: int = MAX_MESSAGE) -> str:
    """The text, or its two ends with what was cut said between them; printable whatever a program put in it."""
    clean = text.encode("utf-8", "backslashreplace").decode()
    if len(clean) <= limit:
        return clean
    half = limit // 2
    return f"{clean[:half]}\n... {len(clean) - 2 * half} characters cut ...\n{clean[-half:]}"
