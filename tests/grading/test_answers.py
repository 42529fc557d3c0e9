"""Typed answers: usual notations are read, and hedging, guessing or flooding gains nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path

from parsing.checks import assert_all_raise

from rllm_gym.grading.answers import check_answer_spec, matches

MARCH = {"type": "date", "value": "2025-03-04"}
HALF_PAST_TWO = {"type": "time", "value": "14:30"}
TEA_AND_CUPS = {"type": "set", "value": ["Tea", "Cups"]}
FAMILY_NAMES = {"type": "set", "value": ["Smith, John", "Doe, Jane"]}


def number(value: object, **rest: object) -> dict[str, object]:
    return {"type": "number", "value": value, **rest}


RIGHT = [
    *[(number(12.5), text) for text in ("12.5", "12.50", "$12.50", "12,50 €", "12.5 kg", "USD 12.50", " **12.5**. ")],
    (number("12.50"), "12.5"),
    *[(number(1234567), text) for text in ("1,234,567", "1.234.567", "1 234 567", "1'234'567", "1234567.0")],
    (number(1234.5), "1.234,50"),
    *[(number(-5), text) for text in ("-5", "−5", "-$5", "$-5")],
    (number(3), "three"),
    (number(0.1), "0.1"),  # not exact in binary
    (number(12.5, tolerance=0.05), "12.55"),
    (number(12, unit=["min", "minutes"]), "12 Minutes"),
    (number(12, unit="minutes"), "12"),
    (number(31, unit=["km²"]), "31 km2"),
    (number(31), "31 m²"),
    *[(number(5000), text) for text in ("5 thousand", "5k", "5K", "$5k", "5 thousand dollars", "5000 customers")],
    *[(number(1_200_000), text) for text in ("1.2 million", "$1.2m", "€1.2 mn", "1.2 million euros")],
    *[(number(5), text) for text in ("5 m", "5 open tickets", "5 times", "5 more items", "5 per day", "5%")],
    (number(5, unit="dozen"), "5 dozen"),
    (number(5, unit=["K", "kelvin"]), "5 K"),
    *[(MARCH, text) for text in ("2025-03-04", "2025/3/4", "4 March 2025", "Mar 4th, 2025", "4.3.2025", "20250304")],
    *[(MARCH, text) for text in ("Tuesday, 4 March 2025", "the 4th of March 2025", "Tue Mar. 4 2025")],
    ({"type": "date", "value": "2025-03-14"}, "3/14/2025"),
    *[(HALF_PAST_TWO, text) for text in ("14:30", "2:30 pm", "2:30 P.M.", "14h30", "14.30", "14:30:00")],
    ({"type": "time", "value": "12:00"}, "noon"),
    ({"type": "time", "value": "00:15"}, "12:15 am"),
    ({"type": "boolean", "value": True}, "Yes."),
    ({"type": "boolean", "value": False}, "false"),
    ({"type": "string", "value": "Tea kettle"}, " “tea  Kettle”. "),
    ({"type": "string", "value": "New York", "aliases": ["NYC"]}, "nyc"),
    *[(TEA_AND_CUPS, text) for text in ("cups, tea", "Tea and Cups", "- Cups\n- Tea", '["tea", "cups"]', "tea; cups")],
    *[
        (FAMILY_NAMES, text)
        for text in ('"Doe, Jane", "Smith, John"', "Doe, Jane\nSmith, John", "Doe, Jane; Smith, John")
    ],
    (number(5, unit="T"), "5 T"),
    (number(5), "5 m"),
    ({"type": "set", "value": [1200, 3400]}, "3,400, 1,200"),
    ({"type": "set", "value": []}, "none"),
    ({"type": "set", "value": ["2025-03-04"], "of": "date"}, "March 4, 2025"),
    ({"type": "list", "value": ["b", "a"]}, "1. b\n2. a"),
]

WRONG = [
    *[(number(5), text) for text in ("", "4 or 5", "5 or 4", "5, 6", "5 6", "--5", "not 5", "5..", "nan")],
    *[
        (number(5), text)
        for text in ("5 thousand", "5k", "5 K", "5 million", "$5m", "5 dozen", "5 minus five", "5 plus")
    ],
    *[
        (number(5), text)
        for text in ("5 and a half", "5 point five", "5 pi", "5π", "5 items or six", "5 hundred items")
    ],
    *[(number(5), text) for text in ("5 squared", "5 items, not", "5 is wrong", "5 thirds", "5 twenty", "5 over two")],
    *[(number(5), text) for text in ("5B", "5 M", "5 T", "5G", "5 twice")],
    *[(number(5), text) for text in ("5 sixths", "5 millionths", "5 lakh", "5 doubled")],
    *[(number(52), text) for text in ("5²", "5₂")],
    *[(number(5_000_000), text) for text in ("5 m", "5 thousand")],
    (number(5000, unit="k"), "5k"),
    ({"type": "set", "value": [5, 6]}, "5 thousand, 6"),
    (number(1213), "12 13"),
    (number(12500), "12.500"),
    (number(12, unit="minutes"), "12 hours"),
    *[(MARCH, text) for text in ("03/04/2025", "Monday, 4 March 2025", "March 4", "4 Foo 2025", "2025-13-04")],
    (MARCH, "4 or 5 March 2025"),
    ({"type": "date", "value": "2025-01-01"}, "1 Foo 2025"),
    *[(HALF_PAST_TWO, text) for text in ("2:30", "14", "26:30", "14:30 pm")],
    ({"type": "boolean", "value": True}, "yes or no"),
    ({"type": "string", "value": "tea"}, "tea or coffee"),
    *[(TEA_AND_CUPS, text) for text in ("tea", "tea, cups, pan", "teacups", '["tea", "cups"')],
    ({"type": "list", "value": ["b", "a"]}, "a, b"),
    ({"type": "list", "value": ["b", "a"]}, "b, a, a"),
]


def test_usual_notations_of_an_answer_match() -> None:
    assert [case for case in RIGHT if not matches(*case)] == []


def test_notations_and_guesses_written_before_looking_at_the_parser() -> None:
    rows = [json.loads(line) for line in (Path(__file__).parent / "typed_answers.jsonl").open()]
    assert sum(row["right"] for row in rows) >= 240
    assert sum(not row["right"] for row in rows) >= 270
    assert [row for row in rows if matches(row["spec"], row["answer"]) is not row["right"]] == []


def test_hedging_ambiguity_and_other_values_do_not_match() -> None:
    assert [case for case in WRONG if matches(*case)] == []


FLOODS = ["[" * 9_999, "-" * 9_999, "1 " * 4_999, "'" * 9_999, "a. " * 3_333, "\n" * 9_999, "1e999", "9" * 60 + "e999",
          "\ud800", "٣", "ﷺ" * 9_999, "[" + "9" * 9_000 + "]", "x" * 10_000_000]  # fmt: skip


def test_very_long_answers_are_wrong_at_once() -> None:
    for spec in (number(1), MARCH, HALF_PAST_TWO, TEA_AND_CUPS, {"type": "string", "value": "a"}):
        began = time.thread_time()
        assert [flood[:20] for flood in FLOODS if matches(spec, flood)] == [], spec
        assert time.thread_time() - began < 10, spec  # 0.1 s on an idle machine; minutes where it is quadratic


REFUSED = [
    ({"type": "regex", "value": "x"}, "regex"),
    ({"type": "number"}, "value"),
    (number("many"), "many"),
    (number(float("nan")), "nan"),
    (number(True), "True"),
    (number(1, tolerance=-1), "tolerance"),
    (number(1, aliases=["2"]), "aliases"),
    ({"type": "date", "value": "4 March 2025"}, "2025-03-04"),
    ({"type": "string", "value": ""}, "string"),
    ({"type": "set", "value": "tea"}, "tea"),
    ({"type": "set", "value": ["tea", "Tea"]}, "twice"),
    ({"type": "list", "value": [], "of": "regex"}, "regex"),
]


def test_an_invalid_spec_is_refused_with_its_name() -> None:
    assert_all_raise(ValueError, check_answer_spec, REFUSED, plain=True)
