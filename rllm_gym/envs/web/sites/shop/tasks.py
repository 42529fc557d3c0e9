"""The shop's tasks: questions, buying, orders and returns, reviews, the wish list and addresses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from rllm_gym.envs.web.sites.fields import amount
from rllm_gym.envs.web.sites.moves import Click, Fill, Move, Moves, Select
from rllm_gym.envs.web.sites.shop.generate import CITIES, STREETS, build, build_with_cards
from rllm_gym.envs.web.sites.shop.pages import ORDERS_PER_PAGE, ORIGIN, ShopApp
from rllm_gym.envs.web.sites.shop.state import RETURN_REASONS, SHIPPING, Address, Order, Product, Shop, shipping_label
from rllm_gym.envs.web.sites.task import WebTask, WebTaskTemplate, change_task, infeasible_task, question_task
from rllm_gym.envs.web.sites.wording import MONTHS, listed, long_date, money, people

START_URL = f"{ORIGIN}/"
_LEVELS = (1, 2, 3, 4, 5)


# Moves and selections that the tasks share


def find(product: Product) -> Moves:
    return Fill("Search products", product.name), Click("button", "Search"), Click("link", product.name)


def put_in_basket(shop: Shop, product: Product, colour: str, quantity: int) -> Moves:
    choose = (Select("Colour", shop.colour_label(product, colour)),) if colour else ()
    return *find(product), *choose, Fill("Quantity", str(quantity)), Click("button", "Add to basket")


def check_out(in_basket: int, address: Address, shipping: str, coupon: str = "", card: str = "") -> Moves:
    enter = (Fill("Coupon code", coupon), Click("button", "Apply coupon")) if coupon else ()
    pay = (Click("radio", card), Click("button", "Use this card")) if card else ()
    return (
        Click("link", f"Basket ({in_basket})"),
        *enter,
        Click("link", "Go to checkout"),
        *pay,
        Click("radio", address.choice),
        Click("radio", shipping_label(shipping)),
        Click("button", "Place order"),
    )


def open_order(shop: Shop, order: Order) -> Moves:
    page = shop.orders[::-1].index(order) // ORDERS_PER_PAGE
    return Click("link", "Orders"), *(Click("link", "Next ›"),) * page, Click("link", str(order.number))


def available(shop: Shop, product: Product, least: int) -> list[str]:
    """Return the colours of which at least ``least`` are available."""
    return [colour for colour in product.colours or ("",) if shop.left(product, colour) >= least]


def pick(shop: Shop, rng: Random, count: int, wanted: Callable[[Product], object]) -> list[Product]:
    return rng.sample([p for n, p in sorted(shop.products.items()) if wanted(p)], count)


# Questions


def cheapest(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the cheapest product with a minimum rating, which the overall cheapest does not reach."""
    for category in rng.sample(shop.categories, len(shop.categories)):
        group = sorted((p for p in shop.products.values() if p.category == category), key=lambda p: p.price)
        least = 40 if group[0].rating < 40 else group[0].rating + 1
        good = [p for p in group if p.rating >= least]
        if good:
            break
    else:  # in every category the cheapest product is also the best rated
        least, good = group[0].rating, group
    stars, price = f"{least / 10:.1f}", good[0].price
    goal = rng.choice(
        [
            f"In the category {category}, what does the cheapest product that is rated {stars} stars or better cost?",
            f"In {category}, find the product with the lowest price among those with a rating of at least {stars}. "
            "Answer with its price in dollars.",
            f"What is the price, in dollars, of the least expensive {category} product with at least {stars} stars?",
        ]
    )
    moves = Click("link", category), Select("Sort by", "Price: low to high")
    return question_task(goal, START_URL, moves, money(price), {"type": "number", "value": amount(price)})


def count(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the number of available products up to a price and with a minimum rating."""
    category = rng.choice(shop.categories)
    group = [p for p in shop.products.values() if p.category == category]
    limit = sorted(p.price for p in group)[rng.randrange(len(group) // 2, len(group))] // 100 + 1
    stars = rng.choice((3, 4))
    found = sum(p.price <= limit * 100 and p.rating >= stars * 10 and shop.left(p) > 0 for p in group)
    goal = rng.choice(
        [
            f"How many products in {category} cost at most ${limit}, have {stars} stars or more, and are in stock?",
            f"Count the {category} products that are not sold out, cost ${limit} or less and are rated {stars}.0 or "
            "better. How many are there?",
        ]
    )
    moves = (
        Click("link", category),
        Fill("Highest price ($)", str(limit)),
        Select("Rating", f"{stars} stars and more"),
        Click("checkbox", "Only what is in stock"),
        Click("button", "Apply filters"),
    )
    return question_task(goal, START_URL, moves, str(found), {"type": "number", "value": found})


def specification(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a question about a row of the specification of a product, which is behind a tab."""
    product = rng.choice(sorted(shop.products.values(), key=lambda p: p.number))
    detail, value = rng.choice(product.details)
    questions = {
        "Weight": ("What is the weight of the {name}, in grams?", "how many grams is its weight?"),
        "Material": ("According to its specification, what is the material of the {name}?", "what is its material?"),
        "Made in": ("According to its specification, which country does the {name} come from?", "where is it made?"),
        "Warranty": ("How long is the warranty of the {name}, in years?", "how many years is its warranty?"),
    }
    phrase, short = questions[detail]
    ask = rng.choice([phrase, f"Look up the specification of the {{name}} in the shop: {short}"])
    number = value.split()[0] if detail in ("Weight", "Warranty") else None
    unit = ["g", "gram", "grams"] if detail == "Weight" else ["year", "years"]
    answer = {"type": "number", "value": number, "unit": unit} if number else {"type": "string", "value": value}
    moves = *find(product), Click("tab", "Specification")
    return question_task(ask.format(name=product.name), START_URL, moves, value, answer)


def spent(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the sum of a month's orders, excluding cancelled ones, over a list of several pages."""
    months: dict[tuple[int, int], list[Order]] = {}
    for order in shop.orders:
        months.setdefault((order.day.year, order.day.month), []).append(order)
    # Choose a month with several orders to sum and, if possible, a cancelled one.
    counted = {month: [o for o in orders if o.status != "Cancelled"] for month, orders in months.items()}
    least = min(2, max(map(len, counted.values())))
    fitting = [month for month in months if len(counted[month]) >= least]
    fullest = max(fitting, key=lambda m: (len(months[m]) > len(counted[m]), len(months[m]), m))
    total = sum(order.total for order in counted[fullest])
    when = f"{MONTHS[fullest[1] - 1]} {fullest[0]}"
    goal = rng.choice(
        [
            f"How much did I spend in this shop in {when}? Add up the totals of all orders of that month, leaving out "
            "cancelled ones.",
            f"Add the totals (shipping included) of the orders I placed in {when}, without those that were cancelled. "
            "What is the sum in dollars?",
        ]
    )
    answer = {"type": "number", "value": amount(total)}
    return question_task(goal, START_URL, [Click("link", "Orders")], money(total), answer)


# Buying and the basket


def buy(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a task: buy given quantities of one or two products. If too few are available, it is infeasible."""
    impossible = rng.random() < 0.2
    if impossible:
        wanted = [_out_of_reach(shop, rng)]
    else:
        wanted = []
        for product in pick(shop, rng, 1 if difficulty < 4 else 2, lambda p: available(shop, p, 2)):
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
    coupon = f", using the coupon code {code}" if code else ", without any coupon"
    goal = rng.choice(
        [
            f"Buy exactly {items} in one order. Have it sent to the address “{address.label}” with {shipping} "
            f"shipping{coupon}.",
            f"Please place one order: {items}, delivered to “{address.label}” by {shipping} shipping{coupon}. Order "
            "nothing else.",
            f"Place one order for {items} (address: “{address.label}”, shipping: {shipping}){coupon}.",
        ]
    )
    if impossible:
        return infeasible_task(goal, START_URL, find(wanted[0][0]), "not enough in stock")

    def outcome(expected: Shop) -> None:
        for product, colour, quantity in wanted:
            expected.add(product.number, colour, quantity)
        if code:
            expected.apply_coupon(code)
        expected.place_order(address.label, shipping)

    fill = [move for item in wanted for move in put_in_basket(shop, *item)]
    pieces = sum(quantity for _, _, quantity in wanted)
    return change_task(goal, START_URL, (*fill, *check_out(pieces, address, shipping, code)), outcome)


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
    address, shipping = rng.choice(shop.addresses), rng.choice(sorted(SHIPPING))
    in_colour = f", in the colour {colour}" if colour else ""
    goal = rng.choice(
        [
            f"Order one piece of the cheapest {category} product that has {least}.0 stars or more and is in "
            f"stock{in_colour}. Send it to “{address.label}” with {shipping} shipping, without a coupon.",
            f"I need the least expensive product in {category} that is available and rated at least "
            f"{least}.0{in_colour}: buy one, deliver to “{address.label}”, {shipping} shipping, no coupon.",
        ]
    )

    def outcome(expected: Shop) -> None:
        expected.add(product.number, colour, 1)
        expected.place_order(address.label, shipping)

    moves = (
        Click("link", category),
        Select("Rating", f"{least} stars and more"),
        Click("checkbox", "Only what is in stock"),
        Click("button", "Apply filters"),
        Select("Sort by", "Price: low to high"),
        Click("link", product.name),
        *([Select("Colour", shop.colour_label(product, colour))] if colour else []),
        Click("button", "Add to basket"),
        *check_out(1, address, shipping),
    )
    return change_task(goal, START_URL, moves, outcome)


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
            f"In my basket, change {change} and remove {names}. Leave the rest of the basket as it is and do not "
            "order.",
            f"Tidy up the basket: set {change}, and take out {names}. Do not place the order.",
        ]
    )

    def outcome(expected: Shop) -> None:
        for number, line in changed.items():
            expected.set_quantity(number, line.colour, amounts[number])
        for line in removed:
            expected.set_quantity(line.product.number, line.colour, 0)

    moves: list[Move] = [Click("link", shop.basket_label)]
    for number, line in changed.items():
        name = line.product.name
        moves += [Fill("Quantity", str(amounts[number]), within=name), Click("button", "Update", within=name)]
    moves += [Click("button", "Remove", within=line.product.name) for line in removed]
    return change_task(goal, START_URL, moves, outcome)


# Orders


def cancel(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a task: cancel one of two unsent orders. If the order has been shipped, the task is infeasible."""
    open_orders = [order for order in shop.orders if order.status == "Processing"]
    late = [order for order in shop.orders if order.status in ("Shipped", "Delivered")][-3:]
    impossible = rng.random() < 0.25
    order = rng.choice(late if impossible else open_orders)
    name = rng.choice(order.lines).product.name
    goal = rng.choice(
        [
            f"Cancel the order that contains the {name}.",
            f"I no longer need the {name} I ordered: cancel that order, and no other.",
            f"Cancel my order of {long_date(order.day)} with the {name} in it.",
        ]
    )
    moves = open_order(shop, order)
    if impossible:
        return infeasible_task(goal, START_URL, moves, f"the order is {order.status.lower()}")
    moves = *moves, Click("button", "Cancel order")
    return change_task(goal, START_URL, moves, lambda site: site.cancel(order.number))


def send_back(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a task: return a product of an order for a reason. After thirty days, the task is infeasible."""
    recent = [order for order in shop.orders if shop.returnable(order)]
    old = [order for order in shop.orders if order.status == "Delivered" and not shop.returnable(order)]
    impossible = bool(old) and rng.random() < 0.25
    order = rng.choice(old if impossible else recent)
    line = rng.choice(order.lines)
    reason, _ = rng.sample(RETURN_REASONS, 2)  # draws two, so that the goal of a seed stays the same
    name = line.product.name
    goal = rng.choice(
        [
            f"Ask for a return of the {name} I bought. The reason is “{reason}”.",
            f"I want to send back the {name} (reason: “{reason}”). Ask the shop for that return.",
            f"Return the {name} from my order {order.number} with the reason “{reason}”.",
        ]
    )
    moves = open_order(shop, order)
    if impossible:
        return infeasible_task(goal, START_URL, moves, "the time for returns is over")
    return change_task(
        goal,
        START_URL,
        (*moves, Click("button", "Return", name), Select("Reason", reason), Click("button", "Ask for return")),
        lambda site: site.request_return(order.number, line.product.number, line.colour, reason),
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
    stars, _ = rng.sample((1, 2, 3, 4, 5), 2)  # draws two, so that the goal of a seed stays the same
    title, text = rng.choice(TITLES), " ".join(rng.sample(TEXTS, 1 + difficulty // 2))
    goal = rng.choice(
        [
            f"Write a review of the {product.name} with {stars} of 5 stars, the title “{title}” and the text “{text}”",
            f"Review the {product.name} in the shop. Stars: {stars}. Title: “{title}”. Text: “{text}”",
        ]
    )
    moves = (
        *find(product),
        Click("tab", "Reviews"),
        Click("button", "Write a review"),
        Select("Stars", f"{stars} star{'s' if stars > 1 else ''}"),
        Fill("Title", title),
        Fill("Your review", text),
        Click("button", "Send review"),
    )
    if impossible:
        return infeasible_task(goal, START_URL, moves, "only buyers may review")
    return change_task(goal, START_URL, moves, lambda site: site.write_review(product.number, stars, title, text))


def wish_brand(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a task: add every product of a brand in one category to the wish list, and no other of that brand."""
    groups: dict[tuple[str, str], list[Product]] = {}
    for product in sorted(shop.products.values(), key=lambda p: p.number):
        groups.setdefault((product.brand, product.category), []).append(product)
    fitting = [key for key, group in groups.items() if not any(p.number in shop.wishes for p in group)]
    brand, category = min(
        rng.sample(fitting, min(4, len(fitting))), key=lambda key: abs(len(groups[key]) - (1 + difficulty))
    )
    group = groups[brand, category]
    limit = sorted(p.price for p in group)[: 2 + difficulty][-1] // 100 + 1
    goal = rng.choice(
        [
            f"Put every {brand} product of the category {category} that costs less than ${limit}.00 on my wish list.",
            f"Add to the wish list all products by {brand} in {category} below ${limit}.00. Change nothing else there.",
        ]
    )
    wanted = [p for p in group if p.price < limit * 100]

    def outcome(expected: Shop) -> None:
        for product in wanted:
            expected.wish(product.number)

    moves = [move for product in wanted for move in (*find(product), Click("button", "Add to wish list"))]
    return change_task(goal, START_URL, moves, outcome)


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
    goal = rng.choice(
        [
            "Remove everything from my wish list that is sold out, and keep the rest.",
            "My wish list has products on it that are sold out. Take all of those off the list, and only those.",
            "Clean up the wish list: whatever is sold out should go.",
        ]
    )

    def outcome(expected: Shop) -> None:
        for number in gone:
            expected.unwish(number)

    removing = [Click("button", "Remove", within=shop.products[number].name) for number in gone]
    moves = Click("link", "Wish list"), *removing
    return change_task(f"{goal} (The customer is {shop.user}.)", START_URL, moves, outcome)


def change_address(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a task: change street and postcode of one of several addresses. If it does not exist, it is infeasible."""
    address = rng.choice(shop.addresses)
    street, code = f"{rng.randint(181, 400)} {rng.choice(STREETS)}", f"{rng.randint(10000, 99999)}"
    new = replace(address, street=street, postcode=code)
    impossible = rng.random() < 0.15
    label = "Storage" if impossible else address.label
    goal = rng.choice(
        [
            f"The address “{label}” in my account is out of date: street and number are now {street}, the postcode is "
            f"{code}.",
            f"Change my address “{label}”: street and number “{street}”, postcode {code}. Everything else stays.",
        ]
    )
    if impossible:
        return infeasible_task(goal, START_URL, [Click("link", "Addresses")], "there is no such address")
    moves = (
        Click("link", "Addresses"),
        Click("link", "Edit", within=label),
        Fill("Street and number", street),
        Fill("Postcode", code),
        Click("button", "Save address"),
    )
    return change_task(goal, START_URL, moves, lambda site: site.change_address(label, new))


def new_address(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a task: add an address and, from difficulty 2 on, make it the default."""
    name = people(rng, 1)[0] if difficulty > 2 else shop.user
    label = rng.choice(("Studio", "Grandmother", "Cabin", "Neighbour", "Garage"))
    street, city = f"{rng.randint(1, 180)} {rng.choice(STREETS)}", rng.choice(CITIES)
    code = f"{rng.randint(10000, 99999)}"
    default = difficulty > 1
    then = " Make it the default address." if default else " The default address stays as it is."
    goal = rng.choice(
        [
            f"Add the address “{label}” to my account: {name}, {street}, {code} {city}.{then}",
            f"Save a new delivery address with the label “{label}”, the name {name}, the street {street}, the city "
            f"{city} and the postcode {code}.{then}",
        ]
    )

    def outcome(expected: Shop) -> None:
        expected.add_address(Address(label, name, street, city, code))
        if default:
            expected.set_default(label)

    moves: list[Move] = [Click("link", "Addresses"), Click("link", "Add an address"), Fill("Label", label)]
    moves += [Fill("Name", name), Fill("Street and number", street), Fill("City", city), Fill("Postcode", code)]
    moves += [Click("button", "Save address")]
    moves += [Click("button", "Make default", within=label)] if default else []
    return change_task(goal, START_URL, moves, outcome)


def pay_by_card(shop: Shop, rng: Random, difficulty: int) -> WebTask:
    """Return a task: buy a product and pay with a card, which is chosen in a frame of the checkout."""
    product = pick(shop, rng, 1, lambda p: available(shop, p, 2))[0]
    colour = rng.choice(available(shop, product, 2))
    quantity = rng.randint(1, min(4, shop.left(product, colour) - 1))
    address, shipping, card = rng.choice(shop.addresses), rng.choice(sorted(SHIPPING)), rng.choice(shop.cards)
    item = f"{quantity} × {product.name}" + (f" in {colour}" if colour else "")
    where = f"to the address “{address.label}”, with {shipping} shipping and without any coupon"
    goal = rng.choice(
        [
            f"Order {item}, to be delivered {where}. Pay with the card “{card}”.",
            f"Buy {item} and pay with the card “{card}”. Have the order delivered {where}.",
            f"Using the card “{card}”, order {item}. It goes {where}.",
        ]
    )

    def outcome(expected: Shop) -> None:
        expected.add(product.number, colour, quantity)
        expected.choose_card(card)
        expected.place_order(address.label, shipping)

    moves = *put_in_basket(shop, product, colour, quantity), *check_out(quantity, address, shipping, card=card)
    return change_task(goal, START_URL, moves, outcome)


TEMPLATES = (
    WebTaskTemplate("shop/cheapest", build, cheapest, _LEVELS),
    WebTaskTemplate("shop/count", build, count, _LEVELS),
    WebTaskTemplate("shop/specification", build, specification, _LEVELS),
    WebTaskTemplate("shop/spent", build, spent, _LEVELS),
    WebTaskTemplate("shop/buy", build, buy, _LEVELS),
    WebTaskTemplate("shop/buy-cheapest", build, buy_cheapest, _LEVELS),
    WebTaskTemplate("shop/basket", build_with_basket, basket, _LEVELS),
    WebTaskTemplate("shop/cancel", build, cancel, _LEVELS),
    WebTaskTemplate("shop/return", build, send_back, _LEVELS),
    WebTaskTemplate("shop/review", build, review, _LEVELS),
    WebTaskTemplate("shop/wish-brand", build, wish_brand, _LEVELS),
    WebTaskTemplate("shop/wish-sold-out", build_with_wishes, wish_sold_out, _LEVELS),
    WebTaskTemplate("shop/change-address", build, change_address, _LEVELS),
    WebTaskTemplate("shop/new-address", build, new_address, _LEVELS),
    WebTaskTemplate("shop/pay-by-card", build_with_cards, pay_by_card, _LEVELS),
)
