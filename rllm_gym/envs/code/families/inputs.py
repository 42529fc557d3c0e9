"""Random inputs for built-in problems: small, with repetitions, ties and runs, which distinguish programs best."""

from __future__ import annotations

import random

# One string, to keep the list short.
_WORDS = (  # noqa: SIM905
    "apple river stone cloud amber tiger listen silent enlist bread beard night thing level radar noon lemon "
    "melon plum pear grape fig olive maple cedar birch sun son moon star tars rats arts dog god cat act tac blue "
    "green red deer reed grey white black seven eight nine ten one two three a an the in on at is it to of or ox "
    "ivy egg eye ear arm leg lamp palm meal male lame rose sore eros snow owns won now own sea east seat eats "
    "teas tea ate eat"
).split()


def numbers(rng: random.Random, size: int) -> list[int]:
    """Draw integers: with few distinct values, or many, or sorted, or in runs."""
    length = rng.randint(4, 6 + 2 * size)
    manner = rng.randrange(5)
    if manner == 0:
        return [rng.randint(0, 9) for _ in range(length)]
    if manner == 1:
        return [rng.randint(-9, 9) for _ in range(length)]
    if manner == 2:
        return [rng.randint(-20, 60) for _ in range(length)]
    if manner == 3:
        values = [rng.randint(-5, 30) for _ in range(length)]
        return sorted(values) if rng.random() < 0.5 else sorted(values, reverse=True)
    values = []
    while len(values) < length:
        values += [rng.randint(-3, 12)] * rng.randint(1, 3)
    return values[:length]


def word(rng: random.Random) -> str:
    """Draw a short word of lower-case letters, sometimes from few letters that repeat often."""
    if rng.random() < 0.6:
        return rng.choice(_WORDS)
    alphabet = rng.choice(("abc", "aeiost", "abcdefghijklmnopqrstuvwxyz"))
    return "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 7)))


def words(rng: random.Random, size: int) -> list[str]:
    """Draw words, some of them repeated or anagrams of each other."""
    drawn = [word(rng) for _ in range(rng.randint(3, 5 + size))]
    if rng.random() < 0.5:
        drawn.insert(rng.randrange(len(drawn) + 1), rng.choice(drawn))
    if rng.random() < 0.3:
        letters = list(rng.choice(drawn))
        rng.shuffle(letters)
        drawn.insert(rng.randrange(len(drawn) + 1), "".join(letters))
    return drawn


def text(rng: random.Random, size: int) -> str:
    """Draw a line of printable characters that neither begins nor ends with a space."""
    manner = rng.randrange(4)
    if manner == 0:
        drawn = "".join(rng.choice("aabbcde") for _ in range(rng.randint(4, 6 + 3 * size)))
    elif manner == 1:
        drawn = "".join(rng.choice("aeiostrnAEST019!?") * rng.choice((1, 1, 2)) for _ in range(4 + 2 * size))
    else:
        drawn = " ".join(words(rng, size))
        if manner == 3:
            drawn = "".join(letter.upper() if rng.random() < 0.2 else letter for letter in drawn)
            drawn += rng.choice((".", "!", "?", "7", "42"))
    return drawn


def number(rng: random.Random, size: int) -> int:
    """Draw an integer of up to about ``size + 1`` digits, sometimes negative."""
    value = rng.randint(1, 10 ** rng.randint(1, size + 1))
    return -value if rng.random() < 0.25 else value
