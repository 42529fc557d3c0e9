"""Honest changes to honest repositories, in their usual forms: all are accepted."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from small_repository import FILES, FIXED, GOLD, PRICING, STOCK_TESTS, TESTS, changes, write

from rllm_gym.core import EnvironmentFault, TaskError
from rllm_gym.grading.swe import (
    RepositoryTests,
    RepositoryVerdict,
    check_repository_task_sync,
    grade_repository_sync,
)
from rllm_gym.sandbox import Changes, Runtime, SandboxPool, TreeFile

ATTACK_LIKE_CODE = """

import atexit, gc, inspect, os, signal, sys, threading, warnings, weakref

atexit.register(gc.collect)
threading.Thread(target=threading.Event().wait, daemon=False).start()
CALLER = sys._getframe(0).f_code.co_filename
SOURCE = inspect.getsource(discounted)
print("x" * 100_000)
warnings.warn("prices may change")


def main():
    if len(sys.argv) < 2:
        sys.exit(2)
    os._exit(0)
"""

HONEST: dict[str, Changes] = {
    "the_fix": GOLD,
    "a_helper_module": changes(
        {
            "shop/rates.py": "def share(price, percent):\n    return price * percent / 100\n",
            "shop/pricing.py": "from shop.rates import share\n"
            + PRICING.replace("return price - percent", "return price - share(price, percent)"),
        }
    ),
    "a_new_package_with_data": changes(
        {
            "shop/rates/__init__.py": "import json, pathlib\n"
            "HUNDRED = json.loads((pathlib.Path(__file__).parent / 'rates.json').read_text())['hundred']\n",
            "shop/rates/rates.json": '{"hundred": 100}',
            "shop/rates/blob.bin": bytes(range(256)),
            "shop/pricing.py": "from shop.rates import HUNDRED\n"
            + PRICING.replace("return price - percent", "return price - price * percent / HUNDRED"),
        }
    ),
    "a_new_module_at_the_top": changes(
        {
            "shoptools.py": "def share(price, percent):\n    return price * percent / 100\n",
            "shop/pricing.py": "import shoptools\n"
            + PRICING.replace("return price - percent", "return price - shoptools.share(price, percent)"),
        }
    ),
    "a_moved_module": changes(
        {"shop/_prices.py": FIXED, "shop/pricing/__init__.py": "from shop._prices import discounted, total\n"},
        ("shop/pricing.py",),
    ),
    "tests_of_its_own": changes(
        {
            "shop/pricing.py": FIXED,
            "tests/test_more.py": "from shop.pricing import total\n\n\ndef test_more():\n    assert total([2]) == 2\n",
            "reproduce.py": "import pytest\n\nprint(pytest.__version__)\n",
        }
    ),
    "metadata": changes(
        {
            "shop/pricing.py": FIXED,
            "setup.cfg": FILES["setup.cfg"] + "version = 2\n",
            "pyproject.toml": FILES["pyproject.toml"].replace('"1.0"', '"1.1"').replace("[]", '["tomli"]', 1),
            "CHANGES.md": "# 1.1\n",
        }
    ),
    "an_executable_script": changes(
        {"shop/pricing.py": FIXED, "bin/shop": TreeFile("file", b"#!/bin/sh\necho shop\n", executable=True)}
    ),
    "things_that_cheats_use_too": changes({"shop/pricing.py": FIXED + ATTACK_LIKE_CODE}),
    "removed_files": changes({"shop/pricing.py": FIXED}, ("README.md",)),
}
# All of them in one change: what is kept of each is kept of all.
ALL_AT_ONCE = Changes(
    {
        **{
            path: file
            for name, honest in HONEST.items()
            if name not in ("a_moved_module", "a_helper_module")
            for path, file in honest.written.items()
        },
        **changes(
            {
                "shop/shares.py": "def share(price, percent):\n    return price * percent / 100\n",
                "shop/pricing.py": "import shoptools\nfrom shop.rates import HUNDRED\nfrom shop.shares import share\n"
                + FIXED.replace(
                    "price * percent / 100", "(share(price, percent) + shoptools.share(price, percent)) / 2"
                )
                + "\n\nassert HUNDRED == 100\n"
                + ATTACK_LIKE_CODE,
            }
        ).written,
    },
    HONEST["removed_files"].removed,
)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("shop"))


def assert_right(verdict: RepositoryVerdict) -> None:
    assert verdict.correct, verdict
    assert verdict.passed == TESTS.listed
    assert verdict.evidence == "report"
    assert verdict.remarks == ()


@pytest.mark.parametrize("change", [ALL_AT_ONCE, HONEST["a_moved_module"]], ids=["all_at_once", "a_moved_module"])
def test_honest_changes_are_correct(pool: SandboxPool, base: Path, change: Changes) -> None:
    assert_right(grade_repository_sync(pool, base, change, TESTS))


@pytest.mark.long
@pytest.mark.parametrize("name", HONEST)
def test_each_honest_change_is_correct(pool: SandboxPool, base: Path, name: str) -> None:
    assert_right(grade_repository_sync(pool, base, HONEST[name], TESTS))


def test_the_fix_is_correct_and_the_base_is_unchanged(pool: SandboxPool, base: Path) -> None:
    def look() -> dict[str, bytes]:
        return {str(path.relative_to(base)): path.read_bytes() for path in base.rglob("*") if path.is_file()}

    before = look()
    assert_right(grade_repository_sync(pool, base, GOLD, TESTS))
    assert look() == before


def test_a_wrong_change_reports_the_failing_tests_and_reasons(pool: SandboxPool, base: Path) -> None:
    verdict = grade_repository_sync(pool, base, changes({"shop/pricing.py": FIXED.replace("/ 100", "/ 80")}), TESTS)
    assert not verdict.correct
    assert "assert 180" not in verdict.reason
    assert verdict.reason.endswith("tests to fix fail")
    assert verdict.failed["tests/test_pricing.py::test_discounts[80-25-60]"].startswith("assert 55.0 == 60")


def test_test_settings_are_restored_and_the_rest_of_pyproject_is_kept(pool: SandboxPool, tmp_path: Path) -> None:
    """The tests read the version that the agent wrote; the agent's pytest options would deselect every test."""
    hidden = {
        "tests/test_version.py": "import pathlib, tomllib\n\n\ndef test_version():\n"
        "    table = tomllib.loads(pathlib.Path('pyproject.toml').read_text())\n"
        "    assert table['project']['version'] == '1.1'\n"
    }
    tests = RepositoryTests(hidden_tests=hidden, fail_to_pass=("tests/test_version.py::test_version",), timeout=240)
    text = FILES["pyproject.toml"].replace('"1.0"', '"1.1"').replace("-q --maxfail=1", "--collect-only")
    verdict = grade_repository_sync(pool, write(tmp_path), changes({"pyproject.toml": text}), tests)
    assert verdict.correct, verdict
    assert verdict.dropped == ("pyproject.toml: its test configuration was put back; the rest is kept",)


# Repositories of other shapes

SHAPES = """import os
import unittest

import pytest

from pack.core import Stack, parse

LOG = []


def check(value, wanted):
    assert value == wanted


def test_only_a_helper():
    check(parse("1,2"), [1, 2])


def test_only_an_exception():
    with pytest.raises(ValueError, match="empty"):
        parse("")


def test_a_loop_and_an_early_end():
    for text, wanted in [("1", [1]), ("1,2", [1, 2])]:
        assert parse(text) == wanted
    if not hasattr(os, "fork"):
        return
    assert parse("3") == [3]


def test_first_of_two_that_hang_together():
    LOG.append("first")
    assert parse("7") == [7]
    LOG.append("ended")


def test_second_of_two_that_hang_together():
    assert LOG == ["first", "ended"]
    assert parse("8") == [8]


def test_writes_into_the_tree():
    with open("out.txt", "w") as stream:
        stream.write(str(parse("1,2,3")))
    assert os.path.getsize("out.txt") == 9


@pytest.mark.parametrize("number", range(3))
def test_computed_parameters(number):
    assert parse(str(number)) == [number]
    assert "x" not in parse(str(number))


@pytest.mark.parametrize("text, wanted", [pytest.param("4", [4], id="four"), ("", None)])
def test_one_of_which_is_skipped(text, wanted):
    if not text:
        pytest.skip("empty")
    assert parse(text) == wanted


@pytest.fixture
def stack():
    made = Stack()
    yield made
    made.close()


def test_of_a_fixture(stack):
    stack.push(1)
    assert not stack.closed
    assert stack.top is not None and len(stack) == 1, "one"


class TestCases(unittest.TestCase):
    def setUp(self):
        self.stack = Stack()

    def test_methods(self):
        self.stack.push(5)
        self.assertEqual(self.stack.top, 5)
        self.assertIn(5, self.stack)

    def test_raises(self):
        with self.assertRaises(IndexError):
            self.stack.top

    def test_nearly(self):
        self.assertAlmostEqual(parse("1.5")[0], 1.5, places=3)

    def test_parts(self):
        for text in ("1", "2"):
            with self.subTest(text=text):
                self.assertEqual(len(parse(text)), 1)


async def coroutine():
    return parse("9")


def test_nothing_to_alter():
    import asyncio

    asyncio.run(coroutine())
"""

CORE = '''"""Read and keep numbers."""


def parse(text):
    if not text:
        raise ValueError("empty text")
    return [float(part) if "." in part else int(part) for part in text.split(",")]


class Stack(list):
    closed = False

    def push(self, value):
        self.append(value)

    @property
    def top(self):
        return self[-1]

    def close(self):
        self.closed = True
'''

SHAPE_NAMES = (
    "test_only_a_helper", "test_only_an_exception", "test_a_loop_and_an_early_end",
    "test_first_of_two_that_hang_together", "test_second_of_two_that_hang_together", "test_writes_into_the_tree",
    "test_computed_parameters[0]", "test_computed_parameters[2]", "test_one_of_which_is_skipped[four]",
    "test_of_a_fixture", "TestCases::test_methods", "TestCases::test_raises", "TestCases::test_nearly",
    "TestCases::test_parts", "test_nothing_to_alter",
)  # fmt: skip


@pytest.mark.parametrize(
    ("folder", "verdicts"),
    [
        ("src/", 1),
        pytest.param("lib/", 1, marks=pytest.mark.long),
        pytest.param("", 3, marks=pytest.mark.long),
    ],
)
def test_tests_of_every_shape_are_graded(pool: SandboxPool, tmp_path: Path, folder: str, verdicts: int) -> None:
    """Several gradings of the same change agree, whatever is drawn."""
    config = (
        f'[tool.pytest.ini_options]\npythonpath = ["{folder}"]\n' if folder == "lib/" else "[project]\nname = 'p'\n"
    )
    base = write(tmp_path, {f"{folder}pack/__init__.py": "", "pyproject.toml": config})
    tests = RepositoryTests(
        hidden_tests={"tests/unit/test_core.py": SHAPES},
        fail_to_pass=tuple(f"tests/unit/test_core.py::{name}" for name in SHAPE_NAMES),
        timeout=240,
    )
    gold = changes({f"{folder}pack/core.py": CORE})
    for _ in range(verdicts):
        verdict = grade_repository_sync(pool, base, gold, tests)
        assert verdict.correct, verdict
        assert verdict.remarks == ()
    nothing_works = "class Stack(list):\n    closed = False\n\n\ndef parse(text):\n    return None\n"
    assert not grade_repository_sync(pool, base, changes({f"{folder}pack/core.py": nothing_works}), tests).correct


UNITTESTS = """import unittest

from shop.pricing import discounted


class DiscountTest(unittest.TestCase):
    def test_of_two_hundred(self):
        self.assertEqual(discounted(200, 10), 180)

    def test_of_nothing(self):
        \"\"\"No discount.\"\"\"
        self.assertEqual(discounted(30, 0), 30)
"""


@pytest.mark.parametrize(
    ("command", "parser", "style"),
    [
        ("python -m unittest discover -v -s tests -t .", None, "tests.test_case.DiscountTest.{}"),
        pytest.param(
            *("cd tests && python -m unittest -v test_case", "parse_log_django", "{} (test_case.DiscountTest)"),
            marks=pytest.mark.long,
        ),
        ("python -m pytest -rA tests/test_case.py | cat", "pytest", "tests/test_case.py::DiscountTest::{}"),
        pytest.param(
            *("pytest -x tests/test_case.py", None, "tests/test_case.py::DiscountTest::{}"), marks=pytest.mark.long
        ),
        pytest.param(None, None, "tests.test_case.DiscountTest.{}", marks=pytest.mark.long),
    ],
)
def test_commands_and_ids_of_other_kinds(
    pool: SandboxPool, tmp_path: Path, command: str | None, parser: str | None, style: str
) -> None:
    tests = RepositoryTests(
        hidden_tests={"tests/test_case.py": UNITTESTS, "tests/__init__.py": ""},
        fail_to_pass=(style.format("test_of_two_hundred"),),
        pass_to_pass=(style.format("test_of_nothing"),),
        test_command=command,
        log_parser=parser,
        timeout=240,
    )
    files = {path: text for path, text in FILES.items() if not path.startswith("tests/")}
    base = write(tmp_path, files)
    right = grade_repository_sync(pool, base, GOLD, tests)
    assert right.correct, right
    assert right.evidence == ("log" if command and not command.startswith("pytest") else "report")
    assert not grade_repository_sync(pool, base, changes({}), tests).correct
    equal = PRICING.replace("return price - percent", "return Any()") + (
        "\n\nclass Any:\n    def __eq__(self, other): return True\n    def __ne__(self, other): return False\n"
    )
    assert not grade_repository_sync(pool, base, changes({"shop/pricing.py": equal}), tests).correct


def test_tests_visible_to_the_agent_are_graded(pool: SandboxPool, tmp_path: Path) -> None:
    """Rows that hide nothing: the tests to fix are in the repository and fail there."""
    base = write(tmp_path, {**FILES, **TESTS.hidden_tests})
    tests = dataclasses.replace(TESTS, hidden_tests={})
    assert grade_repository_sync(pool, base, GOLD, tests).correct
    assert not grade_repository_sync(pool, base, changes({}), tests).correct


def test_ids_truncated_at_a_space_match_as_prefixes(pool: SandboxPool, base: Path) -> None:
    tests = dataclasses.replace(TESTS, fail_to_pass=("tests/test_pricing.py::TestDiscounts::test_named[a",))
    assert grade_repository_sync(pool, base, GOLD, tests).correct
    assert not grade_repository_sync(pool, base, changes({}), tests).correct


def test_a_listed_test_that_does_not_exist_has_not_passed(pool: SandboxPool, base: Path) -> None:
    tests = dataclasses.replace(TESTS, pass_to_pass=("tests/test_pricing.py::test_gone", "tests/test_gone.py::test_x"))
    verdict = grade_repository_sync(pool, base, GOLD, tests)
    assert not verdict.correct
    assert set(verdict.failed) == set(tests.pass_to_pass)


# Broken tasks and environments


def test_a_valid_task_has_no_problems(pool: SandboxPool, base: Path) -> None:
    assert check_repository_task_sync(pool, base, GOLD, TESTS) == []


def test_problems_of_a_task_are_reported(pool: SandboxPool, base: Path) -> None:
    tests = dataclasses.replace(
        TESTS,
        fail_to_pass=(*TESTS.fail_to_pass, "tests/test_stock.py::test_take"),
        pass_to_pass=("tests/test_pricing.py::test_gone",),
    )
    found = "\n".join(check_repository_task_sync(pool, base, changes({"tests/conftest.py": ""}), tests))
    assert "the reference solution is rejected" in found
    assert "tests/test_stock.py::test_take is in fail_to_pass but passes without the solution" in found
    assert "tests/test_pricing.py::test_gone is in pass_to_pass but fails without the solution" in found
    assert "of the reference solution, tests/conftest.py: " in found
    assert STOCK_TESTS not in found


def test_a_runtime_without_pytest_is_a_fault_and_not_a_verdict(pool: SandboxPool, base: Path) -> None:
    runtime = dataclasses.replace(Runtime.default(), packages=())
    with pytest.raises(EnvironmentFault, match="has no pytest"):
        grade_repository_sync(pool, base, GOLD, TESTS, runtime=runtime)


def test_tests_that_cannot_be_run_are_refused() -> None:
    hidden = {"tests/test_a.py": ""}
    for wrong in (
        {"hidden_tests": hidden, "fail_to_pass": ()},
        {"hidden_tests": {"../a.py": ""}, "fail_to_pass": ("a",)},
        {"hidden_tests": {"/a.py": ""}, "fail_to_pass": ("a",)},
        {"hidden_tests": {"a.py": "\ud800"}, "fail_to_pass": ("a",)},
        {"hidden_tests": {"a.py": b""}, "fail_to_pass": ("a",)},
        {"hidden_tests": hidden, "fail_to_pass": ("a",), "pass_to_pass": ("a",)},
        {"hidden_tests": hidden, "fail_to_pass": ("a",), "timeout": 0},
        {"hidden_tests": hidden, "fail_to_pass": ("a",), "log_parser": "pytest"},
        {"hidden_tests": hidden, "fail_to_pass": ("a",), "test_command": "pytest 'a"},
    ):
        with pytest.raises(TaskError):
            RepositoryTests(**wrong)  # type: ignore[arg-type]


def test_an_unknown_log_parser_is_refused(pool: SandboxPool, base: Path) -> None:
    tests = dataclasses.replace(TESTS, test_command="make test", log_parser="nose")
    with pytest.raises(TaskError, match="nose"):
        grade_repository_sync(pool, base, GOLD, tests)
