"""Generators of word problems: shopping, travel, ages, savings, sharing. Counts are at least 2: plurals are correct."""

from __future__ import annotations

import random

from rllm_gym.envs.math.families.notation import Problem

_NAMES = (
    "Ada", "Ben", "Carla", "Daniel", "Elena", "Farid", "Grace", "Hugo", "Ines", "Jonas", "Kofi", "Lena", "Mei", "Noah",
    "Olga", "Pablo", "Quinn", "Rosa", "Samir", "Tara", "Uma", "Victor", "Wanda", "Yusuf", "Zoe",
)  # fmt: skip
_GOODS = ("notebooks", "pencils", "apples", "candles", "stickers", "postcards", "mugs", "plants", "lamps", "scarves")
_THINGS = ("marbles", "shells", "stamps", "coins", "cards", "buttons", "beads", "books", "badges", "stones")


def shopping(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the price of a purchase, or the change from a note."""
    name = rng.choice(_NAMES)
    kinds = rng.sample(_GOODS, 1 + (difficulty + 1) // 2)
    limit = (12, 20, 30, 60, 150)[difficulty - 1]
    bought = [(rng.randint(2, limit), kind, rng.randint(2, limit)) for kind in kinds]
    total = sum(count * price for count, _, price in bought)
    parts = [f"{count} {kind} at {price} dollars each" for count, kind, price in bought]
    text = f"{name} buys {', '.join(parts[:-1])} and {parts[-1]}."
    if rng.random() < 0.5:
        return f"{text} How many dollars does {name} pay in all?", str(total)
    paid = (total // 50 + rng.randint(1, 4)) * 50
    return f"{text} {name} pays with {paid} dollars. How many dollars does {name} get back?", str(paid - total)


def travel(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the distance at two speeds, or the time until two travellers meet."""
    first, second = rng.sample(_NAMES, 2)
    limit = (20, 40, 60, 90, 150)[difficulty - 1]
    speed, other, hours = rng.randint(3, limit), rng.randint(3, limit), rng.randint(2, 4 + 2 * difficulty)
    if rng.random() < 0.5:
        more = rng.randint(2, 4 + 2 * difficulty)
        return (
            f"{first} travels for {hours} hours at {speed} kilometers per hour and then for {more} hours at {other} "
            f"kilometers per hour. How many kilometers does {first} travel in all?",
            str(speed * hours + other * more),
        )
    return (
        f"{first} and {second} start {hours * (speed + other)} kilometers apart and travel towards each other, {first} "
        f"at {speed} and {second} at {other} kilometers per hour. After how many hours do they meet?",
        str(hours),
    )


def ages(rng: random.Random, difficulty: int) -> Problem:
    """Ask for an age, given a sum and a factor or a difference."""
    older, younger = rng.sample(_NAMES, 2)
    age = rng.randint(3, 12 + 2 * difficulty)
    years = rng.randint(2, 10 + 2 * difficulty)
    if difficulty < 3:
        gap = rng.randint(2, 30)
        return (
            f"{older} is {gap} years older than {younger}. Together they are {2 * age + gap} years old. "
            f"How old will {younger} be in {years} years?",
            str(age + years),
        )
    factor = rng.randint(2, 4)
    return (
        f"{older} is {factor} times as old as {younger}. In {years} years, the sum of their ages will be "
        f"{(factor + 1) * age + 2 * years}. How old is {older} now?",
        str(factor * age),
    )


def savings(rng: random.Random, difficulty: int) -> Problem:
    """Ask what is left, or how long it takes, with weekly income and expenses."""
    name = rng.choice(_NAMES)
    limit = (30, 60, 120, 300, 900)[difficulty - 1]
    spent = rng.randint(2, limit)
    earned = spent + rng.randint(2, limit)
    start, weeks = rng.randint(2, 5 * limit), rng.randint(2, 6 * difficulty + 6)
    text = f"{name} has {start} dollars, earns {earned} dollars a week and spends {spent} dollars a week."
    end = start + weeks * (earned - spent)
    if rng.random() < 0.5:
        return f"{text} How many dollars does {name} have after {weeks} weeks?", str(end)
    return f"{text} After how many weeks does {name} have {end} dollars?", str(weeks)


def sharing(rng: random.Random, difficulty: int) -> Problem:
    """Ask for the equal share of a collection that grows and shrinks first."""
    name = rng.choice(_NAMES)
    thing = rng.choice(_THINGS)
    limit = (12, 20, 40, 80, 200)[difficulty - 1]
    friends, share = rng.randint(2, 4 + 2 * difficulty), rng.randint(2, limit)
    lost = rng.randint(2, limit)
    boxes = rng.randint(2, 3 + difficulty)
    per_box = rng.randint(2, limit)
    start = friends * share + lost - boxes * per_box
    if start < 2:
        start, lost = start + limit * boxes, lost + limit * boxes
    return (
        f"{name} has {start} {thing}, buys {boxes} boxes with {per_box} {thing} in each, loses {lost} {thing} "
        f"and shares the rest equally among {friends} friends. How many {thing} does each friend get?",
        str(share),
    )


def discounts(rng: random.Random, difficulty: int) -> Problem:
    """Ask for a price after one or two reductions; the answer is always a whole number of dollars."""
    name = rng.choice(_NAMES)
    good = rng.choice(("bicycle", "camera", "guitar", "tent", "table", "jacket", "printer", "carpet", "kayak", "desk"))
    percent = rng.choice((10, 20, 25, 30, 40, 50, 60, 75))
    price = 100 * rng.randint(1, (40, 60, 80, 120, 400)[difficulty - 1])
    after = price * (100 - percent) // 100
    text = f"A {good} costs {price} dollars. {name} gets a discount of {percent} percent"
    if difficulty < 3:
        return f"{text}. How many dollars does {name} pay?", str(after)
    coupon = rng.randint(2, after - 1)
    return (
        f"{text} and then uses a coupon that takes off another {coupon} dollars. How many dollars does {name} pay?",
        str(after - coupon),
    )


def tickets(rng: random.Random, difficulty: int) -> Problem:
    """Ask about two kinds of ticket, given their number and the total price."""
    limit = (15, 30, 60, 150, 600)[difficulty - 1]
    adults, children = rng.randint(2, limit), rng.randint(2, limit)
    child = rng.randint(2, 4 + 3 * difficulty)
    adult = child + rng.randint(1, 4 + 3 * difficulty)
    place = rng.choice(("museum", "zoo", "theater", "cinema", "circus", "concert", "fair", "castle"))
    asked, answer = rng.choice((("adult", adults), ("child", children)))
    return (
        f"Tickets for the {place} cost {adult} dollars for an adult and {child} dollars for a child. A group buys "
        f"{adults + children} tickets for {adults * adult + children * child} dollars. "
        f"How many {asked} tickets does it buy?",
        str(answer),
    )
