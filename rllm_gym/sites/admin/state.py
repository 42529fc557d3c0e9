"""The back office of a company: tables of customers, staff, products and invoices, and what may be done to a row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any

from rllm_gym.sites.colleagues import Person
from rllm_gym.sites.errors import Refused

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
        """Fewer in stock than the level at which it is ordered again."""
        return self.stock < self.reorder


@dataclass(frozen=True)
class Line:
    """A line of an invoice; the price is in cents a piece."""

    product: str
    pieces: int
    price: int


@dataclass(frozen=True)
class Invoice:
    """What a customer owes or has paid.

    Attributes:
        number: As in ``INV-2041``.
        customer: Number of the customer.
        issued: The day it was written.
        due: The day by which it must be paid.
        lines: What was sold.
        paid: Whether the money came.
        refunded: Cents that were given back.
        reason: Why, or "".
    """

    number: int
    customer: int
    issued: date
    due: date
    lines: tuple[Line, ...]
    paid: bool = False
    refunded: int = 0
    reason: str = ""

    @property
    def total(self) -> int:
        """Cents."""
        return sum(line.pieces * line.price for line in self.lines)

    @property
    def label(self) -> str:
        return f"INV-{self.number}"

    def status(self, today: date) -> str:
        """ "Paid", "Open", "Overdue", or "Refunded" when any of it was given back."""
        if self.refunded:
            return "Refunded"
        if self.paid:
            return "Paid"
        return "Overdue" if self.due < today else "Open"


@dataclass
class Office:
    """The state of the site: tables by number.

    Attributes:
        today: The day on which this world stands still.
        me: Who is signed in, an administrator.
    """

    today: date
    me: Person
    customers: dict[int, Customer] = field(default_factory=dict)
    employees: dict[int, Employee] = field(default_factory=dict)
    products: dict[int, Product] = field(default_factory=dict)
    invoices: dict[int, Invoice] = field(default_factory=dict)

    def facts(self) -> dict[str, list[list[Any]]]:
        """Every cell that can be changed, of every row. Sorting, filtering and paging change nothing."""
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

    def update_customer(self, number: int, *, contact: str, email: str, plan: str) -> None:
        customer = _row(self.customers, number, "customer")
        _one_of("plan", plan, PLANS)
        self.customers[number] = replace(customer, contact=contact, email=_address(email), plan=plan)

    def set_customers_active(self, numbers: Iterable[int], active: bool) -> int:
        """Suspends customers or lets them in again; returns how many it was done to."""
        rows = [_row(self.customers, number, "customer") for number in dict.fromkeys(numbers)]
        self.customers.update({row.number: replace(row, active=active) for row in rows})
        return len(rows)

    def add_employee(self, name: str, email: str, department: str, role: str) -> Employee:
        """A new employee, who has never signed in."""
        _one_of("department", department, DEPARTMENTS)
        _one_of("role", role, ROLES)
        email = _address(email)
        if any(row.email == email for row in self.employees.values()):
            raise Refused(f"{email} is in use already.")
        number = max(self.employees, default=0) + 1
        self.employees[number] = Employee(number, name, email, department, role, None)
        return self.employees[number]

    def update_employee(self, number: int, *, department: str, role: str) -> None:
        employee = _row(self.employees, number, "employee")
        _one_of("department", department, DEPARTMENTS)
        _one_of("role", role, ROLES)
        self.employees[number] = replace(employee, department=department, role=role)

    def set_employees_active(self, numbers: Iterable[int], active: bool) -> int:
        """Deactivates accounts or activates them; returns how many it was done to."""
        rows = [_row(self.employees, number, "employee") for number in dict.fromkeys(numbers)]
        if not active and any(row.email == self.me.email for row in rows):
            raise Refused("You cannot deactivate your own account.")
        self.employees.update({row.number: replace(row, active=active) for row in rows})
        return len(rows)

    def set_roles(self, numbers: Iterable[int], role: str) -> int:
        """Gives employees a role; returns how many it was done to."""
        _one_of("role", role, ROLES)
        rows = [_row(self.employees, number, "employee") for number in dict.fromkeys(numbers)]
        self.employees.update({row.number: replace(row, role=role) for row in rows})
        return len(rows)

    def update_product(self, number: int, *, price: int, stock: int, reorder: int) -> None:
        """Changes a product; the price is in cents."""
        product = _row(self.products, number, "product")
        self.products[number] = replace(product, price=price, stock=stock, reorder=reorder)

    def mark_paid(self, numbers: Iterable[int]) -> int:
        """Notes that the money of these invoices came; returns how many it was done to."""
        rows = [_row(self.invoices, number, "invoice") for number in dict.fromkeys(numbers)]
        for row in rows:
            if row.paid:
                raise Refused(f"{row.label} is paid already.")
        self.invoices.update({row.number: replace(row, paid=True) for row in rows})
        return len(rows)

    def refund(self, number: int, cents: int, reason: str) -> None:
        """Gives money back on a paid invoice, once, up to its total."""
        invoice = _row(self.invoices, number, "invoice")
        _one_of("reason", reason, REFUND_REASONS)
        if not invoice.paid:
            raise Refused(f"{invoice.label} is not paid: there is nothing to refund.")
        if invoice.refunded:
            raise Refused(f"{invoice.label} was refunded already.")
        if not 0 < cents <= invoice.total:
            raise Refused(f"A refund is above zero and no more than the total of {invoice.label}.")
        self.invoices[number] = replace(invoice, refunded=cents, reason=reason)


def _row(table: dict[int, Any], number: int, name: str) -> Any:
    if number not in table:
        raise Refused(f"There is no {name} {number}.")
    return table[number]


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise Refused(f"{value[:40]!r} is no {name}.")


def _address(text: str) -> str:
    text = text.strip().lower()
    name, at, domain = text.partition("@")
    if not (at and name and "." in domain) or any(char.isspace() for char in text) or "@" in domain or len(text) > 120:
        raise Refused(f"{text[:80]!r} is no e-mail address.")
    return text
