"""Generates a shop with a history from a seed: stock, orders in every status, addresses, coupons and a wish list."""

from __future__ import annotations

from datetime import timedelta
from random import Random

from rllm_gym.envs.web.sites.shop.pages import ShopApp
from rllm_gym.envs.web.sites.shop.state import (
    RETURN_DAYS,
    SHIPPING,
    Address,
    Coupon,
    Order,
    OrderLine,
    Product,
    Shop,
)
from rllm_gym.envs.web.sites.wording import any_day, people

CATEGORIES = {
    "Kitchen": ("Kettle", "Toaster", "Blender", "Coffee Grinder", "Hand Mixer", "Rice Cooker"),
    "Lighting": ("Desk Lamp", "Floor Lamp", "Night Light", "Ceiling Light", "Wall Lamp", "Lantern"),
    "Garden": ("Watering Can", "Hose Reel", "Hand Trowel", "Pruning Saw", "Planter", "Bird Feeder"),
    "Office": ("Desk Organiser", "Stapler", "Label Maker", "Paper Tray", "Whiteboard", "Document Case"),
    "Travel": ("Backpack", "Suitcase", "Travel Pillow", "Toiletry Bag", "Luggage Scale", "Duffel Bag"),
    "Audio": ("Headphones", "Portable Speaker", "Soundbar", "Record Player", "Earbuds", "Microphone"),
}
BRANDS = ("Norvik", "Halden", "Brightwell", "Kasumi", "Ostara", "Tamsin", "Quillon", "Verano", "Meridian", "Lumo")
SERIES = ("Classic", "Compact", "Pro", "Plus", "Slim", "Nova", "Eco", "Urban", "Atlas", "Duo", "Terra", "Prime", "Lite")
COLOURS = ("Black", "White", "Red", "Blue", "Green", "Grey", "Yellow", "Copper")
WARRANTIES = ("1 year", "2 years", "3 years", "5 years")
ORIGINS = ("Portugal", "Sweden", "Japan", "Poland", "Mexico", "Vietnam", "Canada", "Italy")
_HARD = ("steel", "aluminium", "recycled plastic")
_SOFT = ("cotton and nylon", "canvas", "recycled polyester", "hemp")
# Possible materials, by the noun for soft products, otherwise by the category.
MATERIALS = {
    "Kitchen": (*_HARD, "ceramic", "glass"),
    "Lighting": (*_HARD, "bamboo", "oak", "ceramic"),
    "Garden": _HARD,
    "Office": (*_HARD, "bamboo", "oak"),
    "Travel": _HARD,
    "Audio": (*_HARD, "bamboo", "oak"),
    **dict.fromkeys(("Backpack", "Travel Pillow", "Toiletry Bag", "Duffel Bag", "Document Case"), _SOFT),
}

PER_CATEGORY = {1: 8, 2: 14, 3: 24, 4: 36, 5: 48}
NUMBER_OF_CATEGORIES = {1: 3, 2: 4, 3: 5, 4: 6, 5: 6}
# Descriptions. They may repeat, because no task depends on them.
BLURBS = (
    "A favourite of our customers for its simple design.",
    "Made to last, with parts that can be replaced.",
    "Small enough for any shelf.",
    "New in our range this season.",
    "Tested by our own team before it went on sale.",
)

STREETS = ("Mill Lane", "Harbour Street", "Station Road", "Linden Avenue", "Church Hill", "Market Square", "Elm Close")
CITIES = ("Ashford", "Bexley", "Carrick", "Dunmore", "Eastvale", "Fairhaven", "Glenrock", "Hollins")
LABELS = ("Home", "Office", "Parents", "Holiday flat", "Workshop")
CARDS = ("Visa", "Mastercard", "Maestro")
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


def build_with_cards(seed: int, difficulty: int) -> ShopApp:
    """Build a shop whose customer pays with one of several cards, some of which look alike."""
    shop, rng = build(seed, difficulty), Random(f"shop/cards/{seed}/{difficulty}")
    numbers = rng.sample(range(1_000, 10_000), 2 + difficulty)
    shop.cards = tuple(f"{rng.choice(CARDS)} ending in {number}" for number in numbers)
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
                lines.append(OrderLine(product, rng.choice(product.colours or ("",)), rng.choice((1, 1, 1, 2, 3))))
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


def make_products(rng: Random, difficulty: int) -> list[Product]:
    """Return the products of a shop, with their numbers in random order."""
    categories = rng.sample(sorted(CATEGORIES), NUMBER_OF_CATEGORIES[difficulty])
    count = PER_CATEGORY[difficulty]
    numbers = iter(rng.sample(range(1_000, 9_999), count * len(categories)))
    products = []
    for category in categories:
        nouns = CATEGORIES[category]
        prices = rng.sample(range(9, 240), count)
        # Neighbouring codes differ only in the last word, then in the series, which gives similar names.
        names = rng.sample(range(len(BRANDS) * len(SERIES) * len(nouns)), count)
        for code, dollars in zip(names, prices):
            noun = nouns[code % len(nouns)]
            brand = BRANDS[code // (len(SERIES) * len(nouns))]
            series = SERIES[code // len(nouns) % len(SERIES)]
            colours = tuple(rng.sample(COLOURS, rng.randint(2, 4))) if rng.random() < 0.5 else ()
            details = (
                ("Weight", f"{rng.randint(2, 95) * 50} g"),
                ("Material", rng.choice(MATERIALS.get(noun, MATERIALS[category]))),
                ("Made in", rng.choice(ORIGINS)),
                ("Warranty", rng.choice(WARRANTIES)),
            )
            products.append(
                Product(
                    number=next(numbers),
                    name=f"{brand} {series} {noun}",
                    brand=brand,
                    category=category,
                    price=dollars * 100 - rng.choice((1, 5, 10, 50)),
                    rating=rng.randint(29, 49),
                    ratings=rng.randint(3, 900),
                    colours=colours,
                    details=details,
                    blurb=rng.choice(BLURBS),
                )
            )
    return products
