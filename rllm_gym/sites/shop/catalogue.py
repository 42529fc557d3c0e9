"""What the shop sells: products whose names differ in a word, each price once in its category, drawn from a seed."""

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
# What a thing may be made of, by its noun where it is soft, else by its category.
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

# Reviews and the words of descriptions: nothing depends on them, so they may repeat.
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
    """Something for sale.

    Attributes:
        number: Identifies it; part of its address.
        price: In cents; no two products of a category have the same.
        rating: Mean of its ratings in tenths of a star: 43 is 4.3.
        ratings: How many people rated it.
        colours: What a buyer chooses from; empty where there is no choice.
        details: Rows of its specification.
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
    """The products of a shop, their numbers in no order."""
    categories = rng.sample(sorted(CATEGORIES), NUMBER_OF_CATEGORIES[difficulty])
    count = PER_CATEGORY[difficulty]
    numbers = iter(rng.sample(range(1_000, 9_999), count * len(categories)))
    products = []
    for category in categories:
        nouns = CATEGORIES[category]
        prices = rng.sample(range(9, 240), count)
        # Neighbours in this numbering differ in the last word only, then in the series: names that look alike.
        names = rng.sample(range(len(BRANDS) * len(SERIES) * len(nouns)), count)
        for code, whole in zip(names, prices):
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
                    price=whole * 100 - rng.choice((1, 5, 10, 50)),
                    rating=rng.randint(29, 49),
                    ratings=rng.randint(3, 900),
                    colours=colours,
                    details=details,
                    blurb=rng.choice(BLURBS),
                )
            )
    return products
