"""The state of the back office: tables of customers, staff, products and invoices, and the changes to their rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Any

from rllm_gym.envs.web.sites.errors import FormError
from rllm_gym.envs.web.sites.people import Person

PLANS = ("Basic", "Team", "Business")
DEPARTMENTS = ("Design", "Engineering", "Finance", "Marketing", "Sales", "Support")
ROLES = ("Viewer", "Editor", "Manager", "Admin")
REFUND_REASONS = ("Damaged in transit", "Duplicate charge", "Late delivery", "Wrong item")


@dataclass(frozen=True)
class Customer:
    number: int
    name: str
    contact: str
    email: str
    country: str
    plan: str
    since: date
    active: bool = True


@dataclass(frozen=True)
class Employee:
    number: int
    name: str
    email: str
    department: str
    role: str
    last_seen: date | None
    active: bool = True


@dataclass(frozen=True)
class Product:
    number: int
    sku: str
    name: str
    category: str
    price: int
    stock: int
    reorder: int

    @property
    def low(self) -> bool:
        """Whether the stock is below the reorder level."""
        return self.stock < self.reorder


@dataclass(frozen=True)
class InvoiceLine:
    """A line of an invoice; the price is in cents per piece."""

    product: str
    pieces: int
    price: int


@dataclass(frozen=True)
class Invoice:
    """An invoice.

    Attributes:
        number: Number, as in ``INV-2041``.
        customer: Number of the customer.
        issued: Date of issue.
        due: Due date.
        lines: The lines of the invoice.
        paid: Whether it is paid.
        refunded: Refunded amount in cents.
        reason: Reason of the refund, or "".
    """

    number: int
    customer: int
    issued: date
    due: date
    lines: tuple[InvoiceLine, ...]
    paid: bool = False
    refunded: int = 0
    reason: str = ""

    @property
    def total(self) -> int:
        """The total in cents."""
        return sum(line.pieces * line.price for line in self.lines)

    @property
    def label(self) -> str:
        return f"INV-{self.number}"

    def status(self, today: date) -> str:
        """Return "Paid", "Open", "Overdue", or "Refunded" if any amount was refunded."""
        if self.refunded:
            return "Refunded"
        if self.paid:
            return "Paid"
        return "Overdue" if self.due < today else "Open"


@dataclass
class Office:
    """The state of the site: tables by number.

    Attributes:
        today: The fixed current date.
        me: The signed-in administrator.
        has_chart: Whether the overview shows a chart.
    """

    today: date
    me: Person
    customers: dict[int, Customer] = field(default_factory=dict)
    employees: dict[int, Employee] = field(default_factory=dict)
    products: dict[int, Product] = field(default_factory=dict)
    invoices: dict[int, Invoice] = field(default_factory=dict)
    has_chart: bool = False

    def facts(self) -> dict[str, list[list[Any]]]:
        """Return every cell that can be changed, of every row. Sorting, filtering and paging change nothing."""
        return {
            "customers": [
                [row.number, row.contact, row.email, row.country, row.plan, row.active]
                for row in self.customers.values()
            ],
            "employees": [
                [row.name, row.email, row.department, row.role, row.active] for row in self.employees.values()
            ],
            "products": [[row.number, row.price, row.stock, row.reorder] for row in self.products.values()],
            "invoices": [[row.number, row.paid, row.refunded, row.reason] for row in self.invoices.values()],
        }

    def months(self) -> list[tuple[date, int]]:
        """Return the first day of each complete month since the first invoice, and the cents invoiced in it."""
        first = min(invoice.issued for invoice in self.invoices.values())
        months = {(d.year, d.month): 0 for d in (first + timedelta(n) for n in range((self.today - first).days))}
        for invoice in self.invoices.values():
            if (month := (invoice.issued.year, invoice.issued.month)) in months:
                months[month] += invoice.total
        complete = [month for month in months if month not in {(d.year, d.month) for d in (first, self.today)}]
        return [(date(*month, 1), months[month]) for month in complete]

    def update_customer(self, number: int, *, contact: str, email: str, plan: str) -> None:
        customer = _row(self.customers, number, "customer")
        _one_of("plan", plan, PLANS)
        self.customers[number] = replace(customer, contact=contact, email=_address(email), plan=plan)

    def set_customers_active(self, numbers: Iterable[int], active: bool) -> int:
        """Suspend or reactivate customers and return the number of changed rows."""
        rows = [_row(self.customers, number, "customer") for number in dict.fromkeys(numbers)]
        self.customers.update({row.number: replace(row, active=active) for row in rows})
        return len(rows)

    def add_employee(self, name: str, email: str, department: str, role: str) -> Employee:
        """Add an employee who has never signed in."""
        _one_of("department", department, DEPARTMENTS)
        _one_of("role", role, ROLES)
        email = _address(email)
        if any(row.email == email for row in self.employees.values()):
            raise FormError(f"{email} is in use already.")
        number = max(self.employees, default=0) + 1
        self.employees[number] = Employee(number, name, email, department, role, None)
        return self.employees[number]

    def update_employee(self, number: int, *, department: str, role: str) -> None:
        employee = _row(self.employees, number, "employee")
        _one_of("department", department, DEPARTMENTS)
        _one_of("role", role, ROLES)
        self.employees[number] = replace(employee, department=department, role=role)

    def set_employees_active(self, numbers: Iterable[int], active: bool) -> int:
        """Activate or deactivate accounts and return the number of changed rows."""
        rows = [_row(self.employees, number, "employee") for number in dict.fromkeys(numbers)]
        if not active and any(row.email == self.me.email for row in rows):
            raise FormError("You cannot deactivate your own account.")
        self.employees.update({row.number: replace(row, active=active) for row in rows})
        return len(rows)

    def set_roles(self, numbers: Iterable[int], role: str) -> int:
        """Set the role of employees and return the number of changed rows."""
        _one_of("role", role, ROLES)
        rows = [_row(self.employees, number, "employee") for number in dict.fromkeys(numbers)]
        self.employees.update({row.number: replace(row, role=role) for row in rows})
        return len(rows)

    def update_product(self, number: int, *, price: int, stock: int, reorder: int) -> None:
        """Change a product; the price is in cents."""
        product = _row(self.products, number, "product")
        self.products[number] = replace(product, price=price, stock=stock, reorder=reorder)

    def mark_paid(self, numbers: Iterable[int]) -> int:
        """Mark invoices as paid and return the number of changed rows."""
        rows = [_row(self.invoices, number, "invoice") for number in dict.fromkeys(numbers)]
        for row in rows:
            if row.paid:
                raise FormError(f"{row.label} is paid already.")
        self.invoices.update({row.number: replace(row, paid=True) for row in rows})
        return len(rows)

    def refund(self, number: int, cents: int, reason: str) -> None:
        """Refund a paid invoice, once, up to its total."""
        invoice = _row(self.invoices, number, "invoice")
        _one_of("reason", reason, REFUND_REASONS)
        if not invoice.paid:
            raise FormError(f"{invoice.label} is not paid: there is nothing to refund.")
        if invoice.refunded:
            raise FormError(f"{invoice.label} was refunded already.")
        if not 0 < cents <= invoice.total:
            raise FormError(f"A refund is above zero and no more than the total of {invoice.label}.")
        self.invoices[number] = replace(invoice, refunded=cents, reason=reason)


def _row(table: dict[int, Any], number: int, name: str) -> Any:
    if number not in table:
        raise FormError(f"There is no {name} {number}.")
    return table[number]


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise FormError(f"{value[:40]!r} is no {name}.")


def _address(text: str) -> str:
    text = text.strip().lower()
    name, at, domain = text.partition("@")
    if not (at and name and "." in domain) or any(char.isspace() for char in text) or "@" in domain or len(text) > 120:
        raise FormError(f"{text[:80]!r} is no e-mail address.")
    return text
