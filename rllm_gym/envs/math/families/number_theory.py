"""Generators of problems on divisibility, remainders, primes and digits."""

from __future__ import annotations

import random
from math import gcd, lcm

from rllm_gym.envs.math.families.notation import Problem

_SIZES = (99, 999, 9_999, 99_999, 999_999)


def greatest_divisors(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the greatest common divisor of two numbers, seldom 1."""
    common = rng.randint(1, (12, 30, 60, 120, 300)[difficulty - 1])
    a = b = 0
    while a == b:
        a, b = (common * rng.randint(2, (12, 40, 90, 300, 999)[difficulty - 1]) for _ in range(2))
    return f"What is the greatest common divisor of {a} and {b}?", str(gcd(a, b))


def least_multiples(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the least common multiple of two or three numbers."""
    limit = (60, 90, 120, 240, 600)[difficulty - 1]
    numbers: list[int] = []
    while len({*numbers}) < (2 if difficulty < 4 else 3):
        numbers = [rng.randint(2, limit) for _ in range(2 if difficulty < 4 else 3)]
    named = f"{', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
    return f"What is the least common multiple of {named}?", str(lcm(*numbers))


def remainders(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the remainder of a division."""
    divisor = rng.randint(3, (20, 40, 99, 499, 999)[difficulty - 1])
    number = rng.randint(divisor + 1, 10 * _SIZES[difficulty - 1])
    return f"What is the remainder when {number} is divided by {divisor}?", str(number % divisor)


def power_remainders(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the remainder of a power."""
    base = modulus = 1
    while base % modulus < 2:  # otherwise every power has the same remainder
        base = rng.randint(2, (20, 30, 50, 99, 199)[difficulty - 1])
        exponent = rng.randint(2, (9, 30, 99, 499, 2_024)[difficulty - 1])
        modulus = rng.randint(3, (19, 29, 49, 99, 499)[difficulty - 1])
    return f"What is the remainder when ${base}^{{{exponent}}}$ is divided by {modulus}?", str(
        pow(base, exponent, modulus)
    )


def divisor_counts(rng: random.Random, difficulty: int) -> Problem:
    """Ask how many positive divisors a number has."""
    number = 1
    while number < 10 or number > (5_000, 20_000, 90_000, 500_000, 9_000_000)[difficulty - 1]:
        number = rng.randint(1, (400, 400, 400, 400, 600)[difficulty - 1])
        for prime in rng.choices((2, 3, 5, 7, 11, 13), k=difficulty):
            number *= prime
    count, rest, divisor = 1, number, 2
    while divisor * divisor <= rest:
        power = 0
        while rest % divisor == 0:
            rest, power = rest // divisor, power + 1
        count *= power + 1
        divisor += 1
    return f"How many positive divisors does {number} have?", str(count * (2 if rest > 1 else 1))


def largest_primes(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the largest prime factor of a number."""
    number = rng.randint(2, 99)
    for _ in range((1, 1, 2, 2, 3)[difficulty - 1]):
        number *= rng.randint(2, 99)
    rest, divisor, largest = number, 2, 1
    while divisor * divisor <= rest:
        while rest % divisor == 0:
            rest, largest = rest // divisor, divisor
        divisor += 1
    return f"What is the largest prime factor of {number}?", str(rest if rest > 1 else largest)


def base_values(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the value of digits in another base."""
    base = rng.randint(2, 9)
    number = rng.randint(base, (999, 4_999, 9_999, 99_999, 999_999)[difficulty - 1])
    digits, rest = "", number
    while rest:
        rest, digit = divmod(rest, base)
        digits = str(digit) + digits
    return f"The digits {digits} are a number in base {base}. What is this number in base 10?", str(number)


def digit_sums(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the sum of the digits of a number."""
    number = rng.randint(1_000, (99_999, 999_999, 10**8, 10**12, 10**18)[difficulty - 1])
    return f"What is the sum of the digits of {number}?", str(sum(map(int, str(number))))
