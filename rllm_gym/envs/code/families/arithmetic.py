"""Sources of whole numbers, and sources that are only the input: lists, strings, words, an integer."""

# The source text of the functions is also the reference solution: plain Python, without annotations.
# mypy: ignore-errors

from __future__ import annotations

import random

from rllm_gym.envs.code.families import inputs
from rllm_gym.envs.code.families.building_blocks import Source


def primes_up_to(n):
    return [number for number in range(2, n + 1) if all(number % divisor for divisor in range(2, number))]


def prime_factors(n):
    factors, divisor = [], 2
    while n > 1:
        while n % divisor == 0:
            factors.append(divisor)
            n //= divisor
        divisor += 1
    return factors


def divisors(n):
    return [divisor for divisor in range(1, n + 1) if n % divisor == 0]


def collatz_path(n, p, q):
    path = [n]
    while path[-1] != 1 and len(path) < 30:
        path.append(path[-1] // 2 if path[-1] % 2 == 0 else (p * path[-1] + q) % 1000)
    return path


def euclid_remainders(a, b):
    remainders_seen = []
    while b:
        a, b = b, a % b
        remainders_seen.append(b)
    return remainders_seen


def powers_modulo(n, base, m):
    powers, value = [], 1
    for _ in range(n):
        value = value * base % m
        powers.append(value)
    return powers


def digits_in_base(n, base):
    digits = []
    while n:
        digits.insert(0, n % base)
        n //= base
    return digits


def list_given(values):
    return values


def text_given(text):
    return text


def words_given(words):
    return words


def number_given(number):
    return number


def _up_to(least: int, most: int):
    def drawn(rng: random.Random, size: int) -> tuple[int]:
        return (rng.randint(least, max(least + 3, most * size // 5)),)

    return drawn


def _pair(rng: random.Random, size: int) -> tuple[int, int]:
    common = rng.randint(1, 12)
    return common * rng.randint(1, 20 * size), common * rng.randint(1, 20 * size)


_N = (("n", "number"),)
_N_SAY = "`n` is an integer of at least {}."

SOURCES: dict[str, tuple[Source, ...]] = {
    "lists": (
        Source(list_given, (("values", "numbers"),), "numbers", "`values` is a list of integers.", "",
               lambda rng, size: (inputs.numbers(rng, size),), (([],), ([7],), ([0, 0],), ([-4, 3, -4],)), {}, 0),
    ),
    "strings": (
        Source(text_given, (("text", "text"),), "text", "`text` is a string.", "",
               lambda rng, size: (inputs.text(rng, size),), (("",), ("a",), ("Aa",), ("eee",)), {}, 0),
    ),
    "words": (
        Source(words_given, (("words", "words"),), "words", "`words` is a list of words.", "",
               lambda rng, size: (inputs.words(rng, size),), (([],), (["a"],), (["on", "no", "on"],)), {}, 0),
    ),
    "integers": (
        Source(number_given, (("number", "number"),), "number", "`number` is an integer.", "",
               lambda rng, size: (inputs.number(rng, size),), ((0,), (1,), (-1,), (100,)), {}, 0),
    ),
    "primes": (
        Source(primes_up_to, _N, "numbers", _N_SAY.format(0),
               "Make a list of the primes up to `n`, in ascending order.",
               _up_to(2, 150), ((0,), (1,), (2,)), {}, 1),
        Source(prime_factors, _N, "numbers", _N_SAY.format(1), "Make a list of the prime factors of `n`, in ascending "
               "order, each as often as it divides `n`.", _up_to(2, 2000), ((1,), (2,), (64,)), {}, 1),
        Source(divisors, _N, "numbers", _N_SAY.format(1), "Make a list of the positive divisors of `n`, in ascending "
               "order.", _up_to(2, 500), ((1,), (2,), (36,)), {}, 1),
    ),
    "number_sequences": (
        Source(collatz_path, _N, "numbers", _N_SAY.format(1), "A path begins with `n`. An even number is followed by "
               "its half, an odd one by ({p} times it plus {q}) modulo 1000; it ends with the first 1, or with 30 "
               "numbers. Make a list of its numbers.", _up_to(2, 200), ((1,), (2,), (7,)),
               {"p": (3, 5, 7), "q": (1, 3, 5, 7, 9)}, 1),
        Source(euclid_remainders, (("a", "number"), ("b", "number")), "numbers", "`a` and `b` are integers of at least "
               "0.", "As long as `b` is not 0, replace `a` by `b` and `b` by the remainder of the old `a` modulo the "
               "old `b`. Make a list of the new values of `b`.", _pair, ((5, 0), (0, 4), (7, 7)), {}, 1),
        Source(powers_modulo, _N, "numbers", _N_SAY.format(0), "Make a list of the first `n` powers of {base}, from "
               "the first power on, each modulo {m}.", _up_to(2, 30), ((0,), (1,), (2,)),
               {"base": (2, 3, 5, 7, 11), "m": (10, 13, 17, 97, 101, 1000)}, 1),
        Source(digits_in_base, _N, "numbers", _N_SAY.format(0), "Make a list of the digits of `n` in base {base}, the "
               "highest first (an empty list for 0).", _up_to(2, 5000), ((0,), (1,), (16,)),
               {"base": (2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 16)}, 1),
    ),
}  # fmt: skip
