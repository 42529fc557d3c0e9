"""Tests that provide files to a program or replace parts of the standard library."""

from __future__ import annotations

from grade_many import grade_many

from rllm_gym.grading.code import FunctionTests, grade_program_sync
from rllm_gym.grading.code.verdict import TestStyle
from rllm_gym.sandbox import Limits, SandboxPool

LIMITS = Limits(cpu_s=10, wall_s=100)

SUM = """
import csv, json
def f(path, out):
    with open(path) as file:
        total = sum(int(row[0]) for row in csv.reader(file))
    with open(out, "w") as file:
        json.dump({"total": total}, file)
    return total
"""
SUM_TEST = """
import unittest, tempfile, os, json, shutil
class T(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.path = os.path.join(self.folder, "a.csv")
        with open(self.path, "w") as file:
            file.write("1\\n2\\n")
    def tearDown(self):
        shutil.rmtree(self.folder)
    def test_a(self):
        out = os.path.join(self.folder, "o.json")
        self.assertFalse(os.path.exists(out))
        self.assertEqual(f(self.path, out), 3)
        with open(out) as file:
            self.assertEqual(json.load(file), {"total": 3})
"""

FOLDER = """
from pathlib import Path
def f(folder):
    (folder / "b").mkdir()
    (folder / "b" / "b.txt").write_text((folder / "a.txt").read_text().upper())
    (folder / "a.txt").unlink()
"""
FOLDER_TEST = """
from solution import f
def test_a(tmp_path):
    (tmp_path / "a.txt").write_text("hi")
    f(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b" / "b.txt").read_text() == "HI"
"""

PATCHED = """
import os, random, subprocess, time
def f(n):
    for _ in range(n):
        time.sleep(100)
    listed = subprocess.run(["ls"], capture_output=True, text=True).stdout
    return os.listdir("q"), listed, os.environ.get("LEVEL"), random.randint(1, 6)
"""
PATCHED_TEST = """
import unittest
from unittest.mock import MagicMock, patch
class T(unittest.TestCase):
    @patch("random.randint", side_effect=[3])
    @patch("solution.time.sleep")
    @patch("subprocess.run", return_value=MagicMock(stdout="x"))
    @patch("os.listdir", return_value=["a"])
    def test_a(self, listdir, run, sleep, randint):
        with patch.dict("os.environ", {"LEVEL": "high"}):
            self.assertEqual(f(2), (["a"], "x", "high", 3))
        self.assertEqual(sleep.call_count, 2)
        listdir.assert_called_once_with("q")
    def test_b(self):
        with self.assertRaises(FileNotFoundError):
            f(0)
"""

MONKEY = "import os, time\ndef f():\n    time.sleep(100)\n    return os.environ.get('A'), os.getcwd()\n"
MONKEY_TEST = """
import time, os
from solution import f
def test_a(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setenv("A", "1")
    monkeypatch.setattr("os.getcwd", lambda: "/x")
    assert f() == ("1", "/x")
"""

HONEST: dict[str, tuple[str, str, TestStyle]] = {
    "files by name": (SUM, SUM_TEST, "unittest"),
    "a folder": (FOLDER, FOLDER_TEST, "pytest"),
    "unittest.mock": (PATCHED, PATCHED_TEST, "unittest"),
    "monkeypatch": (MONKEY, MONKEY_TEST, "pytest"),
}


def test_honest_programs_are_rewarded(pool: SandboxPool) -> None:
    programs = [(source, FunctionTests("f", test, style, limits=LIMITS)) for source, test, style in HONEST.values()]
    verdicts = dict(zip(HONEST, grade_many(pool, programs, show_expected=True)))
    assert {name: verdict for name, verdict in verdicts.items() if not verdict.correct} == {}


UNNAMED_FILES = [
    ("def f(folder):\n    return open(folder + '/../answer.txt').read()", "FileNotFoundError"),
    # Neither a file outside the named folder nor one that the interpreter or the tests would run.
    (
        "import os\ndef f(folder):\n"
        "    for name in ('/../answer.txt', '/json.py', '/conftest.py', '/x.pth', '/sub/__init__.py'):\n"
        "        os.makedirs(os.path.dirname(folder + name), exist_ok=True)\n"
        "        open(folder + name, 'w').write('forty-two')\n"
        "    os.symlink(folder + '/../answer.txt', folder + '/link')\n"
        "    return 'forty-two'",
        "AssertionError",
    ),
]


def test_a_file_has_the_path_that_the_test_gave_on_every_tier(confined_pool: SandboxPool) -> None:
    """On tier B each side has directories of its own, and may not open those of the other."""
    same = "from solution import f\ndef test_a(tmp_path):\n    assert f(tmp_path) == (tmp_path, f'{tmp_path}/a')\n"
    cases = [
        (SUM, FunctionTests("f", SUM_TEST, "unittest", limits=LIMITS)),
        (FOLDER, FunctionTests("f", FOLDER_TEST, "pytest", limits=LIMITS)),
        ("def f(path): return path, f'{path}/a'", FunctionTests("f", same, "pytest", limits=LIMITS)),
    ]
    for verdict in grade_many(confined_pool, cases):
        assert verdict.correct, verdict


def test_only_named_files_are_transferred(confined_pool: SandboxPool) -> None:
    test = """
import os, tempfile
def check(candidate):
    top = tempfile.mkdtemp()
    with open(top + "/answer.txt", "w") as file:
        file.write(str(os.urandom(8)))
    os.mkdir(top + "/folder")
    answer = candidate(top + "/folder")
    assert sorted(os.listdir(top + "/folder")) in ([], ["sub"]), os.listdir(top + "/folder")
    assert answer == open(top + "/answer.txt").read(), "another answer"
"""
    for program, expected in UNNAMED_FILES:
        tests = FunctionTests("f", test, "check", limits=LIMITS)
        verdict = grade_program_sync(confined_pool, program, tests, show_expected=True)
        assert not verdict.correct, program
        assert expected in verdict.outcomes[0].message
        assert expected != "AssertionError" or "another answer" in verdict.outcomes[0].message


def test_test_statements_may_be_in_any_layout(pool: SandboxPool) -> None:
    ways = [
        "for a, b in [(1, 2), (2, 4)]:\n    assert f(a) == b",
        "def test_f():\n    assert f(1) == 2\ntest_f()",
        "def test_f():\n    assert f(1) == 2",
        "if __name__ == '__main__':\n    assert f(1) == 2",
        "import unittest\nunittest.TestCase().assertEqual(f(1), 2)",
    ]
    for path in ways:
        tests = FunctionTests("f", path, "assert", limits=LIMITS)
        assert grade_program_sync(pool, "def f(x): return 2 * x", tests).correct, path
        assert not grade_program_sync(pool, "def f(x): return 3 * x", tests).correct, path
    empty = FunctionTests("f", "for value in f(1):\n    assert value in (1, 2)", "assert", limits=LIMITS)
    assert not grade_program_sync(pool, "def f(x): return []", empty).correct


def test_nothing_is_imported_from_a_programs_archive_and_it_configures_no_tests(pool: SandboxPool) -> None:
    """Archives and configuration files come back as data: the test reads them, the interpreter does not."""
    archive = """
import zipfile
def build(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("answers.py", "def total(xs):\\n    return 3")
"""
    imports = """
import tempfile, os, sys
folder = tempfile.mkdtemp()
path = os.path.join(folder, "lib.zip")
build(path)
sys.path.insert(0, path)
from answers import total
assert total([1, 2]) == 3
"""
    config = """
import os
def build(folder):
    with open(os.path.join(folder, "setup.cfg"), "w") as file:
        file.write("[tool:pytest]")
"""
    configures = """
from solution import build
def test_build(tmp_path):
    build(str(tmp_path))
    assert (tmp_path / "setup.cfg").exists()
"""
    tests = [FunctionTests("build", imports, "assert", limits=LIMITS)]
    tests.append(FunctionTests("build", configures, "pytest", limits=LIMITS))
    verdicts = grade_many(pool, zip((archive, config), tests))
    assert [verdict.correct for verdict in verdicts] == [False, False]
