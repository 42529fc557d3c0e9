"""The back office's tasks: sums, rows to find and edit, bulk changes, and refunds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from random import Random

from rllm_gym.envs.web.sites.admin.generate import build, build_with_chart
from rllm_gym.envs.web.sites.admin.pages import ORIGIN, AdminApp
from rllm_gym.envs.web.sites.admin.state import DEPARTMENTS, PLANS, REFUND_REASONS, ROLES, Customer, Employee, Invoice
from rllm_gym.envs.web.sites.admin.tables import PER_PAGE
from rllm_gym.envs.web.sites.fields import amount
from rllm_gym.envs.web.sites.moves import Click, Fill, Move, Moves, Select
from rllm_gym.envs.web.sites.people import COMPANY
from rllm_gym.envs.web.sites.task import WebTask, WebTaskTemplate, change_task, infeasible_task, question_task
from rllm_gym.envs.web.sites.wording import FIRST_NAMES, LAST_NAMES, MONTHS, listed, long_date, money, plural

START_URL = f"{ORIGIN}/"
_LEVELS = (1, 2, 3, 4, 5)
# Each row takes five steps of the thirty that an episode has by default.
_MAX_ROWS = 4

# Move sequences


def filtered(table: str, *chosen: Move) -> Moves:
    """Return the moves from any page to the filtered rows of a table."""
    return Click("link", table), *chosen, Click("button", "Filter")


def _tick(rows: Sequence[str], wanted: Sequence[str], button: str) -> Moves:
    """Return the moves that select the wanted rows page by page and press a button on each page; rows do not move."""
    moves: list[Move] = []
    turned = 0
    for page in range(-(-len(rows) // PER_PAGE)):
        share = [row for row in rows[page * PER_PAGE : (page + 1) * PER_PAGE] if row in wanted]
        if share:
            moves += [Click("link", "Next ›")] * (page - turned)
            turned = page
            moves += [Click("checkbox", f"Select {row}") for row in share]
            moves.append(Click("button", button))
    return tuple(moves)


def _edit_product(name: str, **fields: str) -> Moves:
    return (
        *filtered("Products", Fill("SKU or name", name)),
        Click("link", f"Edit {name}"),
        *(Fill(f"{label} of {name}", text) for label, text in fields.items()),
        Click("button", "Save"),
    )


def invoices_of(customer: str) -> Moves:
    return filtered("Invoices", Select("Customer", customer))


def open_invoice(app: AdminApp, invoice: Invoice) -> Moves:
    """Return the moves from any page to an invoice, via its customer."""
    customer = app.customers[invoice.customer].name
    theirs = [other for other in app.invoices.values() if other.customer == invoice.customer]
    turns = theirs.index(invoice) // PER_PAGE
    return *invoices_of(customer), *([Click("link", "Next ›")] * turns), Click("link", invoice.label)


def refund_moves(cents: int, reason: str) -> Moves:
    """Return the moves of a refund on the page of an invoice."""
    return (
        Click("button", "Refund …"),
        Fill("Amount", amount(cents)),
        Select("Reason", reason),
        Click("button", "Refund"),
    )


# Templates


def sum_invoices(app: AdminApp, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the sum of a customer's invoices with a status; from difficulty 4 on, of a period."""
    there = {invoice.status(app.today) for invoice in app.invoices.values()}
    status = rng.choice(sorted(there - {"Refunded"}))
    having = Counter(i.customer for i in app.invoices.values() if i.status(app.today) == status)
    most = 2 + 2 * difficulty
    customer = rng.choice(sorted(having, key=lambda number: abs(having[number] - most))[:3])
    found = [i for i in app.invoices.values() if i.customer == customer and i.status(app.today) == status]
    span = ""
    dates: Moves = ()
    if difficulty >= 4:
        day = rng.choice(found).issued
        found = [invoice for invoice in found if invoice.issued >= day]
        span, dates = f" and were issued on {long_date(day)} or later", (Fill("Issued from", day.isoformat()),)
    total = sum(invoice.total for invoice in found)
    name = app.customers[customer].name
    goal = rng.choice(
        (
            f"What do the invoices of {name} that have the status “{status}”{span} add up to?",
            f"Add up the totals of all invoices of {name} that are “{status}”{span}, and answer with the sum.",
        )
    )
    moves = filtered("Invoices", Select("Customer", name), Select("Status", status), *dates)
    return question_task(goal, START_URL, moves, money(total), {"type": "number", "value": amount(total)})


def list_customers(app: AdminApp, rng: Random, difficulty: int) -> WebTask:
    """Return a question about the names of the customers of a country, a plan or both."""
    rows = list(app.customers.values())
    row = rng.choice(rows)
    country = row.country
    plan = row.plan if difficulty >= 2 else ""
    active = row.active if difficulty >= 3 else None
    found = [
        other.name
        for other in rows
        if other.country == country and plan in ("", other.plan) and active in (None, other.active)
    ]
    state = "" if active is None else "active " if active else "inactive "
    on_plan = f" on the plan {plan}" if plan else ""
    goal = rng.choice(
        (
            f"Which {state}customers{on_plan} are in {country}? Answer with their names, separated by commas.",
            f"Name all {state}customers from {country}{on_plan}, with commas between the names.",
        )
    )
    chosen = [Select("Country", country)]
    chosen += [Select("Plan", plan)] if plan else []
    chosen += [Select("Status", state.strip())] if state else []
    moves = filtered("Customers", *chosen)
    return question_task(goal, START_URL, moves, ", ".join(found), {"type": "set", "value": found})


def find_product(app: AdminApp, rng: Random, difficulty: int) -> WebTask:
    """Return a question about a category's most or least expensive product; from difficulty 3 on, by stock level."""
    products = list(app.products.values())
    category = rng.choice(sorted({row.category for row in products}))
    low = rng.random() < 0.4 if difficulty >= 3 else None
    found = [row for row in products if row.category == category and low in (None, row.low)]
    if len(found) < 2:
        low, found = None, [row for row in products if row.category == category]
    found.sort(key=lambda row: row.price)
    dear = rng.random() < 0.5
    sku = found[-1 if dear else 0].sku
    stocked = "" if low is None else " and is low in stock" if low else " and is not low in stock"
    which = "most expensive" if dear else "cheapest"
    goal = rng.choice(
        (
            f"What is the SKU of the {which} product that is in the category {category}{stocked}?",
            f"Find the {which} product that belongs to {category}{stocked}, and answer with its SKU.",
        )
    )
    # The first click on a heading sorts in ascending order, the second in descending order.
    moves = (*filtered("Products", Select("Category", category)), *[Click("link", "Price")] * (1 + dear))
    return question_task(goal, START_URL, moves, sku, {"type": "string", "value": sku})


def refund(app: AdminApp, rng: Random, difficulty: int) -> WebTask:
    """Return a task: refund an amount, or the price of some pieces of a line, on a paid invoice."""
    infeasible = rng.random() < 0.15
    invoices = list(app.invoices.values())
    invoice = rng.choice([i for i in invoices if (not i.paid if infeasible else i.paid and not i.refunded)])
    name = app.customers[invoice.customer].name
    reason = rng.choice(REFUND_REASONS)
    line = rng.choice(invoice.lines)
    if difficulty >= 3:
        pieces = rng.randint(1, line.pieces)
        cents = pieces * line.price
        share = f"{pieces} of the {plural(line.pieces, 'piece')}" if pieces < line.pieces else "every piece"
        what = f"the price of {share} of “{line.product}”"
    elif difficulty == 2:
        cents = invoice.total
        what = "the whole total"
    else:
        cents = rng.randint(1, invoice.total // 100) * 100 + rng.choice((0, 25, 50)) if invoice.total > 200 else 100
        cents = min(cents, invoice.total)
        what = money(cents)
    goal = rng.choice(
        (
            f"Refund {what} on the invoice {invoice.label} of {name}, for the reason “{reason}”.",
            f"{name} gets back {what} on {invoice.label}. The reason is “{reason}”.",
        )
    )
    moves = open_invoice(app, invoice)
    if infeasible:
        goal += " If the invoice has not been paid, there is nothing to refund: say so and change nothing."
        return infeasible_task(goal, START_URL, moves, f"{invoice.label} has not been paid.")
    moves = *moves, *refund_moves(cents, reason)
    return change_task(goal, START_URL, moves, lambda site: site.refund(invoice.number, cents, reason))


def change_account(app: AdminApp, rng: Random, difficulty: int) -> WebTask:
    """Return a task: change an employee's role and, from difficulty 2 on, also the department."""
    row = _one_of_namesakes(rng, [row for row in app.employees.values() if row.email != app.me.email])
    role = rng.choice([role for role in ROLES if role != row.role])
    department = row.department
    if difficulty >= 2:
        department = rng.choice([name for name in DEPARTMENTS if name != row.department])
    goal = rng.choice((f"Give {row.name} the role {role}", f"Set the role of {row.name} to {role}"))
    goal += f" and move the account to the department {department}." if difficulty >= 2 else "."
    goal += " No other account changes."
    moves = (
        *filtered("Staff", Fill("Name or e-mail", row.name)),
        Click("link", f"Edit {row.name}"),
        Select(f"Department of {row.name}", department),
        Select(f"Role of {row.name}", role),
        Click("button", "Save"),
    )
    return change_task(
        goal, START_URL, moves, lambda site: site.update_employee(row.number, department=department, role=role)
    )


def _one_of_namesakes(rng: Random, rows: Sequence[Employee]) -> Employee:
    """Draw an employee, preferably one who shares a surname with others."""
    surnames = Counter(row.name.split()[-1] for row in rows)
    shared = [row for row in rows if surnames[row.name.split()[-1]] > 1]
    return rng.choice(shared or list(rows))


def deactivate_unused(app: AdminApp, rng: Random, difficulty: int) -> WebTask:
    """Return a task: deactivate the accounts of a department that have not been used for a long time."""
    long_ago = app.today - timedelta(days=50)

    def unused(department: str) -> list[Employee]:
        rows = [row for row in app.employees.values() if row.department == department and row.email != app.me.email]
        return [row for row in rows if row.active and row.last_seen and row.last_seen < long_ago]

    departments = [name for name in DEPARTMENTS if unused(name)]
    department = rng.choice(sorted(departments, key=lambda name: abs(len(unused(name)) - 1 - difficulty))[:2])
    # The limit is the day after one of the more recent of these sign-ins, so some accounts may be excluded.
    days = sorted({row.last_seen for row in unused(department) if row.last_seen})
    before = rng.choice(days[len(days) // 2 :]) + timedelta(days=1)
    wanted = [row for row in unused(department) if row.last_seen and row.last_seen < before]
    goal = rng.choice(
        (
            f"Deactivate every active account in {department} whose last sign-in was before {long_date(before)}.",
            f"In the department {department}, all active accounts last used before {long_date(before)} are to "
            "be deactivated.",
        )
    )
    names = [row.name for row in app.employees.values() if row.department == department]
    ticking = _tick(names, [row.name for row in wanted], "Deactivate")
    return change_task(
        f"{goal} Accounts that never signed in stay active.",
        START_URL,
        (*filtered("Staff", Select("Department", department)), *ticking),
        lambda site: site.set_employees_active([row.number for row in wanted], False),
    )


def add_account(app: AdminApp, rng: Random, difficulty: int) -> WebTask:
    names = {row.name for row in app.employees.values()}
    surname = rng.choice([row.name.split()[-1] for row in app.employees.values()] + list(LAST_NAMES[:5]))
    name = next(n for f in rng.sample(FIRST_NAMES, len(FIRST_NAMES)) if (n := f"{f} {surname}") not in names)
    email = f"{name.lower().replace(' ', '.')}@{COMPANY}"
    department, role = rng.choice(DEPARTMENTS), rng.choice(ROLES)
    infeasible = difficulty >= 2 and rng.random() < 0.15
    if infeasible:
        email = rng.choice([row.email for row in app.employees.values()])
    goal = rng.choice(
        (
            f"Add an account for {name}, {email}, in the department {department} with the role {role}.",
            f"{name} starts today: department {department}, role {role}, e-mail {email}. Add the account.",
        )
    )
    if infeasible:
        goal += " If that address belongs to somebody else already, add nobody and say so."
        return infeasible_task(goal, START_URL, filtered("Staff", Fill("Name or e-mail", email)), f"{email} is taken.")
    moves = (
        Click("link", "Staff"),
        Click("link", "Add somebody"),
        Fill("Name", name),
        Fill("E-mail", email),
        Select("Department", department),
        Select("Role", role),
        Click("button", "Add account"),
    )
    return change_task(goal, START_URL, moves, lambda site: site.add_employee(name, email, department, role))


def restock(app: AdminApp, rng: Random, difficulty: int) -> WebTask:
    """Return a task: set a new stock for every product of a category that is low in stock."""
    low = Counter(row.category for row in app.products.values() if row.low)
    category = rng.choice(sorted(low, key=lambda category: (abs(low[category] - difficulty), category))[:2])
    rows = [row for row in app.products.values() if row.category == category and row.low]
    below = ""
    if len(rows) > _MAX_ROWS:
        limit = sorted(row.price for row in rows)[_MAX_ROWS - 1] + 5
        rows = [row for row in rows if row.price < limit]
        below = f" and costs less than {money(limit)}"
    stock = rng.randrange(100, 500, 10)
    goal = rng.choice(
        (
            f"Set the stock of every product in {category} that is low in stock{below} to {stock}.",
            f"We counted again: of every product of the category {category} that the table shows as low{below} there "
            f"are exactly {stock} pieces. Enter that.",
        )
    )
    goal += " A product is low when its stock is below its reorder level. Leave prices and reorder levels."

    def outcome(expected: AdminApp) -> None:
        for row in rows:
            expected.update_product(row.number, price=row.price, stock=stock, reorder=row.reorder)

    moves = [move for row in rows for move in _edit_product(row.name, Stock=str(stock))]
    return change_task(goal, START_URL, moves, outcome)


def reprice(app: AdminApp, rng: Random, difficulty: int) -> WebTask:
    """Return a task: change prices to a new value, or by an amount."""
    rows = rng.sample(list(app.products.values()), min(_MAX_ROWS, 1 + difficulty // 2))
    orders, prices = [], []
    for row in rows:
        step = rng.randrange(50, 2_000, 25)
        by = difficulty >= 2 and rng.random() < 0.6
        prices.append(row.price + step)
        orders.append(f"{row.name} by {money(step)}" if by else f"{row.name} to {money(row.price + step)}")
    goal = rng.choice(
        (f"Raise the price of {listed(orders)}.", f"What goes up in price: {listed(orders)}. Enter that.")
    )

    def outcome(expected: AdminApp) -> None:
        for row, price in zip(rows, prices):
            expected.update_product(row.number, price=price, stock=row.stock, reorder=row.reorder)

    moves = [move for row, price in zip(rows, prices) for move in _edit_product(row.name, Price=amount(price))]
    return change_task(f"{goal} Nothing else changes.", START_URL, moves, outcome)


def mark_paid(app: AdminApp, rng: Random, difficulty: int) -> WebTask:
    """Return a task: mark invoices as paid, given by number or as a customer's overdue ones."""
    unpaid = [invoice for invoice in app.invoices.values() if not invoice.paid]
    rows = list(app.invoices.values())
    if difficulty <= 2:
        wanted = rng.sample(unpaid, min(len(unpaid), 1 + difficulty))
        goal = f"The money for {listed(sorted(invoice.label for invoice in wanted))} has come: mark them as paid."
        steps: Moves = (Click("link", "Invoices"),)
    else:
        overdue = [invoice for invoice in unpaid if invoice.status(app.today) == "Overdue"]
        customer = rng.choice([invoice.customer for invoice in overdue or unpaid])
        name = app.customers[customer].name
        wanted = [invoice for invoice in overdue or unpaid if invoice.customer == customer]
        goal = f"{name} has paid every overdue invoice, but not those that are not due yet. Mark them as paid."
        steps = invoices_of(name)
        rows = [invoice for invoice in rows if invoice.customer == customer]
    ticking = _tick([row.label for row in rows], [row.label for row in wanted], "Mark as paid")
    numbers = [invoice.number for invoice in wanted]
    return change_task(goal, START_URL, (*steps, *ticking), lambda site: site.mark_paid(numbers))


def suspend_debtors(app: AdminApp, rng: Random, difficulty: int) -> WebTask:
    """Return a task: suspend active customers with too many overdue invoices."""
    overdue = Counter(i.customer for i in app.invoices.values() if i.status(app.today) == "Overdue")
    active = {number: count for number, count in overdue.items() if app.customers[number].active}
    countries = ["", *sorted({app.customers[number].country for number in active})]
    at_least, country, wanted = next(
        (least, country, found)
        for country in rng.sample(countries, len(countries))
        for least in (2, 3, 4, 5, 1)
        if 1 <= len(found := _debtors(app, active, least, country)) <= min(_MAX_ROWS, 1 + difficulty)
    )
    where = f" in {country}" if country else ""
    debt = f"at least {'one' if at_least == 1 else at_least} overdue invoice{'s' * (at_least > 1)}"
    goal = rng.choice(
        (
            f"Suspend every active customer{where} who has {debt}.",
            f"All active customers{where} with {debt} are to be suspended.",
        )
    )
    moves = [*filtered("Invoices", Select("Status", "Overdue")), Click("link", "Customer")]
    for row in wanted:
        moves += filtered("Customers", Fill("Name, contact or e-mail", row.name))
        moves += [Click("checkbox", f"Select {row.name}"), Click("button", "Suspend")]
    numbers = [row.number for row in wanted]
    return change_task(goal, START_URL, moves, lambda site: site.set_customers_active(numbers, False))


def _debtors(app: AdminApp, active: Mapping[int, int], least: int, country: str) -> list[Customer]:
    rows = [app.customers[number] for number, count in active.items() if count >= least]
    return [row for row in rows if country in ("", row.country)]


def change_plan(app: AdminApp, rng: Random, difficulty: int) -> WebTask:
    """Return a task: change a customer's plan and, from difficulty 3 on, also the contact and address."""
    row = rng.choice(list(app.customers.values()))
    name = row.name
    plan = rng.choice([plan for plan in PLANS if plan != row.plan])
    contact, email = row.contact, row.email
    goal = f"{name} changes to the plan {plan}: enter that."
    new: list[Move] = []
    if difficulty >= 3:
        contact = f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"
        email = f"{contact.split()[0].lower()}.{contact.split()[1].lower()}@{row.email.split('@')[1]}"
        goal = f"{name} changes to the plan {plan}, and the new contact there is {contact}, {email}. Enter both."
        new = [Fill(f"Contact of {name}", contact), Fill(f"E-mail of {name}", email)]
    moves = (
        *filtered("Customers", Fill("Name, contact or e-mail", name)),
        Click("link", f"Edit {name}"),
        *new,
        Select(f"Plan of {name}", plan),
        Click("button", "Save"),
    )
    return change_task(
        goal, START_URL, moves, lambda site: site.update_customer(row.number, contact=contact, email=email, plan=plan)
    )


def best_month(app: AdminApp, rng: Random, difficulty: int) -> WebTask:
    """Return a question that a chart answers at a glance, and the filtered table of invoices by adding up."""
    months = sorted(app.months(), key=lambda month: month[1])
    which, (day, cents) = rng.choice((("largest", months[-1]), ("smallest", months[0])))
    if sum(other == cents for _, other in months) > 1:
        which, (day, cents) = "largest", months[-1]
    start, end = app.months()[0][0], app.months()[-1][0]
    span = f"from {MONTHS[start.month - 1]} {start.year} to {MONTHS[end.month - 1]} {end.year}"
    goal = rng.choice(
        (
            f"In which month, {span}, was the {which} amount invoiced in total? All invoices count, paid or not.",
            f"Add up all invoices by the month in which they were issued, {span}. Which month has the {which} sum?",
            f"Which month {span} has the {which} total of invoices, open and refunded ones included?",
        )
    )
    month = f"{MONTHS[day.month - 1]} {day.year}"
    aliases = [f"{day:%Y-%m}", f"{MONTHS[day.month - 1][:3]} {day.year}"]
    last = (day + timedelta(days=31)).replace(day=1) - timedelta(days=1)
    dates = Fill("Issued from", day.isoformat()), Fill("Issued until", last.isoformat())
    answer = {"type": "string", "value": month, "aliases": aliases}
    return question_task(f"{goal} Answer as in “May 2024”.", START_URL, filtered("Invoices", *dates), month, answer)


TEMPLATES = (
    *(
        WebTaskTemplate(f"admin/{name}", build, make_task, _LEVELS)
        for name, make_task in (
            ("sum-invoices", sum_invoices),
            ("list-customers", list_customers),
            ("find-product", find_product),
            ("refund", refund),
            ("change-account", change_account),
            ("deactivate-unused", deactivate_unused),
            ("add-account", add_account),
            ("restock", restock),
            ("reprice", reprice),
            ("mark-paid", mark_paid),
            ("suspend-debtors", suspend_debtors),
            ("change-plan", change_plan),
        )
    ),
    WebTaskTemplate("admin/best-month", build_with_chart, best_month, _LEVELS),
)
