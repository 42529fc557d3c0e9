"""One test run over a fresh base in its own session: the data sent in, and the validation of the outcome."""

from __future__ import annotations

import asyncio
import json
import secrets
import shlex
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rllm_gym.grading.swe.change_filter import AllowedChanges
from rllm_gym.grading.swe.hidden_run import HiddenRun
from rllm_gym.grading.swe.log_parsers import LoggedTest, find_parser
from rllm_gym.grading.swe.verdict import RepositoryTests
from rllm_gym.sandbox.errors import SandboxFault
from rllm_gym.sandbox.program import Ended
from rllm_gym.sandbox.session import ExecResult, SandboxSession, SessionLimits
from rllm_gym.sandbox.tree import TreeTooLarge

if TYPE_CHECKING:
    from rllm_gym.sandbox.pool import SandboxPool
    from rllm_gym.sandbox.runtime import Runtime

LIMITS = SessionLimits(memory_mb=4096, processes=256, output_bytes=64_000_000)
ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "PYTHONNOUSERSITE": "1"}

_FILE_TIME = 1_700_000_000
_MANY_FILES = 500
_MAX_EVENT = 4_000_000
_MAX_EVENTS = 12_000_000
_START = 'exec "$(command -v python || command -v python3)" -s -B {script} {request}'
# Plugins that reorder, repeat or distribute tests: here every test runs once.
_PLUGINS_OFF = ("randomly", "rerunfailures", "flaky")


@dataclass(frozen=True, slots=True)
class HiddenTestOutcome:
    """The outcome of one test.

    Attributes:
        passed: Whether setup, call and teardown had no failure, skip or expected failure.
        failed_in_call: Whether it failed in its own body. ``None`` if the outcome comes from a log.
        lines: Lines of the test's file that the exception passed through, outermost first.
        message: Why it did not pass.
        skipped: Whether it was skipped, or failed as expected.
        word: The outcome as written in the log, if it comes from a log.
        answers: The values computed for the test's withheld values, as reported by the run.
        observed: The events of a rewritten test, as reported by the run.
    """

    passed: bool
    failed_in_call: bool | None = None
    lines: tuple[int, ...] = ()
    message: str = ""
    skipped: bool = False
    word: str = ""
    answers: tuple[Any, ...] = ()
    observed: tuple[Any, ...] = ()


@dataclass(slots=True)
class TestRun:
    """The result of a run.

    Attributes:
        outcomes: By test id, in the order they ran, one for each time the test was reported.
        broken: Why nothing in it can be trusted; empty if it can.
        uncollected: Files that could not be collected, with the reason.
        shadowing: Changes left out because they would shadow installed packages.
        code: The exit code of the command.
        tampered: Test files whose text had changed at the end of the run.
        timed_out: Whether it was stopped by its timeout.
        wall_s: How long it took, in seconds.
    """

    outcomes: dict[str, list[HiddenTestOutcome]] = field(default_factory=dict)
    broken: str = ""
    uncollected: dict[str, str] = field(default_factory=dict)
    shadowing: tuple[str, ...] = ()
    code: int | None = None
    tampered: tuple[str, ...] = ()
    timed_out: bool = False
    wall_s: float = 0.0


class TestRunner:
    """A runner of tests over the same base and changes, each time in a fresh session.

    Args:
        pool: The sandbox pool for sessions.
        base: The original tree.
        allowed: The changes to apply to it.
        tests: The tests of the task; its hidden tests are written over the changes.
        runtime: The Python of the tests.
    """

    def __init__(
        self, pool: SandboxPool, base: Path, allowed: AllowedChanges, tests: RepositoryTests, runtime: Runtime | None
    ) -> None:
        self._pool = pool
        self._base = base
        self._allowed = allowed
        self._tests = tests
        self._runtime = runtime
        self.own_run = runs_our_pytest(tests)
        """Whether our own reporter is used; otherwise a log is parsed."""
        self._options = _pytest_options(base, tests) if self.own_run else []

    async def run(self, hidden_run: HiddenRun, *, timeout_factor: float = 1.0) -> TestRun:
        """Run the tests of ``hidden_run``. A custom test command selects its tests itself and uses the texts.

        Args:
            hidden_run: The files and their texts.
            timeout_factor: Factor on the task's timeout.

        Raises:
            EnvironmentFault: The session, or the Python in it, is unusable.
        """
        word = secrets.token_hex(16)
        script, request = (f".{secrets.token_hex(8)}.{kind}" for kind in ("py", "json"))
        sent = {**self._tests.hidden_tests, **hidden_run.texts}
        async with self._pool.open_session(
            self._base, limits=LIMITS, runtime=self._runtime, environment=ENVIRONMENT
        ) as session:
            try:
                await session.write(script, _script())
                await session.write(request, await asyncio.to_thread(self._request, word, hidden_run, sent))
            except OSError as error:
                raise SandboxFault(f"the tests could not be sent to the session: {error}") from error
            result = await session.exec(
                _START.format(script=script, request=request), self._tests.timeout * timeout_factor
            )
            run = await asyncio.to_thread(self._read_result, result, word)
            run.tampered = await _tampered_files(
                session, {path: sent[path] for path in hidden_run.files if path in sent}
            )
        return run

    def _request(self, word: str, hidden_run: HiddenRun, sent: Mapping[str, str]) -> bytes:
        """Return a line of JSON and the content of the files, one after the other: they may have many megabytes."""
        changes = self._allowed.changes
        files = [(path, file.kind, file.executable, file.data) for path, file in sorted(changes.written.items())]
        files += [(path, "file", False, text.encode()) for path, text in sorted(sent.items())]
        request = {
            "word": word,
            "removed": sorted(changes.removed),
            "files": [[*described, len(data)] for *described, data in files],
            "time": _FILE_TIME,
            "hypothesis": any("hypothesis" in text for text in sent.values()),
            "new_modules": self._allowed.new_modules,
            "roots": ["", "src"] if (self._base / "src").is_dir() else [""],
            "command": None if self.own_run else self._tests.test_command,
            "arguments": [*self._options, *hidden_run.files] if self.own_run else [],
            "observed": hidden_run.observed,
            "withheld": {"name": hidden_run.placeholder, "choices": hidden_run.choices},
        }
        return b"".join([json.dumps(request).encode(), b"\n", *(data for *_, data in files)])

    def _read_result(self, result: ExecResult, word: str) -> TestRun:
        events, rest = _events(result.output, word)
        first = events[0] if events else {}
        if first.get("event") == "no pytest":
            raise SandboxFault(
                f"the runtime of this task has no pytest ({first['message']}): pip install 'rllm-gym[swe]' for the "
                "default one, pass a runtime= that has it, or set the task's test_command",
                kind="no_pytest",
            )
        if not first and result.timed_out and len(self._allowed.changes.written) > _MANY_FILES:
            # No fault: the model would cause it at will. A solution never writes that many.
            return TestRun(broken="the files of the change took too long to write", timed_out=True)
        if first.get("event") != "ready":
            shown = result.output[-500:].decode(errors="replace")
            raise SandboxFault(f"the test run did not start (exit code {result.exit_code}): {shown!r}")
        run = TestRun(code=result.exit_code, timed_out=result.timed_out, wall_s=result.wall_s)
        run.shadowing = tuple(f"{path}: would shadow the installed {name}" for name, path in first["shadowing"])
        if result.timed_out:
            run.broken = "the tests did not finish in time"
        elif result.ended is not Ended.EXITED:
            run.broken = f"the tests were stopped by the {result.ended.value}"
        if self.own_run:
            _read_report(run, events)
        else:
            command = self._tests.test_command or ""
            parser = self._tests.log_parser or ("unittest" if "unittest" in command else "pytest")
            _read_log(run, find_parser(parser)(rest))
        return run


def runs_our_pytest(tests: RepositoryTests) -> bool:
    """Return whether our own pytest call can run the tests: no command, or one of ``pytest`` and options."""
    if tests.test_command is None:
        return True
    if tests.log_parser is not None or any(character in tests.test_command for character in "|&;<>$`\n("):
        return False
    words = shlex.split(tests.test_command)
    return words[0] in ("pytest", "py.test") or words[:3] in (["python", "-m", "pytest"], ["python3", "-m", "pytest"])


async def _tampered_files(session: SandboxSession, sent: Mapping[str, str]) -> tuple[str, ...]:
    tampered = []
    for path, text in sent.items():
        data = text.encode()
        try:
            found = await session.read(path, len(data) + 1)
        except (OSError, TreeTooLarge):
            found = None
        if found != data:
            tampered.append(path)
    return tuple(tampered)


def _script() -> bytes:
    inside = resources.files("rllm_gym.grading.swe.inside")
    names = ("value_digest.py", "observer.py", "run_tests.py")
    future = b"from __future__ import annotations\n"
    # Before any other import: the first entry is the repository's root.
    header = future + b"import sys\nfirst_on_path = sys.path.pop(0)\n"
    texts = [inside.joinpath(name).read_bytes().replace(future, b"", 1) for name in names]
    return header + b"".join(texts)


def _events(output: bytes, word: str) -> tuple[list[dict[str, Any]], str]:
    """Return the run's own lines, in order, and the text of all others."""
    mark = f"\n@{word} ".encode()
    data = b"\n" + output
    events: list[dict[str, Any]] = []
    others: list[bytes] = []
    at, left = 0, _MAX_EVENTS
    # Searched, not split: the output may be millions of lines.
    while left > 0 and (found := data.find(mark, at)) >= 0:
        others.append(data[at:found])
        start = found + len(mark)
        at = data.find(b"\n", start)
        at = len(data) if at < 0 else at
        try:
            event = json.loads(data[start : min(at, start + min(left, _MAX_EVENT))])
        except (ValueError, RecursionError):
            event = None
        events.append(event if isinstance(event, dict) else {"event": "unreadable"})
        left -= at - found
    if left <= 0:
        events[-1] = {"event": "too large", "n": len(events) - 1}  # it was cut off
    others.append(data[at:] if left > 0 else b"")
    return events, b"".join(others)[1:].decode(errors="replace")


def _read_report(run: TestRun, events: list[dict[str, Any]]) -> None:
    """Read our reporter's events, requiring that they are numbered, complete and end with the process's exit code."""
    collected: list[Any] = []
    ends: list[dict[str, Any]] = []
    count = 0
    for number, event in enumerate(events):
        if event.get("n") != number:
            run.broken = run.broken or "the events of the test report are not numbered consecutively"
        match event.get("event"):
            case "test":
                count += 1
                test, outcome = _read_test(event)
                run.outcomes.setdefault(test, []).append(outcome)
            case "uncollected":
                run.uncollected[str(event.get("id"))] = str(event.get("message"))
            case "collected":
                collected.append(event.get("tests"))
            case "end":
                ends.append(event)
            case "too large":
                run.broken = run.broken or (
                    f"the report of the tests has more than {_MAX_EVENTS:,} bytes: they are too many, or print too much"
                )
    if run.broken:
        return
    if len(ends) != 1 or events[-1] is not ends[0]:
        run.broken = f"the test run ended before its report was complete (exit code {run.code})"
    elif ends[0].get("code") != run.code:
        run.broken = f"the report has exit code {ends[0].get('code')!r}, but the process {run.code}"
    elif run.code in (3, 4):
        run.broken = f"pytest could not run (exit code {run.code})"
    elif collected not in ([count], []) or ends[0].get("tests") != count:
        run.broken = "the number of reported tests differs from the number collected"


def _read_test(event: Mapping[str, Any]) -> tuple[str, HiddenTestOutcome]:
    phases = event.get("phases")
    lines = event.get("lines", [])
    well_formed = isinstance(lines, list) and all(isinstance(line, int) for line in lines)
    if not isinstance(phases, list) or not well_formed:
        return str(event.get("id")), HiddenTestOutcome(False, False, (), "its report cannot be read")
    answers = event.get("answers", [])
    answers = tuple(answers) if isinstance(answers, list) else ()
    observed = event.get("observed", [])
    observed = tuple(observed) if isinstance(observed, list) else ()
    passed = [["setup", "passed"], ["call", "passed"], ["teardown", "passed"]]
    xfail = event.get("xfail") is not False
    if phases == passed and not xfail:
        return str(event.get("id")), HiddenTestOutcome(True, answers=answers, observed=observed)
    states = ", ".join(f"{phase[0]} {phase[1]}" for phase in phases if isinstance(phase, list) and len(phase) == 2)
    message = "is marked as expected to fail" if xfail else str(event.get("message") or states)
    in_call = ["call", "failed"] in phases and not xfail
    skipped = xfail or any(phase[1:] == ["skipped"] for phase in phases if isinstance(phase, list))
    return str(event.get("id")), HiddenTestOutcome(
        False, in_call, tuple(lines), message[:1000], skipped, answers=answers
    )


def _read_log(run: TestRun, tests: list[LoggedTest]) -> None:
    counts = Counter(test.id for test in tests)
    for test in tests:
        message = f"the log reports {test.word}" if counts[test.id] == 1 else "the log reports it more than once"
        run.outcomes.setdefault(test.id, []).append(HiddenTestOutcome(test.passed, None, (), message, word=test.word))


# Options of a pytest run

_KEPT_FLAGS = frozenset(
    {"--strict-markers", "--strict-config", "--strict", "--doctest-modules", "--doctest-continue-on-failure"}
)
_KEPT_WITH_VALUE = (
    "-W",
    "--import-mode",
    "--doctest-glob",
    "--asyncio-mode",
    "--ds",
    "--dc",
    "--pythonwarnings",
    "-p",
    "-o",
    "-c",
)


def _pytest_options(base: Path, tests: RepositoryTests) -> list[str]:
    """Return the options of our run: those of the base and the command that determine what a test is or does."""
    words = shlex.split(tests.test_command or "")
    asked = [*_addopts(base), *(words[words.index("pytest") + 1 :] if "pytest" in words else words[1:])]
    options = ["--rootdir=.", "--continue-on-collection-errors", "--tb=short", "-o", "addopts="]
    for name in _PLUGINS_OFF:
        options += ["-p", f"no:{name}"]
    conftests = _conftest_text(base)
    position = 0
    while position < len(asked):
        word = asked[position]
        position += 1
        name, equals, _ = word.partition("=")
        following = asked[position] if position < len(asked) else ""
        if word in _KEPT_FLAGS or (equals and name in _KEPT_WITH_VALUE) or (word[:2] in ("-W", "-p") and len(word) > 2):
            options.append(word)
        elif word == "-m" and following.startswith("not "):
            # Tests that the project itself leaves out: they take minutes, or need a service.
            position += 1
            options += [word, following]
        elif word in _KEPT_WITH_VALUE and following:
            position += 1
            if not (word == "-o" and following.startswith("addopts")):
                options += [word, following]
        elif name.startswith("--") and f'"{name}"' in conftests.replace("'", '"'):
            # An option defined by the repository.
            options.append(word)
            if not equals and following and not following.startswith("-") and "::" not in following:
                options.append(following)
                position += 1
    return options


def _addopts(base: Path) -> list[str]:
    """Return ``addopts`` of the configuration that pytest would choose."""
    for name in ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"):
        path = base / name
        if not path.is_file() or path.is_symlink():
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        found = _toml_addopts(text) if name.endswith(".toml") else _ini_addopts(text)
        if found is not None:
            return found
    return []


def _toml_addopts(text: str) -> list[str] | None:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
    table = table.get("tool", table).get("pytest", None)
    if not isinstance(table, dict):
        return None
    value = table.get("ini_options", table).get("addopts", [])
    return shlex.split(value) if isinstance(value, str) else [str(word) for word in value]


def _ini_addopts(text: str) -> list[str] | None:
    inside = seen = False
    value: list[str] | None = None
    for line in text.splitlines():
        if line.startswith("["):
            inside = line.strip() in ("[pytest]", "[tool:pytest]")
            seen = seen or inside
            value_open = False
            continue
        if not inside or line.lstrip().startswith(("#", ";")):
            continue
        if line[:1].strip():
            key, _, rest = line.partition("=")
            value_open = key.strip() == "addopts"
            line = rest
        if value_open:
            value = [*(value or []), line]
    return shlex.split(" ".join(value or [])) if seen else None


def _conftest_text(base: Path) -> str:
    paths = [base / "conftest.py", base / "tests" / "conftest.py", base / "test" / "conftest.py"]
    return "\n".join(path.read_text(errors="replace") for path in paths if path.is_file() and not path.is_symlink())
