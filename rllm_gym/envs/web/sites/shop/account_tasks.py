"""The shop's tasks about orders, reviews, the wish list and addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from rllm_gym.envs.web.sites.shop.account import ShopApp
from rllm_gym.envs.web.sites.shop.catalogue import Product
from rllm_gym.envs.web.sites.shop.generate import CITIES, STREETS, build
from rllm_gym.envs.web.sites.shop.navigation import (
    DONE,
    START_URL,
    Moves,
    find,
    look_alike,
    open_order,
    pick,
)
from rllm_gym.envs.web.sites.shop.state import (
    RETURN_REASONS,
    Address,
    Order,
    Shop,
)
from rllm_gym.envs.web.sites.task import Click, Fill, Move, ReportInfeasible, Select, WebTask
from rllm_gym.envs.web.sites.wording import long_date, people

# Orders


def cancel(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a task: cancel one of two unsent orders. If the order has been shipped, the task is infeasible."""
    open_orders = [order for order in shop.orders if order.status == "Processing"]
    late = [order for order in shop.orders if order.status in ("Shipped", "Delivered")][-3:]
    impossible = rng.random() < 0.25
    order = rng.choice(late if impossible else open_orders)
    other = next(o for o in open_orders if o is not order)
    product = rng.choice(order.lines).product
    goal = rng.choice(
        [
            "Cancel the order that contains the {name}.",
            "I no longer need the {name} I ordered: cancel that order, and no other.",
            "Cancel my order of {day} with the {name} in it.",
        ]
    ).format(name=product.name, day=long_date(order.day))
    cancel_button = Click("button", "Cancel order")
    if impossible:
        return WebTask(
            goal=goal,
            start=START_URL,
            infeasible=True,
            moves=(*open_order(shop, order), ReportInfeasible(f"the order is {order.status.lower()}")),
            wrong_moves=(*open_order(shop, other), cancel_button, DONE),
        )
    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=lambda site: site.cancel(order.number),
        moves=(*open_order(shop, order), cancel_button, DONE),
        wrong_moves=(*open_order(shop, other), cancel_button, DONE),
    )


def send_back(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a task: return a product of an order for a reason. After thirty days, the task is infeasible."""
    recent = [order for order in shop.orders if shop.returnable(order)]
    old = [order for order in shop.orders if order.status == "Delivered" and not shop.returnable(order)]
    impossible = bool(old) and rng.random() < 0.25
    order = rng.choice(old if impossible else recent)
    line = rng.choice(order.lines)
    reason, wrong_reason = rng.sample(RETURN_REASONS, 2)
    name = line.product.name
    goal = rng.choice(
        [
            "Ask for a return of the {name} I bought. The reason is “{reason}”.",
            "I want to send back the {name} (reason: “{reason}”). Ask the shop for that return.",
            "Return the {name} from my order {number} with the reason “{reason}”.",
        ]
    ).format(name=name, reason=reason, number=order.number)

    def give_back(order: Order, name: str, reason: str) -> Moves:
        return (
            *open_order(shop, order),
            Click("button", "Return", within=name),
            Select("Reason", reason),
            Click("button", "Ask for return"),
        )

    if impossible:
        other = recent[0]
        return WebTask(
            goal=goal,
            start=START_URL,
            infeasible=True,
            moves=(*open_order(shop, order), ReportInfeasible("the time for returns is over")),
            wrong_moves=(*give_back(other, other.lines[0].product.name, reason), DONE),
        )
    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=lambda site: site.request_return(order.number, line.product.number, line.colour, reason),
        moves=(*give_back(order, name, reason), DONE),
        wrong_moves=(*give_back(order, name, wrong_reason), DONE),
    )


# Reviews, wish list, addresses

TITLES = ("Very happy", "Good value", "Not for me", "As described", "A present", "Second one already", "Mixed feelings")
TEXTS = (
    "It has been in daily use for two weeks.",
    "The packaging was simple and the product is solid.",
    "My sister liked it at once.",
    "I expected a little more for the price.",
    "The colour is different from the picture.",
    "It fits exactly where I wanted it.",
)


def review(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a task: review a delivered product. If the product was never bought, the task is infeasible."""
    bought = [line.product for order in shop.orders if order.status == "Delivered" for line in order.lines]
    ordered = {line.product.number for order in shop.orders for line in order.lines}
    impossible = rng.random() < 0.15
    product = pick(shop, rng, 1, lambda p: p.number not in ordered)[0] if impossible else rng.choice(bought)
    other = next(p for p in bought if p is not product)
    stars, wrong_stars = rng.sample((1, 2, 3, 4, 5), 2)
    title, text = rng.choice(TITLES), " ".join(rng.sample(TEXTS, 1 + difficulty // 2))
    goal = rng.choice(
        [
            "Write a review of the {name} with {stars} of 5 stars, the title “{title}” and the text “{text}”",
            "Review the {name} in the shop. Stars: {stars}. Title: “{title}”. Text: “{text}”",
        ]
    ).format(name=product.name, stars=stars, title=title, text=text)

    def write(product: Product, stars: int) -> Moves:
        return (
            *find(product),
            Click("tab", "Reviews"),
            Click("button", "Write a review"),
            Select("Stars", f"{stars} star{'s' if stars > 1 else ''}"),
            Fill("Title", title),
            Fill("Your review", text),
            Click("button", "Send review"),
        )

    if impossible:
        return WebTask(
            goal=goal,
            start=START_URL,
            infeasible=True,
            moves=(*write(product, stars), ReportInfeasible("only buyers may review")),
            wrong_moves=(*write(other, stars), DONE),
        )
    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=lambda site: site.write_review(product.number, stars, title, text),
        moves=(*write(product, stars), DONE),
        wrong_moves=(*write(product, wrong_stars), DONE),
    )


def wish_brand(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a task: add every product of a brand in one category to the wish list, and no other of that brand."""
    groups: dict[tuple[str, str], list[Product]] = {}
    for product in sorted(shop.products.values(), key=lambda p: p.number):
        groups.setdefault((product.brand, product.category), []).append(product)
    fitting = [key for key, group in groups.items() if not any(p.number in shop.wishes for p in group)]
    brand, category = min(
        rng.sample(fitting, min(4, len(fitting))), key=lambda key: abs(len(groups[key]) - (1 + difficulty))
    )
    wanted = sorted(groups[brand, category], key=lambda p: p.price)[: 2 + difficulty]
    limit = wanted[-1].price // 100 + 1
    other = look_alike(shop, wanted[0])
    extra = other if other not in wanted and other.number not in shop.wishes else None
    goal = rng.choice(
        [
            "Put every {brand} product of the category {category} that costs less than ${limit}.00 on my wish list.",
            "Add to the wish list all products by {brand} in {category} below ${limit}.00. Change nothing else there.",
        ]
    ).format(brand=brand, category=category, limit=limit)
    wanted = [p for p in groups[brand, category] if p.price < limit * 100]

    def outcome(expected: Shop) -> None:
        for product in wanted:
            expected.wish(product.number)

    add = Click("button", "Add to wish list")
    moves = [move for product in wanted for move in (*find(product), add)]
    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=outcome,
        moves=(*moves, DONE),
        wrong_moves=(*moves, *find(extra), add, DONE) if extra else (*moves[:-1], DONE),
    )


def build_with_wishes(seed: int, difficulty: int) -> ShopApp:
    """Build a shop in which some products on the wish list are sold out."""
    shop = build(seed, difficulty)
    rng = Random(f"wishes/{seed}/{difficulty}")
    for number in rng.sample(shop.wishes, 1 + difficulty // 2):
        for colour in shop.products[number].colours or ("",):
            shop.stock[number, colour] = 0
    return shop


def wish_sold_out(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a task: remove the sold-out products from the wish list."""
    gone = [number for number in shop.wishes if not shop.left(shop.products[number])]
    kept = [number for number in shop.wishes if number not in gone]
    goal = rng.choice(
        [
            "Remove everything from my wish list that is sold out, and keep the rest.",
            "My wish list has products on it that are sold out. Take all of those off the list, and only those.",
            "Clean up the wish list: whatever is sold out should go.",
        ]
    )

    def remove(numbers: Sequence[int]) -> Moves:
        return tuple(Click("button", "Remove", within=shop.products[number].name) for number in numbers)

    def outcome(expected: Shop) -> None:
        for number in gone:
            expected.unwish(number)

    wrong = remove([*gone, kept[0]] if kept else gone[:-1])
    return WebTask(
        goal=f"{goal} (The customer is {shop.user}.)",
        start=START_URL,
        outcome=outcome,
        moves=(Click("link", "Wish list"), *remove(gone), DONE),
        wrong_moves=(Click("link", "Wish list"), *wrong, DONE),
    )


def change_address(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a task: change street and postcode of one of several addresses. If it does not exist, it is infeasible."""
    address = rng.choice(shop.addresses)
    other = next(a for a in shop.addresses if a is not address)
    new = replace(
        address, street=f"{rng.randint(181, 400)} {rng.choice(STREETS)}", postcode=f"{rng.randint(10000, 99999)}"
    )
    impossible = rng.random() < 0.15
    label = "Storage" if impossible else address.label
    goal = rng.choice(
        [
            "The address “{label}” in my account is out of date: street and number are now {street}, the postcode is "
            "{code}.",
            "Change my address “{label}”: street and number “{street}”, postcode {code}. Everything else stays.",
        ]
    ).format(label=label, street=new.street, code=new.postcode)

    def edit(label: str) -> Moves:
        return (
            Click("link", "Addresses"),
            Click("link", "Edit", within=label),
            Fill("Street and number", new.street),
            Fill("Postcode", new.postcode),
            Click("button", "Save address"),
        )

    if impossible:
        return WebTask(
            goal=goal,
            start=START_URL,
            infeasible=True,
            moves=(Click("link", "Addresses"), ReportInfeasible("there is no such address")),
            wrong_moves=(*edit(address.label), DONE),
        )
    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=lambda site: site.change_address(label, new),
        moves=(*edit(label), DONE),
        wrong_moves=(*edit(other.label), DONE),
    )


def new_address(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a task: add an address and, from difficulty 2 on, make it the default."""
    name = people(rng, 1)[0] if difficulty > 2 else shop.user
    label = rng.choice(("Studio", "Grandmother", "Cabin", "Neighbour", "Garage"))
    street, city = f"{rng.randint(1, 180)} {rng.choice(STREETS)}", rng.choice(CITIES)
    address = Address(label, name, street, city, f"{rng.randint(10000, 99999)}")
    default = difficulty > 1
    goal = rng.choice(
        [
            "Add the address “{label}” to my account: {name}, {street}, {code} {city}.{default}",
            "Save a new delivery address with the label “{label}”, the name {name}, the street {street}, the city "
            "{city} and the postcode {code}.{default}",
        ]
    ).format(
        label=label,
        name=name,
        street=street,
        code=address.postcode,
        city=city,
        default=" Make it the default address." if default else " The default address stays as it is.",
    )

    def outcome(expected: Shop) -> None:
        expected.add_address(address)
        if default:
            expected.set_default(label)

    moves: list[Move] = [Click("link", "Addresses"), Click("link", "Add an address"), Fill("Label", label)]
    moves += [Fill("Name", name), Fill("Street and number", street), Fill("City", city)]
    save = Click("button", "Save address")
    make_default = Click("button", "Make default", within=label)
    right = (*moves, Fill("Postcode", address.postcode), save)
    wrong = (*moves, Fill("Postcode", address.postcode[::-1] + "0"), save, make_default)
    return WebTask(
        goal=goal,
        start=START_URL,
        outcome=outcome,
        moves=(*right, make_default, DONE) if default else (*right, DONE),
        wrong_moves=(*wrong, DONE),
    )
