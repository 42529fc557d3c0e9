"""Generators of equations, systems and polynomials. Many answers are expressions.

No problem only asks to rewrite an expression ("expand", "factor", "simplify"): grading is by mathematical equality,
so that the question itself would be a right answer. The problems ask for a part of the result instead.
"""

from __future__ import annotations

import random
from fractions import Fraction
from math import isqrt

from rllm_gym.envs.math.families.notation import Problem, fraction, multiply, nonzero, polynomial, terms


def one_unknown(rng: random.Random, difficulty: int) -> Problem:
    """Draw a linear equation in one unknown; from difficulty 4 the solution may be a fraction."""
    limit = (9, 15, 20, 30, 60)[difficulty - 1]
    letter = rng.choice("xyzntk")
    while True:
        a, c = nonzero(rng, -limit, limit), 0 if difficulty == 1 else nonzero(rng, -limit, limit)
        if a != c:
            break
    b = nonzero(rng, -3 * limit, 3 * limit)
    if difficulty < 4:
        solution = Fraction(rng.randint(-2 * limit, 2 * limit))
        constant = int((a - c) * solution) + b
    else:
        constant = rng.randint(-3 * limit, 3 * limit)
        solution = Fraction(constant - b, a - c)
    left, right = terms([(a, letter), (b, "")]), terms([(c, letter), (constant, "")])
    return f"Solve ${left} = {right}$ for ${letter}$.", fraction(solution)


def two_unknowns(rng: random.Random, difficulty: int) -> Problem:
    """Draw a system of two linear equations with a unique integer solution."""
    limit, size = ((3, 9), (5, 12), (9, 20), (15, 40), (30, 99))[difficulty - 1]
    x, y = rng.randint(-size, size), rng.randint(-size, size)
    while True:
        a, b, c, d = (nonzero(rng, -limit, limit) for _ in range(4))
        if a * d != b * c:
            break
    first = f"{terms([(a, 'x'), (b, 'y')])} = {a * x + b * y}"
    second = f"{terms([(c, 'x'), (d, 'y')])} = {c * x + d * y}"
    asked, value = rng.choice((("x", x), ("y", y), ("x + y", x + y)))
    return f"If ${first}$ and ${second}$, what is ${asked}$?", str(value)


def three_unknowns(rng: random.Random, difficulty: int) -> Problem:
    """Draw a system of three linear equations with a unique integer solution."""
    limit, size = ((2, 5), (3, 9), (4, 12), (7, 20), (12, 50))[difficulty - 1]
    solution = [rng.randint(-size, size) for _ in range(3)]
    while True:
        rows = [[nonzero(rng, -limit, limit) for _ in range(3)] for _ in range(3)]
        (a, b, c), (d, e, f), (g, h, i) = rows
        if a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g):
            break
    lines = [f"${terms(list(zip(row, 'xyz')))} = {sum(p * q for p, q in zip(row, solution))}$" for row in rows]
    asked = rng.choice(("x", "y", "z", "x + y + z"))
    value = sum(solution) if len(asked) > 1 else solution["xyz".index(asked)]
    return f"If {lines[0]}, {lines[1]} and {lines[2]}, what is ${asked}$?", str(value)


def solve_for_letter(rng: random.Random, difficulty: int) -> Problem:
    """Draw a linear equation with letters for numbers, to be solved for one of them."""
    limit = (5, 9, 12, 20, 40)[difficulty - 1]
    while True:
        p, q = nonzero(rng, -limit, limit), 0 if difficulty == 1 else nonzero(rng, -limit, limit)
        if p != q:
            break
    first, second = nonzero(rng, -limit, limit), nonzero(rng, -limit, limit)
    constant = 0 if difficulty < 3 else nonzero(rng, -limit, limit)
    a, b = rng.sample("abcmnprst", 2)
    left = terms([(p, "x"), (first, a)])
    right = terms([(q, "x"), (second, b), (constant, "")])
    scale = p - q
    top = [(-first, a), (second, b), (constant, "")]
    if scale < 0:
        scale, top = -scale, [(-coefficient, symbol) for coefficient, symbol in top]
    answer = terms(top) if scale == 1 else rf"\frac{{{terms(top)}}}{{{scale}}}"
    return f"Solve ${left} = {right}$ for $x$. Give $x$ in terms of the other letters.", answer


def derivatives(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the derivative of a polynomial."""
    limit = (9, 9, 15, 20, 40)[difficulty - 1]
    coefficients = [rng.randint(-limit, limit) for _ in range(difficulty + 2)] + [nonzero(rng, -limit, limit)]
    answer = [power * coefficient for power, coefficient in enumerate(coefficients)][1:]
    return f"What is the derivative of ${polynomial(coefficients)}$ with respect to $x$?", polynomial(answer)


def antiderivatives(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the antiderivative of a polynomial with a given value at 0."""
    limit = (9, 9, 12, 15, 20)[difficulty - 1]
    start = rng.randint(-2 * limit, 2 * limit)
    answer = [start] + [rng.randint(-limit, limit) for _ in range(difficulty)] + [nonzero(rng, -limit, limit)]
    coefficients = [power * coefficient for power, coefficient in enumerate(answer)][1:]
    return f"If $F'(x) = {polynomial(coefficients)}$ and $F(0) = {start}$, what is $F(x)$?", polynomial(answer)


def from_roots(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the monic polynomial with given roots."""
    limit = (50, 99, 15, 20, 30)[difficulty - 1]
    roots = sorted(rng.sample(range(-limit, limit + 1), 2 if difficulty < 3 else 3))
    answer = [1]
    for root in roots:
        answer = multiply(answer, [-root, 1])
    names = ", ".join(f"${root}$" for root in roots[:-1]) + f" and ${roots[-1]}$"
    degree = {2: "quadratic", 3: "cubic"}[len(roots)]
    return f"Which {degree} polynomial in $x$ with leading coefficient 1 has the roots {names}?", polynomial(answer)


def quotients(rng: random.Random, difficulty: int) -> Problem:
    """Ask for an exact quotient of polynomials."""
    limit = (6, 9, 12, 15, 25)[difficulty - 1]
    root = nonzero(rng, -limit, limit)
    answer = [nonzero(rng, -limit, limit) for _ in range(2 + (difficulty + 1) // 2)]
    product = multiply(answer, [-root, 1])
    return f"What is ${polynomial(product)}$ divided by ${polynomial([-root, 1])}$?", polynomial(answer)


def compositions(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the composition of two functions."""
    limit = (5, 9, 9, 12, 20)[difficulty - 1]
    outer = [rng.randint(-limit, limit), nonzero(rng, -limit, limit)]
    inner = [rng.randint(-limit, limit), nonzero(rng, -limit, limit)]
    if difficulty >= 2:
        inner.append(nonzero(rng, -limit, limit))
    if difficulty >= 4:
        outer.append(nonzero(rng, -limit, limit))
    answer = [0]
    for coefficient in reversed(outer):
        answer = multiply(answer, inner)
        answer[0] += coefficient
    return (
        f"If $f(x) = {polynomial(outer)}$ and $g(x) = {polynomial(inner)}$, what is $f(g(x))$?",
        polynomial(answer),
    )


def inverses(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the inverse of a linear function."""
    limit = (20, 40, 60, 80, 120)[difficulty - 1]
    a, b = rng.choice((-1, 1)) * rng.randint(2, limit), nonzero(rng, -limit, limit)
    top = terms([(1, "x"), (-b, "")]) if a > 0 else terms([(-1, "x"), (b, "")])
    return f"What is $f^{{-1}}(x)$ if $f(x) = {polynomial([b, a])}$?", rf"\frac{{{top}}}{{{abs(a)}}}"


def expanded_coefficients(rng: random.Random, difficulty: int) -> Problem:
    """Ask for one coefficient of a product of polynomials."""
    limit = (5, 9, 7, 9, 12)[difficulty - 1]
    factors = [[nonzero(rng, -limit, limit), nonzero(rng, -limit, limit)] for _ in range(2 if difficulty < 3 else 3)]
    if difficulty == 5:
        factors[0].append(nonzero(rng, -limit, limit))
    product = [1]
    for factor in factors:
        product = multiply(product, factor)
    power = rng.randint(1, len(product) - 2)
    name = "x" if power == 1 else f"x^{power}"
    text = "".join(f"({polynomial(factor)})" for factor in factors)
    return f"What is the coefficient of ${name}$ when ${text}$ is expanded?", str(product[power])


def factored_roots(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the larger constant in the factors of a quadratic."""
    limit = (20, 30, 40, 60, 99)[difficulty - 1]
    a, b = sorted(rng.sample([value for value in range(-limit, limit + 1) if value], 2))
    text = polynomial(multiply([a, 1], [b, 1]))
    return f"Factor ${text}$ as $(x + a)(x + b)$ with integers $a < b$. What is $b$?", str(b)


def quadratic_roots(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the larger solution of a quadratic equation; from difficulty 3 it may contain a square root."""
    limit = (40, 60, 12, 20, 40)[difficulty - 1]
    if difficulty < 3:
        low, high = sorted(rng.sample(range(-limit, limit + 1), 2))
        scale = 1 if difficulty == 1 else rng.randint(2, 5)
        coefficients = [scale * value for value in multiply([-low, 1], [-high, 1])]
        answer = str(high)
    else:
        middle = nonzero(rng, -limit, limit)
        while True:
            radicand = rng.randint(2, 6 * limit)
            if isqrt(radicand) ** 2 != radicand:
                break
        coefficients = [middle * middle - radicand, -2 * middle, 1]
        outside, inside = _square_part(radicand)
        answer = rf"{middle} + {'' if outside == 1 else outside}\sqrt{{{inside}}}"
    return f"What is the larger solution of ${polynomial(coefficients)} = 0$?", answer


def _square_part(number: int) -> tuple[int, int]:
    """Return ``(a, b)`` with ``a * a * b == number`` and ``a`` as large as possible."""
    for outside in range(isqrt(number), 0, -1):
        if number % (outside * outside) == 0:
            return outside, number // (outside * outside)
    raise AssertionError(f"{number} is divisible by 1")
