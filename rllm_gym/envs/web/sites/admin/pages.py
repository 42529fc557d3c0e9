"""The pages of the back office: an overview, four tables, new staff, and invoices with refunds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from rllm_gym.envs.web.sites import pages
from rllm_gym.envs.web.sites.admin.state import (
    DEPARTMENTS,
    PLANS,
    REFUND_REASONS,
    ROLES,
    Customer,
    Employee,
    Invoice,
    Office,
    Product,
)
from rllm_gym.envs.web.sites.admin.tables import Column, Table
from rllm_gym.envs.web.sites.errors import FormError, NotFound
from rllm_gym.envs.web.sites.fields import amount, cents_of, day_or
from rllm_gym.envs.web.sites.markup import Content, Markup, h, url
from rllm_gym.envs.web.sites.pages import Frame, HtmlPage, form
from rllm_gym.envs.web.sites.site import LinkedSiteApp, Redirect, Site, Visit, whole_number
from rllm_gym.envs.web.sites.wording import MONTHS, long_date, money, plural, short_date

ORIGIN = "http://admin.test"
_LOOK = pages.read_style(__file__)
STATUSES = ("Open", "Overdue", "Paid", "Refunded")
_TONES = {"Open": "", "Overdue": ".bad", "Paid": ".good", "Refunded": ".warn"}

_CHART = Markup(
    "<script>(() => {const canvas = document.getElementById('chart'), bars = JSON.parse(canvas.dataset.bars);"
    "const pen = canvas.getContext('2d'), step = canvas.width / bars.length;"
    "const most = Math.max(1, ...bars.map(bar => bar.cents));pen.textAlign = 'center';pen.font = '13px sans-serif';"
    "bars.forEach((bar, i) => {const height = 225 * bar.cents / most;pen.fillStyle = '#a34708';"
    "pen.fillRect(i * step + step / 6, 240 - height, step * 2 / 3, height);pen.fillStyle = '#222';"
    "pen.fillText(bar.label, (i + .5) * step, 260);});canvas.addEventListener('click', e => {"
    "const bar = bars[Math.floor(e.offsetX / canvas.clientWidth * bars.length)];"
    "if (bar) location.assign(bar.href);});})()</script>"
)


def _frame(app: AdminApp) -> Frame:
    return Frame(
        name="Backroom",
        colour="#a34708",
        navigation=(
            ("Overview", "/"),
            ("Customers", "/customers"),
            ("Staff", "/staff"),
            ("Products", "/products"),
            ("Invoices", "/invoices"),
            *app.neighbours,
        ),
        today=app.today,
        user=app.me.name,
        wide=True,
        style=_LOOK,
    )


site: Site[AdminApp] = Site(ORIGIN, _frame)


@dataclass
class AdminApp(LinkedSiteApp, Office):
    """The back office with its pages."""

    routes = site


@site.get("/")
def overview(app: AdminApp, visit: Visit) -> HtmlPage:
    overdue = sum(invoice.status(app.today) == "Overdue" for invoice in app.invoices.values())
    figures = (
        ("Active customers", sum(row.active for row in app.customers.values()), "/customers"),
        ("Active staff", sum(row.active for row in app.employees.values()), "/staff"),
        ("Products low in stock", sum(row.low for row in app.products.values()), "/products?low=1"),
        ("Overdue invoices", overdue, "/invoices?status=Overdue"),
    )
    cards = [
        h("section.card", h("p.large", number), h("p", h("a", label, href=path))) for label, number, path in figures
    ]
    return HtmlPage("Overview", [h("div.totals", cards), _chart(app) if app.has_chart else None])


def _chart(app: AdminApp) -> list[Markup]:
    """Return a chart on a canvas; a click on a bar leads to the invoices of its month, as their filter does."""
    bars = [
        {
            "label": f"{MONTHS[day.month - 1][:3]} {day.year}",
            "cents": cents,
            "href": url("/invoices", since=day, until=_last_day(day)),
        }
        for day, cents in app.months()
    ]
    label = "Invoiced per month, a bar chart. A click on a bar shows the invoices of its month."
    canvas = h("canvas", id="chart", width=760, height=270, aria_label=label, data_bars=json.dumps(bars))
    return [h("section.card", h("h2", "Invoiced per month"), canvas), _CHART]


def _last_day(first: date) -> date:
    return (first + timedelta(days=31)).replace(day=1) - timedelta(days=1)


def _active(row: Customer | Employee) -> Markup:
    return h("span.badge.good", "active") if row.active else h("span.badge", "inactive")


def _date(day: date) -> Markup:
    return h("span.once", short_date(day))


def _says(text: str, *cells: str) -> bool:
    return all(word in " ".join(cells).lower() for word in text.lower().split()[:20])


def _filters(path: str, shown: Mapping[str, str], sort: str, *fields: Content) -> Markup:
    return form(
        path,
        *fields,
        pages.hidden("sort", sort) if sort else None,
        h("div.buttons", pages.button("Filter"), pages.link_button("Reset", path)),
        method="get",
    )


def _bulk(label: str, act: str) -> Markup:
    return pages.button(label, tone="quiet", name="act", value=act)


def _any(options: Iterable[str]) -> list[tuple[str, str]]:
    return [("", "any"), *((option, option) for option in options)]


def _back(visit: Visit, path: str) -> str:
    """Return the table page from which a form was sent, never a URL of another site."""
    back = visit.form.get("back", "")
    return back if re.fullmatch(re.escape(path) + r"(\?[^\\\r\n]*)?", back) else path


def _ticked(visit: Visit) -> list[int]:
    numbers = [number for value in visit.values("row") if (number := whole_number(value)) is not None]
    if not numbers:
        raise FormError("No row was selected.")
    return numbers


# Customers

CUSTOMERS = Table(
    "/customers",
    "customer",
    (
        Column("number", "No.", numeric=True),
        Column("name", "Name"),
        Column("contact", "Contact", edit=True),
        Column("email", "E-mail", edit=True),
        Column("country", "Country"),
        Column("plan", "Plan", sort=lambda row: PLANS.index(row.plan), edit=PLANS),
        Column("since", "Since", cell=lambda row: _date(row.since)),
        Column("active", "Status", sort=lambda row: not row.active, cell=_active),
    ),
    title=lambda row: row.name,
    bulk=(_bulk("Suspend", "suspend"), _bulk("Reactivate", "reactivate")),
)


@site.get("/customers")
def customers(app: AdminApp, visit: Visit) -> HtmlPage:
    shown = {name: visit.asked(name) for name in ("text", "country", "plan", "status")}
    rows = [
        row
        for row in app.customers.values()
        if _says(shown["text"], row.name, row.contact, row.email)
        and shown["country"] in ("", row.country)
        and shown["plan"] in ("", row.plan)
        and shown["status"] in ("", "active" if row.active else "inactive")
    ]
    countries = sorted({row.country for row in app.customers.values()})
    filters = _filters(
        "/customers",
        shown,
        visit.asked("sort", 20),
        pages.field("Name, contact or e-mail", "text", shown["text"]),
        pages.choice("Country", "country", _any(countries), shown["country"], key="filter"),
        pages.choice("Plan", "plan", _any(PLANS), shown["plan"], key="filter"),
        pages.choice("Status", "status", _any(("active", "inactive")), shown["status"], key="filter"),
    )
    return HtmlPage("Customers", CUSTOMERS.render(rows, visit, shown), aside=filters)


@site.post("/customers/bulk")
def change_customers(app: AdminApp, visit: Visit) -> Redirect:
    active = visit.line("act", "What to do") == "reactivate"
    count = app.set_customers_active(_ticked(visit), active)
    done = "reactivated" if active else "suspended"
    return Redirect(_back(visit, "/customers"), f"{plural(count, 'customer')} {done}.")


@site.post("/customers/<int:number>")
def save_customer(app: AdminApp, visit: Visit, number: int) -> Redirect:
    app.update_customer(
        number,
        contact=visit.line("contact", "The contact"),
        email=visit.line("email", "The e-mail address"),
        plan=visit.line("plan", "The plan"),
    )
    return Redirect(_back(visit, "/customers"), f"{app.customers[number].name} was saved.")


# Staff

STAFF = Table(
    "/staff",
    "account",
    (
        Column("name", "Name"),
        Column("email", "E-mail"),
        Column("department", "Department", edit=DEPARTMENTS),
        Column("role", "Role", sort=lambda row: ROLES.index(row.role), edit=ROLES),
        Column(
            "seen",
            "Last sign-in",
            sort=lambda row: row.last_seen or date.min,
            cell=lambda row: _date(row.last_seen) if row.last_seen else "never",
        ),
        Column("active", "Status", sort=lambda row: not row.active, cell=_active),
    ),
    title=lambda row: row.name,
    bulk=(
        _bulk("Deactivate", "deactivate"),
        _bulk("Activate", "activate"),
        h("select", [h("option", role, value=role) for role in ROLES], name="new_role", aria_label="New role"),
        _bulk("Set role", "role"),
    ),
)


@site.get("/staff")
def staff(app: AdminApp, visit: Visit) -> HtmlPage:
    shown = {name: visit.asked(name) for name in ("text", "department", "role", "status")}
    rows = [
        row
        for row in app.employees.values()
        if _says(shown["text"], row.name, row.email)
        and shown["department"] in ("", row.department)
        and shown["role"] in ("", row.role)
        and shown["status"] in ("", "active" if row.active else "inactive")
    ]
    filters = _filters(
        "/staff",
        shown,
        visit.asked("sort", 20),
        pages.field("Name or e-mail", "text", shown["text"]),
        pages.choice("Department", "department", _any(DEPARTMENTS), shown["department"], key="filter"),
        pages.choice("Role", "role", _any(ROLES), shown["role"], key="filter"),
        pages.choice("Status", "status", _any(("active", "inactive")), shown["status"], key="filter"),
    )
    adding = pages.link_button("Add somebody", "/staff/new", tone="")
    return HtmlPage("Staff", STAFF.render(rows, visit, shown), aside=filters, actions=adding)


@site.get("/staff/new")
def new_employee(app: AdminApp, visit: Visit) -> HtmlPage:
    body = form(
        "/staff/new",
        h(
            "div.two",
            pages.field("Name", "name"),
            pages.field("E-mail", "email", type="email"),
            pages.choice("Department", "department", DEPARTMENTS),
            pages.choice("Role", "role", ROLES),
        ),
        pages.button("Add account"),
        class_="card",
    )
    return HtmlPage("Add somebody", body, trail=(("Staff", "/staff"),))


@site.post("/staff/new")
def add_employee(app: AdminApp, visit: Visit) -> Redirect:
    employee = app.add_employee(
        visit.line("name", "The name"),
        visit.line("email", "The e-mail address"),
        visit.line("department", "The department"),
        visit.line("role", "The role"),
    )
    return Redirect(url("/staff", text=employee.email), f"{employee.name} was added.")


@site.post("/staff/bulk")
def change_staff(app: AdminApp, visit: Visit) -> Redirect:
    act, numbers = visit.line("act", "What to do"), _ticked(visit)
    if act == "role":
        role = visit.line("new_role", "The role")
        count, done = app.set_roles(numbers, role), f"given the role {role}"
    elif act in ("activate", "deactivate"):
        count, done = app.set_employees_active(numbers, act == "activate"), f"{act}d"
    else:
        raise FormError(f"Accounts cannot be {act[:40]!r}.")
    return Redirect(_back(visit, "/staff"), f"{plural(count, 'account')} {done}.")


@site.post("/staff/<int:number>")
def save_employee(app: AdminApp, visit: Visit, number: int) -> Redirect:
    department, role = visit.line("department", "The department"), visit.line("role", "The role")
    app.update_employee(number, department=department, role=role)
    return Redirect(_back(visit, "/staff"), f"{app.employees[number].name} was saved.")


# Products


def _stock(row: Product) -> Content:
    return [h("span.badge.warn", "low"), f" {row.stock}"] if row.low else row.stock


PRODUCTS = Table(
    "/products",
    "product",
    (
        Column("sku", "SKU"),
        Column("name", "Name"),
        Column("category", "Category"),
        Column(
            "price",
            "Price",
            cell=lambda row: money(row.price),
            edit=True,
            text=lambda row: amount(row.price),
            numeric=True,
        ),
        Column("stock", "Stock", cell=_stock, edit=True, numeric=True),
        Column("reorder", "Reorder level", edit=True, numeric=True),
    ),
    title=lambda row: row.name,
)


@site.get("/products")
def products(app: AdminApp, visit: Visit) -> HtmlPage:
    shown = {name: visit.asked(name) for name in ("text", "category", "low")}
    rows = [
        row
        for row in app.products.values()
        if _says(shown["text"], row.sku, row.name)
        and shown["category"] in ("", row.category)
        and (row.low or not shown["low"])
    ]
    categories = sorted({row.category for row in app.products.values()})
    filters = _filters(
        "/products",
        shown,
        visit.asked("sort", 20),
        pages.field("SKU or name", "text", shown["text"]),
        pages.choice("Category", "category", _any(categories), shown["category"], key="filter"),
        pages.checkbox("Only what is low in stock", "low", checked=bool(shown["low"])),
    )
    return HtmlPage("Products", PRODUCTS.render(rows, visit, shown), aside=filters)


@site.post("/products/<int:number>")
def save_product(app: AdminApp, visit: Visit, number: int) -> Redirect:
    app.update_product(
        number,
        price=cents_of(visit.line("price", "The price"), "The price"),
        stock=visit.number("stock", "The stock", low=0, high=1_000_000),
        reorder=visit.number("reorder", "The reorder level", low=0, high=1_000_000),
    )
    return Redirect(_back(visit, "/products"), f"{app.products[number].name} was saved.")


# Invoices


@dataclass(frozen=True)
class _Shown:
    """An invoice as a row of its table."""

    invoice: Invoice
    number: int
    customer: str
    issued: date
    due: date
    total: int
    status: str


INVOICES = Table(
    "/invoices",
    "invoice",
    (
        Column("number", "No.", cell=lambda row: h("a", row.invoice.label, href=f"/invoice/{row.number}")),
        Column("customer", "Customer"),
        Column("issued", "Issued", cell=lambda row: _date(row.issued)),
        Column("due", "Due", cell=lambda row: _date(row.due)),
        Column("total", "Total", cell=lambda row: money(row.total), numeric=True),
        Column("status", "Status", cell=lambda row: h(f"span.badge{_TONES[row.status]}", row.status)),
    ),
    title=lambda row: row.invoice.label,
    bulk=(_bulk("Mark as paid", "paid"),),
)


@site.get("/invoices")
def invoices(app: AdminApp, visit: Visit) -> HtmlPage:
    shown = {name: visit.asked(name) for name in ("customer", "status", "since", "until")}
    since, until = day_or(shown["since"], date.min), day_or(shown["until"], date.max)
    everything = [
        _Shown(i, i.number, app.customers[i.customer].name, i.issued, i.due, i.total, i.status(app.today))
        for i in app.invoices.values()
    ]
    rows = [
        row
        for row in everything
        if since <= row.issued <= until
        and shown["customer"] in ("", str(row.invoice.customer))
        and shown["status"] in ("", row.status)
    ]
    names = sorted((row.name, str(row.number)) for row in app.customers.values())
    filters = _filters(
        "/invoices",
        shown,
        visit.asked("sort", 20),
        pages.choice(
            "Customer", "customer", [("", "any"), *((number, name) for name, number in names)], shown["customer"]
        ),
        pages.choice("Status", "status", _any(STATUSES), shown["status"]),
        pages.field("Issued from", "since", shown["since"], type="date"),
        pages.field("Issued until", "until", shown["until"], type="date"),
    )
    return HtmlPage("Invoices", INVOICES.render(rows, visit, shown), aside=filters)


@site.post("/invoices/bulk")
def change_invoices(app: AdminApp, visit: Visit) -> Redirect:
    count = app.mark_paid(_ticked(visit))
    return Redirect(_back(visit, "/invoices"), f"{plural(count, 'invoice')} marked as paid.")


@site.get("/invoice/<int:number>")
def show_invoice(app: AdminApp, visit: Visit, number: int) -> HtmlPage:
    invoice = app.invoices.get(number)
    if invoice is None:
        raise NotFound(f"There is no invoice {number}.")
    customer = app.customers[invoice.customer]
    lines = [(line.product, line.pieces, money(line.price), money(line.pieces * line.price)) for line in invoice.lines]
    details = [
        ("Customer", customer.name),
        ("Issued", long_date(invoice.issued)),
        ("Due", long_date(invoice.due)),
        ("Status", invoice.status(app.today)),
        ("Total", money(invoice.total)),
    ]
    if invoice.refunded:
        details.append(("Refunded", f"{money(invoice.refunded)}, {invoice.reason}"))
    body = [
        pages.card(pages.described(details)),
        pages.table(("Product", "Pieces", "Price", "Sum"), lines, numeric=(1, 2, 3)),
    ]
    return HtmlPage(invoice.label, body, trail=(("Invoices", "/invoices"),), actions=_invoice_actions(invoice))


def _invoice_actions(invoice: Invoice) -> Markup | None:
    if not invoice.paid:
        return pages.post_button(
            "Mark as paid", f"/invoice/{invoice.number}/paid", confirm=f"Was {invoice.label} paid?"
        )
    if invoice.refunded:
        return None
    refunding = form(
        f"/invoice/{invoice.number}/refund",
        pages.field("Amount", "amount", hint=f"At most {money(invoice.total)}."),
        pages.choice("Reason", "reason", REFUND_REASONS),
        pages.button("Refund"),
    )
    return pages.dialog("refunding", "Refund …", f"Refund {invoice.label}", refunding)


@site.post("/invoice/<int:number>/paid")
def pay(app: AdminApp, visit: Visit, number: int) -> Redirect:
    app.mark_paid([number])
    return Redirect(f"/invoice/{number}", "The invoice was marked as paid.")


@site.post("/invoice/<int:number>/refund")
def refund(app: AdminApp, visit: Visit, number: int) -> Redirect:
    cents = cents_of(visit.line("amount", "The amount"))
    app.refund(number, cents, visit.line("reason", "The reason"))
    return Redirect(f"/invoice/{number}", f"{money(cents)} was refunded.")
