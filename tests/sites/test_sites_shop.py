"""The shop: every errand can be done, and whatever is done beyond it or short of it is seen."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from rllm_gym.sites.errors import FormError
from rllm_gym.sites.shop import TEMPLATES
from rllm_gym.sites.shop.state import RETURN_DAYS, Shop, build
from rllm_gym.sites.task import Click, Fill, Goto, Move, WebTask
from tests.sites.html_walker import Walker, rewarded
from tests.sites.task_checks import FEW_SEEDS, MANY_SEEDS, check_task, share_of_today


def test_the_solution_is_rewarded_and_a_near_miss_is_not() -> None:
    check_task(TEMPLATES, FEW_SEEDS)


@pytest.mark.long
def test_the_solution_of_many_seeds() -> None:
    check_task(TEMPLATES, share_of_today(MANY_SEEDS, 25))


def _buying() -> tuple[partial[Shop], WebTask]:
    """An errand of one product without a colour, and the shop it is in."""
    template = next(t for t in TEMPLATES if t.name == "shop/buy")
    for seed in range(100):
        world = partial(build, seed, 2)
        task = template.make_task(world(), Random(seed), 2)
        if not task.infeasible and not any(getattr(move, "name", "") == "Colour" for move in task.moves):
            return world, task
    raise AssertionError("no such errand")


def _with(errand: WebTask, at: str, *more: Move) -> tuple[Move, ...]:
    """The way with more moves before the click on this."""
    place = next(i for i, move in enumerate(errand.moves) if getattr(move, "name", "").startswith(at))
    return (*errand.moves[:place], *more, *errand.moves[place:])


def test_what_is_done_beside_a_purchase_counts() -> None:
    world, task = _buying()
    shop = world()
    bought = next(move.text for move in task.moves if isinstance(move, Fill))
    other = next(p for p in shop.products.values() if not p.colours and shop.left(p) > 1 and p.name != bought)
    add = (Goto(f"http://shop.test/product/{other.number}"), Click("button", "Add to basket"))
    assert rewarded(world, task, task.moves)
    # Something else in the order, in the basket afterwards, on the wish list, or the whole order twice.
    back = Goto("http://shop.test/basket")
    assert not rewarded(world, task, _with(task, "Go to checkout", *add, back))
    assert not rewarded(world, task, (*task.moves, *add))
    wish = (Goto(f"http://shop.test/product/{other.number}"), Click("button", "Add to wish list"))
    assert (other.number in shop.wishes) or not rewarded(world, task, (*task.moves, *wish))
    assert not rewarded(world, task, (*task.moves, Goto("http://shop.test/"), *task.moves))
    # A coupon nobody asked for, and one that is refused, which changes nothing.
    valid = next(c.code for c in shop.coupons.values() if c.last >= shop.today)
    late = next(c.code for c in shop.coupons.values() if c.last < shop.today)
    for code, right in ((valid, False), (late, True), ("NOSUCH", True)):
        enter = Fill("Coupon code", code), Click("button", "Apply coupon")
        assert rewarded(world, task, _with(task, "Go to checkout", *enter)) is right, code
    # Wandering about on the way does no harm.
    wander = Goto("http://shop.test/orders"), Goto("http://shop.test/search?q=pro&sort=price&page=2"), back
    assert rewarded(world, task, _with(task, "Go to checkout", *wander))


def test_an_address_changed_back_after_the_order_is_still_seen_in_the_order() -> None:
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


def test_the_shop_keeps_to_its_stock_and_its_terms() -> None:
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
        for category in shop.categories:  # or "the cheapest" would not be one
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
    walker = Walker(shop, f"http://shop.test/category/{category.lower()}?stars=3&available=1&sort=price")
    shown: list[str] = []
    while True:
        shown += [node.text for node in walker.page.walk() if node.tag == "h3"]
        if not any(node.text == "Next ›" for node in walker.page.walk() if node.tag == "a"):
            break
        walker.do(Click("link", "Next ›"))
    assert shown == expected
