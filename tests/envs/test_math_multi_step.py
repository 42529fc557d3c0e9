"""Problems of difficulty 6 to 8: each is solved again from its text by brute force, and no shortcut answers them."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from math import comb, gcd, isqrt
from typing import Any

import pytest
import sympy
from test_math_families import numbers, quoted, read, solve

from rllm_gym.core import SPLITS, TaskError
from rllm_gym.envs.math.answer_form import form_of, is_finished
from rllm_gym.envs.math.env import math_tasks
from rllm_gym.envs.math.families import FAMILIES, MULTI_STEP_FAMILIES

LEVELS = (6, 7, 8)
GENERATORS = {generator.__name__: generator for members in MULTI_STEP_FAMILIES.values() for generator in members}


def least_with_remainders(text: str) -> Any:
    rules = [(int(rest), int(modulus)) for rest, modulus in re.findall(r"(\d+) when divided by (\d+)", text)]
    return next(n for n in itertools.count(1) if all(n % modulus == rest for rest, modulus in rules))


def counted_multiples(text: str) -> Any:
    limit, first, second, *third = numbers(text)
    return sum(1 for n in range(1, limit + 1) if n % first * (n % second) == 0 and all(n % one for one in third))


def factorial_powers(text: str) -> Any:
    prime, *values = (int(number) for number in re.findall(r"\d+", text))
    if "binomial" in text:
        number = comb(values[0], values[1]) * sympy.factorial(values[2])
    else:
        number = sympy.prod(sympy.factorial(value) for value in values)
    return sympy.multiplicity(prime, number)


def divisor_sums(text: str) -> Any:
    number, other = numbers(text)
    divisors = sympy.divisors(number)
    if "less than" in text:
        return sum(divisors) - number
    return sum(one for one in divisors if (one % other == 0) != ("are not" in text))


def root_sums(text: str) -> Any:
    equation, asked = quoted(text)[2:]
    r, s = sympy.Poly(read(equation.split(" = ")[0]), sympy.Symbol("x")).all_roots()
    asked = asked.replace(")(", ")*(")
    return sympy.nsimplify(sympy.simplify(sympy.expand(read(asked).subs({sympy.Symbol("r"): r, sympy.Symbol("s"): s}))))


def iterated_functions(text: str) -> Any:
    x = sympy.Symbol("x")
    f, g = (sympy.Lambda(x, read(part.split(" = ")[1])) for part in quoted(text)[:2])
    asked = quoted(text)[-1]
    if text.endswith(f"What is ${asked}$?"):
        return f(g(f(numbers(asked)[0])))
    left, right = asked.split(" = ")
    if left == "f(g(f(x)))":
        return sympy.solve(f(g(f(x))) - int(right), x)[0]
    return sympy.solve(f(g(x)) - g(f(x)) - read(right.removeprefix("g(f(x))").lstrip(" +") or "0"), x)[0]


def pairwise_sums(text: str) -> Any:
    _, *equations, asked = quoted(text)
    asked = "*".join(asked) if asked.isalpha() else asked
    return solve(equations, asked)


def no_two_adjacent(text: str) -> Any:
    counts = [(int(count), color) for count, color in re.findall(r"(\d+) (\w+)", text)]
    apart = re.search(r"no two (\w+)", text)[1]  # type: ignore[index]
    sizes = [count for count, color in counts if color != apart]
    (separate,) = (count for count, color in counts if color == apart)
    # Counted by the last ball: the number of rows with the given numbers of balls left.
    ways: dict[tuple[tuple[int, ...], int, bool], int] = {}

    def rows(left: tuple[int, ...], kept: int, free: bool) -> int:
        if not any(left) and not kept:
            return 1
        key = (left, kept, free)
        if key not in ways:
            ways[key] = (rows(left, kept - 1, False) if kept and free else 0) + sum(
                rows((*left[:at], count - 1, *left[at + 1 :]), kept, True) for at, count in enumerate(left) if count
            )
        return ways[key]

    return rows(tuple(sizes), separate, True)


def avoiding_paths(text: str) -> Any:
    _, _, right, up, _, _, x, y = numbers(text)
    count = 0
    for steps in itertools.combinations(range(right + up), right):
        corner = sum(step < x + y for step in steps)
        count += (corner == x) == ("do not" not in text)
    return count


def committees_at_least(text: str) -> Any:
    size, first, second, least = numbers(text)
    people = [*range(first), *range(100, 100 + second)]
    return sum(
        sum(one < 100 for one in chosen) >= least and not ("may not both" in text and {0, 100} <= set(chosen))
        for chosen in itertools.combinations(people, size)
    )


def bounded_solutions(text: str) -> Any:
    total = int(re.search(r"= (\d+)\$", text)[1])  # type: ignore[index]
    least = [int(bound) for bound in re.findall(r"\\ge (\d+)", text)]
    most = re.search(r"x \\le (\d+)", text)
    ways = Counter({0: 1})
    for at, low in enumerate(least):
        high = int(most[1]) if most and at == 0 else total
        ways = Counter(
            {
                value: sum(ways[value - one] for one in range(low, high + 1) if one <= value)
                for value in range(total + 1)
            }
        )
    return ways[total]


def dice_sums(text: str) -> Any:
    faces = [int(face) for face in re.findall(r"up to (\d+)", text)]
    least, *divisor = numbers(text.partition("is at least")[2])
    rolls = [sum(roll) for roll in itertools.product(*(range(1, face + 1) for face in faces))]
    good = sum(total >= least or any(total % one == 0 for one in divisor) for total in rolls)
    return Fraction(good, len(rolls))


def draws_of_a_color(text: str) -> Any:
    good, bad, drawn, least = numbers(text)
    draws = [sum(ball < good for ball in one) for one in itertools.combinations(range(good + bad), drawn)]
    return Fraction(sum(kept == least if "exactly" in text else kept >= least for kept in draws), len(draws))


def points_of(text: str) -> list[tuple[int, int]]:
    return [(int(x), int(y)) for x, y in re.findall(r"\((-?\d+), (-?\d+)\)", text)]


def polygon_areas(text: str) -> Any:
    polygon = sympy.Polygon(*points_of(text))  # leaves out a point on the line through its neighbors
    assert len(polygon.vertices) == len(points_of(text))
    sides = polygon.sides
    assert all(not one.intersection(other) for one, other in itertools.combinations(sides, 2)
               if not set(one.points) & set(other.points))  # fmt: skip
    return abs(polygon.area)


def chords(text: str) -> Any:
    x, y = sympy.symbols("x y")
    left, right = quoted(text)[0].split(" = ")
    ((h, k),) = points_of(text)
    radius = int(re.search(r"radius (\d+)", text)[1])  # type: ignore[index]
    ends = sympy.solve([read(left) - int(right), (x - h) ** 2 + (y - k) ** 2 - radius**2], [x, y])
    assert len(ends) == 2
    return sympy.simplify(sympy.expand((ends[0][0] - ends[1][0]) ** 2 + (ends[0][1] - ends[1][1]) ** 2))


def inside_points(text: str) -> Any:
    corners = points_of(text)

    def side(a: tuple[int, int], b: tuple[int, int], x: int, y: int) -> int:
        return (b[0] - a[0]) * (y - a[1]) - (b[1] - a[1]) * (x - a[0])

    count = 0
    for x in range(min(a for a, _ in corners), max(a for a, _ in corners) + 1):
        for y in range(min(b for _, b in corners), max(b for _, b in corners) + 1):
            signs = [side(corners[at], corners[(at + 1) % 3], x, y) for at in range(3)]
            count += all(sign > 0 for sign in signs) or all(sign < 0 for sign in signs)
    return count


def second_order_terms(text: str) -> Any:
    first, second = (int(part.split(" = ")[1]) for part in quoted(text)[:2])
    rule = quoted(text)[2].split(" = ")[1].replace("a_{n+1}", "u").replace("a_n", "v")
    u, v = sympy.symbols("u v")
    p, q = read(rule).coeff(u), read(rule).coeff(v)
    asked = int(re.search(r"a_\{?(\d+)", text.partition("1$.")[2])[1])  # type: ignore[index]
    values = [first, second]
    while len(values) < asked:
        values.append(p * values[-1] + q * values[-2])
    modulus = re.search(r"divided by (\d+)", text)
    return values[-1] % int(modulus[1]) if modulus else values[-1]


def selected_sums(text: str) -> Any:
    first, second, _, last, *divisor = numbers(text.replace("...", ""))
    terms = range(first, last + 1, second - first)
    return sum(term for term in terms if not divisor or (term % divisor[0] == 0) == ("are not" not in text))


def shared_work(text: str) -> Any:
    a, b, alone, *rest = numbers(text)
    left = 1 - Fraction(alone, a)
    if not rest:
        return left / Fraction(a + b, a * b)
    left -= rest[0] * Fraction(a + b, a * b)
    return left * b * (rest[1] if len(rest) > 1 else 1)


def mixtures(text: str) -> Any:
    x, p, y, q, *rest = numbers(text)
    acid, water = Fraction(x * p + y * q, 100), Fraction(x * (100 - p) + y * (100 - q), 100)
    if rest:
        kept = 1 - Fraction(rest[0], x + y)
        acid, water = acid * kept, water * kept + rest[0]
    acid += rest[1] if len(rest) > 1 else 0
    return 100 * acid / (acid + water)


def catching_up(text: str) -> Any:
    slow, delay, fast, *_ = numbers(text)
    rest, start = (re.search(rf"(\d+) {what}", text) for what in ("hours?\\. How", "kilometers farther"))
    lead = slow * (delay - (int(rest[1]) if rest else 0)) + (int(start[1]) if start else 0)
    hours = sympy.Rational(lead, fast - slow)
    return delay + hours if "How many hours" in text else fast * hours


STEPS: list[tuple[str, Callable[..., int]]] = [
    (r"number of positive divisors of \$. \+ (\d+)", lambda value, more: len(sympy.divisors(value + more))),
    (r"remainder when \$(\d+)\^.\$ is divided by (\d+)", lambda value, base, modulus: base**value % modulus),
    (r"remainder when \$(\d+).\$ is divided by (\d+)", lambda value, factor, modulus: factor * value % modulus),
    (r"greatest common divisor of \$(\d+).\$ and (\d+)", lambda value, factor, more: gcd(factor * value, more)),
    (r"sum of the digits of \$(\d+) \\cdot .\$", lambda value, factor: sum(map(int, str(factor * value)))),
    (r"greatest integer whose square is at most \$(\d+).", lambda value, factor: isqrt(factor * value)),
    (
        r"positive multiples of (\d+) up to \$(\d+).",
        lambda value, one, factor: len(range(one, factor * value + 1, one)),
    ),
]


def chains(text: str) -> Any:
    start, *sentences = re.findall(r"Let [^.]*\.", text)
    values = {"a": numbers(start)[0]}
    for name, sentence in zip("bcdefgh", sentences):
        found = [(step, match) for pattern, step in STEPS if (match := re.search(pattern, sentence))]
        ((step, match),) = found
        values[name] = step(values[chr(ord(name) - 1)], *(int(number) for number in match.groups()))
    return read(quoted(text)[-1]).subs(values)


def without_conditions(name: str, text: str) -> list[str]:
    """Return the question without one of its conditions, for each condition that can be left out."""
    texts: list[str] = []
    if name == "counted_multiples":
        texts.append(re.sub(r"(by \d+) or by \d+", r"\1 or \1", text))
        texts.append(re.sub(r"by \d+ or (by \d+)", r"\1 or \1", text))
        texts.append(re.sub(r", but not by \d+", "", text))
    if name == "dice_sums":
        texts.append(re.sub(r" or divisible by \d+", "", text))
        texts.append(re.sub(r"at least \d+ or", "at least 99 or", text))
    if name == "bounded_solutions":
        texts.append(re.sub(r", if also .*\?", "?", text))
    if name == "committees_at_least":
        texts.append(re.sub(r", if .*\?", "?", text))
    if name == "selected_sums":
        texts.append(re.sub(r" of its terms that .*\?", "?", text))
    return [one for one in texts if one != text]


RELEASED = ["93e2210a15d412a0", "17cd6c62decdd83e"]
ORACLES = {name: globals()[name] for name in GENERATORS}


def drawn(name: str, difficulty: int, count: int) -> list[tuple[str, str]]:
    rng = random.Random(f"{name}{difficulty}{count}")
    return [GENERATORS[name](rng, difficulty) for _ in range(count)]


@pytest.mark.parametrize("problems", [1, pytest.param(25, marks=pytest.mark.long)])
def test_the_answer_follows_from_the_text(problems: int) -> None:
    for name, difficulty in itertools.product(GENERATORS, LEVELS):
        for question, gold in drawn(name, difficulty, problems):
            assert sympy.sympify(ORACLES[name](question)) == sympy.sympify(Fraction(gold)), (question, gold)


def test_every_condition_of_a_question_matters() -> None:
    for name, difficulty in itertools.product(GENERATORS, LEVELS):
        for question, gold in drawn(name, difficulty, 30 if name in ("counted_multiples", "dice_sums") else 5):
            for text in without_conditions(name, question):
                assert sympy.sympify(ORACLES[name](text)) != sympy.sympify(Fraction(gold)), (question, text)


def test_the_text_is_complete_and_the_answer_finished() -> None:
    for name, difficulty in itertools.product(GENERATORS, LEVELS):
        for question, gold in drawn(name, difficulty, 20):
            assert question.isascii()
            assert len(question) < 600
            assert not re.search(
                r"  |\+ -|- -|\b1x|\b0x|None|\{\}|\b1 [a-z]+s\b(?<!is)", question.replace("1 units", "")
            ), question
            assert question.count("$") % 2 == 0
            assert form_of(gold) in ("number", "fraction")
            assert is_finished(gold, form_of(gold))


@pytest.mark.parametrize("count", [250, pytest.param(4_000, marks=pytest.mark.long)])
def test_neither_a_constant_nor_a_number_of_the_question_is_often_the_answer(count: int) -> None:
    for difficulty in LEVELS:
        for family in MULTI_STEP_FAMILIES:
            tasks = math_tasks(families=family, difficulty=difficulty, size=count)
            golds = [task.data["gold"] for task in tasks]
            common, times = Counter(golds).most_common(1)[0]
            # Five percent, and what few draws add to it.
            assert times <= 0.05 * count + 3 * (0.05 * count) ** 0.5, (family, difficulty, common, times)
            for task in tasks:
                assert task.data["gold"] not in re.findall(r"-?\d+", task.content)
                assert (task.data["family"], task.data["difficulty"], task.split) == (family, difficulty, "train")


def test_levels_are_options_and_do_not_change_the_old_ones() -> None:
    assert {task.data["difficulty"] for task in math_tasks(size=200)} == {1, 2, 3, 4, 5}
    mixed = math_tasks(difficulty=(4, 7), size=300)
    assert {task.data["difficulty"] for task in mixed} == {4, 5, 6, 7}
    assert {task.data["family"] for task in mixed} == {*FAMILIES, *MULTI_STEP_FAMILIES}
    assert mixed[0].task_id == "math.d4-7/train/0/0"
    assert math_tasks(families="geometry", difficulty=8)[3].task_id == "math.geometry.d8-8/train/0/3"
    assert [math_tasks()[0].content_hash[:16], math_tasks(families="geometry")[7].content_hash[:16]] == RELEASED
    for split, level in itertools.product(SPLITS, LEVELS):
        assert math_tasks(difficulty=level, split=split)[0].split == split


def test_a_family_without_such_problems_is_refused() -> None:
    for families, difficulty, message in (
        ("sorting", 7, "no problems of difficulty 6 to 8; those that do are algebra"),
        (["chains"], (5, 6), "no problems of difficulty 1 to 5"),
        ("chain", 7, "choose from"),
        (None, 9, "must be 0 to 8"),
    ):
        with pytest.raises(TaskError, match=message):
            math_tasks(families=families, difficulty=difficulty)
