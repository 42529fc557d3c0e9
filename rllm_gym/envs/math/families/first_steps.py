"""Problems of difficulty 0, one step on small numbers: for models of 100 million parameters. Answers are one number."""

from __future__ import annotations

import random

from rllm_gym.envs.math.families.notation import Generator, Problem

_NAMES = ("Ada", "Ben", "Carla", "Elena", "Hugo", "Lena", "Noah", "Olga", "Rosa", "Tara")
_THINGS = ("apples", "books", "cards", "coins", "cups", "eggs", "pens", "shells", "stamps", "stones")


def small_sums(rng: random.Random, _: int) -> Problem:
    """Draw a sum of two numbers up to 29."""
    a, b = rng.randint(1, 29), rng.randint(1, 29)
    return f"What is {a} + {b}?", str(a + b)


def small_differences(rng: random.Random, _: int) -> Problem:
    """Draw a difference of two numbers up to 29, which is not negative."""
    a, b = sorted((rng.randint(1, 29), rng.randint(1, 29)), reverse=True)
    return f"What is {a} - {b}?", str(a - b)


def small_products(rng: random.Random, _: int) -> Problem:
    """Draw a product of two numbers up to 12."""
    a, b = rng.randint(2, 12), rng.randint(2, 12)
    return f"What is {a} * {b}?", str(a * b)


def more(rng: random.Random, _: int) -> Problem:
    """Ask for the number of things after some were added."""
    name, things, a, b = rng.choice(_NAMES), rng.choice(_THINGS), rng.randint(2, 20), rng.randint(2, 20)
    return f"{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?", str(a + b)


def fewer(rng: random.Random, _: int) -> Problem:
    """Ask for the number of things after some were given away."""
    name, things, a, b = rng.choice(_NAMES), rng.choice(_THINGS), rng.randint(2, 18), rng.randint(2, 10)
    return f"{name} has {a + b} {things} and gives {b} away. How many {things} are left?", str(a)


def next_numbers(rng: random.Random, _: int) -> Problem:
    """Ask for the next of four numbers with equal differences."""
    start, step = rng.randint(1, 20), rng.randint(1, 5)
    shown = ", ".join(str(start + step * index) for index in range(4))
    return f"What is the next number: {shown}, ...?", str(start + 4 * step)


ONE_STEP_FAMILIES: dict[str, tuple[Generator, ...]] = {
    "arithmetic": (small_sums, small_differences, small_products),
    "word_problems": (more, fewer),
    "sequences": (next_numbers,),
}
"""Generators of difficulty 0 by family."""
