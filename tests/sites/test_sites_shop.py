"""The shop: any action beyond or short of a task is detected."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from rllm_gym.envs.web.sites.errors import FormError
from rllm_gym.envs.web.sites.moves import Click, Fill, Goto, Move
from rllm_gym.envs.web.sites.shop import TEMPLATES, build
from rllm_gym.envs.web.sites.shop.state import RETURN_DAYS, Shop
from rllm_gym.envs.web.sites.task import WebTask
from tests.sites.html_walker import SiteDriver, rewarded


def _purchase_task() -> tuple[partial[Shop], WebTask]:
    """Return a task for one product without a colour, and its shop."""
    template = next(t for t in TEMPLATES if t.name == "shop/buy")
    for seed in range(100):
        build_site = partial(build, seed, 2)
        task = template.make_task(build_site(), Random(seed), 2)
        if not task.infeasible and not any(getattr(move, "name", "") == "Colour" for move in task.moves):
            return build_site, task
    raise AssertionError("no such task")


def _insert_before(task: WebTask, at: str, *more: Move) -> tuple[Move, ...]:
    """Return the solution with more moves before the click on this."""
    place = next(i for i, move in enumerate(task.moves) if getattr(move, "name", "").startswith(at))
    return (*task.moves[:place], *more, *task.moves[place:])


def test_side_effects_of_a_purchase_count() -> None:
    build_site, task = _purchase_task()
    shop = build_site()
    bought = next(move.text for move in task.moves if isinstance(move, Fill))
    other = next(p for p in shop.products.values() if not p.colours and shop.left(p) > 1 and p.name != bought)
    add = (Goto(f"http://shop.test/product/{other.number}"), Click("button", "Add to basket"))
    assert rewarded(build_site, task, task.moves)
    # Another item in the order, in the basket afterwards, on the wish list, or the whole order twice.
    back = Goto("http://shop.test/basket")
    assert not rewarded(build_site, task, _insert_before(task, "Go to checkout", *add, back))
    assert not rewarded(build_site, task, (*task.moves, *add))
    wish = (Goto(f"http://shop.test/product/{other.number}"), Click("button", "Add to wish list"))
    assert (other.number in shop.wishes) or not rewarded(build_site, task, (*task.moves, *wish))
    assert not rewarded(build_site, task, (*task.moves, Goto("http://shop.test/"), *task.moves))
    # A coupon that was not requested, and one that is refused, which changes nothing.
    valid = next(c.code for c in shop.coupons.values() if c.last >= shop.today)
    late = next(c.code for c in shop.coupons.values() if c.last < shop.today)
    for code, right in ((valid, False), (late, True), ("NOSUCH", True)):
        enter = Fill("Coupon code", code), Click("button", "Apply coupon")
        assert rewarded(build_site, task, _insert_before(task, "Go to checkout", *enter)) is right, code
    # Visiting other pages changes nothing.
    detour = Goto("http://shop.test/orders"), Goto("http://shop.test/search?q=pro&sort=price&page=2"), back
    assert rewarded(build_site, task, _insert_before(task, "Go to checkout", *detour))


def test_an_order_keeps_its_address_after_the_address_is_changed_back() -> None:
    shop, copy = build(1, 1), build(1, 1)
    product = next(p for p in shop.products.values() if not p.colours and shop.left(p) > 1)
    address = shop.addresses[0]
    for one in (shop, copy):
        one.add(product.number, "", 1)
    copy.place_order(address.label, "Standard")
    shop.change_address(address.label, replace(address, street="1 Elsewhere"))
    shop.place_order(address.label, "Standard")
    shop.change_address(address.label, address)
    assert shop.facts() != copy.facts()


def test_the_shop_respects_its_stock_and_its_terms() -> None:
    shop = build(1, 2)
    product = next(p for p in shop.products.values() if not p.colours and 2 < shop.left(p) < 20)
    left = shop.left(product)
    with pytest.raises(FormError, match=f"Only {left} of"):
        shop.add(product.number, "", left + 1)
    shop.add(product.number, "", left)
    with pytest.raises(FormError, match="Only"):
        shop.add(product.number, "", 1)
    order = shop.place_order(shop.addresses[0].label, "Express")
    assert order.total == product.price * left + 1250
    with pytest.raises(FormError, match="sold out"):
        shop.add(product.number, "", 1)
    shop.cancel(order.number)
    assert shop.left(product) == left
    coloured = next(p for p in shop.products.values() if p.colours)
    with pytest.raises(FormError, match="Choose a colour"):
        shop.add(coloured.number, "Purple", 1)
    sent = next(o for o in shop.orders if o.status == "Shipped")
    with pytest.raises(FormError, match="cannot be cancelled: it is shipped"):
        shop.cancel(sent.number)
    old = next(o for o in shop.orders if o.status == "Delivered" and (shop.today - o.day).days > RETURN_DAYS)
    with pytest.raises(FormError, match="only within 30 days"):
        shop.request_return(old.number, old.lines[0].product.number, old.lines[0].colour, "Wrong item")


def test_difficulty_makes_the_shop_larger() -> None:
    sizes = [len(build(0, difficulty).products) for difficulty in (1, 2, 3, 4, 5)]
    assert sizes == sorted(set(sizes))
    for difficulty in (1, 5):
        shop = build(0, difficulty)
        for category in shop.categories:  # or "the cheapest" would be ambiguous
            prices = [p.price for p in shop.products.values() if p.category == category]
            assert len(prices) == len(set(prices))
        assert len({p.name for p in shop.products.values()}) == len(shop.products)


def test_filters_and_pages_show_each_product_once() -> None:
    shop = build(2, 3)
    category = shop.categories[0]
    expected = [
        p.name
        for p in sorted(shop.products.values(), key=lambda p: p.price)
        if p.category == category and p.rating >= 30 and shop.left(p)
    ]
    driver = SiteDriver(shop, f"http://shop.test/category/{category.lower()}?stars=3&available=1&sort=price")
    shown: list[str] = []
    while True:
        shown += [node.text for node in driver.page.walk() if node.tag == "h3"]
        if not any(node.text == "Next ›" for node in driver.page.walk() if node.tag == "a"):
            break
        driver.do(Click("link", "Next ›"))
    assert shown == expected
