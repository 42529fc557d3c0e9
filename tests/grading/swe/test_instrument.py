"""Rewritten tests hold no expected value, and what they report is evaluated as Python would."""

from __future__ import annotations

import json
import time
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm_gym.core import TaskError
from rllm_gym.grading.python_source import parse_python
from rllm_gym.grading.swe.assertions import UnsupportedAssertion, evaluate
from rllm_gym.grading.swe.inside import observer as observers
from rllm_gym.grading.swe.inside.observer import encode
from rllm_gym.grading.swe.instrument import instrument
from rllm_gym.grading.swe.observed_values import ANYTHING, FieldNames, NotPlain, decode, matches, merged
from rllm_gym.grading.swe.recorded_sites import Level, SiteKind
from rllm_gym.grading.swe.trace import ObservedFiles, TestTrace, Trace, digest_of, sites_of
from rllm_gym.grading.swe.trace_check import TestCheck


def rewritten(body: str, *, head: str = "from shop import price\nimport math, pytest\n") -> str:
    return instrument(head + body, {}, first=0, recording=False).text


# What must not be in the process, by the source of a test that expects it.
SECRETS = {
    "def test_a():\n    assert price(1) == 4711\n": "4711",
    "def test_a():\n    expected = [4711]\n    assert price(1) == expected\n": "4711",
    "EXPECTED = {'a': 4711}\ndef test_a():\n    assert price(1) == EXPECTED['a']\n": "4711",
    "@pytest.mark.parametrize(('x', 'y'), [(1, 4711)])\ndef test_a(x, y):\n    assert price(x) == y\n": "4711",
    "@pytest.mark.parametrize('y', [pytest.param(4711, id='is 4711')])\n"
    "def test_a(y):\n    assert price(1) == y\n": "4711",
    "ROWS = [(1, 4711)]\ndef test_a():\n    for x, y in ROWS:\n        assert price(x) == y\n": "4711",
    "def test_a():\n    for x, y in [(1, 4711)]:\n        assert price(x) == y\n": "4711",
    "def oracle(x):\n    return x + 4711\ndef test_a():\n    assert price(1) == oracle(1)\n": "4711",
    "ROWS = [1]\ndef oracle(rows):\n    return [4711]\n"
    "def test_a():\n    price(ROWS)\n    assert price(ROWS) == oracle(ROWS)\n": "4711",
    "def test_a(mock):\n    price(mock)\n    mock.assert_called_once_with(4711, key=1)\n": "4711",
    "def test_a():\n    with pytest.raises(KeyError) as e:\n        price(1)\n    e.match('4711')\n": "4711",
    "def check(x, y):\n    assert price(x) == y\ndef test_a():\n    check(1, 4711)\n    check(y=4711, x=2)\n": "4711",
    "class Base:\n    def check(self, x, y):\n        assert price(x) == y\n"
    "class TestA(Base):\n    def test_a(self):\n        self.check(1, 4711)\n        self.check(2, y=4711)\n": "4711",
    "from shop import assert_price\ndef test_a():\n    assert_price(price(1), 4711)\n": "4711",
    "def test_a():\n    with pytest.raises(KeyError, match='4711'):\n        price(1)\n": "KeyError",
    "def test_a():\n    assert price(1) == pytest.approx(4711, rel=1e-3)\n": "4711",
    "def test_a():\n    assert price('x').startswith('4711')\n": "4711",
    "def test_a():\n    assert abs(price(1) - 4711) < 1e-6\n": "4711",
    "def test_a():\n    assert all(part < 4711 for part in price(1))\n": "4711",
    "class TestA:\n    def test_a(self):\n        self.assertAlmostEqual(price(1), 4711, places=2)\n": "4711",
    "class TestA:\n    def test_a(self):\n        self.assertRaises(KeyError, price, 1)\n": "KeyError",
    "class TestA:\n    def test_a(self):\n        self.assertRaisesRegex(KeyError, '4711', price, 1)\n": "4711",
}


@pytest.mark.parametrize("source", SECRETS)
def test_expected_values_are_not_in_the_rewritten_file(source: str) -> None:
    text = rewritten(source)
    assert SECRETS[source] not in text
    assert "price(" in text


def test_a_method_that_another_class_defines_too_keeps_its_arguments() -> None:
    """Which one is called is not known, and the other may need them."""
    base = "class {}:\n    def check(self, x, y):\n        assert price(x) {} y\n"
    text = rewritten(f"{base.format('A', '==')}{base.format('B', '<')}class TestA(A):\n    def test_a(self):\n"
                     "        self.check(1, 4711)\n")  # fmt: skip
    assert "4711" in text


def test_inputs_stay() -> None:
    text = rewritten("def test_a():\n    text = 'abc'\n    assert price(text) == text\n    assert price([7]) == 1\n")
    assert "'abc'" in text
    assert "[7]" in text


def test_an_assertion_a_call_and_an_expected_exception_look_alike() -> None:
    bodies = ["assert price(1) == 2", "price(1)", "with pytest.raises(ValueError):\n        price(1)"]
    texts = {rewritten(f"def test_a():\n    {body}\n") for body in bodies}
    assert len(texts) == 1


def test_what_the_code_may_have_changed_is_asked_for() -> None:
    sources = [
        "def test_a():\n    calls = []\n    price(calls.append)\n    assert calls == [1]\n",
        "def test_a():\n    count = 0\n    for _ in price(1):\n        count += 1\n    assert count == 3\n",
        "def test_a():\n    price(1)\n    assert open('out.txt').read() == 'x'\n",
        "def test_a(tmp_path):\n    price(tmp_path)\n    assert tmp_path.joinpath('x').exists()\n",
        "def test_a():\n    seen = {}\n    price(seen)\n    assert len(seen) == 2\n",
    ]
    for source in sources:
        file = instrument("from shop import price\n" + source, {}, first=0, recording=False)
        asserted = [site for site in file.sites if site.kind is SiteKind.ASSERTION]
        assert [site.known for site in asserted] == [[False]], source


class Point:
    def __init__(self, x: Any) -> None:
        self.x = x
        self._cached = None


class Yes:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Text(str):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


def sent(value: Any) -> Any:
    return json.loads(json.dumps(encode(value)))


_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.decimals(allow_nan=False, allow_infinity=False) | st.fractions() | st.dates() | st.datetimes()
    | st.timedeltas() | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3)
    | st.tuples(inner, inner)
    | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(_plain)
def test_plain_values_arrive_as_they_are(value: object) -> None:
    found = decode(sent(value))
    assert found == value
    assert type(found) is type(value)


def test_more_plain_values_arrive() -> None:
    values = [{1, (2, "x")}, frozenset("ab"), range(3), PurePosixPath("a/b"), Ellipsis, bytearray(b"x"), 2**200]
    assert [decode(sent(value)) for value in values] == values
    assert decode(sent(Text("a"))) == "a"
    assert decode(sent(Text("a"))) != "b"


def test_objects_are_no_plain_values() -> None:
    for value in (Yes(), [Yes()], {"a": Point(1)}, iter([1]), lambda: 1, object()):
        with pytest.raises(NotPlain):
            decode(sent(value))


def test_objects_are_compared_by_their_fields() -> None:
    gold = sent(Point([1, 2]))
    assert matches(gold, sent(Point([1, 2])))
    assert not matches(gold, sent(Point([1, 3])))
    assert not matches(gold, sent(Yes()))
    assert not matches(sent(1), sent(Yes()))
    assert not matches(sent(1), sent(True))
    more = Point([1, 2])
    more.y = 1  # type: ignore[attr-defined]
    del more._cached
    assert matches(gold, sent(more))


def test_a_field_may_be_missing_only_if_no_object_of_the_class_has_it() -> None:
    one, other = Point(1), Point(1)
    one.unit = "EUR"  # type: ignore[attr-defined]
    gold = sent(one)
    assert not matches(gold, sent(other))
    assert matches(gold, sent(other), FieldNames(frozenset({"Point"})))
    assert not matches(gold, sent(other), FieldNames(frozenset({"Point", "unit"})))
    assert not matches(gold, sent(other), FieldNames(frozenset({"Point"}), {"Point": {"unit"}}))
    assert not matches(gold, sent(other), FieldNames(frozenset({"Point"}), {}, frozenset({"unit"})))
    one._cached = 2.5
    del one.unit, other._cached  # type: ignore[attr-defined]
    assert not matches(sent(one), sent(other), FieldNames(frozenset({"Point", "_cached"})))
    other._cached = 2.5000000000000004
    assert matches(sent(one), sent(other))


def test_what_two_runs_do_not_share_is_not_compared() -> None:
    gold = merged(sent(Point(["a", 1])), sent(Point(["a", 2])))
    assert matches(gold, sent(Point(["a", 3])))
    assert not matches(gold, sent(Point(["b", 1])))
    assert merged([1], "x") == ANYTHING


def test_cycles_and_large_values_are_bounded() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    deep: list[Any] = []
    for _ in range(2_000):
        deep = [deep]
    for value in (cycle, deep, list(range(200_000)), "x" * 3_000_000):
        with pytest.raises(NotPlain):
            decode(sent(value))


MALFORMED = [
    ["i", "zz"], ["i", "f" * 100_000], ["x", "Decimal", "1e999999999"], ["x", "Decimal", None], ["x", "nothing", 1],
    ["d", 1], ["d", ["l"], 1], ["s", ["l", 1]], ["b", "\u4e00"], [], [[]], {}, ["x", "datetime", ["now", 0]],
    ["x", "Fraction", ["1", "0"]], ["f", "1e9"], ["B", "a:b", None, {}], ["x", "range", [0, 1, 0]],
]  # fmt: skip


@pytest.mark.parametrize("encoded", MALFORMED)
def test_malformed_values_are_refused(encoded: Any) -> None:
    with pytest.raises(NotPlain):
        decode(encoded)


def test_keys_that_collide_are_bounded() -> None:
    with pytest.raises(NotPlain):
        decode(["s", *(["i", hex(number * (2**61 - 1))] for number in range(1, 20_000))])
    for tag in ("t", "fs"):  # their hashes have no seed: a set of 100,000 equal ones would take minutes
        with pytest.raises(NotPlain):
            decode(["s", *([tag, number] for number in range(20_000))])


# Conditions over these values, with what Python says of them.
VALUES: dict[str, Any] = {
    "a": 3, "b": [1, 2, 3], "c": "text", "d": {"x": 1.0}, "e": None, "f": Decimal("1.5"), "g": Fraction(3, 2),
    "h": date(2024, 1, 2), "i": timedelta(1), "j": datetime(2024, 1, 2), "k": True,
}  # fmt: skip
CONDITIONS = [
    "a == 3", "a == 4", "a < 4 < 5", "a in b", "9 not in b", "c.startswith('te')", "e is None", "a is not None",
    "f == g", "len(b) == a", "sorted(b) == b", "all(x > 0 for x in b)", "any(x > a for x in b)", "not b", "k is True",
    "sum(x * y for x, y in [(1, 2), (3, 4)]) == 14", "[x for x in b if x > 1] == [2, 3]", "h < h + i", "d == {'x': 1}",
    "isinstance(a, int)", "isinstance(c, (int, str))", "(a, c) == (3, 'text')", "abs(a - 3.5) < 1", "b[0] == 1",
    "{1, 2} <= {1, 2, 3}", "a == 3 and c == 'x'", "-a == -3", "max(b) - min(b) == 2", "j == h",
]  # fmt: skip


@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions_are_evaluated_as_python_does(condition: str) -> None:
    expected = eval(condition, dict(VALUES))  # noqa: S307 - written above
    assert bool(evaluate(parse_python(condition).body[0].value, VALUES)) == bool(expected)


def test_other_operations_do_not_exist() -> None:
    for text in (
        "open('x')",
        "a.__class__",
        "b.append(1)",
        "'%s' % a",
        "lambda: 1",
        "c * 10**9",
        "2 ** 9",
        "a if a else b",
    ):
        with pytest.raises((UnsupportedAssertion, KeyError)):
            evaluate(parse_python(text).body[0].value, VALUES)


def test_an_evaluation_ends() -> None:
    node = parse_python("all(x == x for x in b for y in b for z in b)").body[0].value
    with pytest.raises(UnsupportedAssertion):
        evaluate(node, {"b": list(range(1_000))})


def check(events: list[Any]) -> str:
    """Return the problem with events of a test that expects 2, then an exception."""
    source = "from shop import price\nimport pytest\ndef test_a():\n    assert price(1) == 2\n"
    source += "    with pytest.raises(ValueError, match='x'):\n        price(0)\n"
    files = ObservedFiles({"t.py": source}, {}, recording=False)
    right = [[0, [2]], ["x", 1, [["builtins:ValueError"], "an x", None]]]
    bases = [f"builtins:{name}" for name in ("ValueError", "Exception", "BaseException", "object")]
    expected = [["T", "builtins:ValueError", bases], "x"]
    order = files.order(right, ["t.py"])
    trace = TestTrace(digest_of(order), sites_of(order), {1: expected}, 2, ("t.py",))
    return TestCheck(files, trace, FieldNames(), strict=True).problem(events)


def test_events_are_held_against_the_trace() -> None:
    error = ["x", 1, [["builtins:ValueError"], "an x", None]]
    assert check([[0, [2]], error]) == ""
    assert check([[0, [2.0]], error]) == ""
    for events in (
        [], [[0, [2]]], [error], [[0, [3]], error], [[0, [["O", "shop:Yes", {}]]], error], [[0, [2]], [1, [5]]],
        [[0, [2]], ["x", 1, [["builtins:KeyError"], "an x", None]]], [[0, [2]], error, error],
        [[0, [2]], ["x", 1, [["builtins:ValueError"], "a y", None]]],
        [["x", 0, [["builtins:OSError"], "", None]], error],
        [[0, []], error], [[0, [2, 2]], error], [[7, [2]], error], ["x"], [None, error], [[0, 2], error],
        [[0, [2]], ["x", "1", [["builtins:ValueError"], "an x", None]]], [[True, [2]], error], [[0, [10**400]], error],
    ):  # fmt: skip
        assert check(events), events


def test_a_number_that_no_float_can_hold_is_only_wrong() -> None:
    files = ObservedFiles(
        {"t.py": "from shop import a, b\ndef test_a(x):\n    assert a() == b(x)\n"}, {}, recording=False
    )
    order = files.order([[0, [1.5, 1.5]]], ["t.py"])
    trace = TestTrace(digest_of(order), sites_of(order), {0: [[1.5], [1.5]]}, 1, ("t.py",))
    check = TestCheck(files, trace, FieldNames(), strict=True)
    assert check.problem([[0, [1.5, 1.5]]]) == ""
    assert check.problem([[0, [10**400, 10**400]]])


def test_a_trace_is_read_as_it_was_written() -> None:
    trace = Trace({}, {"t.py::test_a": TestTrace("ab", "cd", {0: [["x"], None], 3: [["x"], None]}, 2)})
    assert Trace.from_json(trace.to_json()) == trace
    for text in ("", "{}", "[1,{},{}]", "[9,{},{}]\n[]", '[1,{},{"a":["",0,{"0":5}]}]\n[]'):
        with pytest.raises(TaskError, match="record_trace"):
            Trace.from_json(text)


def test_rewriting_is_linear() -> None:
    source = "from shop import price\ndef test_a():\n" + "    assert price(1) == [{}]\n".format("1, " * 50) * 1_000
    before = time.process_time()
    instrument(source, {}, first=0, recording=False)
    assert time.process_time() - before < 60


OWN_CHECKS = {
    'self.assertRenders(self.dedent("a"), self.dedent("b"))': 0,  # as if it tested something; it only passes inputs
    'self.assertRenders("a", "b")': 0,
    'self.assertRenders(self.dedent("a"), "b")': 0,
    'self.assertRenders("a", render("a"))': 1,
    'self.assertRenders(render(self.dedent("a")), self.dedent("b"))': 1,
}


def test_inputs_of_a_check_of_the_repository_are_no_evidence() -> None:
    for statement, conclusive in OWN_CHECKS.items():
        source = f"from shop import render, Case\nclass Tests(Case):\n    def test_a(self):\n        {statement}\n"
        files = ObservedFiles({"t.py": source}, {}, recording=False)
        site = files.files["t.py"].sites[0]
        operands = ["a" for _ in site.sent]
        event = [0, operands, *([True] if site.level == Level.WHOLE else [])]
        order = files.order([event], ["t.py"])
        trace = TestTrace(digest_of(order), "", {0: [["a"] for _ in site.known]}, 0, ("t.py",))
        one = TestCheck(files, trace, FieldNames(), strict=True)
        assert one.problem([event]) == ""
        assert one.conclusive == conclusive, statement


def test_a_test_that_sends_too_much_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its values would fill the memory of the sandbox, and are dropped in the end."""
    monkeypatch.setattr(observers, "MAX_TEST_CHARS", 100_000)
    observer = observers.Observer()
    for _ in range(200):
        observer.operands(0, [list(range(40_000))])
    assert not observer._events
    assert observer.take() == ["too large"]
    observer.operands(0, [[1]])
    assert observer.take() == [[0, [["l", 1]]]]


class Bucket:
    """Reads its source when it is asked for its items, which has no end."""

    def __iter__(self) -> Any:
        raise AssertionError("it would never end")


class Shelf(list[int]):
    def __iter__(self) -> Any:
        return iter((5, 6))

    def __len__(self) -> int:
        return 2


def test_only_what_has_a_length_is_iterated() -> None:
    assert sent(Bucket())[0] == "O"
    assert sent(Shelf())[4] == {"len()": 2, "iter()": ["l", 5, 6]}


def shown(name: str, fields: dict[str, Any], view: dict[str, Any] | None = None, bases: list[str] | None = None) -> Any:
    """Return an object of a class of the repository as it is sent."""
    return ["O", f"shop:{name}", fields, view or {}, bases or []]


def test_an_object_is_compared_by_what_is_public_of_it() -> None:
    gold = shown("Price", {"_units": 425}, {"units": 425, "currency": "EUR"})
    for found in (
        shown("Price", {"units": 425, "currency": "EUR"}),
        shown("Price", {"_amount": 4.25}, {"units": 425, "currency": "EUR"}),
        shown("Bargain", {"_cache": ["!", "too large"]}, {"units": 425, "currency": "EUR"}, ["shop:Price"]),
        ["B", "shop:Price", ["t", 425, "EUR"], {}, {"units": 425, "currency": "EUR"}, ["builtins:tuple"]],
    ):
        assert matches(gold, found, FieldNames(frozenset({"units", "currency"}))), found
    for found in (
        shown("Price", {}), shown("Price", {"units": 425}), shown("Other", {"units": 425, "currency": "EUR"}),
        shown("Price", {"_units": 425}, {"units": 424, "currency": "EUR"}),
        425, None, ["l"], ["B", "shop:Price", ["t"], {}, {}, ["builtins:tuple"]],
    ):  # fmt: skip
        assert not matches(gold, found, FieldNames(frozenset({"units", "currency"}))), found


def test_what_is_only_private_may_be_stored_in_another_way_but_not_left_out() -> None:
    gold = shown("Grid", {"width": 2, "_cells": ["l", 5, 6, 7, 8]})
    names = FieldNames(frozenset({"width", "_cells"}))
    assert matches(gold, shown("Grid", {"width": 2, "_cells": ["t", 5, 6, 7, 8]}), names)
    assert matches(gold, shown("Grid", {"width": 2, "_rows": ["l", ["l", 5, 6], ["l", 7, 8]]}), names)
    for fields in (
        {"width": 2}, {"width": 2, "_cells": ["l", 5, 6, 8, 7]}, {"width": 2, "_rows": ["l", ["l", 5, 6], ["l", 7, 9]]},
        {"width": 3, "_cells": ["l", 5, 6, 7, 8]}, {"_cells": ["l", 5, 6, 7, 8]},
    ):  # fmt: skip
        assert not matches(gold, shown("Grid", fields), names), fields
    bits = shown("Grid", {"width": 2, "_cells": ["l", 0, 1, 1, 0]})
    assert matches(bits, shown("Grid", {"width": 2, "_bits": ["t", 0, 1, 1, 0]}), names)
    for more, few in ([*range(9, 13)], True), ([*range(100)], False):
        everything = shown("Grid", {"width": 2, "_all": ["l", 5, 6, 7, 8, *more]})
        assert matches(gold, everything, names) is few  # it may hold more, but not everything
    for name in ("_cells", "_bits"):
        assert not matches(bits, shown("Grid", {"width": 2, name: ["l", 1, 1, 0, 0]}), names)
    items = shown("Grid", {"width": 2, "_cells": ["l", 5, 6]}, {"len()": 2, "iter()": ["l", 5, 6]})
    assert matches(items, shown("Grid", {"width": 2, "_low": 5}, {"len()": 2, "iter()": ["l", 5, 6]}), names)
    assert not matches(items, shown("Grid", {"width": 2, "_low": 5}, {"len()": 2, "iter()": ["l", 6, 5]}), names)
    assert not matches(items, shown("Grid", {"width": 2, "_low": 5}), names)  # its items cannot be seen


def test_an_exception_of_every_class_is_none_of_them() -> None:
    source = "from shop import price, OddError\nimport pytest\ndef test_a():\n"
    source += "    with pytest.raises(OddError, match='odd'):\n        price(0)\n"
    files = ObservedFiles({"t.py": source}, {}, recording=False)
    odd = ["shop:OddError", "builtins:Exception", "builtins:BaseException", "builtins:object"]
    other = ["shop:NoSuchError", *odd[1:]]
    order = files.order([["x", 0, [odd, "", None]]], ["t.py"])
    expected = [["T", "shop:OddError", odd], "odd", odd, "3 is odd"]
    trace = TestTrace(digest_of(order), sites_of(order), {0: expected}, 1, ("t.py",))
    errors = {"shop:OddError": tuple(odd), "shop:NoSuchError": tuple(other)}

    def problem(kinds: list[str], text: str) -> str:
        check = TestCheck(files, trace, FieldNames(frozenset({"OddError"})), errors, strict=True)
        return check.problem([["x", 0, [kinds, text, None]]])

    assert problem(odd, "3 is odd") == ""
    assert problem(["shop:VeryOddError", *odd], "the number 3 is odd") == ""
    for kinds in (
        other, ["shop:E", "shop:OddError", "shop:NoSuchError", *odd[1:]], ["shop:E", "shop:NoSuchError", *odd],
        ["shop:E", "shop:OddError", "builtins:ValueError", *odd[1:]], ["shop:E", "builtins:KeyError", *odd],
    ):  # fmt: skip
        assert problem(kinds, "3 is odd"), kinds
    assert problem(odd, "3 is even")
    assert problem(odd, "an odd text that has every word of the sources of the repository in it " * 5)


@pytest.mark.parametrize(
    ("assertion", "sent"),
    [
        ("assert price(1, 2) == price(3)", "price(1, 2)"),
        ("assert price(3) == price(1).plus(2)", "price(1).plus(2)"),
        ("assert price(1) == some(3)", "price(1)"),
        ("assert price(1) == Price(3)", "price(1)"),
        ("self.assertEqual(price(1).half(), price(3))", "price(1).half()"),
        ("assert price(1) == f'{HEAD}3'", "price(1)"),
        ("assert price(1) == HEAD.replace('a', 'b')", "price(1)"),
        ("assert price(1) == HEAD[2:4]", "price(1)"),
    ],
)
def test_what_is_compared_with_is_not_computed_inside(assertion: str, sent: str) -> None:
    source = (
        f"from shop import HEAD, Price, price\ndef some(x):\n    return Price(x)\ndef test_a(self):\n    {assertion}\n"
    )
    text = instrument(source, {}, first=0, recording=False).text
    assert f"_a_(0, [{sent}])" in text
