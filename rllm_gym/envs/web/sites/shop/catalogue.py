"""The catalogue of the shop, drawn with a seed: similar product names, unique prices per category."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

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

# Texts of reviews and descriptions. They may repeat, because no task depends on them.
PRAISE = ("Does what it should.", "Well made and easy to clean.", "Would buy it again.", "Better than I expected.")
BLAME = ("Feels cheap.", "Arrived with a scratch.", "Smaller than it looks.", "Stopped working after a month.")
BLURBS = (
    "A favourite of our customers for its simple design.",
    "Made to last, with parts that can be replaced.",
    "Small enough for any shelf.",
    "New in our range this season.",
    "Tested by our own team before it went on sale.",
)


@dataclass(frozen=True, slots=True)
class Product:
    """A product.

    Attributes:
        number: Id of the product, part of its URL.
        price: Price in cents, unique in its category.
        rating: Mean rating in tenths of a star: 43 means 4.3.
        ratings: Number of ratings.
        colours: Available colours; empty if there is no choice.
        details: Rows of the specification.
    """

    number: int
    name: str
    brand: str
    category: str
    price: int
    rating: int
    ratings: int
    colours: tuple[str, ...]
    details: tuple[tuple[str, str], ...]
    blurb: str


@dataclass(frozen=True, slots=True)
class Review:
    author: str
    stars: int
    title: str
    text: str


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
