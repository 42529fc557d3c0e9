"""Generates a back office from a seed: similarly named firms, staff with unused accounts, products and invoices."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from random import Random

from rllm_gym.envs.web.sites.admin.pages import AdminApp
from rllm_gym.envs.web.sites.admin.state import (
    DEPARTMENTS,
    PLANS,
    REFUND_REASONS,
    ROLES,
    Customer,
    Employee,
    Invoice,
    InvoiceLine,
    Product,
)
from rllm_gym.envs.web.sites.people import Person, a_workday, staff
from rllm_gym.envs.web.sites.wording import people

FIRMS = (
    "Alpine", "Baltic", "Cedar", "Dune", "Eastgate", "Fjord", "Granite", "Horizon", "Island", "Jade", "Kestrel",
    "Lakeside", "Maple", "Nordic", "Orchard", "Pacific",
)  # fmt: skip
TRADES = ("Bakery", "Books", "Clinic", "Design", "Foods", "Hotels", "Logistics", "Motors", "Optics", "School", "Studio")
COUNTRIES = ("Austria", "Brazil", "Canada", "Denmark", "Ghana", "Italy", "Japan", "Portugal")
MATERIALS = ("Ash", "Bamboo", "Copper", "Cotton", "Glass", "Linen", "Oak", "Steel", "Walnut", "Wool")
GOODS = {
    "Furniture": ("chair", "desk", "shelf", "stool"),
    "Lighting": ("ceiling lamp", "desk lamp", "floor lamp"),
    "Kitchen": ("bowl", "carafe", "tray"),
    "Textiles": ("blanket", "cushion", "curtain"),
    "Storage": ("basket", "box", "hanger"),
}


def build(seed: int, difficulty: int) -> AdminApp:
    """Build tables of 12 to 40 rows at difficulty 1, of 40 to 100 rows at difficulty 5."""
    rng = Random(f"admin {difficulty} {seed}")
    me, *others = staff(rng, 12 + 7 * difficulty)
    app = AdminApp(a_workday(rng), me)
    fill(app, rng, difficulty, others)
    return app


def build_with_chart(seed: int, difficulty: int) -> AdminApp:
    """Build tables and, on the overview, a chart of what was invoiced."""
    app = build(seed, difficulty)
    app.has_chart = True
    return app


def fill(app: AdminApp, rng: Random, difficulty: int, others: Sequence[Person]) -> None:
    """Add rows to empty tables. ``others`` are further members of the staff."""
    app.customers = _customers(rng, app.today, 8 + 6 * difficulty)
    app.products = _products(rng, 12 + 10 * difficulty)
    accounts = [_employee(rng, app.today, number, person) for number, person in enumerate(others, 2)]
    mine = Employee(1, app.me.name, app.me.email, "Finance", "Admin", app.today)
    app.employees = {row.number: row for row in sorted([mine, *accounts], key=lambda row: row.name)}
    app.invoices = _invoices(rng, app, 26 + 15 * difficulty)


def _customers(rng: Random, today: date, count: int) -> dict[int, Customer]:
    names = rng.sample([f"{firm} {trade}" for firm in FIRMS for trade in TRADES], count)
    contacts = people(rng, count)
    first = rng.randint(100, 500)
    return {
        number: Customer(
            number,
            name,
            contact,
            f"{contact.split()[0].lower()}@{name.lower().replace(' ', '')}.test",
            rng.choice(COUNTRIES),
            rng.choice(PLANS),
            today - timedelta(days=rng.randint(100, 2_000)),
            active=rng.random() < 0.85,
        )
        for number, (name, contact) in enumerate(zip(names, contacts), first)
    }


def _employee(rng: Random, today: date, number: int, person: Person) -> Employee:
    # Some have not signed in for months, some never; the first two are unused accounts that are still active.
    forgotten = number <= 3
    ago = (
        rng.randint(60, 500)
        if forgotten
        else rng.choices((rng.randint(0, 20), rng.randint(60, 500), None), (60, 33, 7))[0]
    )
    return Employee(
        number,
        person.name,
        person.email,
        rng.choice(DEPARTMENTS),
        rng.choices(ROLES, (4, 4, 2, 1))[0],
        None if ago is None else today - timedelta(days=ago),
        active=forgotten or rng.random() < 0.88,
    )


def _products(rng: Random, count: int) -> dict[int, Product]:
    names = [
        (f"{material} {good}", category)
        for category, goods in GOODS.items()
        for good in goods
        for material in MATERIALS
    ]
    # Prices are unique, so that "the most expensive one" is unambiguous.
    prices = rng.sample(range(300, 60_000, 5), count)
    products = {}
    for number, ((name, category), price) in enumerate(zip(rng.sample(names, count), prices), 1):
        reorder = rng.randrange(5, 60, 5)
        # The first product is low in stock, so that there is always one to reorder.
        stock = rng.randint(0, reorder - 1) if number == 1 or rng.random() < 0.25 else rng.randint(reorder, 300)
        sku = f"{category[:2].upper()}-{1000 + number * 7 + rng.randrange(7)}"
        products[number] = Product(number, sku, name, category, price, stock, reorder)
    return products


def _invoices(rng: Random, app: AdminApp, count: int) -> dict[int, Invoice]:
    customers, products = list(app.customers), list(app.products.values())
    frequent = rng.sample(customers, min(len(customers), 6))
    days = sorted((rng.randint(1, 200) for _ in range(count)), reverse=True)
    first = rng.randint(1_000, 8_000)
    invoices = {}
    for number, ago in enumerate(days, first):
        sold = rng.sample(products, rng.randint(1, 4))
        lines = tuple(InvoiceLine(product.name, rng.randint(1, 12), product.price) for product in sold)
        issued = app.today - timedelta(days=ago)
        paid = rng.random() < 0.55
        total = sum(line.pieces * line.price for line in lines)
        refunded = rng.choice((total, total // 2)) if paid and rng.random() < 0.12 else 0
        invoices[number] = Invoice(
            number,
            rng.choice(frequent if rng.random() < 0.6 else customers),
            issued,
            issued + timedelta(days=rng.choice((14, 30, 45))),
            lines,
            paid=paid,
            refunded=refunded,
            reason=rng.choice(REFUND_REASONS) if refunded else "",
        )
    return invoices
