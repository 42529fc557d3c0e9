"""Generators of problems on plane and solid figures. Lengths have no unit, so that an answer is a number."""

from __future__ import annotations

import random
from fractions import Fraction

from rllm_gym.envs.math.families.notation import Problem, fraction

_TRIPLES = ((3, 4, 5), (5, 12, 13), (8, 15, 17), (7, 24, 25), (20, 21, 29), (12, 35, 37), (9, 40, 41), (28, 45, 53))


def rectangles(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the area or perimeter of a rectangle, or for a side given one of them."""
    limit = (60, 99, 250, 999, 9_999)[difficulty - 1]
    a, b = rng.randint(2, limit), rng.randint(2, limit)
    kind = rng.randrange(4 if difficulty > 1 else 2)
    if kind == 0:
        return f"A rectangle has sides of length {a} and {b}. What is its area?", str(a * b)
    if kind == 1:
        return f"A rectangle has sides of length {a} and {b}. What is its perimeter?", str(2 * (a + b))
    if kind == 2:
        return f"A rectangle has area {a * b} and one side of length {a}. What is its perimeter?", str(2 * (a + b))
    return f"A rectangle has perimeter {2 * (a + b)} and one side of length {a}. What is its area?", str(a * b)


def triangles(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the area of a triangle given by its corners."""
    limit = (6, 9, 15, 40, 99)[difficulty - 1]
    while True:
        ax, ay, bx, by, cx, cy = (rng.randint(-limit, limit) for _ in range(6))
        double = (bx - ax) * (cy - ay) - (cx - ax) * (by - ay)
        if double:
            break
    corners = f"$({ax}, {ay})$, $({bx}, {by})$ and $({cx}, {cy})$"
    return f"What is the area of the triangle with corners {corners}?", fraction(Fraction(abs(double), 2))


def right_triangles(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the third side of a right triangle; the answer is always a whole number."""
    a, b, c = rng.choice(_TRIPLES[: difficulty + 3])
    scale = rng.randint(1, (60, 80, 99, 299, 999)[difficulty - 1])
    a, b, c = a * scale, b * scale, c * scale
    if rng.random() < 0.5:
        a, b = b, a
    if rng.random() < 0.5:
        return f"A right triangle has legs of length {a} and {b}. How long is its hypotenuse?", str(c)
    return (
        f"A right triangle has a hypotenuse of length {c} and a leg of length {a}. How long is the other leg?",
        str(b),
    )


def circles(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the area or circumference of a circle or a ring, in terms of pi."""
    limit = (299, 499, 999, 1_999, 9_999)[difficulty - 1]
    radius = rng.randint(2, limit)
    kind = rng.randrange(3 if difficulty > 2 else 2)
    if kind == 0:
        return rf"What is the area of a circle of radius {radius}? Give it in terms of $\pi$.", rf"{radius**2}\pi"
    if kind == 1:
        return (
            rf"What is the circumference of a circle of radius {radius}? Give it in terms of $\pi$.",
            rf"{2 * radius}\pi",
        )
    inner = rng.randint(1, radius - 1)
    size = radius**2 - inner**2
    return (
        f"A circle of radius {inner} lies inside a circle of radius {radius}. "
        rf"What is the area between the two circles? Give it in terms of $\pi$.",
        rf"{size}\pi",
    )


def boxes(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the volume or surface of a rectangular box."""
    limit = (15, 30, 60, 120, 500)[difficulty - 1]
    a, b, c = (rng.randint(2, limit) for _ in range(3))
    text = f"A rectangular box has edges of length {a}, {b} and {c}."
    if rng.random() < 0.5:
        return f"{text} What is its volume?", str(a * b * c)
    return f"{text} What is its total surface area?", str(2 * (a * b + b * c + a * c))


def distances(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the square of the distance between two points."""
    limit = (9, 20, 50, 200, 999)[difficulty - 1]
    ax = ay = bx = by = 0
    while (ax, ay) == (bx, by):
        ax, ay, bx, by = (rng.randint(-limit, limit) for _ in range(4))
    return (
        f"What is the square of the distance between the points $({ax}, {ay})$ and $({bx}, {by})$?",
        str((ax - bx) ** 2 + (ay - by) ** 2),
    )
