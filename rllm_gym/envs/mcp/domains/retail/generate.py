"""Generation of a shop: products, customers, and orders that include one for each case of the policy."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from random import Random

from rllm_gym.envs.mcp.domains.retail.store import Customer, Order, Store, StorePolicy, Variant
from rllm_gym.envs.mcp.wording import CITIES, STREETS, a_day, a_today, email_of, people, words

PRODUCTS = words("backpack bicycle blanket camera headset jacket keyboard lamp speaker suitcase teapot watch")
COLOURS = words("black blue green grey red white yellow")
SIZES = words("small medium large")
STATUSES = words("pending processing shipped delivered delivered delivered cancelled")
_COUNTS = {1: (6, 4, 10), 2: (12, 8, 30), 3: (25, 12, 60)}


def an_address(rng: Random) -> dict[str, str]:
    return {
        "street": f"{rng.choice(STREETS)} Street {rng.randint(1, 180)}",
        "city": rng.choice(CITIES),
        "postcode": str(rng.randint(10_000, 99_999)),
    }


def build(seed: int, difficulty: int) -> Store:
    rng = Random(f"retail/{seed}/{difficulty}")
    customer_count, product_count, order_count = _COUNTS[difficulty]
    today = a_today(rng)
    products = rng.sample(PRODUCTS, product_count)
    items = [item for product in products for item in _variants(rng, product, difficulty)]
    customers = [
        Customer(f"C{1001 + number}", name, email_of(name), an_address(rng), _payment_methods(rng))
        for number, name in enumerate(people(rng, customer_count))
    ]
    final_sale = rng.choice(products)
    policy = StorePolicy(rng.choice((14, 21, 30)), rng.choice((0, 5, 10, 15)), final_sale, rng.choice((30, 45)))
    usual = [item for item in items if item.product != final_sale]
    last = [item for item in items if item.product == final_sale]

    orders = [
        _order(rng, rng.choice(customers), rng.sample(items, rng.randint(1, 3)), today, rng.choice(STATUSES))
        for _ in range(order_count)
    ]
    # One customer has an order of each kind, at positions that reveal nothing.
    hero = rng.choice(customers)
    in_time, too_late = rng.randint(1, policy.return_days), policy.exchange_days + rng.randint(1, 40)
    cases = {
        "pending": _order(rng, hero, _mixed(rng, usual, difficulty), today, "pending"),
        "processing": _order(rng, hero, _mixed(rng, usual, difficulty), today, "processing"),
        "returnable": _order(rng, hero, _mixed(rng, usual, difficulty), today, "delivered", in_time),
        "late": _order(rng, hero, _mixed(rng, usual, difficulty), today, "delivered", too_late),
        "final sale": _order(rng, hero, [rng.choice(last)], today, "delivered", in_time),
    }
    orders += cases.values()
    rng.shuffle(orders)
    for order, number in zip(orders, sorted(rng.sample(range(10_000, 99_999), len(orders))), strict=True):
        order.order_id = f"W{number}"
    return Store(today, policy, customers, items, orders, {case: order.order_id for case, order in cases.items()})


def _variants(rng: Random, product: str, difficulty: int) -> list[Variant]:
    basic = rng.randint(10, 200) * 100
    variants: list[Variant] = []
    for colour in rng.sample(COLOURS, 2 + difficulty):
        for size in SIZES[: min(1 + difficulty, 3)]:
            # Whole units, so that percentages are whole cents. At least two are in stock, so that an exchange is
            # possible.
            price, there = basic + 100 * rng.randint(0, 20), len(variants) < 2 or rng.random() < 0.7
            options = {"colour": colour, "size": size}
            variants.append(Variant(f"{product[:3].upper()}-{colour}-{size[0]}", product, options, price, there))
    return variants


def _payment_methods(rng: Random) -> list[str]:
    return [f"card_{rng.randint(1000, 9999)}", f"giftcard_{rng.randint(100, 999)}", f"paypal_{rng.randint(10, 99)}"]


def _mixed(rng: Random, items: Sequence[Variant], difficulty: int) -> list[Variant]:
    """Return items of different products."""
    products = rng.sample(sorted({item.product for item in items}), min(1 + difficulty, 3))
    return [rng.choice([item for item in items if item.product == product]) for product in products]


def _order(
    rng: Random, customer: Customer, items: Sequence[Variant], today: date, status: str, days_ago: int | None = None
) -> Order:
    delivered: date | None = None
    placed = a_day(rng, today - timedelta(days=12), today)
    if status == "delivered":
        delivered = today - timedelta(days=rng.randint(1, 120) if days_ago is None else days_ago)
        placed = delivered - timedelta(days=rng.randint(2, 12))
    return Order(
        order_id="",
        customer_id=customer.customer_id,
        status=status,
        placed_on=placed.isoformat(),
        delivered_on=delivered.isoformat() if delivered else None,
        item_ids=[item.item_id for item in items],
        address=dict(customer.address),
        payment_method=rng.choice(customer.payment_methods),
    )
