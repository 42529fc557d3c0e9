r"""Correct answers are accepted in every notation, and wrong answers are rejected however close they look."""

from __future__ import annotations

import asyncio
import json
import random
import re
from fractions import Fraction
from pathlib import Path

import pytest
from answer_cases import EQUAL, UNEQUAL
from hypothesis import given, settings
from hypothesis import strategies as st

from rllm_gym.grading import MathVerdict, agrade_math
from rllm_gym.grading import grade_math as grade_math_soon

# Rows of the public examples that are graded differently here on purpose: id -> reason. There are none.
DISAGREEMENTS = {"c00104": "1 = \\zzz = x = 0, a command that does not exist, for 0"}


TIMEOUT = 120.0
"""Seconds that suffice for a verdict even on a machine that stalls."""


def grade_math(response, gold, *, timeout=TIMEOUT, **options):
    return grade_math_soon(response, gold, timeout=timeout, **options)


def boxed(answer):
    return f"So the answer is $\\boxed{{{answer}}}$."


def test_other_notations_of_the_gold_answer_are_correct():
    pairs = [(topic, *pair) for topic in EQUAL for pair in EQUAL[topic]]
    assert [case for case in pairs if not grade_math(boxed(case[2]), case[1]).correct] == []


def test_answers_as_models_write_them_and_replies_that_guess():
    # Written before looking at the grader: right answers in many notations, and replies that hedge, deny, ask, list
    # many values, use another unit, or that only a careless parser reads as the gold answer.
    rows = [json.loads(line) for line in (Path(__file__).parent / "written_answers.jsonl").open()]
    assert sum(row["right"] for row in rows) >= 450
    assert sum(not row["right"] for row in rows) >= 500
    wrong = [
        row for row in rows if grade_math(row["response"], row["gold"], extract=row["mode"]).correct is not row["right"]
    ]
    assert wrong == []


def test_any_finds_the_conclusion_of_human_solutions_and_none_in_the_problem(shared_data):
    found = copied = 0
    with (shared_data / "gsm8k_test.jsonl").open() as file:
        rows = [json.loads(line) for line in file][:600]
    for row in rows:
        solution, _, answer = row["answer"].rpartition("####")
        answer = answer.strip().replace(",", "")
        found += grade_math(re.sub("<<.*?>>", "", solution), answer, extract="any").correct
        copied += grade_math(row["question"], answer, extract="any").correct
    assert found >= 585
    assert copied <= 1


def test_near_misses_are_wrong():
    pairs = [(topic, *pair) for topic in UNEQUAL for pair in UNEQUAL[topic]]
    assert [case for case in pairs if grade_math(boxed(case[2]), case[1]).correct] == []


def test_wrong_verdicts_are_symmetric():
    # Grading is symmetric except for equations ("x + y = 5" is accepted for 5, but 5 is not for an equation) and
    # square brackets ("[1, 2]" is accepted for the list 1, 2, but not the list for an interval).
    pairs = [(topic, *pair) for topic in UNEQUAL for pair in UNEQUAL[topic]]
    asked = [case for case in pairs if case[2].strip() and "=" not in case[1] + case[2] and case[1][0] != "["]
    assert [case for case in asked if grade_math(boxed(case[1]), case[2]).correct] == []


def test_known_wrong_verdicts_of_math_verify_are_fixed():
    for gold, answer, right in [
        ("5", "6=5", False),
        (r"\frac{1}{2006!}", r"\frac{1}{2004!}", False),
        ("Mon", "M*o*n", False),
        ("1234567", r"1\,234\,567", True),
        ("300000000", "3e8", True),
        ("90", "90°", True),
        (r"\sqrt{2}", "√2", True),
        ("204_6", "204_5", False),
    ]:
        assert grade_math(boxed(answer), gold).correct is right, (gold, answer)


def test_verdicts_on_public_examples_agree_with_their_suites(shared_data):
    rows = [json.loads(line) for line in (shared_data / "math_grading_examples.jsonl").open()]
    assert len(rows) == 358
    disagreed = {}
    for row in rows:
        extract = "boxed" if re.search(r"\\(boxed|fbox)", row["response"]) else "any"
        verdict = grade_math(row["response"], row["gold"], extract=extract)
        if verdict.correct != bool(row["expected"]):
            disagreed[row["id"]] = (row["gold"], verdict)
    assert {key: value for key, value in disagreed.items() if key not in DISAGREEMENTS} == {}
    assert len(disagreed) <= 0.01 * len(rows)


@pytest.fixture(scope="module")
def math500(shared_data):
    return [json.loads(line) for line in (shared_data / "math500.jsonl").open()]


def test_every_solution_of_math500_is_correct(math500):
    assert len(math500) == 500
    for row in math500:
        assert grade_math(row["solution"], row["answer"]).correct, row["answer"]
        assert grade_math(boxed(row["answer"]), row["answer"]).correct, row["answer"]
        assert grade_math(row["solution"], row["solution"]).correct, row["answer"]


def test_an_answer_to_another_problem_of_math500_is_wrong(math500):
    draw = random.Random(20)
    for row in math500:
        other = draw.choice(math500)["answer"]
        if other != row["answer"] and (other, row["answer"]) != (r"15\mbox{ cm}^2", "15"):
            assert not grade_math(boxed(other), row["answer"]).correct, (other, row["answer"])


def test_gsm8k_solutions_are_correct_and_off_by_one_is_wrong(shared_data):
    with (shared_data / "gsm8k_test.jsonl").open() as file:
        for line in file:
            solution = json.loads(line)["answer"]
            answer = solution.rpartition("####")[2].strip()
            assert grade_math(solution, answer, extract="any").correct
            assert grade_math(boxed(answer), solution).correct
            wrong = str(int(answer.replace(",", "")) + 1)
            assert not grade_math(boxed(wrong), answer).correct
            assert not grade_math(solution, wrong, extract="any").correct


# Contents of a verdict


def test_a_verdict_contains_the_extracted_answer_and_the_method():
    verdict = grade_math(r"I think \boxed{\frac{2}{4}}", "0.5")
    assert (verdict.correct, verdict.extracted, verdict.method) == (True, r"\frac{2}{4}", "number")
    assert verdict.seconds > 0
    assert grade_math(boxed("42"), "42").method == "string"
    assert grade_math(boxed(r"\sqrt{8}"), r"2\sqrt{2}").method == "symbolic"
    nothing = grade_math("42", "42")
    assert nothing == MathVerdict(False, None, "no_answer", nothing.seconds)
    with pytest.raises(AttributeError):
        verdict.correct = False


def test_boxed_extracts_only_the_last_box_after_thinking():
    assert not grade_math("The answer is 42.", "42").correct
    assert not grade_math(r"\boxed{42} \boxed{41}", "42").correct
    assert not grade_math(r"<think>\boxed{42}", "42").correct
    assert not grade_math(r"<think>\boxed{42}</think> It is \boxed{41}.", "42").correct
    assert grade_math(r"<think>\boxed{41}</think> It is \boxed{42}.", "42").correct
    assert grade_math(r"\boxed{41}, no, \boxed{42}", "42").correct


def test_boxes_that_are_joined_are_one_answer():
    for response, gold, right in [
        (r"\boxed{(2,2)} and \boxed{(6,2)}", "(2,2),(6,2)", True),
        (r"\boxed{(2,2)}\text{ and }\boxed{(6,2)}", "(2,2),(6,2)", True),
        (r"$\boxed{2} \quad \mbox{or} \quad \boxed{3}$", "2,3", True),
        (r"$\boxed{2} \text{ or } \boxed{3}$", "3", False),
        (r"$\boxed{2} \text{ or rather } \boxed{3}$", "3", True),
        (r"so $\boxed{1}$, thus $\boxed{-2}$", "1,-2", False),  # text between the boxes: only the last counts
        (r"$\boxed{1}$, $\boxed{-2}$.", "1,-2", True),
        ("\\boxed{1}\n\n\\boxed{-2}", "1,-2", True),
        (r"\boxed{1+\sqrt{2}} or \boxed{1-\sqrt{2}}", r"1\pm\sqrt2", True),
        (r"\boxed{42} and \boxed{42}", "42", True),
        (r"\boxed{\frac12}, or \boxed{0.5}", "1/2", True),
        (r"<think>\boxed{1}</think> \boxed{-2}", "1,-2", False),
        *[
            (rf"\boxed{{41}} {join} \boxed{{42}}", gold, False)
            for join in ("and", "or", ",", ";")
            for gold in ("41", "42")
        ],
        ("\\boxed{41}\n\\boxed{42}", "42", True),  # corrected
        ("\\boxed{41}\n\\boxed{42}", "41", False),
        (r"\boxed{1}, \boxed{-2}, \boxed{3}", "1,-2", False),
        (r"\boxed{20} + \boxed{22}", "42", False),
        (", ".join(f"\\boxed{{{number}}}" for number in range(5000)), "4999", False),
    ]:
        assert grade_math(response, gold).correct is right, (response[:80], gold)


def test_boxes_that_are_the_items_of_a_list_are_one_answer():
    for first, second in (
        ("- ", "- "), ("* ", "* "), ("\u2022 ", "\u2022 "), ("1. ", "2. "), ("1) ", "2) "), ("(a) ", "(b) "),
        ("(i) ", "(ii) "), ("  - ", "  - "), ("- **", "- **"), ("**(a)** ", "**(b)** "), (r"\item ", r"\item "),
    ):  # fmt: skip
        for before, after in (
            ("$", "$"),
            ("", ""),
            (r"\(", r"\)."),
            ("$x = ", "$"),
            ("$x_1 = ", "$,"),
            ("x = $", "$;"),
        ):
            bold = "**" if first.endswith("**") else ""
            items = [f"{mark}{before}\\boxed{{{value}}}{after}{bold}" for mark, value in ((first, 2), (second, 3))]
            for response in ("\n".join(items), "So x is 2 or 3:\n\n" + "\n\n".join(items) + "\n\nBoth are roots."):
                for gold, right in (
                    ("2, 3", True),
                    (r"\{3, 2\}", True),
                    ("3", False),
                    ("2", False),
                    ("2, 3, 5", False),
                ):
                    assert grade_math(response, gold).correct is right, (response, gold)
    for response, gold, right in [
        ("- $\\boxed{2}$,\n- $\\boxed{3}$, and\n- $\\boxed{5}$", "2,3,5", True),
        ("- $\\boxed{2}$ and $\\boxed{3}$\n- $\\boxed{5}$", "2,3,5", True),
        ("- $\\boxed{x = 2}$\n- $\\boxed{x = 3}$", "2,3", True),
        ("- $\\boxed{(2,2)}$\n- $\\boxed{(6,2)}$", "(2,2),(6,2)", True),
        ("- $\\boxed{42}$\n- $\\boxed{42}$", "42", True),
        # The last box counts after steps and intermediate results.
        ("- $x = \\boxed{2}$\n- $y = \\boxed{3}$", "3", True),
        ("- $x = \\boxed{2}$\n- $y = \\boxed{3}$", "2", False),
        ("- $\\boxed{x = 2}$\n- $\\boxed{y = 3}$", "3", True),
        ("- $x = \\boxed{2}$\n- $y = \\boxed{3}$", "2,3", True),
        ("1. $1 + 1 = \\boxed{2}$\n2. $2 + 1 = \\boxed{3}$", "3", True),
        ("1. $1 + 1 = \\boxed{2}$\n2. $2 + 1 = \\boxed{3}$", "2,3", False),
        ("Step 1: $\\boxed{2}$\nStep 2: $\\boxed{3}$", "3", True),
        ("First $\\boxed{2}$.\nThen $\\boxed{3}$", "2,3", False),
        ("- $\\boxed{2}$ is too small.\n- $\\boxed{3}$", "3", True),
        ("- $\\boxed{2}$ is too small.\n- $\\boxed{3}$", "2,3", False),
        ("- $\\boxed{2}$\n- $\\boxed{3}$\n\nThe sum is $\\boxed{5}$.", "5", True),
        ("- $\\boxed{2}$\n- $\\boxed{3}$\n\nThe sum is $\\boxed{5}$.", "2,3", False),
        # Only a list begins with an item: these are differences and a text.
        ("$$\\boxed{5}\n- \\boxed{3}$$", "5,3", False),
        ("It is $\\boxed{5}\n- \\boxed{3}\n- \\boxed{2}$", "5,3,2", False),
        ("We try $\\boxed{2}$:\n- $\\boxed{3}$", "2,3", False),
        ("\n".join(f"- $\\boxed{{{number}}}$" for number in range(2, 9)), "8", False),
        (r"\begin{align*} x &= \boxed{2} \\ x &= \boxed{3} \end{align*}", "2,3", True),
        (r"\begin{align*} x &= \boxed{2} \\ y &= \boxed{3} \end{align*}", "3", True),
        (r"**\boxed{2}** or **\boxed{3}**", "2,3", True),
        (r"**\boxed{2}** or **\boxed{3}**", "3", False),
    ]:
        assert grade_math(response, gold).correct is right, (response, gold)


def test_degrees_equal_radians_only_on_request_and_if_marked():
    for gold, answer, right in [
        (r"\frac{\pi}{3}", r"60^\circ", True),
        (r"60^\circ", r"\frac{\pi}{3}", True),
        (r"x=\frac{\pi}{4}", r"x = 45 \text{ degrees}", True),
        (r"\frac{\pi}{6}, \frac{5\pi}{6}", "30°, 150°", True),
        (r"\frac{\pi}{3}", "60", False),
        (r"\frac{\pi}{3}", r"61^\circ", False),
        (r"60\pi", r"60^\circ", False),
    ]:
        assert grade_math(boxed(answer), gold, degrees=True).correct is right, (gold, answer)
        assert not grade_math(boxed(answer), gold).correct, (gold, answer)


def test_a_tolerance_bounds_the_error_of_one_number():
    for gold, answer, tolerance, right in [
        ("3.14", "3.15", 0.01, True),
        ("3.14", "3.151", 0.01, False),
        ("3.14", r"\pi", 0.01, True),
        ("3.14", r"x = \frac{22}{7}", 0.01, True),
        (r"25.3\%", r"25.28\%", 0.05, True),
        ("10 m", "10.5 m", 0.5, True),
        ("10 cm", "10.4 m", 0.5, False),
        ("1.2 million", "1.25 million", 60_000, True),
        ("1.2 million", "1.25 million", 0.1, False),
        ("1.4", r"\sqrt{2} \approx 1.41", 0.05, True),
        *[
            ("10", answer, 5, False)
            for answer in ("9 or 10", "8, 9", "x", "1e400", "0/0", r"10 \pm 1", "(10, 10)", "10x")
        ],
        ("11", "12", 0, False),
    ]:
        assert grade_math(boxed(answer), gold, tolerance=tolerance).correct is right, (gold, answer)


FOUND = [
    (r"It is \boxed{7}, or 8.", "7"),
    ("2 + 2 = 4\n#### 4", "4"),
    ("#### 10\nMore reasoning.\n#### 20", "20"),
    ("#### 1,234 dollars", "1,234 dollars"),
    ("So the answer is 42.", "42"),
    ("The answer is 3.5.", "3.5"),
    ("The final answer is $\\frac{1}{2}$. I hope it is correct.", r"\frac{1}{2}"),
    ("**Answer:** 12", "12"),
    ("Answer: (C)", "(C)"),
    ("The answer is $12$ and $13$.", "12, 13"),
    ("First $x = 2$, then $y = 3$.", "y = 3"),
    (r"so that \( x = 5 \)", "x = 5"),
    (r"\[ x^2 = 4 \] so", "x^2 = 4"),
    ("We have $n = 90/d$. Therefore there are 12 of them.", "12"),
    ("there are 3 cats and 4 dogs, 7 animals in all", "7"),
    ("it costs 1,000.99€", "1,000.99"),
    ("the probability is 2/3. <|im_end|>", "2/3"),
    ("x^2 + 1", "x^2 + 1"),
    ("(1, 2)", "(1, 2)"),
    ("<think>5</think>6", "6"),
    ("```\n7\n```", "7"),
    ("所以答案是 12。", "12"),
    ("答案：$\\frac{1}{2}$", r"\frac{1}{2}"),
]


def test_any_finds_the_answer_of_a_reply_without_a_box():
    found = [(response, grade_math(response, "1", extract="any").extracted) for response, _ in FOUND]
    assert found == FOUND


def test_any_finds_nothing_in_a_reply_without_an_answer():
    for response in ("", "   ", "no answer here", "<think>it is 42", r"\boxed{4", "<think>a</think>"):
        verdict = grade_math(response, "42", extract="any")
        assert verdict == MathVerdict(False, None, "no_answer", verdict.seconds), response


def test_any_takes_no_stray_number_of_a_reply_that_ends_in_a_loop():
    counted = "".join(f"So it is {number}. " for number in range(43))
    long = " ".join(f"we add the {word} part of it to all the others" for word in ("first", "last", "other", "long"))
    for response in (
        counted, counted.replace("So it", "The answer"), "so we add 42 " * 9, "The sum is $42$. " * 9,
        f"{long} which gives 42. " * 9, f"{long}. {long}, so $42$. " * 9,
    ):  # fmt: skip
        assert grade_math(response, "42", extract="any").method == "no_answer", response[:40]
        assert not grade_math(response[:-4], "42", extract="any").correct, response[:40]
    assert grade_math("We get 7. " + "The answer is 42. " * 20, "42", extract="any").correct
    assert grade_math("The answer is 42. " * 20 + "The ans", "42", extract="any").correct
    assert grade_math("we add 3 " * 40 + ". The total is 42.", "42", extract="any").correct


def test_a_number_within_a_word_is_not_an_answer():
    assert not grade_math("AZYUK2A", "2", extract="any").correct


def test_gold_may_be_a_solution_with_its_answer_boxed_or_after_hashes():
    assert grade_math(boxed("5"), r"Since $2+3=5$, it is $\boxed{5}$.").correct
    assert grade_math(boxed("1, -2"), r"The roots are \boxed{1} and \boxed{-2}.").correct
    assert grade_math(boxed("2.5"), r"It is $\boxed{2\frac12}$, or $\boxed{\frac52}$.").correct
    assert grade_math(boxed("72"), "48/2 = 24 in May\n#### 72").correct
    assert not grade_math(boxed("24"), "48/2 = 24 in May\n#### 72").correct


def test_the_async_grader_gives_the_same_verdicts():
    async def both():
        right, wrong = await asyncio.gather(
            agrade_math(boxed(r"\frac{1}{\sqrt{2}}"), r"\frac{\sqrt{2}}{2}", timeout=TIMEOUT),
            agrade_math(boxed("1.41"), r"\sqrt{2}", timeout=TIMEOUT),
        )
        return right.correct, wrong.correct

    assert asyncio.run(both()) == (True, False)


def test_wrong_arguments_are_refused():
    for arguments, error in (
        ({"response": None}, TypeError),
        ({"gold": 5}, TypeError),
        ({"extract": "first"}, ValueError),
        ({"timeout": 0}, ValueError),
        ({"timeout": float("inf")}, ValueError),
        ({"tolerance": -1}, ValueError),
        ({"tolerance": float("nan")}, ValueError),
    ):
        with pytest.raises(error):
            grade_math_soon(**{"response": "", "gold": "", **arguments})


# Against exact arithmetic

leaves = st.integers(0, 30).map(lambda n: (str(n), Fraction(n))) | st.tuples(st.integers(0, 9), st.integers(1, 9)).map(
    lambda p: (f"\\frac{{{p[0]}}}{{{p[1]}}}", Fraction(*p))
)


def combine(parts):
    def operate(pair):
        (left, a), (right, b), op = pair
        if op == "/":
            return (f"\\frac{{{left}}}{{{right}}}", a / b) if b else (left, a)
        if op == "^":
            return f"({left})^{{2}}", a**2
        value = {"+": a + b, "-": a - b, "*": a * b}[op]
        return f"({left} {op} {right})".replace("*", r"\cdot"), value

    return st.tuples(parts, parts, st.sampled_from("+-*/^")).map(operate)


expressions = st.recursive(leaves, combine, max_leaves=8)


@given(expressions)
@settings(deadline=None)
def test_expressions_in_numbers_have_their_exact_value(expression):
    latex, value = expression
    assert grade_math(boxed(latex), str(value)).correct
    assert not grade_math(boxed(latex), str(value + Fraction(1, 1000))).correct
    assert not grade_math(boxed(latex), str(value + 1)).correct


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=4), st.lists(st.integers(-9, 9), min_size=1, max_size=4))
@settings(deadline=None, max_examples=40)
def test_polynomials_are_equal_exactly_when_their_roots_are(roots, others):
    def factored(numbers):
        return "".join(f"(x - ({number}))" for number in numbers)

    def expanded(numbers):
        coefficients = [1]
        for number in numbers:
            shifted = [*coefficients, 0]
            coefficients = [a - number * b for a, b in zip(shifted, [0, *coefficients], strict=True)]
        degree = len(coefficients) - 1
        return " + ".join(f"({c})x^{{{degree - i}}}" for i, c in enumerate(coefficients))

    assert grade_math(boxed(factored(roots)), expanded(roots)).correct
    assert grade_math(boxed(factored(others)), expanded(roots)).correct is (sorted(roots) == sorted(others))


@given(st.sets(st.integers(-50, 50), min_size=1, max_size=6), st.randoms())
@settings(deadline=None)
def test_lists_are_compared_without_order_and_tuples_with(numbers, shuffle):
    first, second = list(numbers), list(numbers)
    shuffle.shuffle(second)
    joined = ", ".join(map(str, first)), ", ".join(map(str, second))
    assert grade_math(boxed(joined[1]), joined[0]).correct
    assert grade_math(boxed(f"\\{{{joined[1]}\\}}"), f"\\{{{joined[0]}\\}}").correct
    assert grade_math(boxed(f"({joined[1]})"), f"({joined[0]})").correct is (first == second)


def test_the_values_of_named_items_may_not_be_exchanged():
    right, wrong = (f"- $x = \\boxed{{{x}}}$\n- $y = \\boxed{{{y}}}$" for x, y in ((2, 3), (3, 2)))
    for gold in ("x=2,y=3", r"x=2 \text{ and } y=3"):
        assert grade_math(right, gold).correct
        assert not grade_math(wrong, gold).correct
        assert not grade_math(r"$x=\boxed{3}$, $y=\boxed{2}$", gold).correct
