"""The fixes in the history of a repository become tasks, and every other commit gets a reason."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from commands.command_line import rllm_gym

from rllm_gym.core import TaskError
from rllm_gym.envs.swe.commits import adds_checks, candidate_commits, open_repository
from rllm_gym.envs.swe.from_commit import task_from_commit
from rllm_gym.envs.swe.from_repo import kind_of, tasks_from_repo
from tests.envs.test_swe_from_commit import BEFORE, BUGGY, FIX, FIXED, NEW_TESTS, git, run_episode

OTHER = "def double(number):\n    return 3 * number\n"
OTHER_TESTS = "from pkg.other import double\n\n\ndef test_double():\n    assert double(21) == 42\n"
MORE_TESTS = "\n\ndef test_four():\n    assert half(4) == 2\n"
RESTYLED = '"""Tests of half."""\n\n' + NEW_TESTS.replace("\n", "  # a half\n") + MORE_TESTS + "    return None\n"
HISTORY: list[tuple[str, dict[str, str | None]]] = [
    ("start", BEFORE | {"pkg/other.py": OTHER, "pyproject.toml": '[project]\nname = "half-s"\n'}),
    ("half() gives a third of the number (#12)", dict(FIX)),
    ("Bump version", {"pkg/__init__.py": "__version__ = '2'\n", "tests/test_core.py": NEW_TESTS + "\n"}),
    ("More speed for everyone who halves", {"pkg/core.py": FIXED + "\n", "tests/test_core.py": NEW_TESTS + MORE_TESTS}),
    ("Nicer halves", {"pkg/core.py": FIXED + "# nicer\n", "tests/test_core.py": RESTYLED}),
    ("fix(tests): run once more", {"pkg/core.py": FIXED + "# x\n", "tests/test_core.py": RESTYLED + "\nAGAIN = 3\n"}),
    ("only sources", {"pkg/core.py": FIXED}),
    ("fix double", {"pkg/other.py": OTHER.replace("3", "2"), "tests/test_other.py": OTHER_TESTS}),
    ("remove tests", {"pkg/core.py": FIXED + "#\n", "tests/test_other.py": None}),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("history") / "repo"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    for message, files in HISTORY:
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).unlink() if text is None else (root / path).write_text(text)
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", message)
    return root


def test_commits_become_tasks_or_reasons_once(root: Path) -> None:
    results = list(tasks_from_repo(root, runtime=None, repeats=1))
    assert [(result.subject, result.row is not None) for result in results] == [
        ("fix double", True), ("More speed for everyone who halves", False), (HISTORY[1][0], True),
    ]  # fmt: skip
    double, speed, half = results
    assert kind_of(speed.reason) == "no test fails without the fix"
    assert double.row is not None
    assert half.row is not None
    assert half.row["id"] == f"half-s-{half.commit[:12]}"
    assert half.row["statement"] == "half() gives a third of the number"
    # Two words say too little without the names of the tests.
    assert double.row["statement"].startswith("fix double\n\n")
    assert "test_double" in double.row["statement"]
    assert double.row["fail_to_pass"] == ["tests/test_other.py::test_double"]
    assert len(double.row["pass_to_pass"]) == 4  # of a file that the commit does not change
    assert run_episode(double.row, "```bash\nsed -i s/3/2/ pkg/other.py\n```", "```bash\nsubmit\n```") == 1
    assert run_episode(double.row, "```bash\nsubmit\n```") == 0
    skipped = tasks_from_repo(root, runtime=None, repeats=1, limit=1, skip={double.row["id"]})
    assert [result.subject for result in skipped] == ["More speed for everyone who halves"]


def test_commits_of_merged_branches_count_once_with_the_merge(tmp_path: Path) -> None:
    root = tmp_path / "merged"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    for message, files in (("start", BEFORE), ("tests of the branch", {"tests/test_core.py": NEW_TESTS}), ("fix", FIX)):
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", message)
        if message == "start":
            git(root, "checkout", "-q", "-b", "topic")
    git(root, "checkout", "-q", "main")
    git(root, "merge", "-q", "--no-ff", "-m", "Merge pull request #5 from a/topic\n\nhalf() gives a third", "topic")
    with open_repository(root) as source:
        assert list(candidate_commits(source, None, scanned=100)) == [git(root, "rev-parse", "main")]
        assert list(candidate_commits(source, None, scanned=100, max_files=1)) == []
    with pytest.raises(TaskError, match="limit=0"):
        next(tasks_from_repo(root, limit=0))
    with pytest.raises(TaskError, match="local clone"):
        next(tasks_from_repo(tmp_path))


EXPECTED_TO_FAIL = NEW_TESTS.replace("def test_ten", "@pytest.mark.xfail\ndef test_ten")
NEW_CHECKS = {
    NEW_TESTS + MORE_TESTS: True,
    NEW_TESTS.replace("== 5", "is not None"): True,
    NEW_TESTS + "\n\nclass Tests:\n    def test_ten(self):\n        self.assertIsNone(half(None))\n": True,
    EXPECTED_TO_FAIL: True,
    NEW_TESTS.replace("\n", "  # a half\n"): False,
    '"""Tests of half."""\n' + NEW_TESTS: False,
    NEW_TESTS + "\n\ndef other():\n    print(f'{half(3)} and more')\n    return None\n": False,
    "": False,
    "(" * 100_000: True,  # unreadable
}


def test_tests_check_something_new(tmp_path: Path) -> None:
    (tmp_path / "test_core.py").write_text(NEW_TESTS)
    assert [adds_checks({"test_core.py": text}, tmp_path) for text in NEW_CHECKS] == list(NEW_CHECKS.values())
    (tmp_path / "test_core.py").write_text(EXPECTED_TO_FAIL)
    assert adds_checks({"test_core.py": NEW_TESTS}, tmp_path)
    assert not adds_checks({"tests/data/numbers.txt": "1"}, tmp_path)


@pytest.mark.long
def test_a_bug_that_never_ends_and_ids_made_of_addresses(tmp_path: Path) -> None:
    root = tmp_path / "endless"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    endless = BUGGY.replace("    return", "    while number > 5:\n        pass\n    return")
    ids = (
        "\n\nimport pytest, time\n\n\n@pytest.mark.parametrize('at', [object()], ids=lambda at: str(time.time_ns()))\n"
    )
    tests = NEW_TESTS + ids + "def test_ids(at):\n    assert half(0) == 0\n"
    for message, files in (
        ("start", BEFORE | {"pkg/core.py": endless}),
        ("half() hangs", FIX | {"tests/test_core.py": tests}),
    ):
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        git(root, "add", "-A")
        git(root, "commit", "-q", "-m", message)
    row = task_from_commit(root, "HEAD", repeats=2, timeout=60, statement="half() hangs with numbers above five.")
    assert row["fail_to_pass"] == ["tests/test_core.py::test_ten", "tests/test_core.py::test_two"]
    assert row["pass_to_pass"] == ["tests/test_core.py::test_zero"]


@pytest.mark.long
def test_the_command_appends_tasks_continues_and_summarizes(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "tasks.jsonl"
    arguments = ("swe", "from-repo", str(root), "--output", str(out), "--repeats", "1", "--runtime", sys.prefix)
    result = rllm_gym(*arguments, "--limit", "1")
    assert result.returncode == 0, result.stderr
    assert "1 tasks from 1 commits" in result.stdout
    result = rllm_gym(*arguments, "--quiet")
    assert result.returncode == 0, result.stderr
    assert "1 tasks from 2 commits" in result.stdout
    assert "no test fails without the fix" in result.stdout
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert len({row["id"] for row in rows}) == 2
