"""Applies an agent's changes and the hidden tests to the fresh base, runs the tests and reports each outcome.

Sent in as source text, and started as a script in the repository's root with the path of its request as argument. The
script and the request are deleted before any code of the repository runs. Standard library only, Python 3.8 and later:
a task may need an old one. Until the line "ready" nothing hostile has run. After it, product code shares this process
and can forge any report. The owner decides what to trust, by comparison with runs in which the same tests must fail.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # this module's text is prepended to the script when it is sent in
    from rllm_gym.grading.swe.inside.observer import Observer
    from rllm_gym.grading.swe.inside.value_digest import compares_itself, digest

MESSAGE_CHARS = 400
MAX_FRAMES = 50
MAX_ERRORS = 20
MAX_ANSWERS = 100


class EventWriter:
    """Sends lines to the owner, each prefixed with a word that was secret when the run began."""

    def __init__(self, descriptor: int, word: str) -> None:
        self._descriptor = descriptor
        self._word = word
        self._num_events = 0

    def write(self, event: str, **more: Any) -> None:
        text = json.dumps(dict(more, event=event, n=self._num_events))
        self._num_events += 1
        data = f"\n@{self._word} {text}\n".encode("ascii")
        while data:
            data = data[os.write(self._descriptor, data) :]


class WithheldAnswers:
    """The values computed for the withheld values of test files. The owner decides whether they are right."""

    def __init__(self, choices: dict[str, list[str]]) -> None:
        self._choices = choices
        self._answers: list[list[Any]] = []

    def ask(self, key: int, value: Any, *_: Any, **__: Any) -> bool:
        """Record a computed value; the test continues as if it were right."""
        if len(self._answers) >= MAX_ANSWERS:
            return True
        choices = self._choices.get(str(key))
        if choices is not None:
            self._answers.append([key, "chosen", [bool(value == ast.literal_eval(text)) for text in choices]])
            return True
        try:
            near = repr(float(value)) if hasattr(value, "__float__") and not hasattr(value, "__len__") else None
            self._answers.append([key, digest(value), near, compares_itself(value)])
        except Exception:  # a class of the repository may raise anything: its values are requested in another way
            self._answers.append([key, None, None, True])
        return True

    def take(self) -> list[list[Any]]:
        values, self._answers = self._answers, []
        return values


def main() -> None:
    with open(sys.argv[1], "rb") as stream:
        request = json.loads(stream.readline())
        os.unlink(sys.argv[1])
        os.unlink(__file__)
        shadowing = find_shadowing(request["new_modules"])
        lay_out(request, stream, {path for _, path in shadowing})
    writer = EventWriter(os.dup(1), request["word"])
    root = os.getcwd()
    roots = [os.path.join(root, folder) if folder else root for folder in request["roots"]]
    roots = [folder for folder in roots if os.path.isdir(folder)]  # a change may remove it
    first = [folder for folder in roots if not shadows_standard_library(folder)]
    last = [folder for folder in roots if folder not in first]
    # After the repository come the directories of the sandbox, if it has any: without namespaces the runtime is there.
    os.environ["PYTHONPATH"] = os.pathsep.join([*first, *filter(None, [os.environ.get("PYTHONPATH")])])
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        os.environ.pop(name, None)
    if request["command"] is not None:
        writer.write("ready", shadowing=shadowing)
        # Sentinels fail. If the repository's own options stop at the first failure, the rest would not run.
        os.environ["PYTEST_ADDOPTS"] = "--maxfail=0"
        os.execv("/bin/sh", ["sh", "-c", request["command"]])
    if importlib.util.find_spec("pytest") is None:
        writer.write("no pytest", message="No module named 'pytest'")
        return
    writer.write("ready", shadowing=shadowing)
    sys.path[:0] = first
    sys.path += last
    # Only now: the repository may be a package that pytest imports (pluggy, packaging), and its own code is tested.
    import pytest

    limit_hypothesis = request["hypothesis"] and importlib.util.find_spec("hypothesis") is not None
    answers = WithheldAnswers(request["withheld"]["choices"])
    if request["withheld"]["name"]:
        setattr(builtins, request["withheld"]["name"], answers.ask)
    observer = Observer()
    if request["observed"]:
        module: Any = types.ModuleType(request["observed"])
        module.guard, module.operands, module.warned = observer.guard, observer.operands, observer.warned
        module.listed = observer.listed
        sys.modules[request["observed"]] = module
    run_pytest(pytest, writer, answers, observer, request["arguments"], limit_hypothesis)


def find_shadowing(modules: list[tuple[str, str]]) -> list[list[str]]:
    """Return new modules at the top of an import root that would shadow something installed."""
    found = []
    for name, path in modules:
        try:
            installed = name in sys.builtin_module_names or importlib.util.find_spec(name) is not None
        except ValueError:  # of __main__: this script has no spec
            continue
        if installed:
            found.append([name, path])
    return found


def lay_out(request: dict[str, Any], contents: Any, left_out: set[str]) -> None:
    """Apply removals, then files, whose contents follow the request.

    The sender has checked the paths; links in the base are never written through.
    """
    for path in request["removed"]:
        remove(path)
    created = set()
    for path, kind, executable, size in request["files"]:
        data = contents.read(size)
        if path in left_out:
            continue
        remove(path)
        folder = os.path.dirname(path)
        if folder and folder not in created:
            os.makedirs(folder, exist_ok=True)
            created.add(folder)
        if kind == "symlink":
            os.symlink(data, os.fsencode(path))
            continue
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as stream:
            stream.write(data)
        os.chmod(path, 0o755 if executable else 0o644)
        os.utime(path, (request["time"], request["time"]))


def remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def shadows_standard_library(folder: str) -> bool:
    """Return whether the repository itself has a module in the folder with a name of the standard library."""
    names = set(getattr(sys, "stdlib_module_names", sys.builtin_module_names)) - {"test"}
    for name in os.listdir(folder):
        package = os.path.exists(os.path.join(folder, name, "__init__.py"))
        if (name if package else name[:-3] if name.endswith(".py") else "") in names:
            return True
    return False


def run_pytest(
    pytest: Any,
    writer: EventWriter,
    answers: WithheldAnswers,
    observer: Observer,
    arguments: list[str],
    limit_hypothesis: bool,
) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    sys.argv = ["pytest"]
    reporter = make_reporter(pytest, writer, answers, observer, limit_hypothesis)
    # Not a fixed path: without namespaces /tmp is not writable, and repositories make errors of warnings.
    cache = os.path.join(tempfile.gettempdir(), ".pytest_cache")
    code = int(pytest.main([*arguments, "-o", f"cache_dir={cache}"], plugins=[reporter]))
    writer.write("end", code=code, tests=reporter.num_reports)
    # Do not wait for threads and exit handlers of the repository.
    os._exit(code)


def make_reporter(
    pytest: Any, writer: EventWriter, answers: WithheldAnswers, observer: Observer, limit_hypothesis: bool
) -> Any:
    class Reporter:
        """Reports each test once, when all its phases are over."""

        def __init__(self) -> None:
            self.num_reports = 0
            self._phases: list[list[str]] = []
            self._details: dict[str, Any] = {}
            self._xfail = False

        def pytest_sessionstart(self) -> None:
            if not limit_hypothesis:
                return
            # Not before pytest.main, which warns of plugins imported earlier; repositories make errors of warnings.
            import hypothesis

            # Skip the search for the shortest example: in runs in which tests fail it would take minutes.
            phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
            settings = hypothesis.settings
            # The same examples in each run: what they reach is held against the reference solution.
            limits = {"phases": phases, "database": None, "deadline": None, "derandomize": True}
            settings.register_profile("grading", parent=settings(), **limits)
            settings.load_profile("grading")

        @pytest.hookimpl(hookwrapper=True, tryfirst=True)  # type: ignore[untyped-decorator]
        def pytest_runtest_makereport(self, item: Any, call: Any) -> Any:
            outcome = yield
            report = outcome.get_result()
            if call.excinfo is not None and not self._details and not report.passed:
                self._details = details_of(call.excinfo, str(item.path if hasattr(item, "path") else item.fspath))

        def pytest_runtest_logreport(self, report: Any) -> None:
            self._xfail = self._xfail or hasattr(report, "wasxfail")
            if not hasattr(report, "context"):
                self._phases.append([report.when, report.outcome])
            elif report.outcome == "failed":  # a part of a test: unittest's subTest
                self._phases.append(["part", "failed"])

        @pytest.hookimpl(trylast=True)  # type: ignore[untyped-decorator]
        def pytest_runtest_logfinish(self, nodeid: str) -> None:
            taken = answers.take()
            more = {**self._details, "answers": taken} if taken else dict(self._details)
            observed = observer.take()
            if observed:
                more["observed"] = observed
            writer.write("test", id=nodeid, phases=self._phases, xfail=self._xfail, **more)
            self.num_reports += 1
            self._phases, self._details, self._xfail = [], {}, False

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                writer.write("uncollected", id=report.nodeid, message=str(report.longrepr)[-MESSAGE_CHARS:])

        @pytest.hookimpl(trylast=True)  # type: ignore[untyped-decorator]
        def pytest_collection_finish(self, session: Any) -> None:
            writer.write("collected", tests=len(session.items))

    return Reporter()


def lines_of(error: BaseException, path: str) -> list[int]:
    """Return the lines of a file that an exception passed through, including its causes and grouped exceptions."""
    lines: list[int] = []
    todo, seen = [error], 0
    while todo and seen < MAX_ERRORS:
        error = todo.pop(0)
        seen += 1
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == path:
                lines.append(trace.tb_lineno)
            trace = trace.tb_next
        gathered = getattr(error, "exceptions", ())
        more = [*(gathered if isinstance(gathered, tuple) else ()), error.__cause__, error.__context__]
        todo += [item for item in more if isinstance(item, BaseException)]
    return lines


def details_of(excinfo: Any, path: str) -> dict[str, Any]:
    lines = lines_of(excinfo.value, path)
    try:
        message = excinfo.exconly(tryshort=True)
    except Exception as error:  # a repository's exception may fail to print
        message = f"{excinfo.type.__name__}, which cannot be printed ({type(error).__name__})"
    return {
        "error": excinfo.type.__name__,
        "lines": lines[-MAX_FRAMES:],
        "message": message[:MESSAGE_CHARS],
    }


if __name__ == "__main__":
    main()
