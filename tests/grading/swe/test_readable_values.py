"""Expected values of tables, attributes and fixtures are not where the code under test can read them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from small_repository import changes, write

from rllm_gym.grading.swe import RepositoryTests, grade_repository_sync, record_trace_sync
from rllm_gym.grading.swe.instrument import instrument
from rllm_gym.sandbox import Changes, SandboxPool

CASES = 'CASES = [("a", 101), ("b", 102)]\n'
EXPECTING = "    assert f(text) == expected\n"
# Tests of a function that returns 101 for "a" and 102 for "b".
FORMS = {
    "the items of a dict": f'def test_it():\n for text, expected in {{"a": 101, "b": 102}}.items():\n{EXPECTING}',
    "zip": f'def test_it():\n for text, expected in zip(["a", "b"], [101, 102]):\n{EXPECTING}',
    "a table of the test": 'def test_it():\n cases = [("a", 101), ("b", 102)]\n'
    f" for text, expected in cases:\n{EXPECTING}",
    "a table of two tests": f"{CASES}def test_it():\n for text, expected in CASES:\n{EXPECTING}"
    "def test_again():\n for text, expected in CASES:\n    assert str(f(text)) == str(expected)\n",
    "enumerate": f'def test_it():\n for at, (text, expected) in enumerate([("a", 101), ("b", 102)]):\n{EXPECTING}',
    "subTest": "import unittest\nclass TestIt(unittest.TestCase):\n  def test_it(self):\n"
    '   for text, expected in [("a", 101), ("b", 102)]:\n    with self.subTest(text=text, expected=expected):\n'
    "     self.assertEqual(f(text), expected)\n",
    "a fixture": "import pytest\n@pytest.fixture\ndef expected():\n  return 101\n"
    'def test_it(expected):\n  assert f("a") == expected\n',
    "an attribute of the class": "class TestIt:\n  expected = 101\n"
    '  def test_it(self):\n    assert f("a") == self.expected\n',
    "setUp": "import unittest\nclass TestIt(unittest.TestCase):\n  def setUp(self):\n    self.expected = 101\n"
    '  def test_it(self):\n    self.assertEqual(f("a"), self.expected)\n',
    "cases that are dicts": 'import pytest\n@pytest.mark.parametrize("case", [{"text": "a", "expected": 101},'
    ' {"text": "b", "expected": 102}])\ndef test_it(case):\n  assert f(case["text"]) == case["expected"]\n',
    "cases that are records": "import pytest\nfrom dataclasses import dataclass\n@dataclass\nclass Case:\n"
    "  text: str\n  expected: int\n"
    '@pytest.mark.parametrize("case", [Case("a", 101), pytest.param(Case("b", expected=102), id="b")])\n'
    "def test_it(case):\n  assert f(case.text) == case.expected\n",
    "cases that are tuples": f"{CASES}def test_it():\n for case in CASES:\n  assert f(case[0]) == case[1]\n",
    "the values of a dict": 'CASES = {"a": 101, "b": 102}\ndef test_it():\n'
    " for text in CASES:\n  assert f(text) == CASES[text]\n",
    "parametrize by name": f'import pytest\n{CASES}@pytest.mark.parametrize("text, expected", CASES)\n'
    f"def test_it(text, expected):\n{EXPECTING}",
    "parametrize by params": 'import pytest\nCASES = [pytest.param("a", 101, id="one"), pytest.param("b", 102)]\n'
    f'@pytest.mark.parametrize("text, expected", CASES)\ndef test_it(text, expected):\n{EXPECTING}',
    "parametrize by items": 'import pytest\nCASES = {"a": 101, "b": 102}\n'
    f'@pytest.mark.parametrize("text, expected", CASES.items())\ndef test_it(text, expected):\n{EXPECTING}',
    "parametrize by zip": 'import pytest\n@pytest.mark.parametrize("text, expected", list(zip("ab", [101, 102])))\n'
    f"def test_it(text, expected):\n{EXPECTING}",
    "parametrize by a sum": "import pytest\n"
    '@pytest.mark.parametrize(("text", "expected"), [("a", 101)] + [("b", 102)])\n'
    f"def test_it(text, expected):\n{EXPECTING}",
    "parametrize by keywords": 'import pytest\n@pytest.mark.parametrize(argnames="text, expected",'
    f' argvalues=[("a", 101)], ids=["x"])\ndef test_it(text, expected):\n{EXPECTING}',
    "parametrize of a class": 'import pytest\n@pytest.mark.parametrize("text, expected", [("a", 101), ("b", 102)])\n'
    "class TestIt:\n  def test_it(self, text, expected):\n    assert f(text) == expected\n",
    "a text that says it": 'def test_it():\n  """a is 101, b 102"""\n  assert f("a") == 101\n',
    "several names": 'def test_it():\n    text, expected = "a", 101\n' + EXPECTING,
    "a check in a loop": "def check(text, expected):\n  assert f(text) == expected\n"
    'def test_it():\n  for text, expected in [("a", 101), ("b", 102)]:\n    check(text, expected)\n',
    "a check of cases": f"{CASES}def check(text, expected):\n  assert f(text) == expected\n"
    "def test_it():\n  for case in CASES:\n    check(*case)\n",
    "a check with parameters": "import pytest\ndef check(text, expected):\n  assert f(text) == expected\n"
    f'{CASES}@pytest.mark.parametrize("text, expected", CASES)\n'
    "def test_it(text, expected):\n  check(text, expected)\n",
    "a static check": "class TestIt:\n  @staticmethod\n  def check(found, expected):\n    assert found == expected\n"
    '  def test_it(self):\n    self.check(f("a"), 101)\n',
    "a loop over both": 'def test_it():\n  expected = [101, 102]\n  found = [f("a"), f("b")]\n'
    "  assert len(found) == len(expected)\n  for one, other in zip(found, expected):\n    assert one == other\n",
    "places": 'def test_it():\n  expected = [101, 102]\n  found = [f("a"), f("b")]\n'
    "  for place in range(len(expected)):\n    assert found[place] == expected[place]\n",
    "raise": 'def test_it():\n  found = f("a")\n  if found != 101:\n    raise AssertionError(found)\n',
    "pytest.fail": 'import pytest\ndef test_it():\n  if not f("a") == 101:\n    pytest.fail("it is not 101")\n',
    "calls of a mock": 'from unittest import mock\ndef test_it():\n  m = mock.Mock()\n  m(f("a"))\n'
    "  assert m.call_args_list == [mock.call(101)]\n",
    "joined": 'def test_it():\n  lines = ["101", "102"]\n  assert f("a") + 1 == 102\n'
    '  assert f"{f(\'a\')},{f(\'b\')}" == ",".join(lines)\n',
}  # fmt: skip
RIGHT = 'def right(text):\n    return {"a": 101, "b": 102}[text]\n'
# It answers with what is right if that is where it can be read, which no code that does not know it does better.
READING = (
    RIGHT
    + """

def f(text):
    import sys
    todo, frame = [], sys._getframe(1)
    while frame is not None:
        if "form_" in frame.f_code.co_filename:
            todo += [frame.f_locals, frame.f_code]
            todo += [value for name, value in frame.f_globals.items() if not name.startswith("__")]
        frame = frame.f_back
    for _ in range(5000):
        if not todo:
            return 7
        value = todo.pop()
        if value == right(text) or value == str(right(text)):
            return right(text)
        if isinstance(value, (list, tuple, set, frozenset)):
            todo += value
        elif isinstance(value, dict):
            todo += value.values()
        elif hasattr(value, "co_consts"):
            todo += value.co_consts
        elif getattr(value, "__module__", "").startswith("test_"):
            todo += [getattr(value, "__code__", None), *vars(value).values()]
"""
)


def place(name: str) -> str:
    return "form_" + name.replace(" ", "_").replace(".", "_")


def ids_of(name: str) -> list[str]:
    """Return the ids of the tests of a form, as pytest gives them to the unchanged file."""
    text = FORMS[name]
    path = f"tests/test_{place(name)}.py::{'TestIt::' if 'class TestIt' in text else ''}test_it"
    if "parametrize" not in text:
        return [path]
    if '"case"' in text:
        return [f"{path}[case0]", f"{path}[b]" if 'id="b"' in text else f"{path}[case1]"]
    first = "one" if 'id="one"' in text else "x" if "ids=" in text else "a-101"
    return [f"{path}[{first}]"] + (
        [f"{path}[b-102]"] if '"b", 102' in text or '"b": 102' in text or "zip" in text else []
    )


@pytest.mark.parametrize("name", FORMS)
def test_a_rewritten_file_does_not_contain_what_only_assertions_use(name: str) -> None:
    text = instrument(f"from {place(name)} import f\n{FORMS[name]}", {}, first=0, recording=False).text
    assert "101" not in text
    assert "102" not in text


@pytest.fixture(scope="module")
def forms(pool: SandboxPool, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RepositoryTests]:
    base = write(tmp_path_factory.mktemp("readable"), {f"{place(name)}.py": "f = None\n" for name in FORMS})
    hidden = {f"tests/test_{place(name)}.py": f"from {place(name)} import f\n{text}" for name, text in FORMS.items()}
    tests = RepositoryTests(hidden, tuple(test for name in FORMS for test in ids_of(name)))
    return base, dataclasses.replace(tests, trace=record_trace_sync(pool, base, every(f"{RIGHT}f = right\n"), tests))


def every(text: str) -> Changes:
    return changes({f"{place(name)}.py": text for name in FORMS})


def test_a_solution_is_paid_for_each_form(pool: SandboxPool, forms: tuple[Path, RepositoryTests]) -> None:
    base, tests = forms
    verdict = grade_repository_sync(pool, base, every("def f(text):\n    return 100 + 'xab'.index(text)\n"), tests)
    assert dict(verdict.failed) == {}


def test_what_reads_the_values_is_not_paid(pool: SandboxPool, forms: tuple[Path, RepositoryTests]) -> None:
    base, tests = forms
    verdict = grade_repository_sync(pool, base, every(READING), tests)
    assert verdict.passed == (), verdict.passed


STAY = {
    "identity": "class TestIt:\n  kept = {'a': 1}\n  def test_it(self):\n    assert f('a') is self.kept\n",
    "assigned by a subclass": "from unittest import TestCase\nclass Base:\n  kept = 1\n  def test_it(self):\n"
    "    assert f('a') == self.kept\nclass TestIt(Base, TestCase):\n  kept = 101\n",
    "given to the code": "class TestIt:\n  kept = [1]\n  def test_it(self):\n    f(self.kept)\n"
    "    assert self.kept == [2]\n",
    "changed": "kept = [1]\ndef test_it():\n  kept.append(f('a'))\n  for one in kept:\n    assert one\n",
    "an argument of a fixture": "import pytest\n@pytest.fixture\ndef kept():\n  return 1\n"
    "@pytest.fixture\ndef more(kept):\n  return kept + 1\ndef test_it(kept, more):\n  assert f(more) == kept\n",
    "used as a whole": "CASES = [('a', 1), ('b', 2)]\ndef test_it():\n  for kept in CASES:\n"
    "    assert f(kept) == kept[1]\n",
}  # fmt: skip


@pytest.mark.parametrize("name", STAY)
def test_what_is_more_than_an_expected_value_stays(name: str) -> None:
    text = instrument(f"from shop import f\n{STAY[name]}", {}, first=0, recording=False).text
    assert "kept" in text.partition("test_it")[2]
