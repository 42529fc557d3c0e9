"""Every built-in problem is solved a second time, from its text alone, with sympy or by brute force."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import sympy
from sympy.parsing.sympy_parser import implicit_multiplication, parse_expr, standard_transformations

from rllm_gym.envs.math import families
from rllm_gym.envs.math.answer_form import form_of, is_finished
from rllm_gym.envs.math.families import FAMILIES
from rllm_gym.envs.task_selection import DIFFICULTIES

x = sympy.Symbol("x")
GENERATORS = {
    f"{family}.{generator.__name__}": generator for family, members in FAMILIES.items() for generator in members
}


def read(text: str) -> Any:
    """Parse mathematics as the problems write it into a sympy expression."""
    text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text.strip("$ "))
    text = re.sub(r"\\sqrt\{([^{}]*)\}", r"*sqrt(\1)", text).replace(" *sqrt", " sqrt").replace("\\pi", "*pi")
    text = text.replace("^{", "^(").replace("}", ")").replace("^", "**")
    names = {letter: sympy.Symbol(letter) for letter in "abcdefghijklmnopqrstuvwxyz"}
    return parse_expr(text, local_dict=names, transformations=(*standard_transformations, implicit_multiplication))


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"-?\d+", text)]


def quoted(text: str) -> list[str]:
    """Return the texts between dollar signs."""
    return re.findall(r"\$([^$]*)\$", text)


def solve(equations: list[str], asked: str) -> Any:
    sides = [equation.split(" = ") for equation in equations]
    relations = [sympy.Eq(read(left), read(right)) for left, right in sides]
    unknowns = sorted(set().union(*(relation.free_symbols for relation in relations)), key=str)
    (solution,) = sympy.solve(relations, unknowns, dict=True)
    return read(asked).subs(solution)


def what_is(question: str) -> Any:
    text = re.match(r"(?:What is|Compute) (.*?)[?.](?: Give.*)?$", question)[1]  # type: ignore[index]
    return read(text.replace("divided by", "/").replace("times", "*"))


def fraction_of(question: str) -> Any:
    first, word, second = re.match(r"What is (\S+) (times|divided by) (\S+)\?", question).groups()  # type: ignore[union-attr]
    a, b = Fraction(first), Fraction(second)
    return a * b if word == "times" else a / b


def decimal_of(question: str) -> Any:
    first, sign, second = re.match(r"What is (\S+) ([-+*]) (\S+)\?", question).groups()  # type: ignore[union-attr]
    a, b = Fraction(first), Fraction(second)
    return a + b if sign == "+" else a - b if sign == "-" else a * b


def percentage(question: str) -> Any:
    percent, base = numbers(question)
    return Fraction(percent, 100) * base


def derivative(question: str) -> Any:
    return sympy.diff(read(quoted(question)[0]), x)


def antiderivative(question: str) -> Any:
    slope, start = (text.split(" = ")[1] for text in quoted(question)[:2])
    return sympy.integrate(read(slope), x) + int(start)


def from_roots(question: str) -> Any:
    return sympy.expand(sympy.prod(x - int(root) for root in quoted(question)[1:]))


def polynomial_quotient(question: str) -> Any:
    quotient, remainder = sympy.div(*(read(text) for text in quoted(question)), x)
    assert remainder == 0
    return quotient


def composition(question: str) -> Any:
    outer, inner = (read(text.split(" = ")[1]) for text in quoted(question)[:2])
    return sympy.expand(outer.subs(x, inner))


def inverse(question: str) -> Any:
    function = read(quoted(question)[1].split(" = ")[1])
    y = sympy.Symbol("y")
    return sympy.solve(sympy.Eq(function.subs(x, y), x), y)[0]


def coefficient(question: str) -> Any:
    power, product = quoted(question)
    return sympy.Poly(sympy.expand(read(product.replace(")(", ")*("))), x).coeff_monomial(read(power))


def factored(question: str) -> Any:
    roots = sympy.Poly(read(quoted(question)[0]), x).all_roots()
    assert len(set(roots)) == 2
    return max(-root for root in roots)


def larger_root(question: str) -> Any:
    return max(sympy.solve(read(quoted(question)[0].split(" = ")[0]), x))


def letter_solution(question: str) -> Any:
    left, right = quoted(question)[0].split(" = ")
    (solution,) = sympy.solve(sympy.Eq(read(left), read(right)), x)
    return solution


def one_unknown(question: str) -> Any:
    equation, letter = quoted(question)
    return solve([equation], letter)


def system(question: str) -> Any:
    *equations, asked = quoted(question)
    return solve(equations, asked)


def divisors(question: str) -> Any:
    return len(sympy.divisors(numbers(question)[0]))


def base_value(question: str) -> Any:
    digits, base, _ = numbers(question)
    return int(str(digits), base)


def shopping(question: str) -> Any:
    paid = sum(int(count) * int(price) for count, price in re.findall(r"(\d+) \w+ at (\d+) dollars", question))
    note = re.search(r"pays with (\d+) dollars", question)
    return int(note[1]) - paid if note else paid


def travel(question: str) -> Any:
    values = numbers(question)
    if "travels" in question:
        return values[0] * values[1] + values[2] * values[3]
    return Fraction(values[0], values[1] + values[2])


def ages(question: str) -> Any:
    a, b, c = numbers(question)
    young, old = sympy.symbols("young old")
    if "older than" in question:
        return sympy.solve([old - young - a, old + young - b], [young, old])[young] + c
    return sympy.solve([old - a * young, old + young + 2 * b - c], [young, old])[old]


def savings(question: str) -> Any:
    start, earned, spent, last = numbers(question)
    if "After how many weeks" in question:
        return Fraction(last - start, earned - spent)
    return start + last * (earned - spent)


def sharing(question: str) -> Any:
    start, boxes, per_box, lost, friends = numbers(question)
    return Fraction(start + boxes * per_box - lost, friends)


def discount(question: str) -> Any:
    price, percent, *coupon = numbers(question)
    return Fraction(price * (100 - percent), 100) - sum(coupon)


def tickets(question: str) -> Any:
    adult, child, count, cost = numbers(question)
    adults = Fraction(cost - child * count, adult - child)
    return adults if "many adult" in question else count - adults


def arithmetic_term(question: str) -> Any:
    *shown, first_number, position = numbers(question.replace("...", ""))
    assert first_number == 1
    assert len({b - a for a, b in itertools.pairwise(shown)}) == 1
    terms = itertools.count(shown[0], shown[1] - shown[0])
    return next(itertools.islice(terms, position - 1, None))


def arithmetic_sum(question: str) -> Any:
    first, step, count = numbers(question)
    return sum(first + step * n for n in range(count))


def geometric_term(question: str) -> Any:
    value, ratio, position = numbers(question)
    for _ in range(position - 1):
        value *= ratio
    return value


def recurrence(question: str) -> Any:
    start, rule, asked = quoted(question)
    value = int(start.split(" = ")[1])
    for _ in range(int(re.search(r"\d+", asked)[0]) - 1):  # type: ignore[index]
        value = int(read(rule.split(" = ")[1].replace("a_n", "n")).subs(sympy.Symbol("n"), value))
    return value


def committee(question: str) -> Any:
    first, second, a, b = numbers(question)
    return sympy.binomial(first, a) * sympy.binomial(second, b)


def arrangements(question: str) -> Any:
    letters = re.search(r"letters of (\w+)", question)[1]  # type: ignore[index]
    if len(letters) > 6:
        return sympy.factorial(len(letters)) / sympy.prod(
            sympy.factorial(letters.count(letter)) for letter in set(letters)
        )
    return len(set(itertools.permutations(letters)))


def paths(question: str) -> Any:
    ax, ay, bx, by = numbers(question)
    ways = {(0, 0): 1}
    for right, up in itertools.product(range(bx - ax + 1), range(by - ay + 1)):
        if right or up:
            ways[right, up] = ways.get((right - 1, up), 0) + ways.get((right, up - 1), 0)
    return ways[bx - ax, by - ay]


def draws(question: str) -> Any:
    held = {name: int(count) for count, name in re.findall(r"(\d+) (red|blue|green|white|black|yellow)", question)}
    colour = re.search(r"(?:both|all three) are (\w+)", question)[1]  # type: ignore[index]
    chance, good, all_ = Fraction(1), held[colour], sum(held.values())
    for drawn in range(2 if "two balls" in question else 3):
        chance *= Fraction(good - drawn, all_ - drawn)
    return chance


def rectangle(question: str) -> Any:
    a, b = numbers(question)
    if "sides of length" in question:
        return a * b if question.endswith("area?") else 2 * (a + b)
    if "has area" in question:
        return 2 * (Fraction(a, b) + b)
    return (Fraction(a, 2) - b) * b


def triangle(question: str) -> Any:
    values = numbers(question)
    corners = [sympy.Point(values[n], values[n + 1]) for n in (0, 2, 4)]
    return abs(sympy.Triangle(*corners).area)


def right_triangle(question: str) -> Any:
    a, b = numbers(question)
    return sympy.sqrt(a * a - b * b) if "other leg" in question else sympy.sqrt(a * a + b * b)


def circle(question: str) -> Any:
    radii = numbers(question)
    if "between" in question:
        return sympy.pi * (radii[1] ** 2 - radii[0] ** 2)
    (radius,) = radii
    return sympy.pi * radius**2 if "area" in question else 2 * sympy.pi * radius


def box(question: str) -> Any:
    a, b, c = numbers(question)
    return a * b * c if "volume" in question else 2 * (a * b + b * c + a * c)


def distance(question: str) -> Any:
    ax, ay, bx, by = numbers(question)
    return sympy.Point(ax, ay).distance(sympy.Point(bx, by)) ** 2


def summary(question: str) -> Any:
    import statistics

    values = [Fraction(number) for number in numbers(question)]
    if "mean" in question:
        return statistics.mean(values)
    return statistics.median(values) if "median" in question else max(values) - min(values)


def letter_count(question: str) -> Any:
    letter, row = re.match(r"How many times does (\w) occur in this row: (.*)$", question).groups()  # type: ignore[union-attr]
    return row.split().count(letter)


def sorted_digits(question: str) -> Any:
    digits = re.findall(r"\d", question)
    return int("".join(sorted(digits, reverse="from largest" in question)))


ORACLES: dict[str, Callable[[str], Any]] = {
    "arithmetic.sums": what_is,
    "arithmetic.products": what_is,
    "arithmetic.quotients": what_is,
    "arithmetic.expressions": what_is,
    "fractions.fraction_sums": what_is,
    "fractions.fraction_products": fraction_of,
    "fractions.percentages": percentage,
    "fractions.decimals": decimal_of,
    "linear.one_unknown": one_unknown,
    "linear.two_unknowns": system,
    "linear.three_unknowns": system,
    "algebra.solve_for_letter": letter_solution,
    "algebra.derivatives": derivative,
    "algebra.antiderivatives": antiderivative,
    "algebra.from_roots": from_roots,
    "algebra.quotients": polynomial_quotient,
    "algebra.compositions": composition,
    "algebra.inverses": inverse,
    "algebra.expanded_coefficients": coefficient,
    "algebra.factored_roots": factored,
    "algebra.quadratic_roots": larger_root,
    "number_theory.greatest_divisors": lambda question: sympy.gcd(*numbers(question)),
    "number_theory.least_multiples": lambda question: sympy.lcm(numbers(question)),
    "number_theory.remainders": lambda question: numbers(question)[0] % numbers(question)[1],
    "number_theory.power_remainders": lambda question: (
        numbers(question)[0] ** numbers(question)[1] % numbers(question)[2]
    ),
    "number_theory.divisor_counts": divisors,
    "number_theory.largest_primes": lambda question: max(sympy.primefactors(numbers(question)[0])),
    "number_theory.base_values": base_value,
    "number_theory.digit_sums": lambda question: sum(int(digit) for digit in re.findall(r"\d", question)),
    "word_problems.shopping": shopping,
    "word_problems.travel": travel,
    "word_problems.ages": ages,
    "word_problems.savings": savings,
    "word_problems.sharing": sharing,
    "word_problems.discounts": discount,
    "word_problems.tickets": tickets,
    "sequences.arithmetic_terms": arithmetic_term,
    "sequences.arithmetic_sums": arithmetic_sum,
    "sequences.geometric_terms": geometric_term,
    "sequences.recurrences": recurrence,
    "combinatorics.committees": committee,
    "combinatorics.arrangements": arrangements,
    "combinatorics.lattice_paths": paths,
    "combinatorics.draws": draws,
    "geometry.rectangles": rectangle,
    "geometry.triangles": triangle,
    "geometry.right_triangles": right_triangle,
    "geometry.circles": circle,
    "geometry.boxes": box,
    "geometry.distances": distance,
    "statistics.summaries": summary,
    "counting.letters": letter_count,
    "sorting.digits": sorted_digits,
}


def as_numbers_and_powers(value: Any) -> Any:
    """Return a form in which most equal answers are identical."""
    return value if value.is_Number else sympy.expand(value)


@pytest.mark.parametrize("problems", [2, pytest.param(8, marks=pytest.mark.long)])
def test_the_answer_follows_from_the_text(problems: int) -> None:
    assert set(ORACLES) == set(GENERATORS)
    for (name, generator), difficulty, number in itertools.product(GENERATORS.items(), DIFFICULTIES, range(problems)):
        question, gold = generator(random.Random(f"{name}{difficulty}{number}"), difficulty)
        expected, values = sympy.sympify(ORACLES[name](question)), read(gold)
        if as_numbers_and_powers(expected) != as_numbers_and_powers(values):
            assert sympy.simplify(expected - values) == 0, f"{question!r} is answered {gold!r}, not {expected}"


@pytest.mark.parametrize("problems", [20, pytest.param(200, marks=pytest.mark.long)])
def test_the_text_is_complete_and_short_and_the_gold_answer_is_fully_evaluated(problems: int) -> None:
    for name, difficulty, number in itertools.product(GENERATORS, DIFFICULTIES, range(problems)):
        question, gold = GENERATORS[name](random.Random(f"{name}{difficulty}{number}"), difficulty)
        assert question.isascii()
        assert question == question.strip()
        assert len(question) < 500
        assert not re.search(r"  |\+ -|- -|\b1x|\b0x|\bx\^1\b|None|\{\}", question), question
        assert not re.search(r"  |\+ -|- -|\b1x|\b0x|\bx\^1\b|None|\{\}", gold), gold
        assert not re.search(r"\b1 (?!and|unit|lies|what|divided|times|in|is|has|or|if|for|with)[a-z]+s\b", question), (
            question
        )
        assert question.count("$") % 2 == 0
        assert question.count("(") == question.count(")")
        assert is_finished(gold, form_of(gold)), gold


def test_there_is_real_variety_at_every_difficulty() -> None:
    assert len(FAMILIES) >= 5
    assert len(GENERATORS) >= 12
    for name, generator in GENERATORS.items():
        for difficulty in DIFFICULTIES:
            rng = random.Random(difficulty)
            questions: set[str] = set()
            for _ in range(1_000):
                questions.add(generator(rng, difficulty)[0])
                if len(questions) > 200:
                    break
            else:
                pytest.fail(f"{name} at difficulty {difficulty}: {len(questions)} of 1000")


def test_counts_and_orders_are_spread_evenly() -> None:
    """A constant guess must not succeed often."""
    rng = random.Random(0)
    for generator, difficulty, most in (
        (families.strings.letters, 1, 0.3),
        (families.strings.digits, 1, 0.02),
        (families.probability.arrangements, 1, 0.3),
    ):
        golds = [generator(rng, difficulty)[1] for _ in range(2_000)]
        assert max(golds.count(gold) for gold in set(golds)) / len(golds) < most


def test_no_operation_is_void() -> None:
    """The divisor of equal numbers, the distance of a point to itself, 1 times a fraction, powers of 1."""
    for name, void in (
        ("number_theory.greatest_divisors", lambda a, b: a == b),
        ("number_theory.least_multiples", lambda *values: len({*values}) < len(values)),
        ("number_theory.power_remainders", lambda base, exponent, modulus: base % modulus < 2),
        ("geometry.distances", lambda a, b, c, d: (a, b) == (c, d)),
        ("fractions.percentages", lambda percent, base: percent == 100),
    ):
        for difficulty in DIFFICULTIES:
            rng = random.Random(difficulty)
            for _ in range(200):
                question, _ = GENERATORS[name](rng, difficulty)
                assert not void(*numbers(question)), question
    rng = random.Random(0)
    for _ in range(200):
        assert not re.search(
            r" 1 times| 1 divided|times 1\?|by 1\?", GENERATORS["fractions.fraction_products"](rng, 1)[0]
        )


def test_difficulty_makes_problems_longer_or_larger() -> None:
    for name, generator in GENERATORS.items():
        sizes = []
        for difficulty in (1, 5):
            rng = random.Random(0)
            sizes.append(
                sum(len(question) + len(gold) for question, gold in (generator(rng, difficulty) for _ in range(300)))
            )
        assert sizes[1] > sizes[0], name


CALCULATIONS = [
    ("29 - 48", "number"),
    ("29-48", "number"),
    (r"99 \times 43", "number"),
    ("3021/57", "number"),
    (r"\frac{3021}{57}", "number"),
    ("5!", "number"),
    (r"\sqrt{144}", "number"),
    (r"\binom{4}{2}", "number"),
    ("2^{10}", "number"),
    ("1/2 + 1/4", "fraction"),
    (r"\frac{1}{2} + \frac{1}{4}", "fraction"),
    (r"\frac{4}{7} \cdot 2", "fraction"),
    (r"\frac{1/2}{3}", "fraction"),
    ("5.9 - 9.5", "fraction"),
    (r"\frac{x^3 - 1}{x - 1}", "polynomial"),
    ("(x^3 - 1)/(x - 1)", "polynomial"),
    (r"\frac{d}{dx}(3x^2)", "polynomial"),
    (r"\int 6x dx", "polynomial"),
    ("f(g(x))", "polynomial"),
]
FINISHED = [
    ("-19", "number"),
    ("−19", "number"),
    ("1,519", "number"),
    (r"1\,519\,000", "number"),
    ("1{,}519", "number"),
    ("x = 5", "number"),
    ("29 - 48 = -19", "number"),
    (r"\$1519", "number"),
    (r"53 \text{ dollars}", "number"),
    (r"25 \text{ cm}^2", "number"),
    ("53.0", "number"),
    ("-3/4", "fraction"),
    (r"-\frac{3}{4}", "fraction"),
    (r"\dfrac34", "fraction"),
    (r"2\frac{1}{3}", "fraction"),
    ("0.75", "fraction"),
    ("-3.6", "fraction"),
    ("x = 3/4", "fraction"),
    ("x^2 - 1", "polynomial"),
    (r"\left(x - 1\right)\left(x + 1\right)", "polynomial"),
    (r"F(x) = 3 \cdot x^{2} + x", "polynomial"),
    ("3*x**2", "polynomial"),
]


def test_an_unevaluated_calculation_is_not_an_answer() -> None:
    assert [case for case in CALCULATIONS if is_finished(*case)] == []


def test_usual_notations_count_as_fully_evaluated() -> None:
    assert [case for case in FINISHED if not is_finished(*case)] == []
