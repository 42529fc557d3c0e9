"""Move sequences and product selection that the shop's tasks share."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from rllm_gym.envs.web.sites.shop.account import ORDERS_PER_PAGE
from rllm_gym.envs.web.sites.shop.catalogue import Product
from rllm_gym.envs.web.sites.shop.state import (
    ORIGIN,
    Address,
    Order,
    Shop,
    shipping_label,
)
from rllm_gym.envs.web.sites.task import Answer, Click, Fill, Move, Select

START_URL = f"{ORIGIN}/"
DONE = Answer("done")
Moves = tuple[Move, ...]


def find(product: Product) -> Moves:
    return Fill("Search products", product.name), Click("button", "Search"), Click("link", product.name)


def put_in_basket(shop: Shop, product: Product, colour: str, quantity: int) -> Moves:
    choose = (Select("Colour", shop.colour_label(product, colour)),) if colour else ()
    return *find(product), *choose, Fill("Quantity", str(quantity)), Click("button", "Add to basket")


def check_out(in_basket: int, address: Address, shipping: str, coupon: str = "") -> Moves:
    enter = (Fill("Coupon code", coupon), Click("button", "Apply coupon")) if coupon else ()
    return (
        Click("link", f"Basket ({in_basket})"),
        *enter,
        Click("link", "Go to checkout"),
        Click("radio", address.choice),
        Click("radio", shipping_label(shipping)),
        Click("button", "Place order"),
    )


def open_order(shop: Shop, order: Order) -> Moves:
    page = shop.orders[::-1].index(order) // ORDERS_PER_PAGE
    return Click("link", "Orders"), *(Click("link", "Next ›"),) * page, Click("link", str(order.number))


def dollars(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02d}"


def look_alike(shop: Shop, product: Product) -> Product:
    """Return another product whose name has the most words in common with this one's."""
    words = set(product.name.split())
    others = [other for other in shop.products.values() if other is not product]
    return max(others, key=lambda p: (len(words & set(p.name.split())), p.category == product.category, p.number))


def available(shop: Shop, product: Product, least: int) -> list[str]:
    """Return the colours of which at least ``least`` are available."""
    return [colour for colour in product.colours or ("",) if shop.left(product, colour) >= least]


def pick(shop: Shop, rng: Random, count: int, wanted: Callable[[Product], object]) -> list[Product]:
    return rng.sample([p for n, p in sorted(shop.products.items()) if wanted(p)], count)
