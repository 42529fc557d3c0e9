"""The hidden tests of a repository task, and the verdict on a change."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from rllm_gym.core import TaskError


@dataclass(frozen=True, slots=True)
class RepositoryTests:
    """The hidden tests of a repository task.

    Attributes:
        hidden_tests: Text of each test file and related file (a ``conftest.py``, expected output), by path relative to
            the repository's root. They replace existing files.
        fail_to_pass: Ids of the tests that fail before the change and must pass after it: pytest's node ids
            (``tests/test_a.py::TestB::test_c[1-x]``), or unittest's (``tests.test_a.TestB.test_c``) with a command that
            runs unittest.
        pass_to_pass: Ids of the tests that must continue to pass.
        test_command: ``None``: our own pytest run, the strongest evidence. A plain ``pytest …`` command adds its
            options to that run. Any other command runs in a shell in the repository's root, and its log is parsed.
        log_parser: How the log of ``test_command`` is parsed; see :data:`~rllm_gym.grading.swe.LOG_PARSERS`. ``None``:
            chosen by the command.
        timeout: Wall-clock seconds that one run of the tests may take.
        trace: What the tests observe with the reference solution, as text; see
            :func:`~rllm_gym.grading.swe.record_trace`. With it, assertions are evaluated outside the sandbox. ``None``:
            runs with mutated tests are used instead, which is weaker.

    Raises:
        TaskError: A field is invalid.
    """

    hidden_tests: Mapping[str, str]
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...] = ()
    test_command: str | None = None
    log_parser: str | None = None
    timeout: float = 300.0
    trace: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden_tests", dict(self.hidden_tests))
        object.__setattr__(self, "fail_to_pass", tuple(dict.fromkeys(self.fail_to_pass)))
        object.__setattr__(self, "pass_to_pass", tuple(dict.fromkeys(self.pass_to_pass)))
        if not self.fail_to_pass and not self.pass_to_pass:
            raise TaskError("a repository task needs at least one test id in fail_to_pass or pass_to_pass")
        both = set(self.fail_to_pass) & set(self.pass_to_pass)
        if both:
            raise TaskError(f"{min(both)!r} is in fail_to_pass and in pass_to_pass; a test must be in only one of them")
        for path, text in self.hidden_tests.items():
            if not isinstance(text, str) or any("\ud800" <= character <= "\udfff" for character in text):
                raise TaskError(
                    f"the text of the hidden test {path!r} must be an encodable string; got {type(text).__name__}"
                )
            parts = PurePosixPath(path).parts
            if not parts or path.startswith("/") or ".." in parts or parts[0] == ".git" or "\0" in path:
                raise TaskError(f"hidden_tests path {path!r} must be relative and inside the repository")
        if not self.timeout > 0:
            raise TaskError(f"timeout={self.timeout!r} must be > 0 seconds")
        if self.trace is not None and not isinstance(self.trace, str):
            raise TaskError(f"trace must be text, as written by record_trace; got {type(self.trace).__name__}")
        if self.log_parser is not None and self.test_command is None:
            raise TaskError(f"log_parser={self.log_parser!r} requires test_command, which is not set")
        if self.test_command is not None:
            try:
                words = shlex.split(self.test_command)
            except ValueError as error:
                raise TaskError(f"test_command={self.test_command!r} is not a valid shell command: {error}") from None
            if not words:
                raise TaskError("test_command is empty; omit it to run pytest")

    @property
    def listed(self) -> tuple[str, ...]:
        """Every test id that must pass."""
        return self.fail_to_pass + self.pass_to_pass


@dataclass(frozen=True, slots=True)
class RepositoryVerdict:
    """The verdict on a change.

    Attributes:
        correct: Whether every listed test passed exactly once, and every test that had to fail did.
        passed: The listed tests that passed.
        failed: The listed tests that failed, with the reason. Contains text of hidden tests: do not show it to the
            model.
        dropped: Changes that were dropped, as ``path: why``.
        reason: One line that says why the change is right or wrong, without text of the hidden tests.
        evidence: ``"trace"``: the assertions were evaluated outside the sandbox. ``"report"``: our own reporter
            observed each test, also mutated ones. ``"log"``: a log was parsed, which is weaker still.
        remarks: What weakens the verdict, for example tests that could not be mutated.
        suspicious: What is unusual in the change, as ``path: what``; it does not decide. Count it in training: a policy
            that begins to attack the grader does so here first.
    """

    correct: bool
    passed: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    reason: str = ""
    evidence: str = "report"
    remarks: tuple[str, ...] = ()
    suspicious: tuple[str, ...] = ()
