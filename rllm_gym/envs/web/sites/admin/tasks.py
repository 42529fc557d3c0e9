"""The back office's tasks: sums, rows to find and edit, bulk changes, and refunds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from random import Random

from rllm_gym.envs.web.sites.admin.generate import build
from rllm_gym.envs.web.sites.admin.pages import ORIGIN, AdminApp
from rllm_gym.envs.web.sites.admin.state import DEPARTMENTS, PLANS, REFUND_REASONS, ROLES, Customer, Employee, Invoice
from rllm_gym.envs.web.sites.admin.tables import PER_PAGE
from rllm_gym.envs.web.sites.fields import amount
from rllm_gym.envs.web.sites.people import COMPANY
from rllm_gym.envs.web.sites.task import Answer, Click, Fill, Move, ReportInfeasible, Select, WebTask, WebTaskTemplate
from rllm_gym.envs.web.sites.wording import FIRST_NAMES, LAST_NAMES, listed, long_date, money, plural

START_URL = f"{ORIGIN}/"
_LEVELS = (1, 2, 3, 4, 5)
# Each row takes five steps of the thirty that an episode has by default.
_MAX_ROWS = 4

# Move sequences


def filtered(table: str, *chosen: Move) -> tuple[Move, ...]:
    """Return the moves from any page to the filtered rows of a table."""
    return Click("link", table), *chosen, Click("button", "Filter")


def _tick(rows: Sequence[str], wanted: Sequence[str], button: str) -> tuple[Move, ...]:
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


def _edit_product(name: str, **fields: str) -> tuple[Move, ...]:
    return (
        *filtered("Products", Fill("SKU or name", name)),
        Click("link", f"Edit {name}"),
        *(Fill(f"{label} of {name}", text) for label, text in fields.items()),
        Click("button", "Save"),
    )


def invoices_of(customer: str) -> tuple[Move, ...]:
    return filtered("Invoices", Select("Customer", customer))


def open_invoice(app: AdminApp, invoice: Invoice) -> tuple[Move, ...]:
    """Return the moves from any page to an invoice, via its customer."""
    customer = app.customers[invoice.customer].name
    theirs = [other for other in app.invoices.values() if other.customer == invoice.customer]
    turns = theirs.index(invoice) // PER_PAGE
    return *invoices_of(customer), *([Click("link", "Next ›")] * turns), Click("link", invoice.label)


def refund_moves(cents: int, reason: str) -> tuple[Move, ...]:
    """Return the moves of a refund on the page of an invoice."""
    return (
        Click("button", "Refund …"),
        Fill("Amount", amount(cents)),
        Select("Reason", reason),
        Click("button", "Refund"),
    )


def _number(cents: int) -> dict[str, str]:
    return {"type": "number", "value": amount(cents)}


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
    dates: tuple[Move, ...] = ()
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
    wrong = total - found[0].total if len(found) > 1 else total + 100
    return WebTask(
        goal,
        START_URL,
        moves=(*moves, Answer(money(total))),
        wrong_moves=(*moves, Answer(money(wrong))),
        answer=_number(total),
    )


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
    chosen += [Select("Status", "active" if active else "inactive")] if active is not None else []
    moves = filtered("Customers", *chosen)
    other = next(name for name in (other.name for other in rows) if name not in found)
    wrong = found[:-1] if len(found) > 1 else [*found, other]
    return WebTask(
        goal,
        START_URL,
        moves=(*moves, Answer(", ".join(found))),
        wrong_moves=(*moves, Answer(", ".join(wrong))),
        answer={"type": "set", "value": found},
    )


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
    right, wrong = (found[-1], found[0]) if dear else (found[0], found[-1])
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
    return WebTask(
        goal,
        START_URL,
        moves=(*moves, Answer(right.sku)),
        wrong_moves=(*moves, Answer(wrong.sku if wrong is not right else f"{right.sku}0")),
        answer={"type": "string", "value": right.sku},
    )


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
    if infeasible:
        unpaid = [*open_invoice(app, invoice), Click("button", "Mark as paid")]
        return WebTask(
            f"{goal} If the invoice has not been paid, there is nothing to refund: say so and change nothing.",
            START_URL,
            moves=(*open_invoice(app, invoice), ReportInfeasible(f"{invoice.label} has not been paid.")),
            wrong_moves=(*unpaid, *refund_moves(cents, reason), Answer("done")),
            infeasible=True,
        )
    other = next(name for name in REFUND_REASONS if name != reason)
    wrong = refund_moves(cents, other) if cents < 100 else refund_moves(cents - 1, reason)
    return WebTask(
        goal,
        START_URL,
        moves=(*open_invoice(app, invoice), *refund_moves(cents, reason), Answer("done")),
        wrong_moves=(*open_invoice(app, invoice), *wrong, Answer("done")),
        outcome=lambda site: site.refund(invoice.number, cents, reason),
    )


def change_account(app: AdminApp, rng: Random, difficulty: int) -> WebTask:
    """Return a task: change an employee's role and, from difficulty 2 on, also the department."""
    rows = [row for row in app.employees.values() if row.email != app.me.email]
    row = _one_of_namesakes(rng, rows)
    role = rng.choice([role for role in ROLES if role != row.role])
    department = row.department
    if difficulty >= 2:
        department = rng.choice([name for name in DEPARTMENTS if name != row.department])
    goal = rng.choice((f"Give {row.name} the role {role}", f"Set the role of {row.name} to {role}"))
    goal += f" and move the account to the department {department}." if difficulty >= 2 else "."
    goal += " No other account changes."
    same_surname = [other for other in rows if other is not row and other.name.split()[-1] == row.name.split()[-1]]
    other = rng.choice(same_surname or [other for other in rows if other is not row])

    def moves(account: Employee) -> tuple[Move, ...]:
        return (
            *filtered("Staff", Fill("Name or e-mail", account.name)),
            Click("link", f"Edit {account.name}"),
            Select(f"Department of {account.name}", department),
            Select(f"Role of {account.name}", role),
            Click("button", "Save"),
            Answer("done"),
        )

    return WebTask(
        goal,
        START_URL,
        moves=moves(row),
        wrong_moves=moves(other),
        outcome=lambda site: site.update_employee(row.number, department=department, role=role),
    )


def _one_of_namesakes(rng: Random, rows: Sequence[Employee]) -> Employee:
    """Draw an employee, preferably one who shares a surname with others."""
    surnames = Counter(row.name.split()[-1] for row in rows)
    shared = [row for row in rows if surnames[row.name.split()[-1]] > 1]
    return rng.choice(shared or list(rows))


def deactivate_unused(app: AdminApp, rng: Random, difficulty: int) -> WebTask:
    """Return a task: deactivate the accounts of a department that have not been used for a long time."""
    me = app.me.email
    long_ago = app.today - timedelta(days=50)

    def unused(department: str) -> list[Employee]:
        return [
            row
            for row in app.employees.values()
            if row.department == department
            and row.active
            and row.last_seen
            and row.last_seen < long_ago
            and row.email != me
        ]

    departments = [name for name in DEPARTMENTS if unused(name)]
    department = rng.choice(sorted(departments, key=lambda name: abs(len(unused(name)) - 1 - difficulty))[:2])
    rows = [row for row in app.employees.values() if row.department == department]
    # The limit is the day after one of the more recent of these sign-ins, so some accounts may be excluded.
    days = sorted({row.last_seen for row in unused(department) if row.last_seen})
    before = rng.choice(days[len(days) // 2 :]) + timedelta(days=1)
    wanted = [row for row in unused(department) if row.last_seen and row.last_seen < before]
    rest = [row for row in rows if row.active and row not in wanted and row.email != me]
    goal = rng.choice(
        (
            f"Deactivate every active account in {department} whose last sign-in was before {long_date(before)}.",
            f"In the department {department}, all active accounts last used before {long_date(before)} are to "
            "be deactivated.",
        )
    )
    steps = filtered("Staff", Select("Department", department))

    def moves(chosen: Sequence[Employee]) -> tuple[Move, ...]:
        ticking = _tick([row.name for row in rows], [row.name for row in chosen], "Deactivate")
        return *steps, *ticking, Answer("done")

    def outcome(expected: AdminApp) -> None:
        expected.set_employees_active([row.number for row in wanted], False)

    return WebTask(
        f"{goal} Accounts that never signed in stay active.",
        START_URL,
        moves=moves(wanted),
        wrong_moves=moves([*wanted, rest[0]] if rest else wanted[:-1]),
        outcome=outcome,
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

    def moves(address: str, first_name: str) -> tuple[Move, ...]:
        return (
            Click("link", "Staff"),
            Click("link", "Add somebody"),
            Fill("Name", name),
            Fill("E-mail", address),
            Select("Department", department),
            Select("Role", first_name),
            Click("button", "Add account"),
        )

    if infeasible:
        other = f"{name.lower().replace(' ', '.')}@{COMPANY}"
        return WebTask(
            f"{goal} If that address belongs to somebody else already, add nobody and say so.",
            START_URL,
            moves=(*filtered("Staff", Fill("Name or e-mail", email)), ReportInfeasible(f"{email} is taken.")),
            wrong_moves=(*moves(other, role), Answer("done")),
            infeasible=True,
        )
    mistaken = next(one for one in ROLES if one != role)
    return WebTask(
        goal,
        START_URL,
        moves=(*moves(email, role), Answer("done")),
        wrong_moves=(*moves(email, mistaken), Answer("done")),
        outcome=lambda site: site.add_employee(name, email, department, role),
    )


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

    def moves(stocks: Sequence[int]) -> tuple[Move, ...]:
        editing = [move for row, pieces in zip(rows, stocks) for move in _edit_product(row.name, Stock=str(pieces))]
        return *editing, Answer("done")

    def outcome(expected: AdminApp) -> None:
        for row in rows:
            expected.update_product(row.number, price=row.price, stock=stock, reorder=row.reorder)

    added = [row.stock + stock for row in rows[:-1]] + [rows[-1].stock + stock + 1]
    return WebTask(goal, START_URL, moves=moves([stock] * len(rows)), wrong_moves=moves(added), outcome=outcome)


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
    goal += " Nothing else changes."

    def moves(cents: Sequence[int]) -> tuple[Move, ...]:
        editing = [move for row, price in zip(rows, cents) for move in _edit_product(row.name, Price=amount(price))]
        return *editing, Answer("done")

    def outcome(expected: AdminApp) -> None:
        for row, price in zip(rows, prices):
            expected.update_product(row.number, price=price, stock=row.stock, reorder=row.reorder)

    wrong = [*prices[:-1], prices[-1] + 100]
    return WebTask(goal, START_URL, moves=moves(prices), wrong_moves=moves(wrong), outcome=outcome)


def mark_paid(app: AdminApp, rng: Random, difficulty: int) -> WebTask:
    """Return a task: mark invoices as paid, given by number or as a customer's overdue ones."""
    unpaid = [invoice for invoice in app.invoices.values() if not invoice.paid]
    rows = list(app.invoices.values())
    if difficulty <= 2:
        wanted = rng.sample(unpaid, min(len(unpaid), 1 + difficulty))
        goal = f"The money for {listed(sorted(invoice.label for invoice in wanted))} has come: mark them as paid."
        steps: tuple[Move, ...] = (Click("link", "Invoices"),)
    else:
        overdue = [invoice for invoice in unpaid if invoice.status(app.today) == "Overdue"]
        customer = rng.choice([invoice.customer for invoice in overdue or unpaid])
        name = app.customers[customer].name
        wanted = [invoice for invoice in overdue or unpaid if invoice.customer == customer]
        goal = f"{name} has paid every overdue invoice, but not those that are not due yet. Mark them as paid."
        steps = invoices_of(name)
        rows = [invoice for invoice in rows if invoice.customer == customer]
    rest = [invoice for invoice in unpaid if invoice not in wanted and invoice in rows]

    def moves(chosen: Sequence[Invoice]) -> tuple[Move, ...]:
        ticking = _tick([row.label for row in rows], [row.label for row in chosen], "Mark as paid")
        return *steps, *ticking, Answer("done")

    def outcome(expected: AdminApp) -> None:
        expected.mark_paid([invoice.number for invoice in wanted])

    wrong = [*wanted, rest[0]] if rest else wanted[:-1]
    return WebTask(goal, START_URL, moves=moves(wanted), wrong_moves=moves(wrong), outcome=outcome)


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
    rest = [row for row in app.customers.values() if row.active and row not in wanted]
    where = f" in {country}" if country else ""
    debt = f"at least {'one' if at_least == 1 else at_least} overdue invoice{'s' * (at_least > 1)}"
    goal = rng.choice(
        (
            f"Suspend every active customer{where} who has {debt}.",
            f"All active customers{where} with {debt} are to be suspended.",
        )
    )

    def moves(chosen: Sequence[Customer]) -> tuple[Move, ...]:
        suspending: list[Move] = []
        for row in chosen:
            suspending += filtered("Customers", Fill("Name, contact or e-mail", row.name))
            suspending += [Click("checkbox", f"Select {row.name}"), Click("button", "Suspend")]
        looking = (*filtered("Invoices", Select("Status", "Overdue")), Click("link", "Customer"))
        return *looking, *suspending, Answer("done")

    def outcome(expected: AdminApp) -> None:
        expected.set_customers_active([row.number for row in wanted], False)

    return WebTask(goal, START_URL, moves=moves(wanted), wrong_moves=moves([*wanted[:-1], rest[0]]), outcome=outcome)


def _debtors(app: AdminApp, active: Mapping[int, int], least: int, country: str) -> list[Customer]:
    rows = [app.customers[number] for number, count in active.items() if count >= least]
    return [row for row in rows if country in ("", row.country)]


def change_plan(app: AdminApp, rng: Random, difficulty: int) -> WebTask:
    """Return a task: change a customer's plan and, from difficulty 3 on, also the contact and address."""
    row = rng.choice(list(app.customers.values()))
    plan = rng.choice([name for name in PLANS if name != row.plan])
    contact, email = row.contact, row.email
    goal = f"{row.name} changes to the plan {plan}: enter that."
    if difficulty >= 3:
        contact = f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"
        email = f"{contact.split()[0].lower()}.{contact.split()[1].lower()}@{row.email.split('@')[1]}"
        goal = f"{row.name} changes to the plan {plan}, and the new contact there is {contact}, {email}. Enter both."
    alike = [
        other for other in app.customers.values() if other != row and set(other.name.split()) & set(row.name.split())
    ]
    other = rng.choice(alike or [other for other in app.customers.values() if other != row])

    def moves(number: int) -> tuple[Move, ...]:
        name = app.customers[number].name
        new = (Fill(f"Contact of {name}", contact), Fill(f"E-mail of {name}", email)) if difficulty >= 3 else ()
        return (
            *filtered("Customers", Fill("Name, contact or e-mail", name)),
            Click("link", f"Edit {name}"),
            *new,
            Select(f"Plan of {name}", plan),
            Click("button", "Save"),
            Answer("done"),
        )

    mistaken = moves(other.number)
    return WebTask(
        goal,
        START_URL,
        moves=moves(row.number),
        wrong_moves=mistaken,
        outcome=lambda site: site.update_customer(row.number, contact=contact, email=email, plan=plan),
    )


TaskMaker = Callable[[AdminApp, Random, int], WebTask]
_MAKERS: tuple[tuple[str, TaskMaker], ...] = (
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
TEMPLATES = tuple(WebTaskTemplate(f"admin/{name}", build, make_task, _LEVELS) for name, make_task in _MAKERS)
