"""Generators of problems of difficulty 6 to 8: several steps, each with small numbers, and one exact answer.

A generator takes the difficulty 6, 7 or 8. Its answers are spread widely, and :class:`MathTaskMixture` draws a problem
again if its answer is one of its numbers: neither a constant nor a number of the question is often right.
"""

from __future__ import annotations

import random
from fractions import Fraction
from math import comb, gcd, isqrt, lcm

from rllm_gym.envs.math.families.notation import Generator, Problem, fraction, listing, nonzero, polynomial, terms

_NAMES = ("Ada", "Ben", "Carla", "Daniel", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kofi", "Lena")
_PROFESSIONS = ("teachers", "lawyers", "doctors", "nurses", "pilots", "farmers", "bakers", "painters")
_COLORS = ("red", "blue", "green", "white", "black", "yellow")
_LETTERS = "abcdefgh"
_RATIONAL = "Give an integer or a fraction."


def _level(difficulty: int) -> int:
    """Return 0, 1 or 2 for difficulty 6, 7 or 8."""
    return difficulty - 6


# Number theory


def least_with_remainders(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the least positive integer with given remainders."""
    count = (2, 3, 3)[_level(difficulty)]
    pool = ((5, 6, 7, 8, 9, 11, 13, 14, 15, 16, 17), (3, 4, 5, 7, 8, 9, 11), (5, 7, 8, 9, 11, 13, 17))
    while True:
        moduli = rng.sample(pool[_level(difficulty)], count)
        if lcm(*moduli) == _product(moduli):
            break
    number = rng.randrange(max(moduli) + 1, _product(moduli))
    parts = [f"{number % modulus} when divided by {modulus}" for modulus in sorted(moduli)]
    return f"What is the least positive integer that leaves a remainder of {listing(parts)}?", str(number)


def counted_multiples(rng: random.Random, difficulty: int) -> Problem:
    """Ask how many integers are divisible by one or another number, but not by a third."""
    limit = rng.randint(150, (400, 900, 2_500)[_level(difficulty)])
    while True:
        first, second, third = rng.sample((2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), 3)
        # Each condition must exclude or add something: "by 2 or by 10" is "by 2", and "by 12, but not by 3" is nothing.
        if first % second and second % first and (difficulty == 6 or (first % third and second % third)):
            break
    if difficulty == 6:
        count = sum(number % first == 0 or number % second == 0 for number in range(1, limit + 1))
        return f"How many positive integers up to {limit} are divisible by {first} or by {second}?", str(count)
    count = sum((number % first == 0 or number % second == 0) and number % third != 0 for number in range(1, limit + 1))
    return (
        f"How many positive integers up to {limit} are divisible by {first} or by {second}, but not by {third}?",
        str(count),
    )


def factorial_powers(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the highest power of a prime, or of ten, in a product of factorials."""
    n = rng.randint(40, (150, 400, 900)[_level(difficulty)])
    prime = rng.choice((2, 3, 5, 7))
    if difficulty == 6:
        return f"What is the greatest integer $k$ such that ${prime}^k$ divides ${n}!$?", str(_exponent(n, prime))
    m = rng.randint(30, n - 5)
    if difficulty == 7:
        return (
            f"What is the greatest integer $k$ such that ${prime}^k$ divides ${n}! \\cdot {m}!$?",
            str(_exponent(n, prime) + _exponent(m, prime)),
        )
    return (
        f"What is the greatest integer $k$ such that ${prime}^k$ divides the binomial coefficient "
        f"$\\binom{{{n}}}{{{m}}}$ multiplied by ${m}!$?",
        str(_exponent(n, prime) - _exponent(n - m, prime)),
    )


def divisor_sums(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the sum of some of a number's divisors."""
    factor = rng.choice((2, 3, 4, 5, 6))
    divisors: list[int] = []
    while len(divisors) < 6:
        number = factor * rng.randint(12, (120, 160, 300)[_level(difficulty)])
        divisors = [one for one in range(1, number + 1) if number % one == 0]
    if difficulty == 6:
        return f"What is the sum of the positive divisors of {number} that are less than {number}?", str(
            sum(divisors[:-1])
        )
    kept = [one for one in divisors if (one % factor == 0) == (difficulty == 7)]
    condition = "are" if difficulty == 7 else "are not"
    return f"What is the sum of the positive divisors of {number} that {condition} divisible by {factor}?", str(
        sum(kept)
    )


# Algebra


def root_sums(rng: random.Random, difficulty: int) -> Problem:
    """Ask for a symmetric function of the roots of a polynomial with irrational or complex roots."""
    total, product = nonzero(rng, -9, 9), nonzero(rng, -12, 12)
    p2 = total**2 - 2 * product
    p3 = total * p2 - product * total
    text = f"Let $r$ and $s$ be the roots of ${polynomial([product, -total, 1])} = 0$. What is "
    if difficulty == 6:
        shift = nonzero(rng, -5, 5)
        if rng.random() < 0.5:
            return f"{text}$r^2 + s^2$?", str(p2)
        return (
            f"{text}$(r {'+' if shift > 0 else '-'} {abs(shift)})(s {'+' if shift > 0 else '-'} {abs(shift)})$?",
            str(product + shift * total + shift**2),
        )
    if difficulty == 7:
        if rng.random() < 0.5:
            return f"{text}$r^3 + s^3$?", str(p3)
        return f"{text}$\\frac{{r}}{{s}} + \\frac{{s}}{{r}}$?", fraction(Fraction(p2, product))
    if rng.random() < 0.5:
        return f"{text}$r^4 + s^4$?", str(p2**2 - 2 * product**2)
    return f"{text}$\\frac{{r^2}}{{s}} + \\frac{{s^2}}{{r}}$?", fraction(Fraction(p3, product))


def iterated_functions(rng: random.Random, difficulty: int) -> Problem:
    """Ask for a value of a composition, or for the number that it maps to a value."""
    a, c = (rng.randint(2, 5) for _ in range(2))
    b, d, start = nonzero(rng, -9, 9), nonzero(rng, -9, 9), nonzero(rng, -9, 9)
    if difficulty == 7:
        start = nonzero(rng, -30, 30)
    text = f"Let $f(x) = {polynomial([b, a])}$ and $g(x) = {polynomial([d, -c])}$."
    if difficulty == 6:
        return f"{text} What is $f(g(f({start})))$?", str(a * (d - c * (a * start + b)) + b)
    if difficulty == 7:
        value = a * (d - c * (a * start + b)) + b
        return f"{text} For which $x$ is $f(g(f(x))) = {value}$?", str(start)
    # f(g(x)) = g(f(x)) + k x
    k = rng.choice([one for one in range(-9, 10) if one])
    return f"{text} For which $x$ is $f(g(x)) = g(f(x)) + {k}x + {abs(start)}$?".replace("+ -", "- ").replace(
        " 1x", " x"
    ), fraction(Fraction((a * d + b) - (d - c * b) - abs(start), k))


def pairwise_sums(rng: random.Random, difficulty: int) -> Problem:
    """Ask for a product, given the sums of pairs of numbers."""
    count = (3, 3, 4)[_level(difficulty)]
    values = [nonzero(rng, -9, 15) for _ in range(count)]
    letters = _LETTERS[:count]
    sums = [
        f"${letters[at]} + {letters[(at + 1) % count]} = {values[at] + values[(at + 1) % count]}$"
        for at in range(count if count == 3 else 3)
    ]
    if count == 4:
        sums.append(f"$a + c = {values[0] + values[2]}$")
    text = f"The numbers ${', '.join(letters)}$ satisfy {listing(sums)}. What is "
    if difficulty == 6:
        return f"{text}${' + '.join(f'{2 + at}{one}' for at, one in enumerate(letters))}$?", str(
            sum((2 + at) * value for at, value in enumerate(values))
        )
    return f"{text}${''.join(letters)}$?", str(_product(values))


# Combinatorics and probability


def no_two_adjacent(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the number of rows of balls in which no two of one color are adjacent."""
    colors = rng.sample(_COLORS, 3)
    first = rng.randint(5, 18) if difficulty == 6 else rng.randint(2, 4 + _level(difficulty))
    second = 0 if difficulty == 6 else rng.randint(2, 6 + _level(difficulty))
    apart = rng.randint(2, min(6, first + second))
    counts = [f"{first} {colors[0]}", *([f"{second} {colors[1]}"] if second else []), f"{apart} {colors[2]}"]
    return (
        f"In how many ways can {listing(counts)} balls be put in a row so that no two {colors[2]} balls are next to "
        "each other? Balls of the same color are identical.",
        str(comb(first + second, first) * comb(first + second + 1, apart)),
    )


def avoiding_paths(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the number of lattice paths through, or not through, points."""
    right, up = (rng.randint(4, (8, 7, 9)[_level(difficulty)]) for _ in range(2))
    x, y = rng.randint(1, right - 1), rng.randint(1, up - 1)
    through = comb(x + y, x) * comb(right - x + up - y, up - y)
    text = f"A path leads from (0, 0) to ({right}, {up}) in steps of 1 to the right or 1 up. How many such paths "
    if difficulty == 6:
        return f"{text}pass through ({x}, {y})?", str(through)
    return f"{text}do not pass through ({x}, {y})?", str(comb(right + up, up) - through)


def committees_at_least(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the number of committees with a least number of members of one kind."""
    first, second = rng.sample(_PROFESSIONS, 2)
    chosen_from, others = (rng.randint(5, (12, 12, 10)[_level(difficulty)]) for _ in range(2))
    size = rng.randint(3, (3, 4, 5)[_level(difficulty)])
    least = rng.randint(1, size - 1)
    count = sum(comb(chosen_from, kept) * comb(others, size - kept) for kept in range(least, size + 1))
    text = (
        f"A committee of {size} is chosen from {chosen_from} {first} and {others} {second}. How many committees have "
        f"at least {least} of the {first}"
    )
    if difficulty < 8:
        return f"{text}?", str(count)
    together = sum(comb(chosen_from - 1, kept - 1) * comb(others - 1, size - 1 - kept) for kept in range(least, size))
    one, other = rng.sample(_NAMES, 2)
    return f"{text}, if {one}, one of the {first}, and {other}, one of the {second}, may not both be in it?", str(
        count - together
    )


def bounded_solutions(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the number of solutions of a sum in integers with lower bounds."""
    count = (3, 4, 4)[_level(difficulty)]
    bounds = [rng.randint(0, 3 + _level(difficulty)) for _ in range(count)]
    free = rng.randint(6, (40, 40, 18)[_level(difficulty)])  # more than the upper bound of difficulty 8 leaves to x
    letters = "xyzw"[:count]
    least = listing([f"${letter} \\ge {bound}$" for letter, bound in zip(letters, bounds)])
    if difficulty == 8:
        top = bounds[0] + rng.randint(2, 5)
        ways = sum(comb(free - x + count - 2, count - 2) for x in range(top - bounds[0] + 1) if free >= x)
        return (
            f"How many solutions in integers does ${' + '.join(letters)} = {sum(bounds) + free}$ have with {least}, if "
            f"also $x \\le {top}$?",
            str(ways),
        )
    return (
        f"How many solutions in integers does ${' + '.join(letters)} = {sum(bounds) + free}$ have with {least}?",
        str(comb(free + count - 1, count - 1)),
    )


def dice_sums(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the probability of a sum of dice."""
    chance, least, divisor = Fraction(0), 0, 0
    # Otherwise a few simple fractions would be frequent, and "at least 5 or divisible by 7" would be "at least 5".
    while chance.denominator < 15 or least <= divisor:
        faces = [rng.randint(4, (12, 12, 8)[_level(difficulty)]) for _ in range((2, 2, 3)[_level(difficulty)])]
        sums = [0]
        for face in faces:
            sums = [total + value for total in sums for value in range(1, face + 1)]
        least = rng.randint(len(faces) + 2, sum(faces) - 1)
        event, divisor = f"at least {least}", rng.randint(3, 7) if difficulty > 6 else 0
        if divisor:
            event += f" or divisible by {divisor}"
        good = sum(total >= least or (divisor > 0 and total % divisor == 0) for total in sums)
        chance = Fraction(good, len(sums))
    return (
        f"{'Two' if len(faces) == 2 else 'Three'} fair dice have sides numbered from 1, one up to "
        f"{listing([f'{face}' for face in faces]).replace(', ', ', one up to ').replace(' and ', ' and one up to ')}. "
        f"What is the probability that the sum of a roll is {event}? Give a fraction.",
        fraction(chance),
    )


def draws_of_a_color(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the probability of a number of balls of one color, without replacement."""
    drawn, exactly, chance = (2, 3, 4)[_level(difficulty)], rng.random() < 0.5, Fraction(0)
    least = rng.randint(1, drawn - 1)
    while chance.denominator < 15:
        good, bad = rng.randint(4, 14), rng.randint(4, 14)
        ways = {kept: comb(good, kept) * comb(bad, drawn - kept) for kept in range(drawn + 1)}
        favourable = ways[least] if exactly else sum(ways[kept] for kept in range(least, drawn + 1))
        chance = Fraction(favourable, comb(good + bad, drawn))
    kept, other = rng.sample(_COLORS, 2)
    return (
        f"A bag holds {good} {kept} and {bad} {other} balls. {drawn} balls are drawn at random without replacement. "
        f"What is the probability that {'exactly' if exactly else 'at least'} {least} of them "
        f"{'is' if least == 1 else 'are'} {kept}? Give a fraction.",
        fraction(chance),
    )


# Geometry


def polygon_areas(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the area of a polygon, given its corners in order."""
    corners = (4, 5, 6)[_level(difficulty)]
    limit = 6 + 2 * _level(difficulty)
    while True:
        steps = sorted(rng.sample(range(-limit, limit + 1), corners))
        middle = rng.randint(1, corners - 2)
        upper = [(x, rng.randint(1, limit)) for x in steps[1:-1][:middle]]
        lower = [(x, rng.randint(-limit, -1)) for x in steps[1:-1][middle:]]
        points = [(steps[0], 0), *sorted(lower), (steps[-1], 0), *sorted(upper, reverse=True)]
        area = Fraction(sum(a * d - b * c for (a, b), (c, d) in zip(points, points[1:] + points[:1])), 2)
        # Three points on a line would have a corner where there is none.
        if all(
            (c - a) * (f - b) != (e - a) * (d - b)
            for (a, b), (c, d), (e, f) in zip(points, points[1:] + points[:1], points[2:] + points[:2])
        ):
            break
    named = ", ".join(f"({x}, {y})" for x, y in points)
    return f"What is the area of the polygon with the corners {named}, in this order?", fraction(abs(area))


def chords(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the squared length of a chord that a line cuts from a circle."""
    while True:
        a, b = rng.randint(1, 4), nonzero(rng, -4, 4)
        h, k = (0, 0) if difficulty == 6 else (nonzero(rng, -6, 6), nonzero(rng, -6, 6))
        c = nonzero(rng, -15, 15)
        radius = rng.randint(3, 7 + 2 * _level(difficulty))
        square = 4 * (radius**2 - Fraction((a * h + b * k - c) ** 2, a * a + b * b))
        if square > 0:
            break
    return (
        f"The line ${terms([(a, 'x'), (b, 'y')])} = {c}$ cuts the circle with center ({h}, {k}) and radius "
        f"{radius} in two points. What is the square of the distance between these points?",
        fraction(square),
    )


def inside_points(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the number of points with integer coordinates inside a triangle."""
    limit = (15, 16, 20)[_level(difficulty)]
    while True:
        x1, y1 = (0, 0) if difficulty == 6 else (rng.randint(-limit, limit), rng.randint(-limit, limit))
        (x2, y2), (x3, y3) = ((rng.randint(-limit, limit), rng.randint(-limit, limit)) for _ in range(2))
        double = abs((x2 - x1) * (y3 - y1) - (x3 - x1) * (y2 - y1))
        edge = gcd(x2 - x1, y2 - y1) + gcd(x3 - x2, y3 - y2) + gcd(x1 - x3, y1 - y3)
        if double > 5 * limit:
            break
    return (
        f"How many points with integer coordinates lie strictly inside the triangle with the corners ({x1}, {y1}), "
        f"({x2}, {y2}) and ({x3}, {y3})?",
        str((double - edge + 2) // 2),
    )


# Sequences


def second_order_terms(rng: random.Random, difficulty: int) -> Problem:
    """Ask for a term of a recurrence of second order, or for its remainder."""
    first, second = rng.randint(1, 9), rng.randint(1, 9)
    # At difficulty 8 a remainder is asked for, which is only clear of positive numbers.
    p, q = rng.randint(1, 3), nonzero(rng, 1 if difficulty == 8 else -3, 4)
    n = rng.randint((5, 5, 12)[_level(difficulty)], (6, 7, 30)[_level(difficulty)])
    values = [first, second]
    while len(values) < n:
        values.append(p * values[-1] + q * values[-2])
    text = f"A sequence begins with $a_1 = {first}$ and $a_2 = {second}$, and $a_{{n+2}} = "
    text += terms([(p, "a_{n+1}"), (q, "a_n")]) + "$ for every $n \\ge 1$."
    if difficulty < 8:
        return f"{text} What is $a_{n}$?", str(values[-1])
    modulus = rng.randint(23, 99)
    return f"{text} What is the remainder when $a_{{{n}}}$ is divided by {modulus}?", str(values[-1] % modulus)


def selected_sums(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the sum of the terms of an arithmetic sequence with a given remainder."""
    first, step = rng.randint(2, 20), rng.randint(2, 9)
    count = rng.randint((8, 15, 15)[_level(difficulty)], (12, 24, 40)[_level(difficulty)])
    divisor = rng.choice([one for one in (2, 3, 4, 5, 7) if gcd(one, step) == 1])
    values = [first + step * at for at in range(count)]
    last = values[-1]
    if difficulty == 6:
        return f"The sequence {values[0]}, {values[1]}, {values[2]}, ..., {last} is arithmetic. What is its sum?", str(
            sum(values)
        )
    kept = sum(value for value in values if (value % divisor == 0) == (difficulty == 7))
    condition = "are" if difficulty == 7 else "are not"
    return (
        f"The sequence {values[0]}, {values[1]}, {values[2]}, ..., {last} is arithmetic. What is the sum of its terms "
        f"that {condition} divisible by {divisor}?",
        str(kept),
    )


# Word problems


def shared_work(rng: random.Random, difficulty: int) -> Problem:
    """Ask how long the rest of a work takes."""
    first, second = rng.sample(_NAMES, 2)
    while True:
        a, b = rng.sample(range(4, 13 + 4 * _level(difficulty)), 2)
        alone = rng.randint(1, 3)
        together = rng.randint(1, 3) if difficulty > 6 else 0
        left = 1 - Fraction(alone, a) - together * (Fraction(1, a) + Fraction(1, b))
        if left > 0:
            break
    text = (
        f"{first} alone paints a fence in {a} hours, and {second} alone in {b} hours. {first} begins and works alone "
        f"for {alone} hour{'s' * (alone > 1)}."
    )
    if difficulty == 6:
        return (
            f"{text} Then {second} joins. How many more hours do they need? {_RATIONAL}",
            fraction(left / (Fraction(1, a) + Fraction(1, b))),
        )
    text += f" Then {second} joins, and both work for {together} hour{'s' * (together > 1)}."
    if difficulty == 7:
        return (
            f"{text} Then {first} leaves. How many more hours does {second} need? {_RATIONAL}",
            fraction(left * b),
        )
    slow = rng.choice((2, 3, 4))
    return (
        f"{text} Then {first} leaves, and {second}, now tired, needs {slow} times as long as before for the same work. "
        f"How many more hours does {second} need? {_RATIONAL}",
        fraction(left * b * slow),
    )


def mixtures(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the concentration after mixing and replacing."""
    x, y = rng.randint(2, 12), rng.randint(2, 12)
    p, q = rng.sample(range(5, 95, 5), 2)
    acid, volume = Fraction(x * p + y * q, 100), Fraction(x + y)
    text = (
        f"{x} liters of a solution that is {p} percent acid are mixed with {y} liters of one that is {q} percent acid."
    )
    if difficulty > 6:
        out = rng.randint(1, x + y - 1)
        acid *= 1 - Fraction(out, x + y)
        text += (
            f" Then {out} liter{'s' * (out > 1)} of the mixture {'are' if out > 1 else 'is'} replaced by pure water."
        )
    if difficulty == 8:
        more = rng.randint(1, 9)
        acid, volume = acid + more, volume + more
        text += f" Finally, {more} liter{'s' * (more > 1)} of pure acid {'are' if more > 1 else 'is'} added."
    return f"{text} What percentage of the result is acid? {_RATIONAL}", fraction(100 * acid / volume)


def catching_up(rng: random.Random, difficulty: int) -> Problem:
    """Ask when or where a faster traveller catches a slower one."""
    first, second = rng.sample(_NAMES, 2)
    slow, delay = rng.randint(3, 20), rng.randint(2, 6)
    fast = slow + rng.randint(2, 12)
    rest, head = (rng.randint(1, delay - 1), rng.randint(2, 9)) if difficulty > 6 else (0, 0)
    head = head if difficulty == 8 else 0
    text = (
        f"{first} sets out at {slow} kilometers per hour. {delay} hours later {second} follows on the same road at "
        f"{fast} kilometers per hour, from {f'a point {head} kilometers farther back' if head else 'the same point'}."
    )
    if rest:
        text += f" Before {second} sets out, {first} rests for {rest} hour{'s' * (rest > 1)}."
    hours = Fraction(slow * (delay - rest) + head, fast - slow)
    if difficulty < 8:
        text += f" How many kilometers has {second} traveled when {second} catches up with {first}?"
        return f"{text} {_RATIONAL}", fraction(fast * hours)
    text += f" How many hours after {first} set out does {second} catch up with {first}?"
    return f"{text} {_RATIONAL}", fraction(delay + hours)


# Chains of definitions


def chains(rng: random.Random, difficulty: int) -> Problem:
    """Ask for a combination of numbers, each defined by the one before it."""
    value = rng.randint(24, 99)
    sentences, values = [f"Let $a = {value}$."], [value]
    for at in range(1, 2 + _level(difficulty) + 1):
        previous, value = value, 0
        while value < 2:  # 0 and 1 would decide the rest
            text, value = rng.choice(_STEPS)(rng, _LETTERS[at - 1], previous)
        sentences.append(f"Let ${_LETTERS[at]}$ be {text}.")
        values.append(value)
    last, factor = _LETTERS[len(values) - 1], rng.randint(3, 19)
    combined = f"{factor}{last} + {_LETTERS[len(values) - 2]}"
    return f"{' '.join(sentences)} What is ${combined}$?", str(factor * values[-1] + values[-2])


def _divisor_count(rng: random.Random, name: str, value: int) -> tuple[str, int]:
    more = rng.randint(1, 40)
    number = value + more
    return f"the number of positive divisors of ${name} + {more}$", sum(
        number % one == 0 for one in range(1, number + 1)
    )


def _power_remainder(rng: random.Random, name: str, value: int) -> tuple[str, int]:
    base, modulus = rng.randint(2, 9), rng.randint(11, 60)
    exponent = value if value <= 300 else value % 300 + 2
    if exponent != value:
        return _remainder(rng, name, value)
    return f"the remainder when ${base}^{name}$ is divided by {modulus}", pow(base, value, modulus)


def _remainder(rng: random.Random, name: str, value: int) -> tuple[str, int]:
    factor, modulus = rng.randint(3, 29), rng.randint(30, 99)
    return f"the remainder when ${factor}{name}$ is divided by {modulus}", factor * value % modulus


def _common_divisor(rng: random.Random, name: str, value: int) -> tuple[str, int]:
    factor, more = rng.choice((6, 10, 12, 15, 18)), rng.choice((24, 30, 36, 60, 84, 90))
    return f"the greatest common divisor of ${factor}{name}$ and {more}", gcd(factor * value, more)


def _digit_sum(rng: random.Random, name: str, value: int) -> tuple[str, int]:
    factor = rng.randint(11, 99)
    return f"the sum of the digits of ${factor} \\cdot {name}$", sum(map(int, str(factor * value)))


def _square_root(rng: random.Random, name: str, value: int) -> tuple[str, int]:
    factor = rng.randint(7, 60)
    return f"the greatest integer whose square is at most ${factor}{name}$", isqrt(factor * value)


def _multiples(rng: random.Random, name: str, value: int) -> tuple[str, int]:
    factor, divisor = rng.randint(5, 20), rng.randint(3, 9)
    return f"the number of positive multiples of {divisor} up to ${factor}{name}$", factor * value // divisor


_STEPS = (_divisor_count, _power_remainder, _remainder, _common_divisor, _digit_sum, _square_root, _multiples)


def _product(values: list[int]) -> int:
    product = 1
    for value in values:
        product *= value
    return product


def _exponent(n: int, prime: int) -> int:
    count = 0
    while n:
        n //= prime
        count += n
    return count


MULTI_STEP_FAMILIES: dict[str, tuple[Generator, ...]] = {
    "algebra": (root_sums, iterated_functions, pairwise_sums),
    "number_theory": (least_with_remainders, counted_multiples, factorial_powers, divisor_sums),
    "word_problems": (shared_work, mixtures, catching_up),
    "sequences": (second_order_terms, selected_sums),
    "combinatorics": (no_two_adjacent, avoiding_paths, committees_at_least, bounded_solutions),
    "geometry": (polygon_areas, chords, inside_points),
    "probability": (dice_sums, draws_of_a_color),
    "chains": (chains,),
}
"""Generators of difficulty 6 to 8 by family."""
