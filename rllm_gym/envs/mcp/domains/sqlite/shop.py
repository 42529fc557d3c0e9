"""A web shop's database: customers, products, orders and their items."""

from __future__ import annotations

from collections import defaultdict
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import Any

from rllm_gym.envs.mcp.domains.sqlite.state import DatabaseState, asked, by_id, edited, executed
from rllm_gym.envs.mcp.task import Call, FinalAnswer, InfeasibleReport, ToolTask, ToolTaskTemplate
from rllm_gym.envs.mcp.wording import CITIES, MONTHS, a_day, a_today, email_of, people, words

SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL UNIQUE, city TEXT NOT NULL,
    joined_on TEXT NOT NULL);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, category TEXT NOT NULL,
    price_cents INTEGER NOT NULL, stock INTEGER NOT NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL REFERENCES customers(id),
    ordered_on TEXT NOT NULL, status TEXT NOT NULL);
CREATE TABLE order_items (order_id INTEGER NOT NULL REFERENCES orders(id),
    product_id INTEGER NOT NULL REFERENCES products(id), quantity INTEGER NOT NULL, PRIMARY KEY (order_id, product_id));
"""
CATEGORIES = {
    "garden": words("hose rake spade trowel bucket planter shears lantern"),
    "kitchen": words("kettle pan ladle grater whisk mug teapot board"),
    "office": words("stapler folder lamp notebook pen tray clip ruler"),
    "sports": words("ball racket rope mat glove helmet bottle whistle"),
    "toys": words("puzzle kite robot drum blocks marbles yo-yo doll"),
}
FINISHES = words("red blue green black white steel oak bamboo copper large small folding")
STATUSES = ("pending", "shipped", "delivered", "cancelled")
_SIZES = {1: (12, 10, 30), 2: (30, 24, 80), 3: (60, 40, 200)}


def build(seed: int, difficulty: int) -> DatabaseState:
    rng = Random(f"sqlite/shop/{seed}/{difficulty}")
    customer_count, product_count, order_count = _SIZES[difficulty]
    today = a_today(rng)
    start = today - timedelta(days=400)
    cities = rng.sample(CITIES, 3 + difficulty)
    customers = [
        {
            "id": number,
            "name": name,
            "email": email_of(name),
            "city": rng.choice(cities),
            "joined_on": a_day(rng, start - timedelta(days=300), start).isoformat(),
        }
        for number, name in enumerate(people(rng, customer_count), start=1)
    ]
    everything = [
        (f"{finish} {thing}", category)
        for category, things in CATEGORIES.items()
        for thing in things
        for finish in FINISHES
    ]
    products = [
        {
            "id": number,
            "name": name,
            "category": category,
            "price_cents": 100 * rng.randint(3, 90),  # whole units, so that percentages are whole cents
            "stock": rng.randint(0, 60),
        }
        for number, (name, category) in enumerate(rng.sample(everything, product_count), start=101)
    ]
    buyers = rng.sample(customers, customer_count * 9 // 10)  # the others have never ordered
    days = sorted(a_day(rng, start, today - timedelta(days=1)) for _ in range(order_count))
    orders = []
    items = []
    numbers = sorted(rng.sample(range(5_000, 5_000 + 2 * order_count), order_count))
    for number, day in zip(numbers, days, strict=True):
        customer = rng.choice(buyers)
        status = rng.choices(STATUSES, (2, 2, 5, 1))[0]
        orders.append({"id": number, "customer_id": customer["id"], "ordered_on": day.isoformat(), "status": status})
        for product in rng.sample(products, rng.randint(1, 3)):
            items.append({"order_id": number, "product_id": product["id"], "quantity": rng.randint(1, 4)})
    tables: dict[str, Any] = {"customers": customers, "products": products, "orders": orders, "order_items": items}
    return DatabaseState(SCHEMA, tables, today)


def _total_of(state: DatabaseState) -> dict[int, int]:
    """Return the total of each order, in cents."""
    products = by_id(state.rows["products"])
    totals: dict[int, int] = defaultdict(int)
    for item in state.rows["order_items"]:
        totals[item["order_id"]] += item["quantity"] * products[item["product_id"]]["price_cents"]
    return totals


# Questions


def count_orders(state: DatabaseState, rng: Random, difficulty: int) -> ToolTask:
    customers, orders = by_id(state.rows["customers"]), state.rows["orders"]
    example = rng.choice(orders)
    city, status = customers[example["customer_id"]]["city"], example["status"]
    found = [o for o in orders if o["status"] == status and customers[o["customer_id"]]["city"] == city]
    where = f"o.status = '{status}' AND c.city = '{city}'"
    period = ""
    if difficulty > 1:
        day = date.fromisoformat(example["ordered_on"])
        first = (day - timedelta(days=rng.randint(20, 120))).isoformat()
        last = (day + timedelta(days=rng.randint(0, 120))).isoformat()
        found = [o for o in found if first <= o["ordered_on"] <= last]
        where += f" AND o.ordered_on BETWEEN '{first}' AND '{last}'"
        period = f" and were placed from {first} to {last} (both days included)"
    if difficulty > 2:
        category = rng.choice(sorted({p["category"] for p in state.rows["products"]}))
        of_category = {p["id"] for p in state.rows["products"] if p["category"] == category}
        with_it = {i["order_id"] for i in state.rows["order_items"] if i["product_id"] in of_category}
        found = [o for o in found if o["id"] in with_it]
        where += (
            " AND EXISTS (SELECT 1 FROM order_items i JOIN products p ON p.id = i.product_id"
            f" WHERE i.order_id = o.id AND p.category = '{category}')"
        )
        period += f", and contain at least one product of the category {category}"
    goal = rng.choice(
        (
            f"How many orders of customers from {city} have the status {status}{period}? Answer with the number.",
            f"Count the orders with status {status} that belong to customers who live in {city}{period}. "
            "Give the number.",
        )
    )
    query = f"SELECT COUNT(*) FROM orders o JOIN customers c ON c.id = o.customer_id WHERE {where}"
    number = len(found)
    return ToolTask(goal, asked(query, str(number)), answer={"type": "number", "value": number})


def revenue(state: DatabaseState, rng: Random, difficulty: int) -> ToolTask:
    totals, customers = _total_of(state), by_id(state.rows["customers"])
    counted = [o for o in state.rows["orders"] if o["status"] == "delivered"]
    example = rng.choice(counted)
    month = example["ordered_on"][:7]
    found = [o for o in counted if o["ordered_on"].startswith(month)]
    where = f"o.status = 'delivered' AND o.ordered_on LIKE '{month}%'"
    by = ""
    if difficulty > 1:
        city = customers[example["customer_id"]]["city"]
        found = [o for o in found if customers[o["customer_id"]]["city"] == city]
        where += f" AND c.city = '{city}'"
        by = f" by customers from {city}"
    value = sum(totals[o["id"]] for o in found)
    name = f"{MONTHS[int(month[5:]) - 1]} {month[:4]}"
    goal = rng.choice(
        (
            f"What is the total value, in cents, of the orders placed{by} in {name} that have the status delivered? "
            "The value of an order is the sum of quantity times price over its items.",
            f"Add up quantity times price, in cents, over all items of orders{by} from {name} whose status is "
            "delivered, and answer with the sum.",
        )
    )
    query = (
        "SELECT SUM(i.quantity * p.price_cents) FROM orders o JOIN customers c ON c.id = o.customer_id "
        f"JOIN order_items i ON i.order_id = o.id JOIN products p ON p.id = i.product_id WHERE {where}"
    )
    return ToolTask(goal, asked(query, str(value)), answer={"type": "number", "value": value})


def best_customer(state: DatabaseState, rng: Random, difficulty: int) -> ToolTask:
    totals, customers = _total_of(state), by_id(state.rows["customers"])
    length = {1: 400, 2: 240, 3: 120}[difficulty]
    while True:  # until the maximum is unique
        first = (state.today - timedelta(days=rng.randint(length * 2 // 3, 400))).isoformat()
        last = (date.fromisoformat(first) + timedelta(days=length)).isoformat()
        left_out = rng.choice(STATUSES)
        spent: dict[int, int] = defaultdict(int)
        for order in state.rows["orders"]:
            if first <= order["ordered_on"] <= last and order["status"] != left_out:
                spent[order["customer_id"]] += totals[order["id"]]
        ranking = sorted(spent, key=lambda customer: (-spent[customer], customer))
        if len(ranking) > 1 and spent[ranking[0]] > spent[ranking[1]]:
            break
    winner = customers[ranking[0]]["name"]
    goal = (
        f"Which customer spent the most on orders placed from {first} to {last} (both days included), leaving out "
        f"orders with the status {left_out}? An order costs the sum of quantity times price of its items. "
        "Answer with the customer's full name."
    )
    query = (
        "SELECT c.name, SUM(i.quantity * p.price_cents) AS spent FROM orders o "
        "JOIN customers c ON c.id = o.customer_id JOIN order_items i ON i.order_id = o.id "
        f"JOIN products p ON p.id = i.product_id WHERE o.ordered_on BETWEEN '{first}' AND '{last}' "
        f"AND o.status <> '{left_out}' GROUP BY c.id ORDER BY spent DESC LIMIT 5"
    )
    return ToolTask(goal, asked(query, winner), answer={"type": "string", "value": winner})


def never_ordered(state: DatabaseState, rng: Random, difficulty: int) -> ToolTask:
    customers = state.rows["customers"]
    while True:
        city = rng.choice(sorted({c["city"] for c in customers}))
        since = (state.today - timedelta(days=rng.randint(30, 400))).isoformat()
        active = {o["customer_id"] for o in state.rows["orders"] if o["ordered_on"] >= since}
        of_city = [c for c in customers if c["city"] == city]
        names = sorted(c["name"] for c in of_city if c["id"] not in active)
        if 1 <= len(names) <= 3 * difficulty and len(names) < len(of_city):
            break
    goal = rng.choice(
        (
            f"Which customers from {city} have placed no order on or after {since}? Answer with their full names.",
            f"Give the full names of all customers living in {city} without a single order dated {since} or later.",
        )
    )
    query = (
        f"SELECT name FROM customers WHERE city = '{city}' AND id NOT IN "
        f"(SELECT customer_id FROM orders WHERE ordered_on >= '{since}')"
    )
    return ToolTask(goal, asked(query, ", ".join(names)), answer={"type": "set", "value": names})


# Edits


def change_prices(state: DatabaseState, rng: Random, difficulty: int) -> ToolTask:
    category = rng.choice(sorted({p["category"] for p in state.rows["products"]}))
    percent = rng.choice((5, 10, 15, 20, 25, 30))
    up = rng.random() < 0.5
    where, condition = f"category = '{category}'", f"of the category {category}"
    chosen = [p for p in state.rows["products"] if p["category"] == category]
    if difficulty > 1:
        limit = sorted(p["stock"] for p in chosen)[len(chosen) // 2]
        chosen = [p for p in chosen if p["stock"] >= limit]
        where += f" AND stock >= {limit}"
        condition += f" with at least {limit} in stock"
    if difficulty > 2:
        most = sorted(p["price_cents"] for p in chosen)[len(chosen) * 2 // 3] + 50
        chosen = [p for p in chosen if p["price_cents"] < most]
        where += f" AND price_cents < {most}"
        condition += f" that now cost less than {most} cents"
    factor = 100 + percent if up else 100 - percent
    goal = rng.choice(
        (
            f"{'Raise' if up else 'Lower'} the price of every product {condition} by {percent} percent. "
            "Change nothing else.",
            f"Prices of products {condition} {'go up' if up else 'go down'} by {percent} %: update only them.",
        )
    )

    def outcome(state: DatabaseState, workspace: Path) -> None:
        for product in chosen:
            values = (product["price_cents"] * factor // 100, product["id"])
            state.database.execute("UPDATE products SET price_cents = ? WHERE id = ?", values)

    change = f"UPDATE products SET price_cents = price_cents * {factor} / 100 WHERE"
    return ToolTask(goal, edited(f"{change} {where}"), outcome)


def delete_cancelled(state: DatabaseState, rng: Random, difficulty: int) -> ToolTask:
    orders = state.rows["orders"]
    # A small shop may have no cancelled orders.
    status = "cancelled" if any(o["status"] == "cancelled" for o in orders) else orders[0]["status"]
    some = [o for o in orders if o["status"] == status]
    example = rng.choice(some)
    before = (date.fromisoformat(example["ordered_on"]) + timedelta(days=rng.randint(1, 30))).isoformat()
    where, of_whom = f"status = '{status}' AND ordered_on < '{before}'", ""
    chosen = [o["id"] for o in some if o["ordered_on"] < before]
    if difficulty > 1:
        customers = by_id(state.rows["customers"])
        city = customers[example["customer_id"]]["city"]
        chosen = [o["id"] for o in some if o["id"] in chosen and customers[o["customer_id"]]["city"] == city]
        where += f" AND customer_id IN (SELECT id FROM customers WHERE city = '{city}')"
        of_whom = f" of customers from {city}"
    goal = (
        f"Delete all {status} orders{of_whom} that were placed before {before}, together with their items. "
        "Everything else stays as it is."
    )

    def outcome(state: DatabaseState, workspace: Path) -> None:
        for number in chosen:
            state.database.execute("DELETE FROM order_items WHERE order_id = ?", (number,))
            state.database.execute("DELETE FROM orders WHERE id = ?", (number,))

    of_order = "DELETE FROM order_items WHERE order_id IN (SELECT id FROM orders WHERE"
    return ToolTask(goal, edited(f"{of_order} {where})", f"DELETE FROM orders WHERE {where}"), outcome)


def add_order(state: DatabaseState, rng: Random, difficulty: int) -> ToolTask:
    customer = rng.choice(state.rows["customers"])
    chosen = [(p, rng.randint(1, 5)) for p in rng.sample(state.rows["products"], difficulty)]
    number = max(o["id"] for o in state.rows["orders"]) + 1
    today = state.today.isoformat()
    wishes = ", ".join(f"{quantity} x {product['name']}" for product, quantity in chosen)
    goal = (
        f"{customer['name']} ({customer['email']}) has ordered by telephone: {wishes}. Enter the order with the next "
        f"free order id (the highest one plus 1), dated {today}, with the status pending, and take the pieces off the "
        "stock of the products; stock may go below zero."
    )
    statements = [f"INSERT INTO orders VALUES ({number}, {customer['id']}, '{today}', 'pending')"]
    for product, quantity in chosen:
        statements.append(f"INSERT INTO order_items VALUES ({number}, {product['id']}, {quantity})")
        statements.append(f"UPDATE products SET stock = stock - {quantity} WHERE id = {product['id']}")

    look = Call("read_query", {"query": f"SELECT * FROM customers WHERE email = '{customer['email']}'"})
    return ToolTask(goal, (look, *edited(*statements)), executed(statements))


def mark_delivered(state: DatabaseState, rng: Random, difficulty: int) -> ToolTask:
    """Create a task; half of these orders do not exist or belong to another customer."""
    orders, customers = state.rows["orders"], by_id(state.rows["customers"])
    order, _ = rng.sample([order for order in orders if order["status"] != "delivered"], 2)
    feasible, by_owner = rng.random() < 0.5, rng.random() < 0.5
    number = order["id"]
    if by_owner:
        owner = order["customer_id"]
        if not feasible:
            owner = rng.choice([customer for customer in customers if customer != owner])
        goal = (
            f"Set the status of order {number} to delivered, provided that it is an order of "
            f"{customers[owner]['name']}. If it is somebody else's, this cannot be done."
        )
    else:
        if not feasible:  # a gap within the range of numbers if there is one, else beyond it
            taken = {other["id"] for other in orders}
            number = rng.choice([n for n in range(orders[0]["id"], orders[-1]["id"] + 40) if n not in taken])
        goal = rng.choice(
            (
                f"Order {number} has arrived: set its status to delivered.",
                f"Please mark order {number} as delivered (column status).",
            )
        )
    query = f"SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer_id WHERE o.id = {number}"
    look, change = Call("read_query", {"query": query}), "UPDATE orders SET status = 'delivered' WHERE id ="
    if not feasible:
        reason = f"There is no such order {number}."
        return ToolTask(goal, (look, InfeasibleReport(reason)), infeasible=True)

    def outcome(state: DatabaseState, workspace: Path) -> None:
        state.database.execute("UPDATE orders SET status = 'delivered' WHERE id = ?", (number,))

    right = Call("write_query", {"query": f"{change} {number}"})
    return ToolTask(goal, (look, right, FinalAnswer()), outcome)


TEMPLATES = (
    ToolTaskTemplate("sqlite/count-orders", build, count_orders),
    ToolTaskTemplate("sqlite/revenue", build, revenue),
    ToolTaskTemplate("sqlite/best-customer", build, best_customer),
    ToolTaskTemplate("sqlite/never-ordered", build, never_ordered),
    ToolTaskTemplate("sqlite/change-prices", build, change_prices),
    ToolTaskTemplate("sqlite/delete-orders", build, delete_cancelled),
    ToolTaskTemplate("sqlite/add-order", build, add_order),
    ToolTaskTemplate("sqlite/mark-delivered", build, mark_delivered),
)
