"""Generators of counting and sorting problems that a model with a few hundred thousand parameters can learn.

Letters and digits are separated by spaces, so that each is visible to the model as a token.
"""

from __future__ import annotations

import random

from rllm_gym.envs.math.families.notation import Problem


def letters(rng: random.Random, difficulty: int) -> Problem:
    """Ask how often a letter occurs: among six letters at difficulty 1, among twenty at 5."""
    length, alphabet = (
        (6, "abcdef"),
        (8, "abcdefgh"),
        (10, "abcdefghij"),
        (14, "abcdefghijkl"),
        (20, "abcdefghijklmnop"),
    )[difficulty - 1]
    letter = rng.choice(alphabet)
    # The count is drawn first, so that all counts are equally likely. Rows of a single letter would soon repeat.
    count = rng.randint(0, length - 2)
    others = alphabet.replace(letter, "")
    row = [letter] * count + [rng.choice(others) for _ in range(length - count)]
    rng.shuffle(row)
    return f"How many times does {letter} occur in this row: {' '.join(row)}", str(count)


def digits(rng: random.Random, difficulty: int) -> Problem:
    """Ask for digits in ascending or descending order: three at difficulty 1, twelve at 5."""
    row = [str(rng.randint(1, 9)) for _ in range((3, 4, 6, 8, 12)[difficulty - 1])]
    down = rng.random() < 0.5
    order = "largest to smallest" if down else "smallest to largest"
    answer = "".join(sorted(row, reverse=down))
    return f"Write the digits {' '.join(row)} from {order}, without spaces.", answer
