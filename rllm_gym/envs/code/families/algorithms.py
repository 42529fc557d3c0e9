"""Sources of difficulty 6 to 8: problems whose large hidden tests a slow program does not finish within its CPU time.

The reference needs at most a fifth of the limit for a large test. A program that compares all pairs, or looks through
the rest of the list for every element, needs at least four times the limit.
"""

# The source text of the functions is also the reference solution: plain Python, without annotations.
# mypy: ignore-errors

from __future__ import annotations

import itertools
import random

from rllm_gym.envs.code.families.building_blocks import Source


def divisible_pairs(values, k):
    counts, pairs = [0] * k, 0
    for value in values:
        pairs += counts[-value % k]
        counts[value % k] += 1
    return pairs


def great_drops(values, gap):
    from bisect import bisect_right, insort

    before, drops = [], 0
    for value in values:
        drops += len(before) - bisect_right(before, value + gap)
        insort(before, value)
    return drops


def runs_with_sum(values, target):
    seen, total, runs = {0: 1}, 0, 0
    for value in values:
        total += value
        runs += seen.get(total - target, 0)
        seen[total] = seen.get(total, 0) + 1
    return runs


def runs_of_few_kinds(values, kinds, modulus):
    counts, start, runs = {}, 0, 0
    for end, value in enumerate(values):
        counts[value] = counts.get(value, 0) + 1
        while len(counts) > kinds:
            first = values[start]
            counts[first] -= 1
            if not counts[first]:
                del counts[first]
            start += 1
        runs += end - start + 1
    return runs % modulus


def sum_of_maxima(values, width, modulus):
    from collections import deque

    best, total = deque(), 0
    for end, value in enumerate(values):
        while best and values[best[-1]] <= value:
            best.pop()
        best.append(end)
        if best[0] <= end - width:
            best.popleft()
        if end >= width - 1:
            total += values[best[0]]
    return total % modulus


def calm_runs(values, spread):
    from collections import deque

    low, high, start, runs = deque(), deque(), 0, 0
    for end, value in enumerate(values):
        while low and values[low[-1]] >= value:
            low.pop()
        low.append(end)
        while high and values[high[-1]] <= value:
            high.pop()
        high.append(end)
        while values[high[0]] - values[low[0]] > spread:
            start += 1
            if low[0] < start:
                low.popleft()
            if high[0] < start:
                high.popleft()
        runs += end - start + 1
    return runs


def heaviest_moment(visits, extra):
    changes = []
    for start, end, weight in visits:
        changes.append((start, 1, weight))
        changes.append((end + extra, 0, -weight))
    now = heaviest = 0
    for _, _, weight in sorted(changes):
        now += weight
        heaviest = max(heaviest, now)
    return heaviest


def joining_cost(piles, tax):
    from heapq import heapify, heappop, heapreplace

    heap, cost = list(piles), 0
    heapify(heap)
    while len(heap) > 1:
        first = heappop(heap)
        joined = first + heap[0]
        heapreplace(heap, joined)
        cost += joined + tax
    return cost


def best_bookings(bookings, rest):
    from bisect import bisect_right

    ends, best = [], [0]
    for start, end, pay in sorted(bookings, key=lambda booking: booking[1]):
        place = bisect_right(ends, start - rest)
        best.append(max(best[-1], best[place] + pay))
        ends.append(end)
    return best[-1]


def distance_total(n, roads, modulus):
    from heapq import heappop, heappush

    neighbours = [[] for _ in range(n)]
    for a, b, length in roads:
        neighbours[a].append((b, length))
        neighbours[b].append((a, length))
    done, total, queue = [False] * n, 0, [(0, 0)]
    while queue:
        distance, town = heappop(queue)
        if done[town]:
            continue
        done[town] = True
        total += distance
        for other, length in neighbours[town]:
            if not done[other]:
                heappush(queue, (distance + length, other))
    return total % modulus


def links_until_joined(n, links, left):
    leader, groups = list(range(n)), n
    if groups <= left:
        return 0
    for count, (a, b) in enumerate(links, start=1):
        while leader[a] != a:
            leader[a] = leader[leader[a]]
            a = leader[a]
        while leader[b] != b:
            leader[b] = leader[leader[b]]
            b = leader[b]
        if a != b:
            leader[b] = a
            groups -= 1
            if groups <= left:
                return count
    return -1


def longest_climb(values, step):
    from bisect import bisect_right

    ends = []
    for value in values:
        place = bisect_right(ends, value - step)
        if place == len(ends):
            ends.append(value)
        elif value < ends[place]:
            ends[place] = value
    return len(ends)


def waiting_total(values, modulus):
    waiting, total = [], 0
    for place, value in enumerate(values):
        while waiting and values[waiting[-1]] < value:
            total += place - waiting.pop()
        waiting.append(place)
    return total % modulus


def sum_of_minima(values, modulus):
    stack, total, ending = [], 0, 0
    for value in values:
        count = 1
        while stack and stack[-1][0] >= value:
            other, other_count = stack.pop()
            ending -= other * other_count
            count += other_count
        stack.append((value, count))
        ending += value * count
        total += ending
    return total % modulus


def palindrome_count(text, least):
    marked = "|" + "|".join(text) + "|"
    radius, middle, right, count = [0] * len(marked), 0, 0, 0
    for place in range(len(marked)):
        reach = min(radius[2 * middle - place], right - place) if place < right else 0
        while (
            place - reach > 0
            and place + reach + 1 < len(marked)
            and marked[place - reach - 1] == marked[place + reach + 1]
        ):
            reach += 1
        radius[place] = reach
        if place + reach > right:
            middle, right = place, place + reach
        # The palindromes here have the lengths reach, reach - 2, ...
        if reach >= least:
            count += (reach - least) // 2 + 1
    return count


def affordable_subsets(prices, budget, modulus):
    def sums(items):
        found = [0]
        for price in items:
            found += [total + price for total in found]
        return sorted(found)

    half = len(prices) // 2
    left, right = sums(prices[:half]), sums(prices[half:])
    place, count = len(right), 0
    for total in left:
        while place and total + right[place - 1] > budget:
            place -= 1
        count += place
    return count % modulus


def far_term(n, p, q, r, modulus):
    def product(one, other):
        return [[sum(one[i][k] * other[k][j] for k in range(3)) % modulus for j in range(3)] for i in range(3)]

    result, power = [[1, 0, 0], [0, 1, 0], [0, 0, 1]], [[p, q, r], [1, 0, 0], [0, 0, 1]]
    while n:
        if n % 2:
            result = product(result, power)
        power = product(power, power)
        n //= 2
    return (result[1][0] + result[1][2]) % modulus


# Inputs. The large ones are made so that slow programs are slow on them: long runs, long climbs, deep chains.

_MANY = 50_000


def _small(rng: random.Random, size: int) -> list[int]:
    top = rng.choice((9, 40, 300))
    return [rng.randint(0, top) for _ in range(rng.randint(4, 6 + 2 * size))]


def _numbers(rng: random.Random, size: int) -> tuple[list[int]]:
    return (_small(rng, size),)


def _many_numbers(rng: random.Random) -> tuple[list[int]]:
    return ([rng.randint(0, 9_999) for _ in range(_MANY)],)


def _signed(rng: random.Random, size: int) -> tuple[list[int]]:
    return ([rng.randint(-9, 9) for _ in range(rng.randint(6, 8 + 3 * size))],)


def _many_signed(rng: random.Random) -> tuple[list[int]]:
    return ([rng.randint(-30, 30) for _ in range(_MANY)],)


def _kinds(rng: random.Random, size: int) -> tuple[list[int]]:
    return ([rng.randint(0, 6) for _ in range(rng.randint(6, 8 + 2 * size))],)


def _long_kinds(rng: random.Random) -> tuple[list[int]]:
    values: list[int] = []
    while len(values) < _MANY:
        # Two kinds for a long time: every run of them counts, and those that begin in it are long.
        pair = rng.sample(range(1_000), 2)
        values += rng.choices(pair, k=rng.randint(12_000, 18_000))
    return (values[:_MANY],)


def _with_width(rng: random.Random, size: int) -> tuple[list[int], int]:
    values = _small(rng, size)
    return values, rng.randint(1, len(values))


def _many_with_width(rng: random.Random) -> tuple[list[int], int]:
    return _many_numbers(rng)[0], rng.randint(20_000, 30_000)


def _calm(rng: random.Random, size: int) -> tuple[list[int]]:
    value, values = 0, []
    for _ in range(rng.randint(6, 8 + 2 * size)):
        value += rng.choice((0, 0, 1, -1, 5, -7, 40, -60))
        values.append(value)
    return (values,)


def _long_calm(rng: random.Random) -> tuple[list[int]]:
    values: list[int] = []
    while len(values) < _MANY:
        values += [rng.randint(-1_000, 1_000)] * rng.randint(12_000, 18_000)
        values.append(rng.randint(-9_000, 9_000))
    return (values[:_MANY],)


def _weighted(rng: random.Random, size: int) -> tuple[list[list[int]]]:
    spans = []
    for _ in range(rng.randint(3, 4 + size)):
        start = rng.randint(0, 200)
        spans.append([start, start + rng.randint(1, 120), rng.randint(1, 30)])
    return (spans,)


def _many_weighted(rng: random.Random) -> tuple[list[list[int]]]:
    starts = [rng.randint(0, 1_000_000) for _ in range(30_000)]
    # Long, so that those at the same time are thousands.
    return ([[start, start + rng.randint(1, 400_000), rng.randint(1, 1_000)] for start in starts],)


def _piles(rng: random.Random, size: int) -> tuple[list[int]]:
    return ([rng.randint(1, 60) for _ in range(rng.randint(3, 5 + size))],)


def _many_piles(rng: random.Random) -> tuple[list[int]]:
    return ([rng.randint(1, 100_000) for _ in range(2 * _MANY)],)


def _roads(rng: random.Random, size: int) -> tuple[int, list[list[int]]]:
    n = rng.randint(3, 4 + size)
    return n, [[rng.randrange(n), rng.randrange(n), rng.randint(1, 30)] for _ in range(rng.randint(n - 1, 2 * n))]


def _long_roads(rng: random.Random) -> tuple[int, list[list[int]]]:
    n = 22_000
    order = list(range(n))
    rng.shuffle(order)
    roads = [[a, b, rng.randint(1, 9)] for a, b in itertools.pairwise(order)]
    roads += [[rng.randrange(n), rng.randrange(n), rng.randint(200_000, 900_000)] for _ in range(n // 2)]
    rng.shuffle(roads)
    return n, roads


def _links(rng: random.Random, size: int) -> tuple[int, list[list[int]]]:
    n = rng.randint(4, 130)
    return n, [[rng.randrange(n), rng.randrange(n)] for _ in range(rng.randint(n, 2 * n))]


def _many_links(rng: random.Random) -> tuple[int, list[list[int]]]:
    n = 25_000
    order = list(range(n))
    rng.shuffle(order)
    links = [[order[rng.randrange(max(0, at - 5), at)], order[at]] for at in range(1, n)]
    links += [[rng.randrange(n), rng.randrange(n)] for _ in range(2_000)]
    rng.shuffle(links)
    return n, links


def _climbing(rng: random.Random, size: int) -> tuple[list[int]]:
    return ([rng.randint(0, 300) + 20 * at for at in range(rng.randint(5, 8 + 2 * size))],)


def _many_climbing(rng: random.Random) -> tuple[list[int]]:
    return ([rng.randint(0, 100_000) + 20 * at for at in range(_MANY)],)


def _falling(rng: random.Random) -> tuple[list[int]]:
    # Falling, with a few great elements late: the next greater element is next to it or far away.
    values = [10**6 - 10 * at + rng.randint(0, 15) for at in range(_MANY)]
    for place in rng.sample(range(_MANY - 10_000, _MANY), 3):
        values[place] += 10**6
    return (values,)


def _rising(rng: random.Random) -> tuple[list[int]]:
    return ([10 * at + rng.randint(0, 100) for at in range(_MANY)],)


def _text(rng: random.Random, size: int) -> tuple[str]:
    half = "".join(rng.choice("ab") for _ in range(rng.randint(3, 50 + 5 * size)))
    return (half + rng.choice(("", "a", "b", "ba")) + half[::-1] * rng.choice((0, 1, 1)),)


def _long_text(rng: random.Random) -> tuple[str]:
    letters = ["a"] * 30_000
    for _ in range(3):
        letters[rng.randrange(len(letters))] = "b"
    return ("".join(letters),)


def _prices(rng: random.Random, size: int) -> tuple[list[int], int]:
    prices = [rng.randint(1, 60) for _ in range(rng.randint(4, 6 + size))]
    return prices, rng.randint(10, sum(prices))


def _many_prices(rng: random.Random) -> tuple[list[int], int]:
    prices = [rng.randint(10**9, 10**10) for _ in range(31)]
    return prices, sum(prices) * rng.randint(40, 60) // 100


def _place(rng: random.Random, size: int) -> tuple[int]:
    return (rng.randint(0, 8 * size),)


def _far_place(rng: random.Random) -> tuple[int]:
    return (rng.randint(10**14, 10**15),)


_VALUES = (("values", "numbers"),)
_UP_TO = "`values` is a list of up to 50,000 integers."
_MODULI = {"modulus": range(100_003, 100_203)}

ALGORITHMS: dict[str, tuple[Source, ...]] = {
    "pairs": (
        Source(divisible_pairs, _VALUES, "number", _UP_TO, "Find the number of pairs of indices i < j for which "
               "values[i] + values[j] is divisible by {k}.", _numbers, (([],), ([0, 0, 0],), ([5],)),
               {"k": range(3, 150)}, 6, _many_numbers),
        Source(great_drops, _VALUES, "number", _UP_TO, "Find the number of pairs of indices i < j for which values[i] "
               "is greater than values[j] by more than {gap}.", _numbers, (([],), ([7, 7],), ([900, 0],)),
               {"gap": range(150)}, 7, _many_numbers),
    ),
    "windows": (
        Source(runs_with_sum, _VALUES, "number", f"{_UP_TO} A run is one or more consecutive elements.", "Find the "
               "number of runs of `values` with the sum {target}; runs at different places count separately.", _signed,
               (([],), ([0, 0, 0],), ([-3, 3],)), {"target": range(-60, 61)}, 6, _many_signed),
        Source(runs_of_few_kinds, _VALUES, "number", f"{_UP_TO} A run is one or more consecutive elements.", "Find the "
               "number of runs of `values` that contain at most {kinds} different numbers, modulo {modulus}.", _kinds,
               (([],), ([4, 4, 4],)), {"kinds": range(2, 6), **_MODULI}, 6, _long_kinds),
        Source(sum_of_maxima, (("values", "numbers"), ("width", "number")), "number", f"{_UP_TO} `width` is from 1 to "
               "its length.", "Find the sum of the maxima of every `width` consecutive elements of `values`, modulo "
               "{modulus}.", _with_width, (([3], 1), ([3, 9, 2], 3)), _MODULI, 6, _many_with_width),
        Source(calm_runs, _VALUES, "number", f"{_UP_TO} A run is one or more consecutive elements.", "Find the number "
               "of runs of `values` whose greatest and least elements differ by at most {spread}.", _calm,
               (([],), ([2, 2, 2],)), {"spread": range(150)}, 8, _long_calm),
    ),
    "scheduling": (
        Source(heaviest_moment, (("visits", "lists"),), "number", "`visits` lists up to 30,000 visits [start, end, "
               "weight].", "Every visitor stays {extra} longer than planned, from start until just before end + "
               "{extra}. Find the greatest total weight of those who are there at the same time.", _weighted,
               (([],), ([[0, 5, 3], [5, 9, 4]],)), {"extra": range(150)}, 6, _many_weighted),
        Source(joining_cost, (("piles", "numbers"),), "number", "`piles` lists the sizes of up to 100,000 piles.",
               "Two piles can be joined to one of their total size, which costs this size plus {tax}. Find the least "
               "total cost of joining all to one pile.", _piles, (([],), ([8],), ([5, 5],)), {"tax": range(150)}, 6,
               _many_piles),
        Source(best_bookings, (("bookings", "lists"),), "number", "`bookings` lists up to 30,000 requests [start, end, "
               "pay] for one room, with end > start.", "Accept some of them, so that at least {rest} passes between "
               "the end of one and the start of the next. Find the greatest total pay.", _weighted,
               (([],), ([[0, 5, 3], [5, 9, 4]],)), {"rest": range(150)}, 7, _many_weighted),
    ),
    "networks": (
        Source(links_until_joined, (("n", "number"), ("links", "lists")), "number", "There are `n` (up to 25,000) "
               "points, numbered from 0 to n - 1. `links` lists two-way connections [a, b]. Points that are connected, "
               "directly or through others, form a group.", "Add the connections in their order. Find how many are "
               "added until the number of groups is at most {left}: 0 if it is so at the start, -1 if it is greater "
               "in the end.", _links, ((1, []), (2, [[0, 0]]), (200, [[0, 1]])), {"left": range(1, 130)}, 6,
               _many_links),
        Source(distance_total, (("n", "number"), ("roads", "lists")), "number", "There are `n` (up to 22,000) towns, "
               "numbered from 0 to n - 1. `roads` lists two-way roads as [a, b, length].", "Find the sum of the "
               "lengths of the shortest ways from town 0 to each town that can be reached, modulo {modulus}.", _roads,
               ((1, []), (3, [[1, 2, 5]])), _MODULI, 7, _long_roads),
    ),
    "subsequences": (
        Source(longest_climb, _VALUES, "number", _UP_TO, "Choose elements of `values`, in their order, each at least "
               "{step} greater than the one chosen before it. Find the greatest number that can be chosen.", _climbing,
               (([],), ([4, 4],)), {"step": range(1, 150)}, 7, _many_climbing),
        Source(waiting_total, _VALUES, "number", _UP_TO, "For each element, take the distance of its index to that of "
               "the next greater element after it, and 0 if there is none. Find the sum of these, modulo {modulus}.",
               _numbers, (([],), ([4, 4, 5],)), _MODULI, 7, _falling),
        Source(sum_of_minima, _VALUES, "number", f"{_UP_TO} A run is one or more consecutive elements.", "Find the sum "
               "of the least elements of all runs of `values`, modulo {modulus}.", _numbers, (([],), ([4, 4],)),
               _MODULI, 8, _rising),
    ),
    "palindromes": (
        Source(palindrome_count, (("text", "text"),), "number", "`text` is a string of up to 30,000 letters.", "Find "
               "the number of substrings of `text` with a length of at least {least} that read the same forwards and "
               "backwards; equal substrings at different places count separately.", _text, (("a",), ("aaaa",)),
               {"least": range(1, 130)}, 8, _long_text),
    ),
    "subsets": (
        Source(affordable_subsets, (("prices", "numbers"), ("budget", "number")), "number", "`prices` is a list of up "
               "to 31 positive integers, `budget` an integer.", "Find the number of ways to choose some of the "
               "elements of `prices` (or none) with a total of at most `budget`, modulo {modulus}.", _prices,
               (([], 5), ([3, 3], 3)), _MODULI, 8, _many_prices),
    ),
    "recurrences": (
        Source(far_term, (("n", "number"),), "number", "`n` is an integer from 0 to 10^15.", "A sequence begins with "
               "f(0) = 0 and f(1) = 1, and f(i + 2) = {p} * f(i + 1) + {q} * f(i) + {r}. Find f(n) modulo {modulus}.",
               _place, ((0,), (1,), (2,)), {"p": range(1, 9), "q": range(1, 9), "r": range(9), **_MODULI}, 8,
               _far_place),
    ),
}  # fmt: skip
"""Sources of difficulty 6 to 8 by family."""
