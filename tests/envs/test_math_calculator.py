"""The calculator: correct, exact and harmless for any input."""

from __future__ import annotations

import contextlib
import re
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm_gym.core import InvalidAction
from rllm_gym.envs.math.calculator import CalculatorError, calculate
from rllm_gym.envs.math.tool_calls import expressions_asked

VALUES = [
    ("2 * (3 + 4)", "14"),
    ("1/3 + 1/6", "1/2 (about 0.5)"),
    ("2^10 - 5!", "904"),
    ("2**3**2", "512"),
    ("-2^2", "-4"),
    ("(-2)^2", "4"),
    ("2^-2", "1/4 (about 0.25)"),
    ("2 - -3", "5"),
    ("7 // 2 + 7 % 2", "4"),
    ("-7 % 5", "3"),
    ("0.1 + 0.2", "3/10 (about 0.3)"),
    ("1e3 * .5", "500"),
    ("sqrt(144) + sqrt(1/4)", "25/2 (about 12.5)"),
    ("sqrt(2)", "1.41421356237"),
    ("4^(1/2)", "2"),
    ("2^0.5", "1.41421356237"),
    ("gcd(12, 18) + lcm(4, 6) + max(1, 5/2, 2) - min(3, 1)", "39/2 (about 19.5)"),
    ("floor(-7/2) + ceil(7/2) + abs(-3)", "3"),
    ("2 * pi", "6.28318530718"),
    ("3 × 4 ÷ 2 − 1", "5"),
    ("[1 + 2] * 3", "9"),
    ("3!!", "720"),
    ("1^99999999999", "1"),
    ("(-1)^99999999999", "-1"),
    ("0^0", "1"),
]
# An expression, its error message, the position of the error, and whether it is not an expression at all.
WITHOUT_VALUE = [
    ("", "ends too early", 1, True),
    ("2 +", "ends too early", 4, True),
    ("2 + * 3", r"unexpected '\*'", 5, True),
    ("(1 + 2", "ends too early", 7, True),
    ("1 + 2)", r"unexpected '\)'", 6, True),
    ("2 $ 3", r"unexpected '\$'", 3, True),
    ("2 3", "unexpected '3'", 3, True),
    ("1,234", "unexpected ','", 2, True),
    ("__import__('os')", "unexpected '_'", 1, True),
    ("open(1)", "unknown name 'open'", 1, True),
    ("x + 1", "unknown name 'x'", 1, True),
    ("sqrt", "ends too early", 5, True),
    ("sqrt(1, 2)", "takes one number", 1, True),
    ("1/0", "division by zero", 2, False),
    ("1 // (2 - 2)", "division by zero", 3, False),
    ("5 % 0", "division by zero", 3, False),
    ("0^-1", "division by zero", 2, False),
    ("sqrt(-1)", "no square root", 1, False),
    ("(-8)^(1/3)", "no such power", 5, False),
    ("1.5!", "whole numbers", 4, False),
    ("(-1)!", "0 to 500", 5, False),
    ("9^9^9^9", "bits", 4, False),
    ("501!", "0 to 500", 4, False),
    ("1e99999", "too large", 1, False),
    ("1e1000000000000", "too large", 1, False),
    ("10.5^2000.5", "too large", 5, False),
    ("٣ + 1", "unexpected '٣'", 1, True),
    ("1\0", "unexpected", 2, True),
    ("(" * 60 + "1" + ")" * 60, "levels deep", 51, True),
    ("-" * 999 + "1", "levels deep", 51, True),
    ("1+" * 600 + "1", "more than 1000", 1001, True),
]
EXPENSIVE = [
    "2^4000*" * 140 + "1",
    "lcm(" + ",".join(f"{n}^300" for n in range(2, 120)) + ")",
    "500!" + "*500!" * 150,
    "((((2^64)^64)^64)^64)^64",
    "1/3^2000+" * 100 + "1",
    "9!!",
    "sqrt(" * 49 + "2" + ")" * 49,
]


def test_expressions_have_the_expected_values() -> None:
    assert [(expression, calculate(expression)) for expression, _ in VALUES] == VALUES


def test_errors_name_the_problem_and_its_position() -> None:
    for expression, output, position, malformed in WITHOUT_VALUE:
        with pytest.raises(CalculatorError) as raised:
            calculate(expression)
        assert re.search(output, str(raised.value)), expression
        assert (raised.value.position, raised.value.malformed) == (position, malformed), expression


def test_expensive_expressions_are_rejected_at_once() -> None:
    for expression in EXPENSIVE:
        started = time.thread_time()
        with contextlib.suppress(CalculatorError):
            assert len(calculate(expression)) < 10_000
        assert time.thread_time() - started < 5, expression  # about 0.01 s; evaluating them would never end


@given(st.text(alphabet="0123456789.+-*/%^!(), epigcdsqrtmax[]×÷−\n\t_'x٣", max_size=60) | st.text(max_size=60))
def test_any_text_has_a_value_or_an_error_position_within_it(expression: str) -> None:
    try:
        assert isinstance(calculate(expression), str)
    except CalculatorError as error:
        assert 1 <= error.position <= len(expression) + 1  # noqa: PT017 - a value is fine too


tree = st.recursive(
    st.integers(0, 99).map(lambda n: (str(n), Fraction(n))),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(
        lambda parts: (
            f"({parts[0][0]}) {parts[1]} ({parts[2][0]})",
            None
            if parts[0][1] is None or parts[2][1] is None or (parts[1] == "/" and not parts[2][1])
            else {
                "+": lambda a, b: a + b,
                "-": lambda a, b: a - b,
                "*": lambda a, b: a * b,
                "/": lambda a, b: a / b,
            }[parts[1]](parts[0][1], parts[2][1]),
        )
    ),
    max_leaves=12,
)


@given(tree)
def test_values_agree_with_exact_fractions(case: tuple[str, Fraction | None]) -> None:
    expression, expected = case
    if expected is None:
        with pytest.raises(CalculatorError, match="division by zero"):
            calculate(expression)
    else:
        assert calculate(expression).split(" ")[0] == str(expected)


def call(body: str) -> str:
    return f"Let me see. <tool_call>{body}</tool_call>"


def test_calls_are_parsed_in_order_in_both_formats() -> None:
    one = '{"name": "calculator", "arguments": {"expression": "1 + 1"}}'
    two = r'{"name": "calculator", "arguments": "{\"expression\": \"2 * 2\"}"}'
    assert expressions_asked(call(f"\n{one}\n") + call(two)) == ["1 + 1", "2 * 2"]
    assert expressions_asked("no call") == []


MALFORMED = [
    ('ab <tool_call>{"name"', "Tool call 1, at position 4 of the reply, is never closed"),
    (call('{"name" "calculator"}'), "not JSON: Expecting ':' delimiter at position 32 of the reply"),
    (call(""), "not JSON: .* at position 24 of the reply"),
    (call("[]"), "not a JSON object"),
    (call("{}"), "names the tool 'None'"),
    (call('{"name": "shell", "arguments": {}}'), "the only tool is 'calculator'"),
    (call('{"name": "calculator"}'), "no text under 'expression'"),
    (call('{"name": "calculator", "arguments": {"expression": 5}}'), "no text under 'expression'"),
    (call('{"name": "calculator", "arguments": "{"}'), "no JSON object"),
    (call('{"name": "calculator", "arguments": "[1]"}'), "no text under"),
    (call("[" * 3_000), "nested too deeply|not JSON"),
    (call("9" * 3_900), "is not a JSON object"),
    (call(" " * 5_000), "at most 4000 are read"),
    (call('{"name": "calculator", "arguments": {"expression": "1"}}') * 9, "more than 8"),
]


def test_malformed_calls_are_reported_with_position_and_an_example() -> None:
    for text, output in MALFORMED:
        with pytest.raises(InvalidAction) as raised:
            expressions_asked(text)
        assert re.search(output, str(raised.value)), text[:100]


@given(st.text(max_size=200).map(lambda text: "<tool_call>" + text + "</tool_call>"))
def test_any_call_is_parsed_or_refused(text: str) -> None:
    try:
        assert all(isinstance(expression, str) for expression in expressions_asked(text))
    except InvalidAction as error:
        assert "call" in str(error)  # noqa: PT017 - a call that can be read is fine too
