"""Parses test outcomes from the output of a test command.

A log is weaker evidence than a report, because any code that runs can print.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from rllm_gym.core import TaskError

MAX_LINES = 400_000
MAX_COLUMNS = 5000


@dataclass(frozen=True, slots=True)
class LoggedTest:
    """One test in a log. ``passed`` is true for a plain pass only."""

    id: str
    passed: bool
    word: str


_WORDS = "PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS|RERUN"
_SUMMARY = re.compile(rf"({_WORDS}) +(\S.*)")
_VERBOSE = re.compile(rf"\s({_WORDS})(?:\s+\[ *\d+%\])?$|\s({_WORDS})\s")


def parse_pytest_log(log: str) -> list[LoggedTest]:
    """Parse the short summary of ``pytest -rA``; if it lists no pass, the lines of ``pytest -v``.

    >>> parse_pytest_log("PASSED t.py::a[x y]\\nFAILED t.py::b - assert 1 == 2")
    [LoggedTest(id='t.py::a[x y]', passed=True, word='PASSED'), LoggedTest(id='t.py::b', passed=False, word='FAILED')]
    """
    lines = [line[:MAX_COLUMNS].strip() for line in log.splitlines()[-MAX_LINES:]]
    starts = [n for n, line in enumerate(lines) if "short test summary info" in line]
    summary = []
    for line in lines[starts[-1] if starts else 0 :]:
        match = _SUMMARY.fullmatch(line)
        if match:
            word, rest = match.groups()
            summary.append(
                LoggedTest(rest if word == "PASSED" else rest.split(" - ")[0].strip(), word == "PASSED", word)
            )
    if any(test.passed for test in summary):
        return summary
    verbose = []
    for line in lines:
        match = _VERBOSE.search(line)
        if match and "::" in line[: match.start()]:
            word = match[1] or match[2]
            verbose.append(LoggedTest(line[: match.start()].strip(), word == "PASSED", word))
    return verbose or summary


_UNITTEST = re.compile(r"(\w+) \(([\w.]+)\)")
_UNITTEST_HEADING = re.compile(r"(FAIL|ERROR): (\w+ \([\w.]+\))")
_UNITTEST_END = re.compile(r"(?:^|\s)(ok|FAIL|ERROR|skipped .*|expected failure|unexpected success)$")


def parse_unittest_log(log: str) -> list[LoggedTest]:
    """Parse ``python -m unittest -v`` and Django's runner; ids are ``module.Class.test`` or the docstring's first line.

    >>> parse_unittest_log("test_a (t.T.test_a) ... ok\\ntest_b (t.T)\\nSays so. ... FAIL")[1].id
    't.T.test_b'
    """
    found: list[LoggedTest] = []
    failed: dict[str, str] = {}
    current: str | None = None
    described = ""
    for line in log.splitlines()[-MAX_LINES:]:
        line = line[:MAX_COLUMNS].rstrip()
        header = _UNITTEST.match(line)
        heading = _UNITTEST_HEADING.match(line)
        if heading:
            failed[canonical_id(heading[2])] = heading[1]
        elif header:
            current, described = canonical_id(header.group()), ""
        elif current is not None and not described:
            described = line.split(" ... ")[0]
        end = _UNITTEST_END.search(line) if current is not None else None
        if end is None or current is None:
            continue
        word = end[1].split(" ")[0]
        found.append(LoggedTest(current, word == "ok", word))
        if described and described not in ("ok", word):
            found.append(LoggedTest(described, word == "ok", word))
        current = None
    # Output of a test can look like its outcome; the tracebacks' headings come after all tests.
    passed = {test.id for test in found if test.passed}
    return found + [LoggedTest(test, False, word) for test, word in failed.items() if test in passed]


_SYMPY = re.compile(r"(test_\w+)\s+(ok|F|f|E|s|X|w)(?:\s.*)?")


def parse_sympy_log(log: str) -> list[LoggedTest]:
    """Parse ``bin/test -C --verbose``: a word after each function's name, whatever its file."""
    found: dict[str, LoggedTest] = {}
    for line in log.splitlines()[-MAX_LINES:]:
        match = _SYMPY.fullmatch(line.strip()[:MAX_COLUMNS])
        if match and (match[1] not in found or found[match[1]].passed):
            found[match[1]] = LoggedTest(match[1], match[2] == "ok", match[2])
    return list(found.values())


def canonical_id(test_id: str) -> str:
    """Convert the two spellings of unittest to one: ``test_a (mod.T)`` and ``test_a (mod.T.test_a)``.

    >>> canonical_id("test_a (mod.T)"), canonical_id("test_a (mod.T.test_a)"), canonical_id("mod.T.test_a")
    ('mod.T.test_a', 'mod.T.test_a', 'mod.T.test_a')
    """
    match = _UNITTEST.fullmatch(test_id.strip())
    if match is None:
        return test_id
    name, place = match.groups()
    return place if place.rpartition(".")[2] == name else f"{place}.{name}"


def parse_r2e_log(log: str) -> list[LoggedTest]:
    """Parse as :func:`parse_pytest_log`, with the ids of R2E-Gym: no path, and dots between class and function.

    >>> parse_r2e_log("PASSED r2e_tests/test_1.py::TestA::test_b")[0].id
    'TestA.test_b'
    """
    return [LoggedTest(".".join(test.id.split("::")[1:]), test.passed, test.word) for test in parse_pytest_log(log)]


LOG_PARSERS: dict[str, Callable[[str], list[LoggedTest]]] = {
    "pytest": parse_pytest_log,
    "unittest": parse_unittest_log,
    "sympy": parse_sympy_log,
    "r2e": parse_r2e_log,
    # The names in rows made for the SWE-bench harness.
    "parse_log_pytest": parse_pytest_log,
    "parse_log_pytest_options": parse_pytest_log,
    "parse_log_pytest_v2": parse_pytest_log,
    "parse_log_seaborn": parse_pytest_log,
    "parse_log_matplotlib": parse_pytest_log,
    "parse_log_django": parse_unittest_log,
    "parse_log_sympy": parse_sympy_log,
}
"""The values of ``log_parser``."""


def find_parser(name: str) -> Callable[[str], list[LoggedTest]]:
    """Return a log parser by name.

    Raises:
        TaskError: There is no log parser of this name.
    """
    try:
        return LOG_PARSERS[name]
    except KeyError:
        raise TaskError(f"log_parser={name!r} is unknown; choose from {', '.join(LOG_PARSERS)}") from None
