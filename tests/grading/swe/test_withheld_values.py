"""Withheld values of tests: honest code produces them; code that forges one run and not the next does not."""

from __future__ import annotations

import ast
import itertools
import random
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_repository import FILES, FIXED, FORGE, HIDDEN_PRICING_TESTS, PRICING, TESTS, changes, write

from rllm_gym.grading.swe import RepositoryTests, allowed_changes, grade_repository_sync
from rllm_gym.grading.swe.inside.value_digest import Opaque, digest
from rllm_gym.grading.swe.test_source import TestSource
from rllm_gym.grading.swe.withheld_values import (
    OPAQUE,
    RIGHT,
    WRONG,
    WithheldValue,
    WithheldValues,
    answer_choices,
    check_answers,
    withhold_values,
)
from rllm_gym.sandbox import SandboxPool


class Point(NamedTuple):
    x: int
    y: int


EQUAL = [
    (1, 1.0),
    (True, 1),
    (Decimal("1.5"), Fraction(3, 2)),
    (Point(1, 2), (1, 2)),
    ({"a": 1, "b": [2]}, {"b": [2.0], "a": True}),
    ({1, "a"}, frozenset({"a", 1})),
    ({"a": 1}.keys(), {"a"}),
    (b"x", bytearray(b"x")),
    (2 + 0j, 2),
]


def test_equal_python_values_have_one_digest():
    assert [pair for pair in EQUAL if pair[0] != pair[1] or digest(pair[0]) != digest(pair[1])] == []


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=6,
)


@given(_values, _values)
def test_digests_are_equal_where_values_are(one, other):
    assert (digest(one) == digest(other)) == (one == other)
    assert digest(ast.literal_eval(repr(one).replace("inf", "1e999"))) == digest(one)


def test_values_with_custom_equality_have_no_digest():
    with pytest.raises(Opaque):
        digest([object()])
    with pytest.raises(Opaque):
        digest(Decimal("1e999999999"))


FORMS = """
def test_plain():
    assert work(3) == 3
    assert [1, 2] == (work)([1, 2]), "message"

def test_many_lines():
    expected = {
        "a": 1,  # a comment
    }
    assert (work({"a": 1})) == expected
    assert work([1]) == [
        1,
    ], "message"

@pytest.mark.parametrize("given, expected", [("x", "x"), pytest.param("y", "y", id="z")])
def test_rows(given, expected):
    assert work(given) == expected

class TestCase:
    def test_unittest(self):
        self.assertEqual(work((1, "é")), (1, "é"), "message")
        self.assertEqual(
            7,
            work(7),
        )
        self.assertAlmostEqual(work(0.1 + 0.2), 0.3)

def test_near():
    assert work(0.1 + 0.2) == pytest.approx(0.3) and work(2) == 2
"""
KEYS = ("test_plain", "test_many_lines", "test_rows", "TestCase::test_unittest", "test_near")


@pytest.mark.parametrize("shift", [0, 1])
def test_placeholders_replace_expected_values_completely(shift):
    rng = random.Random(5)
    source = TestSource(FORMS)
    created = [withhold_values(source, key, "blank", rng) for key in KEYS]
    assert [len(item.groups) for item in created] == [2, 2, 1, 3, 2]
    text = source.edited([edit for item in created for edit in item.edits])
    assert len(text.splitlines()) == len(FORMS.splitlines())
    assert "==" not in text
    assert "0.3" not in text
    expected = {key: item for withheld in created for key, item in withheld.expected.items()}
    values: list[list[object]] = []

    def blank(key, value, *_):
        near = repr(float(value)) if isinstance(value, float) else None
        values.append([key, digest(value), near, False])
        return True

    space = {"blank": blank, "pytest": pytest, "work": lambda value: value + shift if value == 3 else value}
    exec(compile(text, "test.py", "exec"), space)  # noqa: S102 - the text is our own
    space["test_plain"]()
    assert check_answers(created[0], values, {}) == (WRONG if shift else RIGHT)
    values.clear()
    space["test_many_lines"]()
    assert check_answers(created[1], values, {}) == RIGHT
    values.clear()
    for mark in space["test_rows"].pytestmark:
        for row in mark.args[1]:
            space["test_rows"](*getattr(row, "values", row))
    assert check_answers(created[2], values, {}) == RIGHT
    values.clear()
    space["TestCase"]().test_unittest()
    assert check_answers(created[3], values, {}) == RIGHT
    assert {item.value for item in expected.values() if item.relative is not None} == {0.3}


NOT_BLANK = [
    "assert work() is None",
    "assert work() == True",
    "assert 1 == 1",
    "assert work() == other()",
    "x = 3; x += 1; assert work() == x",
    "if work():\n        assert work() == 3",
]


def test_values_not_always_expected_or_easily_guessed_are_not_withheld():
    for body in NOT_BLANK:
        source = TestSource(f"def test_a():\n    {body}\n")
        assert withhold_values(source, "test_a", "blank", random.Random(0)) is None, body


def test_answers_are_graded_by_their_values():
    withheld = WithheldValues({7: WithheldValue(3), 8: WithheldValue("a")}, [frozenset({7}), frozenset({8})])
    right = [[7, digest(3), "3.0", False], [8, digest("a"), None, False]]
    assert check_answers(withheld, right, {}) == RIGHT
    assert check_answers(withheld, right[:1], {}) == WRONG
    assert check_answers(withheld, [*right, [7, digest(4), "4.0", False]], {}) == WRONG
    assert check_answers(withheld, [right[0], [8, None, None, True]], {}) == OPAQUE
    for odd in (None, [], [9, digest(3), None, False], ["7", digest(3), None, False], [[7], {}, None, True], 7):
        assert check_answers(withheld, [*right, odd], {}) == WRONG


def test_choices_contain_the_correct_value_once():
    values = [3, 2.5, "word", "", b"\xff", [], [1, "a"], {"a": (1,)}, {1, 2}, {}, (None, True)]
    for value, seed in itertools.product(values, range(20)):
        withheld = WithheldValues({7: WithheldValue(value)}, [frozenset({7})])
        choices = answer_choices(withheld, random.Random(seed))
        chosen = [ast.literal_eval(text) == value for text in choices["7"]]
        assert len(chosen) > 2, value
        assert chosen.count(True) == 1, value
        assert check_answers(withheld, [[7, "chosen", chosen]], choices) == RIGHT
        assert check_answers(withheld, [[7, "chosen", [True] * len(chosen)]], choices) == WRONG


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return write(tmp_path)


class Counting(SandboxPool):
    """Pass each session the number of sessions before it, as a clock would to a program that knows its start time."""

    sessions = 0

    def open_session(self, base=None, *, environment=None, **options):
        opening = super().open_session(
            base, environment={**(environment or {}), "BEFORE": str(self.sessions)}, **options
        )
        self.sessions += 1
        return opening


def test_forging_by_the_clock_is_detected(base: Path) -> None:
    """The first run is forged; the later ones are not, and fail as they should."""
    source = PRICING + FORGE + "if os.environ['BEFORE'] == '0':\n    forge()\n"
    with Counting() as pool:
        verdict = grade_repository_sync(pool, base, changes({"shop/pricing.py": source}), TESTS)
        assert pool.sessions > 1
    assert verdict.reason == "a value computed for a test differs from the expected value"


def test_forging_without_withheld_values_is_detected(pool: SandboxPool, base: Path) -> None:
    source = (
        PRICING
        + FORGE
        + "import builtins, re\nif not any(re.fullmatch(r'_[a-z]+_[0-9a-f]+', n) for n in dir(builtins)):"
    )
    source += "\n    forge()\n"
    verdict = grade_repository_sync(pool, base, changes({"shop/pricing.py": source}), TESTS)
    assert verdict.reason == "a value computed for a test differs from the expected value"


def test_values_with_custom_equality_choose_among_candidates(pool: SandboxPool, base: Path) -> None:
    price = """

class Price:
    def __init__(self, amount): self.amount = amount
    def __eq__(self, other): return self.amount == other
"""
    honest = (
        FIXED.replace("return price - price * percent / 100", "return Price(price - price * percent / 100)") + price
    )
    assert grade_repository_sync(pool, base, changes({"shop/pricing.py": honest}), TESTS).correct
    forged = PRICING.replace("return price - percent", "return Price(price)") + price + FORGE + "forge()\n"
    verdict = grade_repository_sync(pool, base, changes({"shop/pricing.py": forged}), TESTS)
    assert verdict.reason == "a value computed for a test differs from the expected value"


MORE = {
    "Makefile": "test:\n\tpython -m pytest -rA tests\n",
    "golden/price.txt": "180",
    "shop/testing.py": "def assert_same(one, other):\n    assert one == other\n",
}


def test_reference_files_and_build_files_are_restored(base: Path) -> None:
    write(base, MORE)
    tests = RepositoryTests(TESTS.hidden_tests, ("tests/test_pricing.py::test_total",), (), "make test", "pytest")
    mine = changes({"Makefile": "test:\n", "golden/price.txt": "190", "shop/golden/new.txt": "", "README.md": "new"})
    assert set(allowed_changes(base, mine, tests).changes.written) == {"README.md", "shop/golden/new.txt"}


def test_an_emptied_helper_of_the_product_is_detected(pool: SandboxPool, base: Path) -> None:
    write(base, MORE)
    text = "from shop.pricing import discounted\nfrom shop.testing import assert_same\n\n\n"
    text += "def test_discount():\n    assert_same(discounted(200, 10), 180)\n"
    tests = RepositoryTests({"tests/test_new.py": text}, ("tests/test_new.py::test_discount",), timeout=240)
    emptied = changes({"shop/testing.py": "def assert_same(one, other): pass\n"})
    assert grade_repository_sync(pool, base, emptied, tests).reason == "a mutated test passes"
    assert grade_repository_sync(pool, base, changes({"shop/pricing.py": FIXED}), tests).correct


def test_three_hundred_tests_are_prepared_quickly() -> None:
    text = "".join(f"def test_{n}():\n    assert work({n}) == {n + 1}\n\n" for n in range(300))
    source = TestSource(text)
    began = time.thread_time()
    created = [withhold_values(source, key, "blank", random.Random(0)) for key in source.functions]
    assert all(created)
    assert time.thread_time() - began < 30  # 0.1 s on an idle machine


def test_every_test_of_the_small_repository_has_withheld_values() -> None:
    """The tests above rely on this."""
    source = TestSource(HIDDEN_PRICING_TESTS)
    fixed = {test.partition("::")[2].partition("[")[0] for test in TESTS.fail_to_pass}
    assert all(withhold_values(source, key, "blank", random.Random(0)) for key in fixed)
    assert FILES["shop/pricing.py"] == PRICING
