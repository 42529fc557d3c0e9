"""The shop's question generators."""

from __future__ import annotations

from random import Random

from rllm_gym.envs.web.sites.shop.navigation import (
    START_URL,
    Moves,
    dollars,
    find,
    look_alike,
)
from rllm_gym.envs.web.sites.shop.state import (
    Order,
    Shop,
)
from rllm_gym.envs.web.sites.task import Answer, Click, Fill, Select, WebTask
from rllm_gym.envs.web.sites.wording import MONTHS, money


def cheapest(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the cheapest product with a minimum rating, which the overall cheapest does not reach."""
    for category in rng.sample(shop.categories, len(shop.categories)):
        group = sorted((p for p in shop.products.values() if p.category == category), key=lambda p: p.price)
        least = 40 if group[0].rating < 40 else group[0].rating + 1
        good = [p for p in group if p.rating >= least]
        near = group[0]
        if good:
            break
    else:  # in every category the cheapest product is also the best rated
        least, good, near = group[0].rating, group, group[1]
    goal = rng.choice(
        [
            "In the category {category}, what does the cheapest product that is rated {stars} stars or better cost?",
            "In {category}, find the product with the lowest price among those with a rating of at least {stars}. "
            "Answer with its price in dollars.",
            "What is the price, in dollars, of the least expensive {category} product with at least {stars} stars?",
        ]
    )
    return WebTask(
        goal=goal.format(category=category, stars=f"{least / 10:.1f}"),
        start=START_URL,
        answer={"type": "number", "value": dollars(good[0].price)},
        moves=(Click("link", category), Select("Sort by", "Price: low to high"), Answer(money(good[0].price))),
        wrong_moves=(Click("link", category), Answer(money(near.price))),
    )


def count(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the number of available products up to a price and with a minimum rating."""
    category = rng.choice(shop.categories)
    group = [p for p in shop.products.values() if p.category == category]
    limit = sorted(p.price for p in group)[rng.randrange(len(group) // 2, len(group))] // 100 + 1
    stars = rng.choice((3, 4))
    below = [p for p in group if p.price <= limit * 100 and p.rating >= stars * 10]
    there = [p for p in below if shop.left(p)]
    goal = rng.choice(
        [
            "How many products in {category} cost at most ${limit}, have {stars} stars or more, and are in stock?",
            "Count the {category} products that are not sold out, cost ${limit} or less and are rated {stars}.0 or "
            "better. How many are there?",
        ]
    )
    look: Moves = (
        Click("link", category),
        Fill("Highest price ($)", str(limit)),
        Select("Rating", f"{stars} stars and more"),
        Click("checkbox", "Only what is in stock"),
        Click("button", "Apply filters"),
    )
    near_miss = len(below) if len(below) != len(there) else len(there) + 1
    return WebTask(
        goal=goal.format(category=category, limit=limit, stars=stars),
        start=START_URL,
        answer={"type": "number", "value": len(there)},
        moves=(*look, Answer(str(len(there)))),
        wrong_moves=(*look, Answer(str(near_miss))),
    )


def specification(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a question about a row of the specification (behind a tab) of a product; another has a similar name."""
    product = rng.choice(sorted(shop.products.values(), key=lambda p: p.number))
    detail, value = rng.choice(product.details)
    wrong = look_alike(shop, product)
    wrong_value = dict(wrong.details)[detail]
    if wrong_value == value:
        wrong_value = next(dict(p.details)[detail] for p in shop.products.values() if dict(p.details)[detail] != value)
    questions = {
        "Weight": ("What is the weight of the {name}, in grams?", "how many grams is its weight?"),
        "Material": ("According to its specification, what is the material of the {name}?", "what is its material?"),
        "Made in": ("According to its specification, which country does the {name} come from?", "where is it made?"),
        "Warranty": ("How long is the warranty of the {name}, in years?", "how many years is its warranty?"),
    }
    phrase, short = questions[detail]
    ask = rng.choice([phrase, f"Look up the specification of the {{name}} in the shop: {short}"])
    question = ask.format(name=product.name)
    number = value.split()[0] if detail in ("Weight", "Warranty") else None
    unit = ["g", "gram", "grams"] if detail == "Weight" else ["year", "years"]
    return WebTask(
        goal=question,
        start=START_URL,
        answer={"type": "number", "value": number, "unit": unit} if number else {"type": "string", "value": value},
        moves=(*find(product), Click("tab", "Specification"), Answer(value)),
        wrong_moves=(*find(wrong), Click("tab", "Specification"), Answer(wrong_value)),
    )


def spent(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the sum of a month's orders, excluding cancelled ones, over a list of several pages."""
    months: dict[tuple[int, int], list[Order]] = {}
    for order in shop.orders:
        months.setdefault((order.day.year, order.day.month), []).append(order)
    # Choose a month with several orders to sum and, if possible, a cancelled one.
    counted = {month: [o for o in orders if o.status != "Cancelled"] for month, orders in months.items()}
    least = min(2, max(map(len, counted.values())))
    fitting = [month for month in months if len(counted[month]) >= least]
    fullest = max(fitting, key=lambda m: (len(months[m]) > len(counted[m]), len(months[m]), m))
    chosen = counted[fullest]
    total = sum(order.total for order in chosen)
    everything = sum(order.total for order in months[fullest])
    near_miss = everything if everything != total else total - chosen[-1].total
    when = f"{MONTHS[fullest[1] - 1]} {fullest[0]}"
    goal = rng.choice(
        [
            "How much did I spend in this shop in {when}? Add up the totals of all orders of that month, leaving out "
            "cancelled ones.",
            "Add the totals (shipping included) of the orders I placed in {when}, without those that were cancelled. "
            "What is the sum in dollars?",
        ]
    )
    return WebTask(
        goal=goal.format(when=when),
        start=START_URL,
        answer={"type": "number", "value": dollars(total)},
        moves=(Click("link", "Orders"), Answer(money(total))),
        wrong_moves=(Click("link", "Orders"), Answer(money(near_miss))),
    )
