"""The shop's tasks about buying and the basket."""

from __future__ import annotations

from random import Random

from rllm_gym.envs.web.sites.shop.account import ShopApp
from rllm_gym.envs.web.sites.shop.catalogue import Product
from rllm_gym.envs.web.sites.shop.generate import build
from rllm_gym.envs.web.sites.shop.navigation import (
    DONE,
    START_URL,
    available,
    check_out,
    find,
    look_alike,
    pick,
    put_in_basket,
)
from rllm_gym.envs.web.sites.shop.state import (
    SHIPPING,
    Shop,
)
from rllm_gym.envs.web.sites.task import Click, Fill, Move, ReportInfeasible, Select, WebTask
from rllm_gym.envs.web.sites.wording import listed


def buy(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a task: buy given quantities of one or two products. If too few are available, it is infeasible."""
    several = 1 if difficulty < 4 else 2
    impossible = rng.random() < 0.2
    if impossible:
        product, colour, quantity = _out_of_reach(shop, rng)
        wanted = [(product, colour, quantity)]
    else:
        products = pick(shop, rng, several, lambda p: available(shop, p, 2))
        wanted = []
        for product in products:
            colour = rng.choice(available(shop, product, 2))
            wanted.append((product, colour, rng.randint(1, min(4, shop.left(product, colour) - 1))))
    address = (
        rng.choice(shop.addresses)
        if difficulty > 1
        else next(a for a in shop.addresses if a.label == shop.default_address)
    )
    shipping = rng.choice(sorted(SHIPPING)) if difficulty > 1 else "Standard"
    valid = [coupon.code for coupon in shop.coupons.values() if coupon.last >= shop.today]
    code = rng.choice(valid) if difficulty > 2 else ""
    items = listed([f"{n} × {p.name}" + (f" in {c}" if c else "") for p, c, n in wanted])
    goal = rng.choice(
        [
            "Buy exactly {items} in one order. Have it sent to the address “{address}” with {shipping} "
            "shipping{coupon}.",
            "Please place one order: {items}, delivered to “{address}” by {shipping} shipping{coupon}. Order "
            "nothing else.",
            "Place one order for {items} (address: “{address}”, shipping: {shipping}){coupon}.",
        ]
    ).format(
        items=items,
        address=address.label,
        shipping=shipping,
        coupon=f", using the coupon code {code}" if code else ", without any coupon",
    )
    if impossible:
        other = pick(shop, rng, 1, lambda p: p is not product and available(shop, p, 1))[0]
        instead = put_in_basket(shop, other, available(shop, other, 1)[0], 1)
        return WebTask(
            goal=goal,
            start=START_URL,
            infeasible=True,
            moves=(*find(product), ReportInfeasible("not enough in stock")),
            wrong_moves=(*instead, *check_out(1, address, shipping), DONE),
        )

    def outcome(expected: Shop) -> None:
        for product, colour, quantity in wanted:
            expected.add(product.number, colour, quantity)
        if code:
            expected.apply_coupon(code)
        expected.place_order(address.label, shipping)

    fill = [move for item in wanted for move in put_in_basket(shop, *item)]
    pieces = sum(quantity for _, _, quantity in wanted)
    first, colour, quantity = wanted[0]
    too_many = [*put_in_basket(shop, first, colour, quantity + 1), *fill[len(put_in_basket(shop, *wanted[0])) :]]
    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=outcome,
        moves=(*fill, *check_out(pieces, address, shipping, code), DONE),
        wrong_moves=(*too_many, *check_out(pieces + 1, address, shipping, code), DONE),
    )


def _out_of_reach(shop: Shop, rng: Random) -> tuple[Product, str, int]:
    """Return a product, colour and quantity of which the shop has too few or none."""
    scarce = [
        (product, colour, left)
        for _, product in sorted(shop.products.items())
        for colour in product.colours or ("",)
        if (left := shop.left(product, colour)) < 6
    ]
    product, colour, left = rng.choice(scarce)
    return product, colour, left + rng.randint(1, 2)


def buy_cheapest(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a task: buy the cheapest available product with a minimum rating, not the cheapest of its category."""
    for category in rng.sample(shop.categories, len(shop.categories)):
        group = sorted((p for p in shop.products.values() if p.category == category), key=lambda p: p.price)
        least = rng.choice((3, 4))
        good = [p for p in group if p.rating >= least * 10 and shop.left(p)]
        if good and good[0] is not group[0]:
            break
    else:  # in every category the cheapest product qualifies: use it
        good = [p for p in group if shop.left(p)]
        least = 2
    product = good[0]
    colour = max(product.colours, key=lambda c: (shop.left(product, c), c)) if product.colours else ""
    wrong = next((p for p in group if p is not product and shop.left(p)), look_alike(shop, product))
    address, shipping = rng.choice(shop.addresses), rng.choice(sorted(SHIPPING))
    goal = rng.choice(
        [
            "Order one piece of the cheapest {category} product that has {least}.0 stars or more and is in "
            "stock{colour}. Send it to “{address}” with {shipping} shipping, without a coupon.",
            "I need the least expensive product in {category} that is available and rated at least {least}.0{colour}: "
            "buy one, deliver to “{address}”, {shipping} shipping, no coupon.",
        ]
    ).format(
        category=category,
        least=least,
        colour=f", in the colour {colour}" if colour else "",
        address=address.label,
        shipping=shipping,
    )
    wrong_colour = (available(shop, wrong, 1) or [""])[0]

    def outcome(expected: Shop) -> None:
        expected.add(product.number, colour, 1)
        expected.place_order(address.label, shipping)

    choose = (Select("Colour", shop.colour_label(product, colour)),) if colour else ()
    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=outcome,
        moves=(
            Click("link", category),
            Select("Rating", f"{least} stars and more"),
            Click("checkbox", "Only what is in stock"),
            Click("button", "Apply filters"),
            Select("Sort by", "Price: low to high"),
            Click("link", product.name),
            *choose,
            Click("button", "Add to basket"),
            *check_out(1, address, shipping),
            DONE,
        ),
        wrong_moves=(*put_in_basket(shop, wrong, wrong_colour, 1), *check_out(1, address, shipping), DONE),
    )


def build_with_basket(seed: int, difficulty: int) -> ShopApp:
    """Build a shop whose basket already contains a few products."""
    shop = build(seed, difficulty)
    rng = Random(f"basket/{seed}/{difficulty}")
    for product in pick(shop, rng, 2 + difficulty, lambda p: available(shop, p, 6)):
        shop.add(product.number, rng.choice(available(shop, product, 6)), rng.randint(1, 3))
    return shop


def basket(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a task: change quantities in the basket and remove products, without buying anything."""
    lines = rng.sample(shop.basket, len(shop.basket))
    changed = {line.product.number: line for line in lines[: 1 + difficulty // 3]}
    removed = lines[len(changed) : len(changed) + 1 + difficulty // 4]
    amounts = {number: line.quantity % 5 + 1 for number, line in changed.items()}
    change = listed([f"the quantity of {line.product.name} to {amounts[n]}" for n, line in changed.items()])
    names = listed([line.product.name for line in removed])
    goal = rng.choice(
        [
            "In my basket, change {change} and remove {names}. Leave the rest of the basket as it is and do not order.",
            "Tidy up the basket: set {change}, and take out {names}. Do not place the order.",
        ]
    ).format(change=change, names=names)

    def outcome(expected: Shop) -> None:
        for number, line in changed.items():
            expected.set_quantity(number, line.colour, amounts[number])
        for line in removed:
            expected.set_quantity(line.product.number, line.colour, 0)

    open_basket = Click("link", shop.basket_label)
    sets: list[Move] = []
    for number, line in changed.items():
        name = line.product.name
        sets += [Fill("Quantity", str(amounts[number]), within=name), Click("button", "Update", within=name)]
    takes = [Click("button", "Remove", within=line.product.name) for line in removed]
    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=outcome,
        moves=(open_basket, *sets, *takes, DONE),
        wrong_moves=(open_basket, *takes, *sets[:-1], DONE),
    )
