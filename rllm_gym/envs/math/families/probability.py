"""Generators of problems on combinatorics, probability, sequences and summary statistics."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from math import comb, factorial

from rllm_gym.envs.math.families.notation import Problem, fraction

_COLORS = ("red", "blue", "green", "white", "black", "yellow")


def committees(rng: random.Random, difficulty: int) -> Problem:
    """Ask how many committees can be formed from two groups."""
    size = (8, 10, 12, 15, 20)[difficulty - 1]
    first, second = rng.randint(3, size), rng.randint(3, size)
    a, b = rng.randint(1, min(first, difficulty + 2)), rng.randint(1, min(second, difficulty + 2))
    groups = rng.choice(
        (
            ("teacher", "parent"),
            ("pianist", "singer"),
            ("doctor", "nurse"),
            ("painter", "sculptor"),
            ("chemist", "physicist"),
            ("juggler", "acrobat"),
            ("baker", "cook"),
            ("gardener", "carpenter"),
        )
    )
    chosen = f"{a} {groups[0]}{'s' * (a > 1)} and {b} {groups[1]}{'s' * (b > 1)}"
    return (
        f"From {first} {groups[0]}s and {second} {groups[1]}s, a committee of {chosen} is formed. "
        "In how many ways can its members be chosen?",
        str(comb(first, a) * comb(second, b)),
    )


def arrangements(rng: random.Random, difficulty: int) -> Problem:
    """Ask how many different orders the letters of a row have."""
    # Lengths and repetitions vary: of letters that are all different, the answer would be the same number each time.
    row: list[str] = []
    while len({*row}) < 2:
        letters = rng.sample("ABCDEFGHKLMNPRST", difficulty + 3)
        row = [rng.choice(letters) for _ in range(rng.randint(difficulty + 2, difficulty + 4))]
    count = factorial(len(row))
    for repeated in Counter(row).values():
        count //= factorial(repeated)
    return f"How many different arrangements do the letters of {''.join(row)} have?", str(count)


def lattice_paths(rng: random.Random, difficulty: int) -> Problem:
    """Ask how many shortest paths lead from one grid point to another."""
    size = (5, 6, 8, 10, 14)[difficulty - 1]
    x, y = rng.randint(-99, 99), rng.randint(-99, 99)
    right, up = rng.randint(2, size), rng.randint(2, size)
    return (
        f"Moving one unit right or one unit up at a time, how many paths lead from $({x}, {y})$ to "
        f"$({x + right}, {y + up})$?",
        str(comb(right + up, up)),
    )


def draws(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the probability that balls drawn without replacement all have one color."""
    size = (8, 10, 15, 20, 30)[difficulty - 1]
    names = rng.sample(_COLORS, 2 if difficulty < 3 else 3)
    counts = [rng.randint(3, size) for _ in names]
    drawn = 2 if difficulty < 4 else 3
    held = [f"{count} {name}" for count, name in zip(counts, names)]
    balls = f"{', '.join(held[:-1])} and {held[-1]} balls"
    both = "both" if drawn == 2 else "all three"
    number = "two" if drawn == 2 else "three"
    return (
        f"A bag holds {balls}. If {number} balls are drawn at random without replacement, what is the probability "
        f"that {both} are {names[0]}? Give a fraction.",
        fraction(Fraction(comb(counts[0], drawn), comb(sum(counts), drawn))),
    )


def arithmetic_terms(rng: random.Random, difficulty: int) -> Problem:
    """Ask for a term of an arithmetic sequence."""
    limit = (20, 50, 99, 499, 999)[difficulty - 1]
    first, step = rng.randint(-limit, limit), rng.choice((-1, 1)) * rng.randint(2, limit)
    position = rng.randint(8, (20, 50, 99, 499, 2_000)[difficulty - 1])
    shown = ", ".join(str(first + step * index) for index in range(4))
    return (
        f"The sequence {shown}, ... is arithmetic and begins with term number 1. What is term number {position}?",
        str(first + step * (position - 1)),
    )


def arithmetic_sums(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the sum of the first terms of an arithmetic sequence."""
    limit = (20, 30, 60, 99, 499)[difficulty - 1]
    first, step = rng.randint(1, limit), rng.randint(2, limit)
    count = rng.randint(6, (20, 40, 80, 200, 999)[difficulty - 1])
    return (
        f"An arithmetic sequence has first term {first} and common difference {step}. "
        f"What is the sum of its first {count} terms?",
        str(count * (2 * first + step * (count - 1)) // 2),
    )


def geometric_terms(rng: random.Random, difficulty: int) -> Problem:
    """Ask for a term of a geometric sequence."""
    first = rng.choice((-1, 1)) * rng.randint(2, (99, 199, 399, 599, 999)[difficulty - 1])
    ratio = rng.choice((-1, 1)) * rng.randint(2, (4, 5, 6, 7, 9)[difficulty - 1])
    position = rng.randint(4, difficulty + 5)
    return (
        f"A geometric sequence has first term {first} and common ratio {ratio}. What is term number {position}?",
        str(first * ratio ** (position - 1)),
    )


def recurrences(rng: random.Random, difficulty: int) -> Problem:
    """Ask for a term of a sequence defined by a recurrence."""
    first, factor = rng.randint(-20, 20), rng.randint(2, 3 + difficulty // 2)
    constant = rng.choice((-1, 1)) * rng.randint(1, 9 * difficulty)
    position = rng.randint(3, difficulty + 4)
    value = first
    for _ in range(position - 1):
        value = factor * value + constant
    sign = "+" if constant > 0 else "-"
    return (
        f"A sequence is defined by $a_1 = {first}$ and $a_{{n+1}} = {factor}a_n {sign} {abs(constant)}$. "
        f"What is $a_{{{position}}}$?",
        str(value),
    )


def summaries(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the mean, the median or the range of a list."""
    limit = (20, 50, 99, 499, 999)[difficulty - 1]
    numbers = [rng.randint(1, limit) for _ in range(2 * difficulty + 1 + rng.randrange(2))]
    shown = ", ".join(map(str, numbers))
    kind = rng.randrange(3)
    if kind == 0:
        return f"What is the mean of {shown}? Give an integer or a fraction.", fraction(
            Fraction(sum(numbers), len(numbers))
        )
    if kind == 1:
        ordered, half = sorted(numbers), len(numbers) // 2
        median = Fraction(ordered[half] + ordered[-half - 1], 2)
        return f"What is the median of {shown}?", fraction(median)
    return f"What is the difference between the largest and the smallest of {shown}?", str(max(numbers) - min(numbers))
