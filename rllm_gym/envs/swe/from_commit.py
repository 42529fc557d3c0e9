"""Creation of a task from a bug-fix commit of a local Python repository, by running its tests before and after it.

The commit's own tests are hidden. They run in the sandbox on its parent, with and without the fix, exactly as they
will run when the task is graded. Nothing of the repository runs outside of the sandbox.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rllm_gym.core import TaskError
from rllm_gym.envs.swe.build_outputs import missing_outputs, read_text
from rllm_gym.envs.swe.checkout import Checkout, prepare
from rllm_gym.envs.swe.commits import FixCommit, read_fix, statement_of, timed_tests
from rllm_gym.envs.swe.environment import environment_for
from rllm_gym.envs.swe.git_objects import write_bundle
from rllm_gym.envs.swe.own_checks import expand_checks
from rllm_gym.envs.swe.patch import file_diff
from rllm_gym.grading.swe import (
    RepositoryTests,
    RepositoryVerdict,
    allowed_changes,
    check_repository_task,
    grade_repository,
    is_test_path,
)
from rllm_gym.grading.swe.hidden_run import HiddenRun
from rllm_gym.grading.swe.observed_grading import observe_solution
from rllm_gym.grading.swe.test_run import TestRun, TestRunner, runs_our_pytest
from rllm_gym.grading.swe.test_source import function_key
from rllm_gym.runtime.run_coroutine import run_coroutine
from rllm_gym.sandbox import SandboxPool, shared_pool
from rllm_gym.sandbox.runtime import Runtime
from rllm_gym.sandbox.tree import Changes

Progress = Callable[[str], None]

_NOTHING = Changes({}, frozenset())
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_NO_METADATA = re.compile(r"PackageNotFoundError|No package metadata was found for|DistributionNotFound")
_TEST = re.compile(r"^\s*(async )?def test|^class \w+\(.*TestCase\)", re.MULTILINE)
_SHOWN = 5
_MAX_OTHER_TESTS = 500
_SHORTEST_TIMEOUT_S = 30.0


def task_from_commit(
    repo: str | os.PathLike[str],
    commit: str,
    *,
    test_command: str | None = None,
    runtime: str | os.PathLike[str] | None = None,
    statement: str | None = None,
    sandbox: str | SandboxPool = "auto",
    repeats: int = 3,
    timeout: float = 300.0,
    bundle: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Return a row for ``gym.make("rllm/SWE-v0", tasks=[row])`` from a commit that contains a fix and its tests.

    The agent starts from the commit's first parent. The test files that the commit adds or changes are hidden.
    ``fail_to_pass`` and ``pass_to_pass`` result from running tests: those that fail without the fix and pass with it,
    and those that pass in both cases. The test files of the commit are run ``repeats`` times; tests with varying
    results are omitted. The other tests are run once with and without the fix, and at most 500 of them are listed.
    Finally the task is graded ``repeats`` times: unless the commit's own fix gets 1 each time and an unchanged tree
    gets 0, no task is returned.

    Args:
        repo: A local clone, or a git bundle.
        commit: The commit, by id, tag or branch.
        test_command: How tests are run: ``pytest`` with options and paths (run by this package, the strongest
            evidence), or any other command whose log can be parsed, such as ``python -m unittest -v``. ``None``: pytest
            with all tests that it collects.
        runtime: A virtual environment (or its interpreter) with the dependencies of the repository, and pytest.
            ``None``: Python's own library, numpy and pytest. ``"auto"``: an environment created from the project's
            metadata (see :func:`~rllm_gym.envs.swe.environment.environment_for`), which installs packages.
        statement: The issue statement. ``None``: the commit's message, without trailers and issue numbers. Messages
            often describe the fix more than the problem, so review it.
        sandbox: Where tests run, as in :class:`~rllm_gym.sandbox.SandboxPool`, or a pool.
        repeats: How often the commit's tests are run before and after, and its fix is graded, at least 1.
        timeout: Time limit in seconds for one run of the tests.
        bundle: A directory. The parent's tree is written there as a git bundle, ``<id>.bundle``, and the row refers to
            it: the task then no longer needs the clone.
        progress: Called with one line per step.

    Returns:
        The row: ``id``, ``statement``, ``repo``, ``base_commit``, ``hidden_tests``, ``fail_to_pass``,
        ``pass_to_pass``, ``test_command`` and ``runtime`` if given, ``commit``, and ``patch``, the commit's own fix,
        which the environment never shows. ``evidence`` is ``"trace"``: the row has the ``trace`` of
        :func:`~rllm_gym.grading.swe.record_trace`, and assertions are evaluated outside the sandbox. With a test
        command that is not pytest it is ``"log"``, which is weaker. ``base_patch`` is present if files that a build
        would create had to be added (a version file, the package's metadata).

    Raises:
        TaskError: No task can be created from the commit, or pytest runs its tests and none of the tests to fix can
            be graded outside the sandbox; the message says what was found and names a solution.
        EnvironmentFault: The sandbox failed, or the runtime has no pytest.
        SandboxUnavailable: There is no such sandbox on this machine.
    """
    if repeats < 1:
        raise TaskError(f"repeats={repeats} must be >= 1")
    if not timeout > 0:
        raise TaskError(f"timeout={timeout} must be > 0 seconds")
    if bundle is not None and not Path(bundle).expanduser().is_dir():
        raise TaskError(f"bundle={os.fspath(bundle)!r} is not a directory")
    if statement is not None and not statement.strip():
        raise TaskError("statement is empty; omit it to use the commit message")
    report = progress or (lambda line: None)
    fix = read_fix(repo, commit)
    task_statement = statement.strip() if statement is not None else statement_of(fix.message)
    report(f"{fix.commit[:12]}: {len(fix.fix.written) + len(fix.fix.removed)} fixed files, {len(fix.tests)} test files")
    for line in fix.left_out:
        report(f"omitted: {line}")
    if runtime == "auto":
        base, fixed = prepare(repo, fix.parent), prepare(repo, fix.commit)
        runtime = environment_for(base.path, fix.date, report, fixed=fixed.path)
    try:
        seen_python = None if runtime is None else Runtime.of_python(runtime)
    except ValueError as error:
        raise TaskError(f"runtime={os.fspath(runtime)!r} cannot be used: {error}") from error  # type: ignore[arg-type]
    pool = sandbox if isinstance(sandbox, SandboxPool) else shared_pool(sandbox)
    builder = _TaskBuilder(fix, os.fspath(repo), test_command, seen_python, pool, repeats, timeout, report)
    found = run_coroutine(builder.build())
    row: dict[str, Any] = {
        "id": f"{fix.name}-{fix.commit[:12]}",
        "statement": task_statement,
        "statement_from": "commit" if statement is None else "given",
        "repo": str(Path(os.path.realpath(os.path.expanduser(repo)))),
        "base_commit": fix.parent,
        "hidden_tests": dict(builder.tests.hidden_tests),
        "fail_to_pass": found.fail_to_pass,
        "pass_to_pass": found.pass_to_pass,
        "commit": fix.commit,
        "patch": fix.patch,
    }
    if builder.base_patch:
        row["base_patch"] = builder.base_patch
    row["evidence"] = "log" if builder.trace is None else "trace"
    if builder.trace is not None:
        row["trace"] = builder.trace
    if test_command is not None:
        row["test_command"] = test_command
    if runtime is not None:
        row["runtime"] = os.path.abspath(os.fspath(runtime))
    if bundle is not None:
        where = Path(os.path.abspath(os.path.expanduser(bundle))) / f"{row['id']}.bundle"
        write_bundle(builder.base.path, where)
        for key in ("base_commit", "base_patch"):
            row.pop(key, None)
        row["repo"] = str(where)
    return row


@dataclass(slots=True)
class _TestGroups:
    """Test ids by their results."""

    fail_to_pass: list[str] = field(default_factory=list)
    pass_to_pass: list[str] = field(default_factory=list)
    flaky: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Pass before and fail after."""
    failing: int = 0
    """Number of tests that fail before and after."""


class _TaskBuilder:
    """The creation of one task."""

    def __init__(
        self,
        fix: FixCommit,
        repo: str,
        test_command: str | None,
        runtime: Runtime | None,
        pool: SandboxPool,
        repeats: int,
        timeout: float,
        report: Progress,
    ) -> None:
        self.fix = fix
        self.repo = repo
        self.runtime = runtime
        self.pool = pool
        self.repeats = repeats
        self.report = report
        self.created_files: dict[str, str] = {}
        self.base_patch = ""
        self.trace: str | None = None
        self._timed: dict[str, frozenset[str]] = {}
        self.base: Checkout = prepare(repo, fix.parent)
        # The test ids are determined here; until then, a placeholder is used.
        self.tests = RepositoryTests(fix.tests, ("?",), (), test_command, None, timeout)
        self.files = self._paths_of_command()

    async def build(self) -> _TestGroups:
        """Return the tests by their results before and after the fix, verified by grading.

        Raises:
            TaskError: The results do not make a task.
        """
        select = not self.files and runs_our_pytest(self.tests) and bool(self._own_files)
        if select:
            # First only these: they decide whether there is a task, in seconds rather than minutes.
            self.files = self._own_files
        after = [await self._after()]
        while await self._lacks_outputs(after[0]):
            after = [await self._after()]
        await self._check(after[0])
        before: list[TestRun] = []
        for number in range(self.repeats):
            if number:
                after.append(await self._after())
            ends = bool(before) and not before[0].timed_out
            before.append(await (self._run_unfixed() if ends else self._before(after[0])))
            self.report(
                f"run {number + 1} of {self.repeats}: {_counted(before[-1])} before, {_counted(after[-1])} after"
            )
            for run in (before[-1], after[-1]):
                if run.broken and not (run is before[-1] and run.timed_out):
                    raise TaskError(f"{self._name}: {run.broken}; {await self._advice(run)}")
            found = self._sorted(before, after)
            if not found.fail_to_pass:
                raise TaskError(self._why_nothing_is_fixed(before[0], after[0], found))
        if found.flaky:
            self.report(f"{len(found.flaky)} flaky tests omitted: {_some(found.flaky)}")
        if found.broken:
            self.report(f"{len(found.broken)} tests fail only after the commit, omitted: {_some(found.broken)}")
        if select:
            found.pass_to_pass += await self._other_tests()
        self.report(
            f"{len(found.fail_to_pass)} tests to fix, {len(found.pass_to_pass)} to keep; grading the commit's fix"
        )
        await self._graded(found, after[0].wall_s if before[0].timed_out else None)
        return found

    async def _other_tests(self) -> list[str]:
        """Return tests of other files that pass with and without the fix, evenly from all files if there are many."""
        self.files = ()
        after = await self._after()
        self.files = tuple(dict.fromkeys(test.partition("::")[0] for test in after.outcomes if self._is_other(test)))
        before = await self._before(after) if self.files and not after.broken else after
        if before.broken:
            self.report(f"only the commit's own test files are listed: of all tests, {before.broken}")
            return []
        kept = [
            test for test in after.outcomes if self._is_other(test) and _passes(before, test) and _passes(after, test)
        ]
        step = -(-len(kept) // _MAX_OTHER_TESTS) or 1
        if step > 1:
            self.report(f"of {len(kept)} tests in other files, every {step}th is listed")
        return kept[::step]

    def _is_other(self, test: str) -> bool:
        return test.partition("::")[0] not in self.fix.tests and self._can_be_listed(test)

    @property
    def _own_files(self) -> tuple[str, ...]:
        """The test files of the commit."""
        return tuple(
            sorted(path for path, text in self.fix.tests.items() if path.endswith(".py") and _TEST.search(text))
        )

    # Runs

    @property
    def _hidden_run(self) -> HiddenRun:
        return HiddenRun(self.files, {})

    def _runner(self, changes: Changes) -> TestRunner:
        allowed = allowed_changes(self.base.path, changes, self.tests)
        if allowed.refusal:
            raise TaskError(f"{self._name}: its fix would be rejected if an agent submitted it: {allowed.refusal}")
        return TestRunner(self.pool, self.base.path, allowed, self.tests, self.runtime)

    async def _after(self) -> TestRun:
        return await self._runner(self.fix.fix).run(self._hidden_run)

    async def _before(self, after: TestRun) -> TestRun:
        """Run the tests without the fix. If the bug is an endless loop, this ends long before the task's timeout."""
        factor = self._shorter_timeout(after.wall_s) / self.tests.timeout
        return await self._run_unfixed(factor)

    async def _run_unfixed(self, timeout_factor: float = 1.0) -> TestRun:
        return await self._runner(_NOTHING).run(self._hidden_run, timeout_factor=timeout_factor)

    def _shorter_timeout(self, wall_s: float) -> float:
        """Return a timeout for tests that take ``wall_s`` seconds if they end."""
        return min(self.tests.timeout, max(_SHORTEST_TIMEOUT_S, 5 * wall_s))

    def _paths_of_command(self) -> tuple[str, ...]:
        """Return the paths in a pytest command; everything that pytest collects if it has none."""
        command = self.tests.test_command
        if command is None or not runs_our_pytest(self.tests):
            return ()
        words = shlex.split(command)
        paths = []
        for word in words[words.index("pytest") + 1 if "pytest" in words else 1 :]:
            if re.match(r"-[km]|--(deselect|ignore|lf|ff|last-failed)\b", word):
                raise TaskError(
                    f"test_command={command!r}: {word} selects tests, but files are run completely; pass file paths"
                )
            path = word.partition("::")[0].rstrip("/")
            if not word.startswith("-") and any(
                known == path or known.startswith(path + "/") for known in self.fix.after
            ):
                paths.append(word)
        return tuple(paths)

    async def _lacks_outputs(self, run: TestRun) -> bool:
        """Add build outputs to the base if the tests cannot be imported without them; return whether any were added."""
        failed = [outcome.message for outcomes in run.outcomes.values() for outcome in outcomes if not outcome.passed]
        trouble = " ".join([*run.uncollected.values(), *failed])
        if run.broken and not run.timed_out and runs_our_pytest(self.tests):
            trouble += await self._pytest_output()
        modules = set(_NO_MODULE.findall(trouble))
        outputs = missing_outputs(self.base.path, modules, metadata=bool(_NO_METADATA.search(trouble)))
        outputs = {
            path: text for path, text in outputs.items() if path not in self.fix.before | self.created_files.keys()
        }
        if not outputs:
            return False
        self.report(f"added build outputs: {', '.join(outputs)}")
        self.created_files |= outputs
        self.base_patch = "".join(
            file_diff(path, None, text.encode()) for path, text in sorted(self.created_files.items())
        )
        self.base = prepare(self.repo, self.fix.parent, patch=self.base_patch)
        return True

    # Error messages

    @property
    def _name(self) -> str:
        return f"{self.fix.commit[:12]} of {self.fix.name!r}"

    async def _check(self, run: TestRun) -> None:
        """Raise if the run after the fix is not informative."""
        if run.broken:
            raise TaskError(f"{self._name}: with the fix {run.broken}; {await self._advice(run)}")
        if not any(outcome.passed for outcomes in run.outcomes.values() for outcome in outcomes):
            raise TaskError(f"{self._name}: no test passes with the fix ({_counted(run)}). {self._import_trouble(run)}")
        if run.uncollected:
            self.report(f"{len(run.uncollected)} test files cannot be collected: {_some(list(run.uncollected))}")

    async def _advice(self, run: TestRun) -> str:
        if run.timed_out:
            return f"run fewer tests (test_command='pytest tests/test_x.py') or increase timeout={self.tests.timeout:g}"
        output = await self._pytest_output() if runs_our_pytest(self.tests) else ""
        modules = _NO_MODULE.findall(output)
        if modules:
            return self._without(modules[-1], "its configuration cannot be read without")
        return (
            f"pytest reports {output!r}. If plugins are missing in the runtime, pass a virtual environment with "
            "them as runtime=; otherwise pass a test_command"
        )

    async def _pytest_output(self) -> str:
        """Return the end of what pytest itself prints about the commit's tests, with the fix."""
        # Not only listed: it may end while a test runs, or when it reports.
        paths = shlex.join(self._own_files)
        command = f"PYTHONPATH=src:. python -m pytest -x -q -o addopts= -p no:cacheprovider {paths} 2>&1 | tail -n 40"
        fixed = prepare(self.repo, self.fix.commit, patch=self.base_patch).path
        async with self.pool.open_session(fixed, runtime=self.runtime) as session:
            result = await session.exec(command, min(60.0, self.tests.timeout))
        return " ".join(result.output.decode("utf-8", "replace").split())[-400:]

    def _without(self, module: str, what: str) -> str:
        """Return a message that a module is missing, with a solution."""
        source = self.fix.compiled(module)
        if source is not None:
            return (
                f"{what} the module {module!r}, which is compiled from {source}; extensions are not built: only pure "
                "Python repositories can be used without an image"
            )
        return (
            f"{what} the module {module!r}: create a virtual environment with it (python -m venv DIR; DIR/bin/pip "
            f"install pytest {module.partition('.')[0]}) and pass it as runtime=DIR"
        )

    def _import_trouble(self, run: TestRun) -> str:
        """Return a message on failed imports, with a solution."""
        modules: dict[str, int] = {}
        for message in run.uncollected.values():
            for module in _NO_MODULE.findall(message)[-1:]:
                modules[module] = modules.get(module, 0) + 1
        if modules:
            module = max(modules, key=lambda name: modules[name])
            lost = f"{modules[module]} of {len(run.uncollected)} test files cannot be collected"
            return self._without(module, f"{lost} because they need")
        if run.uncollected:
            path, message = next(iter(run.uncollected.items()))
            return f"{path} cannot be collected: {' '.join(message.split())[-300:]}"
        failed = [f"{test}: {runs[0].message}" for test, runs in run.outcomes.items() if runs and not runs[0].passed]
        if failed:
            return f"The first failure: {' '.join(failed[0].split())[:300]}"
        return (
            "pytest collects no tests: they may be for other systems or versions of Python; select tests with "
            "test_command='pytest tests/test_x.py'"
        )

    def _why_nothing_is_fixed(self, before: TestRun, after: TestRun, found: _TestGroups) -> str:
        passing = len(found.pass_to_pass)
        if passing and not found.failing and not found.flaky:
            seen = f"all {passing} tests pass before the commit too"
        else:
            seen = f"{passing} tests pass before and after, {found.failing} fail before and after"
            if found.flaky:
                seen += f", {len(found.flaky)} have varying results ({_some(found.flaky)})"
        own = [path for path in self.fix.tests if path.endswith(".py")]
        lost = [path for path in own if path in after.uncollected]
        if lost:
            seen += f"; the commit's test files {_some(lost)} cannot be collected. {self._import_trouble(after)}"
        elif not any(test.partition("::")[0] in own for test in after.outcomes) and runs_our_pytest(self.tests):
            seen += f"; the commit's test files ({_some(own)}) are not among them: "
            seen += "select them with test_command='pytest PATH'"
        else:
            failing = [test for test in after.outcomes if test.partition("::")[0] in own and not _passes(after, test)]
            if failing:
                seen += f"; {failing[0]} fails with the fix too: {after.outcomes[failing[0]][0].message:.200}"
        return f"{self._name} fixes no test: {seen}"

    def _sorted(self, before: list[TestRun], after: list[TestRun]) -> _TestGroups:
        found = _TestGroups()
        collected = {test.partition("::")[0] for run in before for test in run.outcomes}
        for test in dict.fromkeys(test for run in after for test in run.outcomes):
            if "::" in test and not self._can_be_listed(test):
                continue
            was, now = ({_passes(run, test) for run in runs} for runs in (before, after))
            seen = any(test in run.outcomes for run in before) or any(run.timed_out for run in before)
            if len(was) > 1 or len(now) > 1 or (not seen and test.partition("::")[0] in collected):
                # An id that only one of the runs of a file has is made of a time, an address, ...
                found.flaky.append(test)
            elif now == {True}:
                (found.pass_to_pass if was == {True} else found.fail_to_pass).append(test)
            elif was == {True}:
                found.broken.append(test)
            else:
                found.failing += 1
        return found

    def _can_be_listed(self, test: str) -> bool:
        """Return whether a test can be graded; the agent may change tests in product files (doctests).

        One that measures time would fail on a busy machine.
        """
        path, function = function_key(test)
        if not path.endswith(".py") or not (path in self.fix.tests or is_test_path(path)):
            return False
        if path not in self._timed:
            self._timed[path] = timed_tests(self.fix.tests.get(path) or read_text(self.base.path / path))
            if self._timed[path]:
                self.report(f"tests of {path} that measure time, omitted: {_some(sorted(self._timed[path]))}")
        return function.rpartition("::")[2] not in self._timed[path]

    async def _graded(self, found: _TestGroups, endless_after_s: float | None) -> None:
        """Check that the commit's own fix is accepted and an unchanged tree is not; omit tests that prevent that."""
        if runs_our_pytest(self.tests):
            await self._record(found)
        first = await self._solved(found)
        failed = {test: reason for test, reason in first.failed.items() if not reason.startswith("not run")}
        for test in found.fail_to_pass:
            if test in failed:
                raise TaskError(f"{self._name}: the task cannot be graded: with its fix, {test}: {failed[test]}"[:1500])
        if failed:
            self.report(f"{len(failed)} tests fail when the fix is graded, omitted: {_some(sorted(failed))}")
            found.pass_to_pass = [test for test in found.pass_to_pass if test not in failed]
        tests = self._listed(found)
        if endless_after_s is not None:
            # Without the fix, the tests do not end; waiting longer would not change the verdict.
            tests = replace(tests, timeout=self._shorter_timeout(endless_after_s))
        if tests.trace is not None:
            await self._check_unsolved(found, tests)
        else:
            wrong = await check_repository_task(self.pool, self.base.path, self.fix.fix, tests, runtime=self.runtime)
            wrong = [line for line in wrong if not line.startswith("of the reference solution, ")]
            if wrong:
                raise TaskError(f"{self._name}: the task cannot be graded: {'; '.join(wrong[:3])}"[:1500])
        for _ in range(self.repeats - (1 if tests.trace is not None else 2)):
            again = await self._solved(found)
            if not again.correct:
                raise TaskError(f"{self._name}: its fix is accepted in some gradings only: {again.reason}"[:1500])

    async def _record(self, found: _TestGroups) -> None:
        """Record what the tests observe with the fix; omit tests to fix that it does not suffice to grade.

        Raises:
            TaskError: None can be graded in this way. What mutated tests can grade is too weak for training.
        """
        # Checks that other files define can be graded in the tests themselves, if they mean the same there.
        original, expanded = self.tests, self._with_checks()
        best: tuple[RepositoryTests, str, dict[str, str]] | None = None
        for tests in [expanded, original] if expanded != original else [original]:
            self.tests = tests
            try:
                trace, problems = await observe_solution(
                    self.pool, self.base.path, self.fix.fix, self._listed(found), runtime=self.runtime
                )
            except TaskError:
                if best is None and tests is original:
                    raise
                continue
            if best is None or len(problems) < len(best[2]):
                best = tests, trace, problems
            if not problems:
                break
        assert best is not None
        self.tests, trace, problems = best
        if self.tests is not original:
            self.report("the checks of other files are expanded in the hidden tests")
        shown = "; ".join(f"{test}: {problem}" for test, problem in list(problems.items())[:_SHOWN])[:1000]
        found.fail_to_pass = [test for test in found.fail_to_pass if test not in problems]
        if not found.fail_to_pass:
            raise TaskError(f"{self._name}: no test to fix can be graded outside the sandbox: {shown}")
        if problems:
            self.report(f"{len(problems)} tests to fix cannot be graded outside the sandbox, omitted: {shown}")
        self.tests = replace(self.tests, trace=trace)
        self.trace = trace

    def _with_checks(self) -> RepositoryTests:
        """Return the tests with the checks that other files define expanded in those of the commit."""
        root = prepare(self.repo, self.fix.commit).path
        hidden = {
            path: expand_checks(text, path, root) if path.endswith(".py") else text
            for path, text in self.tests.hidden_tests.items()
        }
        return replace(self.tests, hidden_tests=hidden)

    async def _check_unsolved(self, found: _TestGroups, tests: RepositoryTests) -> None:
        """Check that an unchanged tree is rejected; omit tests to keep of which the trace asks more than they test."""
        unsolved = await grade_repository(self.pool, self.base.path, _NOTHING, tests, runtime=self.runtime)
        passed = set(unsolved.passed)
        for test in found.fail_to_pass:
            if test in passed:
                raise TaskError(f"{self._name}: the task cannot be graded: {test} passes without the fix")
        lost = [test for test in found.pass_to_pass if test not in passed]
        if passed and lost:  # otherwise the run did not end
            self.report(f"{len(lost)} tests to keep cannot be observed, omitted: {_some(lost)}")
            found.pass_to_pass = [test for test in found.pass_to_pass if test in passed]

    def _listed(self, found: _TestGroups) -> RepositoryTests:
        return replace(self.tests, fail_to_pass=tuple(found.fail_to_pass), pass_to_pass=tuple(found.pass_to_pass))

    async def _solved(self, found: _TestGroups) -> RepositoryVerdict:
        return await grade_repository(
            self.pool, self.base.path, self.fix.fix, self._listed(found), runtime=self.runtime
        )


def _passes(run: TestRun, test: str) -> bool:
    outcomes = run.outcomes.get(test, [])
    return len(outcomes) == 1 and outcomes[0].passed


def _counted(run: TestRun) -> str:
    passed = sum(_passes(run, test) for test in run.outcomes)
    lost = f", {len(run.uncollected)} files not collected" if run.uncollected else ""
    return f"{passed} of {len(run.outcomes)} pass{lost}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
