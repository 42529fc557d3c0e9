"""A commit of a repository made by the test becomes a task that can be solved; an unusable commit gives a reason."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from parsing.checks import assert_all_raise

import rllm_gym  # noqa: F401 - registers the ids
from rllm_gym.core import TaskError
from rllm_gym.envs.swe.build_outputs import missing_outputs
from rllm_gym.envs.swe.commits import read_fix, statement_of
from rllm_gym.envs.swe.from_commit import task_from_commit
from rllm_gym.sandbox import SandboxFault, SandboxPool

BUGGY = "def half(number):\n    return number // 3\n"
FIXED = "def half(number):\n    return number // 2\n"
OLD_TESTS = "from pkg.core import half\n\n\ndef test_zero():\n    assert half(0) == 0\n"
NEW_TESTS = OLD_TESTS + "\n\ndef test_ten():\n    assert half(10) == 5\n\n\ndef test_two():\n    assert half(2) == 1\n"
BEFORE = {"pkg/__init__.py": "", "pkg/core.py": BUGGY, "tests/test_core.py": OLD_TESTS, "README.md": "Halves.\n"}
FIX = {"pkg/core.py": FIXED, "tests/test_core.py": NEW_TESTS}
MESSAGE = "half() gives a third of the number (#12)\n\nIt divides by three.\n\nFixes #11\nSigned-off-by: A <a@b.c>\n"

Make = Callable[..., Path]


def git(folder: Path, *arguments: str) -> str:
    names = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    environment = {**os.environ, **names, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(["git", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make a repository of commits, each given as text (or bytes, or None: removed) by path."""
    return functools.partial(repository, tmp_path)


def repository(
    folder: Path, *commits: Mapping[str, str | bytes | None], message: str = MESSAGE, name: str = "halves"
) -> Path:
    root = folder / name
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    for number, files in enumerate(commits):
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            if text is None:
                (root / path).unlink()
            else:
                (root / path).write_bytes(text.encode() if isinstance(text, str) else text)
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", message if number == len(commits) - 1 else "work")
    return root


@dataclass
class BugFix:
    """What a bug fix became: its row, its commit and the reported lines."""

    row: dict[str, Any]
    commit: str
    reported_lines: list[str]


@pytest.fixture(scope="module")
def bug_fix(tmp_path_factory: pytest.TempPathFactory) -> BugFix:
    folder = tmp_path_factory.mktemp("bug_fix")
    root = repository(folder, BEFORE, FIX)
    created = BugFix({}, git(root, "rev-parse", "HEAD"), [])
    created.row = task_from_commit(root, "HEAD", repeats=2, bundle=folder, progress=created.reported_lines.append)
    # Only the bundle: the clone is no longer needed.
    root.rename(folder / "elsewhere")
    return created


def run_episode(row: Mapping[str, Any], *replies: str) -> float:
    env = gymnasium.make("rllm/SWE-v0", tasks=[dict(row)])
    env.reset(options={"task": row["id"]})
    reward = 0.0
    for reply in replies:
        _, reward, terminated, truncated, _ = env.step(reply)
        if terminated or truncated:
            break
    env.close()
    return float(reward)


class Counting(SandboxPool):
    """Pass to each session the number of sessions opened before it."""

    sessions = 0

    def open_session(self, base=None, *, environment=None, **options):  # type: ignore[no-untyped-def]
        reported = {**(environment or {}), "BEFORE": str(self.sessions)}
        self.sessions += 1
        return super().open_session(base, environment=reported, **options)


def test_a_bug_fix_commit_becomes_a_task_that_the_fix_solves(bug_fix: BugFix) -> None:
    row = bug_fix.row
    assert row["fail_to_pass"] == ["tests/test_core.py::test_ten", "tests/test_core.py::test_two"]
    assert row["pass_to_pass"] == ["tests/test_core.py::test_zero"]
    assert row["statement"] == "half() gives a third of the number\n\nIt divides by three."
    assert row["hidden_tests"] == {"tests/test_core.py": NEW_TESTS}
    assert row["id"] == f"halves-{bug_fix.commit[:12]}"
    assert "-    return number // 3\n+    return number // 2\n" in row["patch"]
    assert "test_core" not in row["patch"]
    assert row["evidence"] == "trace"
    assert "test_ten" in row["trace"]
    assert any("1 of 3 pass before, 3 of 3 pass after" in line for line in bug_fix.reported_lines)
    assert run_episode(row, "```bash\nsed -i s/3/2/ pkg/core.py\n```", "```bash\nsubmit\n```") == 1
    # The same as doing nothing: none of the history is there.
    past = "```bash\ntest $(git log --format=%H | wc -l) = 1 || sed -i s/3/2/ pkg/core.py\n```"
    assert run_episode(row, past, "```bash\nsubmit\n```") == 0


def test_only_the_statement_of_the_row_is_shown_to_the_agent(bug_fix: BugFix) -> None:
    assert "number // 2" in bug_fix.row["patch"]
    env = gymnasium.make("rllm/SWE-v0", tasks=[bug_fix.row])
    observation, info = env.reset(seed=0)
    assert "half() gives a third" in observation
    assert "number // 2" not in observation + str(info)
    assert "patch" not in env.unwrapped.task.data  # type: ignore[attr-defined]
    env.close()


VALUELESS = "\n\ndef test_text():\n    half('ab')\n"
TEXT_TOO = FIXED.replace("    return", "    number = 4 if number == 'ab' else number\n    return")


@pytest.mark.long
def test_flaky_timed_and_valueless_tests_are_dropped_and_counted(make: Make) -> None:
    flaky = NEW_TESTS + VALUELESS + "\n\ndef test_luck():\n    import os\n    assert os.environ['BEFORE'] == '0'\n"
    reported: list[str] = []
    flaky += "\n\ndef test_fast():\n    from time import time\n\n    start = time()\n    assert half(12) == 6\n"
    flaky += "    assert time() - start < 60\n"
    root = make(BEFORE, {"pkg/core.py": TEXT_TOO, "tests/test_core.py": flaky})
    with Counting() as pool:
        row = task_from_commit(root, "HEAD", repeats=2, progress=reported.append, sandbox=pool)
    listed = row["fail_to_pass"] + row["pass_to_pass"]
    assert sorted(listed) == [f"tests/test_core.py::test_{name}" for name in ("ten", "two", "zero")]
    assert "1 flaky tests omitted: tests/test_core.py::test_luck" in reported
    assert "tests of tests/test_core.py that measure time, omitted: test_fast" in reported
    assert [line for line in reported if line.startswith("1 tests to fix cannot be graded outside") and "text" in line]


@pytest.mark.long
def test_src_layout_configuration_fixtures_and_odd_parameters(make: Make) -> None:
    shared = "import pytest\n\n\n@pytest.fixture\ndef ten():\n    return 10\n"
    odd = '@pytest.mark.parametrize("text", ["a b", "ü::[x]", "x/y\\\\n"])\n'
    odd += "def test_text(text):\n    assert half(len(text)) >= 0\n"
    tests = f"import pytest\nfrom pkg.core import half\n\n\n{odd}\n\ndef test_ten(ten):\n    assert half(ten) == 5\n"
    config = '[tool.pytest.ini_options]\naddopts = "--cov=pkg -n auto --strict-markers -q"\ntestpaths = ["tests"]\n'
    root = make(
        {"src/pkg/__init__.py": "", "src/pkg/core.py": BUGGY, "tests/conftest.py": "", "pyproject.toml": config},
        {"src/pkg/core.py": FIXED, "tests/conftest.py": shared, "tests/test_it.py": tests},
    )
    row = task_from_commit(root, "main", repeats=1, statement="half() is wrong; make it right.")
    assert row["statement"] == "half() is wrong; make it right."
    assert row["fail_to_pass"] == ["tests/test_it.py::test_ten"]
    assert len(row["pass_to_pass"]) == 3
    assert set(row["hidden_tests"]) == {"tests/conftest.py", "tests/test_it.py"}


def test_tests_inside_the_package_in_the_style_of_unittest(make: Make) -> None:
    tests = (
        "import unittest\n\nfrom pkg.core import half\n\n\nclass TestHalf(unittest.TestCase):\n"
        "    def test_ten(self):\n        self.assertEqual(half(10), 5)\n"
    )
    before = {"pkg/__init__.py": "", "pkg/core.py": BUGGY, "pkg/tests/__init__.py": ""}
    root = make(before, {"pkg/core.py": FIXED, "pkg/tests/test_core.py": tests})
    row = task_from_commit(root, "HEAD", repeats=1, test_command="python -m unittest -v pkg.tests.test_core")
    assert row["test_command"] == "python -m unittest -v pkg.tests.test_core"
    assert len(row["fail_to_pass"]) == 1
    assert "TestHalf" in row["fail_to_pass"][0]
    assert row["evidence"] == "log"
    assert "trace" not in row


@pytest.mark.long
def test_files_that_pytest_does_not_collect_by_itself(make: Make) -> None:
    of_unittest = (
        "import unittest\n\nfrom pkg.core import half\n\n\nclass TestHalf(unittest.TestCase):\n"
        "    def test_ten(self):\n        self.assertEqual(half(10), 5)\n"
    )
    before = {**BEFORE, "checks/test.py": OLD_TESTS, "pkg/tests/__init__.py": ""}
    fix = {"pkg/core.py": FIXED, "checks/test.py": NEW_TESTS, "pkg/tests/test_core.py": of_unittest}
    row = task_from_commit(make(before, fix), "HEAD", repeats=1)
    assert sorted(row["fail_to_pass"]) == [
        "checks/test.py::test_ten", "checks/test.py::test_two", "pkg/tests/test_core.py::TestHalf::test_ten",
    ]  # fmt: skip
    assert row["pass_to_pass"] == ["checks/test.py::test_zero", "tests/test_core.py::test_zero"]


@pytest.mark.long
def test_new_names_and_data_files_of_the_tests(make: Make) -> None:
    tests = (
        "from pathlib import Path\n\nfrom pkg.core import double\n\n\ndef test_double():\n"
        "    text = (Path(__file__).parent / 'data' / 'n.txt').read_text()\n    assert double(int(text)) == 42\n"
    )
    fix = {
        "pkg/core.py": BUGGY + "\n\ndef double(number):\n    return 2 * number\n",
        "tests/test_double.py": tests,
        "tests/data/n.txt": "21",
        "tests/data/picture.png": b"\x89PNG\xff",
        "testdata/more.txt": "x",
    }
    reported: list[str] = []
    row = task_from_commit(make(BEFORE, fix), "HEAD", repeats=1, progress=reported.append)
    assert row["fail_to_pass"] == ["tests/test_double.py::test_double"]
    assert set(row["hidden_tests"]) == {"tests/test_double.py", "tests/data/n.txt", "testdata/more.txt"}
    assert "omitted: tests/data/picture.png is not text" in reported


@pytest.mark.long
def test_a_package_that_asks_for_its_own_version(make: Make) -> None:
    init = (
        'from importlib.metadata import version\n\nfrom pkg._version import __version__\n\nassert version("half-s")\n'
    )
    config = (
        '[project]\nname = "half-s"\ndynamic = ["version"]\n[tool.setuptools_scm]\nversion_file = "pkg/_version.py"\n'
    )
    row = task_from_commit(make({**BEFORE, "pkg/__init__.py": init, "pyproject.toml": config}, FIX), "HEAD", repeats=1)
    assert len(row["fail_to_pass"]) == 2
    assert "pkg/_version.py" in row["base_patch"]
    assert "half_s.egg-info/PKG-INFO" in row["base_patch"]
    assert run_episode(row, "```bash\nsed -i s/3/2/ pkg/core.py\n```", "```bash\nsubmit\n```") == 1


def test_the_base_of_a_merge_is_its_first_parent(make: Make) -> None:
    root = make(BEFORE)
    git(root, "checkout", "-q", "-b", "topic")
    for path, text in FIX.items():
        (root / path).write_text(text)
    git(root, "commit", "-q", "-am", "on the branch")
    git(root, "checkout", "-q", "main")
    (root / "other.txt").write_text("x")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "meanwhile")
    first = git(root, "rev-parse", "HEAD")
    git(
        root,
        "merge",
        "-q",
        "--no-ff",
        "-m",
        "Merge pull request #5 from a/topic\n\nhalf() gives a third of it",
        "topic",
    )
    fix = read_fix(root, "HEAD")
    assert fix.parent == first
    assert set(fix.fix.written) == {"pkg/core.py"}
    assert statement_of(fix.message) == "half() gives a third of it"


NO_TASK: list[tuple[list[dict[str, str]], list[str]]] = [
        ([BEFORE], ["first commit"]),
        ([BEFORE, {"pkg/core.py": FIXED}], ["no Python tests", "pkg/core.py"]),
        ([BEFORE, {"tests/test_core.py": NEW_TESTS}], ["changes only tests"]),
        ([BEFORE, {"pkg/core.py": BUGGY + "#\n", "tests/test_core.py": OLD_TESTS + "#\n"}], ["1 tests pass before"]),
        ([BEFORE, {**FIX, "tests/test_core.py": "import nosuchlib\n" + NEW_TESTS}], ["'nosuchlib'", "runtime="]),
        ([BEFORE, {**FIX, "pkg/__init__.py": "import pkg._fast", "pkg/_fast.c": ""}], ["pkg/_fast.c", "compiled"]),
        ([BEFORE, {**FIX, "tests/test_core.py": NEW_TESTS.replace("== 5", "== 6").replace("== 1", "== 3")}],
         ["fixes no test", "test_ten fails"]),
        ([BEFORE, {"pkg/core.py": TEXT_TOO, "tests/test_core.py": OLD_TESTS + VALUELESS}],
         ["no test to fix can be graded outside the sandbox", "test_text", "compared with a value"]),
        ([BEFORE, {**FIX, "pytest.ini": "[pytest]\nrequired_plugins = pytest-nosuch\n"}, {}], ["no Python tests"]),
]  # fmt: skip


def test_an_unusable_commit_is_an_error_with_the_reason(make: Make) -> None:
    for number, (commits, words) in enumerate(NO_TASK):
        root = make(*commits[:2], name=f"halves{number}")
        if len(commits) == 3:
            git(root, "commit", "-q", "--allow-empty", "-m", MESSAGE)
        with pytest.raises(TaskError) as caught:
            task_from_commit(root, "HEAD", repeats=1)
        assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


@pytest.mark.long
def test_missing_plugins_and_endless_tests_are_reported(make: Make) -> None:
    root = make({**BEFORE, "pytest.ini": "[pytest]\nrequired_plugins = pytest-nosuch\n"}, FIX)
    with pytest.raises(TaskError, match="runtime="):
        task_from_commit(root, "HEAD", repeats=1)
    failing = "def pytest_runtest_logreport():\n    raise RuntimeError('no disk left')\n"
    root = make({**BEFORE, "conftest.py": failing}, FIX, name="failing")
    with pytest.raises(TaskError, match="no disk left"):  # although pytest can list the tests
        task_from_commit(root, "HEAD", repeats=1)
    endless = NEW_TESTS + "\n\ndef test_endless():\n    while True:\n        pass\n"
    slow = make(BEFORE, {**FIX, "tests/test_core.py": endless}, name="slow")
    # With less time than the run needs to start, the machine is at fault, not the tests.
    for timeout in (1, 4, 16, 64):
        with pytest.raises((TaskError, SandboxFault)) as caught:
            task_from_commit(slow, "HEAD", repeats=1, timeout=timeout)
        if "did not start" not in str(caught.value):
            break
    assert caught.type is TaskError
    assert f"timeout={timeout}" in str(caught.value)


WRONG_ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"commit": "nosuch"}, "nosuch"),
    ({"commit": "--upload-pack=x"}, "not a commit id"),
    ({"repeats": 0}, "repeats=0"),
    ({"timeout": 0}, "timeout=0"),
    ({"statement": " "}, "statement"),
    ({"test_command": "pytest -k ten tests"}, "run completely"),
    ({"runtime": "/nonexistent"}, "runtime="),
    ({"bundle": "/nonexistent"}, "bundle="),
]


def test_invalid_arguments_are_errors_with_their_name(make: Make) -> None:
    root = make(BEFORE, FIX)
    assert_all_raise(
        TaskError,
        lambda arguments: task_from_commit(root, **{"commit": "HEAD", **arguments}),
        WRONG_ARGUMENTS,
        plain=True,
    )
    with pytest.raises(TaskError, match="local clone"):
        task_from_commit(root / "pkg", "HEAD")


STATEMENTS = [
    ("Fix rounding of negative amounts (#12)", "Fix rounding of negative amounts"),
    ("Closes #3\n\nThe parser hangs on empty input, #2", "The parser hangs on empty input,"),
    ("Parser hangs on input\n\nCo-authored-by: B <b@c.d>\nChange-Id: I12", "Parser hangs on input"),
    ("Values of type X: y are lost\n\n\n\nReally.", "Values of type X: y are lost\n\nReally."),
    ("fix", None),
    ("Merge branch 'main' into topic", None),
    ("bump 1.2.3 (#44)", None),
    ("", None),
]


def test_statements_come_from_messages() -> None:
    for message, statement in STATEMENTS:
        if statement is None:
            with pytest.raises(TaskError, match="statement="):
                statement_of(message)
        else:
            assert statement_of(message) == statement


def test_files_written_by_a_build_are_found_in_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "src" / "my_pkg").mkdir(parents=True)
    (tmp_path / "src" / "my_pkg" / "__init__.py").write_text('__version__ = "3.1"\n')
    (tmp_path / "setup.cfg").write_text("[metadata]\nname = my-pkg\nversion = attr: my_pkg.__version__\n")
    created = missing_outputs(tmp_path, {"my_pkg._version", "numpy"}, metadata=True)
    assert created["my_pkg.egg-info/PKG-INFO"].splitlines() == ["Metadata-Version: 2.1", "Name: my-pkg", "Version: 3.1"]
    assert set(created) == {"my_pkg.egg-info/PKG-INFO", "src/my_pkg/_version.py"}
    assert missing_outputs(tmp_path, {"numpy.version"}, metadata=False) == {}
