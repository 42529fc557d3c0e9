"""Generates a shop with a history from a seed: stock, orders in every status, addresses, coupons and a wish list."""

from __future__ import annotations

from datetime import timedelta
from random import Random

from rllm_gym.envs.web.sites.shop.account import ShopApp
from rllm_gym.envs.web.sites.shop.catalogue import make_products
from rllm_gym.envs.web.sites.shop.state import RETURN_DAYS, SHIPPING, Address, Coupon, Line, Order, Shop
from rllm_gym.envs.web.sites.wording import any_day, people

STREETS = ("Mill Lane", "Harbour Street", "Station Road", "Linden Avenue", "Church Hill", "Market Square", "Elm Close")
CITIES = ("Ashford", "Bexley", "Carrick", "Dunmore", "Eastvale", "Fairhaven", "Glenrock", "Hollins")
LABELS = ("Home", "Office", "Parents", "Holiday flat", "Workshop")
COUPONS = ("SPRING", "HELLO", "THANKS", "EXTRA", "SMILE", "WINTER")


def build(seed: int, difficulty: int) -> ShopApp:
    """Build a shop with a history: sold-out products, orders in every status, valid coupons and an expired one."""
    rng = Random(f"shop/{seed}/{difficulty}")
    products = {product.number: product for product in make_products(rng, difficulty)}
    stock = {
        (product.number, colour): 0 if rng.random() < 0.12 else rng.randint(1, 30)
        for product in products.values()
        for colour in product.colours or ("",)
    }
    today = any_day(rng)
    user = people(rng, 1)[0]
    addresses = [
        Address(label, user, f"{rng.randint(1, 180)} {rng.choice(STREETS)}", city, f"{rng.randint(10000, 99999)}")
        for label, city in zip(rng.sample(LABELS, 3), rng.sample(CITIES, 3))
    ]
    codes = rng.sample(COUPONS, 3)
    percents = rng.sample((5, 10, 15, 20, 25), 3)
    coupons = {
        f"{code}{percent}": Coupon(f"{code}{percent}", percent, today + timedelta(days=days))
        for code, percent, days in zip(codes, percents, (rng.randint(3, 90), rng.randint(3, 90), -rng.randint(2, 60)))
    }
    shop = ShopApp(
        today=today,
        user=user,
        products=products,
        stock=stock,
        coupons=coupons,
        addresses=addresses,
        default_address=rng.choice(addresses).label,
        orders=[],
        seed=seed,
    )
    _fill_orders(shop, rng, difficulty)
    for number in rng.sample(sorted(products), 2 + difficulty):
        shop.wish(number)
    return shop


def _fill_orders(shop: Shop, rng: Random, difficulty: int) -> None:
    """Add orders from oldest to newest. A product occurs in at most one order, so it identifies the order."""
    count = 4 + 3 * difficulty
    goods = iter(rng.sample(sorted(shop.products), min(len(shop.products), 3 * count)))
    number = rng.randint(20_000, 80_000)
    # Five recent orders: the two newest not yet sent, one shipped, two that can still be returned.
    recent = rng.sample(range(1, RETURN_DAYS - 1), 5)
    older = rng.sample(range(RETURN_DAYS + 2, 60 + 40 * difficulty), count - 5)
    ages = sorted([*recent, *older], reverse=True)
    for place, age in enumerate(ages):
        lines = []
        for _ in range(rng.choice((1, 1, 2, 3))):
            product = shop.products.get(next(goods, 0))
            if product:
                lines.append(Line(product, rng.choice(product.colours or ("",)), rng.choice((1, 1, 1, 2, 3))))
        if not lines:
            break
        newest = count - 1 - place
        status = "Processing" if newest < 2 else "Shipped" if newest == 2 else "Delivered"
        status = "Cancelled" if newest > 4 and rng.random() < 0.15 else status
        shipping = rng.choice(sorted(SHIPPING))
        total = shop.goods(lines) + SHIPPING[shipping]
        day = shop.today - timedelta(days=age)
        address = rng.choice(shop.addresses)
        shop.orders.append(Order(number, day, lines, status, address, shipping, "", total))
        number += rng.randint(3, 90)
