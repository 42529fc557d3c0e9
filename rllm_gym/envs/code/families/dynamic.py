"""Sources that ask for the best choice or the number of choices: coins, steps, bags, common subsequences."""

# The source text of the functions is also the reference solution: plain Python, without annotations.
# mypy: ignore-errors
# ruff: noqa: RUF007

from __future__ import annotations

import random

from rllm_gym.envs.code.families import inputs
from rllm_gym.envs.code.families.building_blocks import Source


def fewest_coins(coins, amount):
    fewest = [0] + [-1] * amount
    for value in range(1, amount + 1):
        options = [fewest[value - coin] for coin in coins if coin <= value and fewest[value - coin] >= 0]
        fewest[value] = min(options) + 1 if options else -1
    return fewest


def ways_to_pay(coins, amount):
    ways = [1] + [0] * amount
    for coin in sorted(set(coins)):
        for value in range(coin, amount + 1):
            ways[value] += ways[value - coin]
    return ways


def ways_to_climb(stairs, longest, m):
    ways = [1]
    for stair in range(1, stairs + 1):
        ways.append(sum(ways[max(0, stair - longest) : stair]) % m)
    return ways


def best_bag(weights, values, room):
    best = [0] * (room + 1)
    for weight, value in zip(weights, values):
        for used in range(room, weight - 1, -1):
            best[used] = max(best[used], best[used - weight] + value)
    return best


def reachable_sums(values, limit):
    sums = {0}
    for value in values:
        sums |= {total + value for total in sums if total + value <= limit}
    return sorted(sums)


def best_apart(values, gap):
    best = []
    for index, value in enumerate(values):
        taken = value + (best[index - gap - 1] if index > gap else 0)
        best.append(max(taken, best[-1] if best else 0, 0))
    return best


def common_lengths(first, second):
    row = [0] * (len(second) + 1)
    for letter in first:
        following = [0]
        for index, other in enumerate(second):
            following.append(row[index] + 1 if letter == other else max(row[index + 1], following[-1]))
        row = following
    return row[1:]


def edit_costs(first, second, swap):
    row = list(range(len(second) + 1))
    for count, letter in enumerate(first, start=1):
        following = [count]
        for index, other in enumerate(second):
            exchange = row[index] + (0 if letter == other else swap)
            following.append(min(exchange, row[index + 1] + 1, following[-1] + 1))
        row = following
    return row


def sequence_terms(n, first, second, p, q, m):
    terms = [first, second]
    while len(terms) < n:
        terms.append((p * terms[-1] + q * terms[-2]) % m)
    return terms[:n]


def pascal_row(n, m):
    row = [1]
    for _ in range(n):
        row = [1] + [(a + b) % m for a, b in zip(row, row[1:])] + [1]
    return row


def _coins(rng: random.Random, size: int) -> tuple[list[int], int]:
    return sorted(rng.sample(range(1, 13), rng.randint(1, 2 + size // 2))), rng.randint(3, 8 + 4 * size)


def _stairs(rng: random.Random, size: int) -> tuple[int]:
    return (rng.randint(1, 6 + 4 * size),)


def _bag(rng: random.Random, size: int) -> tuple[list[int], list[int], int]:
    count = rng.randint(2, 3 + size)
    return (
        [rng.randint(1, 9) for _ in range(count)],
        [rng.randint(1, 20) for _ in range(count)],
        rng.randint(3, 8 + 3 * size),
    )


def _sums(rng: random.Random, size: int) -> tuple[list[int], int]:
    return [rng.randint(1, 12) for _ in range(rng.randint(2, 3 + size))], rng.randint(5, 12 + 6 * size)


def _values(rng: random.Random, size: int) -> tuple[list[int]]:
    return (inputs.numbers(rng, size),)


def _texts(rng: random.Random, size: int) -> tuple[str, str]:
    alphabet = rng.choice(("ab", "abc", "aeiost"))
    first, second = ("".join(rng.choice(alphabet) for _ in range(rng.randint(2, 4 + 2 * size))) for _ in range(2))
    return first, second


_COINS = (("coins", "numbers"), ("amount", "number"))
_TEXTS = (("first", "text"), ("second", "text"))
_COINS_SAY = "`coins` lists the values of coins, all different and at least 1; of each there are as many as wanted."
_MODULI = {"m": (97, 1000, 1009, 9973)}

SOURCES: dict[str, tuple[Source, ...]] = {
    "coins": (
        Source(fewest_coins, _COINS, "numbers", _COINS_SAY, "Make a list of the least number of coins that add up to "
               "0, 1, 2, … and up to `amount`; -1 for what they cannot make.", _coins,
               (([5], 3), ([2], 0), ([4, 9], 12)), {}, 2),
        Source(ways_to_pay, _COINS, "numbers", _COINS_SAY, "Make a list of the number of ways to make 0, 1, 2, … and "
               "up to `amount` with coins; the order of the coins makes no difference.", _coins,
               (([5], 3), ([1], 0), ([1, 2, 5], 10)), {}, 3),
        Source(reachable_sums, (("values", "numbers"), ("limit", "number")), "numbers", "`values` is a list of "
               "integers of at least 1, `limit` an integer of at least 0.", "Make a list of all different sums of some "
               "of the values (also of none; each value counts at most once) that are at most `limit`, in ascending "
               "order.",
               _sums, (([], 5), ([3, 3], 6), ([9], 4)), {}, 3),
    ),
    "choices": (
        Source(best_bag, (("weights", "numbers"), ("values", "numbers"), ("room", "number")), "numbers", "Thing i "
               "weighs weights[i] and is worth values[i], all at least 1; `room` is an integer of at least 0.", "Make "
               "a list: at index w, for w from 0 to `room`, the greatest worth of things that together weigh at most "
               "w; each thing can be taken once.", _bag, (([], [], 2), ([5], [7], 4), ([1, 1], [2, 3], 1)), {}, 4),
        Source(best_apart, (("values", "numbers"),), "numbers", "`values` is a list of integers.", "Make a list: at "
               "index i, the greatest sum of values among those at the indices 0 to i, where between two chosen "
               "indices there are at least {gap} others; choosing none (sum 0) is allowed.", _values,
               (([],), ([-5],), ([4, 4, 4],)), {"gap": (1, 2, 3)}, 3),
        Source(ways_to_climb, (("stairs", "number"),), "numbers", "`stairs` is an integer of at least 0.", "Someone "
               "climbs stairs, with each step 1 to {longest} of them. Make a list of the number of ways to climb 0, 1, "
               "2, … and up to `stairs` stairs (1 for 0 stairs), each from stair 1 on modulo {m}.", _stairs,
               ((0,), (1,), (2,)), {"longest": (2, 3, 4, 5), **_MODULI}, 2),
    ),
    "two_texts": (
        Source(common_lengths, _TEXTS, "numbers", "`first` and `second` are strings.", "Make a list: for each "
               "non-empty beginning of `second`, from the shortest to the whole, the length of the longest common "
               "subsequence with `first`.", _texts, (("", "abc"), ("abc", ""), ("abab", "baba")), {}, 3),
        Source(edit_costs, _TEXTS, "numbers", "`first` and `second` are strings.", "To insert or to delete a character "
               "costs 1, to replace one by another costs {swap}. Make a list: for each beginning of `second`, from the "
               "empty one to the whole, the least cost to turn `first` into it.", _texts,
               (("", "abc"), ("abc", ""), ("same", "same")), {"swap": (1, 2)}, 4),
    ),
    "recurrences": (
        Source(sequence_terms, (("n", "number"),), "numbers", "`n` is an integer of at least 0.", "A sequence begins "
               "with {first} and {second}; each further term is {p} times the one before plus {q} times the one before "
               "that, modulo {m}. Make a list of its first `n` terms.", _stairs, ((0,), (1,), (2,)),
               {"first": range(6), "second": range(1, 8), "p": (1, 2, 3), "q": (1, 2, 5), "m": (10, 97, 1009)}, 1),
        Source(pascal_row, (("n", "number"),), "numbers", "`n` is an integer of at least 0.", "A row begins as [1]. "
               "`n` times it becomes: 1, then the sums of each two neighbours modulo {m}, then 1.", _stairs,
               ((0,), (1,), (2,)), {"m": (10, 26, 97, 1000, 9973)}, 1),
    ),
}  # fmt: skip
