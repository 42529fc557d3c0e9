"""Checks that another file of the project defines are graded as if the test contained them."""

from __future__ import annotations

import ast
from pathlib import Path

import gymnasium
import pytest
from envs.test_swe_from_commit import repository

import rllm_gym  # noqa: F401 - registers the ids
from rllm_gym.envs.swe.from_commit import task_from_commit
from rllm_gym.envs.swe.own_checks import expand_checks
from rllm_gym.grading.python_source import parse_python

TOOLS = '''
import textwrap
import unittest

from . import core
from .core import shout as loud

LIMIT = 99

class CheckCase(unittest.TestCase):
    marks = {"mark": "!"}

    def assertShouts(self, source, expected, attrs=None, **options):
        """Compare inside."""
        kinds = self.marks.copy()
        kinds.update(options)
        text = loud(source, **kinds)
        self.assertEqual(text, expected)
        for key, value in (attrs or {}).items():
            self.assertEqual(getattr(core, key), value)

    def dedent(self, text):
        return textwrap.dedent(text).strip()

    def assertTwice(self, source, expected):
        self.assertShouts(source, expected)
        self.assertShouts(source, expected, mark="!")

    def assertLate(self, source):
        if not source:
            return
        assert loud(source)

def check_length(text, least=1):
    assert least <= len(loud(text)) < LIMIT

def length_of(text):
    return len(text)
'''
BUGGY = "def shout(text, mark='!'):\n    return text.title() + mark\n"
FIXED = "def shout(text, mark='!'):\n    return text.upper() + mark\n"
TESTS = '''
from pkg import testing
from pkg.testing import CheckCase, check_length


class TestShout(CheckCase):
    def test_words(self):
        self.assertShouts(
            self.dedent("""
                how are you
                """),
            self.dedent("""
                HOW ARE YOU!
                """),
        )  # all of it

    def test_marks(self):
        self.assertShouts("no", "NO?", mark="?")

    def test_twice(self):
        self.assertTwice("so so", "SO SO!")


def test_length():
    check_length("four", least=4)
    testing.check_length("f")
'''
LOOKS_INTO_FRAMES = """
import sys


def shout(text, mark="!"):
    frame, best = sys._getframe(1), ""
    while frame is not None:
        for value in [*frame.f_locals.values(), *frame.f_code.co_consts]:
            if isinstance(value, str) and value.lower() == text + mark and value != text + mark:
                best = value
        frame = frame.f_back
    return best or text.title() + mark
"""


def make_tree(root: Path, **files: str) -> Path:
    for path, text in {"pkg/__init__.py": "", "pkg/core.py": FIXED, "pkg/testing.py": TOOLS, **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def test_checks_are_expanded_where_they_mean_the_same(tmp_path: Path) -> None:
    root = make_tree(tmp_path)
    expanded = expand_checks(TESTS, "tests/test_core.py", root)
    calls = {ast.unparse(node.func) for node in ast.walk(parse_python(expanded)) if isinstance(node, ast.Call)}
    assert not calls & {"self.assertShouts", "self.assertTwice", "self.dedent", "check_length", "testing.check_length"}
    assert expanded.count("self.assertEqual(_text") == 4
    assert "'HOW ARE YOU!'" in expanded or "dedent('\\n                HOW ARE YOU!" in expanded
    header = "from pkg.testing import CheckCase, check_length, length_of\nimport other\n"
    for kept in (
        "def test_it():\n    n = 1; check_length('a')\n",  # not a line of its own
        "def test_it():\n    length_of('a')\n",  # no assertion
        "def test_it(args):\n    check_length(*args)\n",
        "def test_it(len):\n    check_length('a')\n",  # another len
        "def test_it():\n    check_length('a', 1, 2)\n",  # an error
        "def test_it():\n    other.check_length('a')\n",  # not of the tree
        "class TestIt(CheckCase):\n    def test_it(self):\n        self.assertLate('a')\n",  # it returns
        "class TestIt(CheckCase):\n    def assertShouts(self, *args): ...\n    def test_it(self):\n"
        "        self.assertShouts('a', 'b')\n",
        "def test_it(:\n",
    ):
        assert expand_checks(header + kept, "tests/test_core.py", root) == header + kept


@pytest.mark.parametrize("place", ["pkg/tests/test_core.py", "tests/test_core.py"])
def test_relative_imports_of_checks(tmp_path: Path, place: str) -> None:
    helpers = "from pkg.testing import loud as call\nfrom .words import WORD\n\n"
    helpers += "def check(text):\n    assert call(text) != WORD\n"
    folder = str(Path(place).parent)
    root = make_tree(
        tmp_path, **{f"{folder}/__init__.py": "", f"{folder}/words.py": "WORD = 'x'\n", f"{folder}/helpers.py": helpers}
    )
    expanded = expand_checks("from .helpers import check\n\ndef test_it():\n    check('a')\n", place, root)
    assert f"from {folder.replace('/', '.')}.words import WORD as " in expanded
    assert "from pkg.testing import loud as " in expanded
    assert "    check(" not in expanded


def test_a_commit_whose_tests_only_call_checks_becomes_a_task(tmp_path: Path) -> None:
    """The expected texts are not in the process: a solution that finds them in frames gets nothing."""
    before = {"pkg/__init__.py": "", "pkg/core.py": BUGGY, "pkg/testing.py": TOOLS, "tests/test_a.py": ""}
    root = repository(tmp_path, before, {"pkg/core.py": FIXED, "tests/test_core.py": TESTS})
    reported: list[str] = []
    row = task_from_commit(root, "HEAD", repeats=1, progress=reported.append)
    assert "the checks of other files are expanded in the hidden tests" in reported
    assert {test.rpartition("::")[2] for test in row["fail_to_pass"]} == {"test_words", "test_marks", "test_twice"}
    env = gymnasium.make("rllm/SWE-v0", tasks=[row])
    for core, paid in ((FIXED, 1.0), (LOOKS_INTO_FRAMES, 0.0), (BUGGY, 0.0)):
        env.reset(options={"task": row["id"]})
        env.step(f"```bash\ncat > pkg/core.py <<'END'\n{core}\nEND\n```")
        _, reward, *_ = env.step("```bash\nsubmit\n```")
        assert reward == paid, core
    env.close()
