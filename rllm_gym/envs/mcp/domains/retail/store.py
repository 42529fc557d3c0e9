"""The back office of a shop: customers, products in variants, orders, refunds, and the written policy for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from rllm_gym.envs.mcp.serving import Refusal, server
from rllm_gym.envs.mcp.task import DomainState
from rllm_gym.envs.mcp.wording import as_json
from rllm_gym.mcp.servers import InProcessServer

MAX_CHARS = 200


@dataclass
class Customer:
    customer_id: str
    name: str
    email: str
    address: dict[str, str]  # street, city, postcode
    payment_methods: list[str]


@dataclass
class Variant:
    """An item that can be ordered: one variant of a product."""

    item_id: str
    product: str
    options: dict[str, str]
    price_cents: int
    in_stock: bool

    @property
    def name(self) -> str:
        return f"{self.product} ({', '.join(self.options.values())})"


@dataclass
class Order:
    order_id: str
    customer_id: str
    status: str  # pending, processing, shipped, delivered, cancelled
    placed_on: str
    delivered_on: str | None
    item_ids: list[str]
    address: dict[str, str]
    payment_method: str
    returned_item_ids: list[str] = field(default_factory=list)
    cancel_reason: str | None = None


@dataclass(frozen=True)
class StorePolicy:
    return_days: int
    fee_percent: int
    final_sale: str  # a product that cannot be returned
    exchange_days: int

    def text(self) -> str:
        return "\n".join(
            (
                "Policy for customer service",
                "1. Identity. Act only for a customer whose full name and postcode are those of the account that "
                "the order belongs to. If either differs, do nothing.",
                "2. Cancelling. Only orders with the status pending may be cancelled, as a whole. An order that is "
                "already processing may not, even if the system lets you. The reason is either 'ordered by mistake' or "
                "'no longer needed', whichever the customer gives; any other reason is not accepted.",
                "3. Address. The address may be changed only while the order is pending.",
                f"4. Returns. Items of a delivered order may be returned until {self.return_days} days after the day "
                f"of delivery, that day included. {self.final_sale} items are final sale: never taken back, never "
                "exchanged.",
                f"5. Refunds. The refund is the price of the returned items less a handling fee of {self.fee_percent} "
                "percent of it, and goes to the payment method of the order, to no other.",
                "6. Exchanges. An item of a delivered order may be exchanged for another variant of the same product "
                f"that is in stock, until {self.exchange_days} days after the day of delivery, that day included. "
                "There is no fee; any difference in price is settled with the payment method of the order.",
                "7. If any part of a single request is not allowed, do none of it. Never do more than was asked.",
            )
        )


class Store(DomainState):
    """The state of the shop, and its tools. The tools reject impossible actions; the model must follow the policy."""

    def __init__(
        self,
        today: date,
        policy: StorePolicy,
        customers: Sequence[Customer],
        items: Sequence[Variant],
        orders: Sequence[Order],
        cases: Mapping[str, str],
    ) -> None:
        self.today = today
        self.policy = policy
        self.customers = {customer.customer_id: customer for customer in customers}
        self.items = {item.item_id: item for item in items}
        self.orders = {order.order_id: order for order in orders}
        self.payments: list[dict[str, Any]] = []
        self._cases = cases

    def case(self, name: str) -> Order:
        """Return the order for a case of the policy; used by the task templates."""
        return self.orders[self._cases[name]]

    def servers(self, workspace: Path) -> Sequence[InProcessServer]:
        return [server("retail", self.tools, instructions="The back office of a shop. Start with get_policy.")]

    def tools(self) -> Sequence[Any]:
        return (
            self.get_policy,
            self.find_customer,
            self.get_customer,
            self.get_order,
            self.get_product,
            self.cancel_order,
            self.change_order_address,
            self.return_items,
            self.exchange_item,
        )

    def facts(self, workspace: Path) -> Any:
        return {
            "orders": {number: asdict(order) for number, order in self.orders.items()},
            # The order of payments for different orders is irrelevant.
            "payments": sorted(self.payments, key=as_json),
        }

    # Tools that read

    def get_policy(self) -> str:
        """The written policy that every action has to follow, and today's date."""
        return f"Today is {self.today}.\n{self.policy.text()}"

    def find_customer(self, name: str) -> str:
        """Find the accounts of customers with this full name.

        Args:
            name: First and last name.
        """
        found = [c.customer_id for c in self.customers.values() if c.name.lower() == name.strip().lower()]
        if not found:
            raise Refusal(f"No customer is called {name[:MAX_CHARS]!r}.")
        return as_json(found)

    def get_customer(self, customer_id: str) -> str:
        """An account: name, e-mail address, address, payment methods and order ids.

        Args:
            customer_id: Such as C1004.
        """
        customer = self.customers.get(customer_id.strip())
        if customer is None:
            raise Refusal(f"There is no customer {customer_id[:MAX_CHARS]!r}; find_customer finds them by name.")
        orders = [number for number, order in self.orders.items() if order.customer_id == customer.customer_id]
        return as_json({**asdict(customer), "orders": orders})

    def get_order(self, order_id: str) -> str:
        """An order: customer, status, dates, address, payment method, and its items with their prices in cents.

        Args:
            order_id: Such as W20417.
        """
        order = self._order(order_id)
        description = asdict(order)
        del description["item_ids"]
        description["items"] = [
            {"item_id": number, "name": self.items[number].name, "price_cents": self.items[number].price_cents}
            for number in order.item_ids
        ]
        return as_json(description)

    def get_product(self, product: str) -> str:
        """All variants of a product: item id, options, price in cents, and whether it is in stock.

        Args:
            product: Name of the product, such as backpack.
        """
        found = [asdict(item) for item in self.items.values() if item.product == product.strip().lower()]
        if not found:
            names = sorted({item.product for item in self.items.values()})
            raise Refusal(f"There is no product {product[:MAX_CHARS]!r}. The products are: {', '.join(names)}.")
        return as_json(found)

    # Tools that act

    def cancel_order(self, order_id: str, reason: str) -> str:
        """Cancel a whole order that has not been shipped. What was paid goes back to where it came from.

        Args:
            order_id: Such as W20417.
            reason: Why, in the words of the policy.
        """
        order = self._order(order_id)
        if order.status not in ("pending", "processing"):
            raise Refusal(f"Order {order.order_id} is {order.status}; it can no longer be cancelled.")
        order.status, order.cancel_reason = "cancelled", reason.strip().strip("'\".").lower()[:MAX_CHARS]
        self._pay_back(order, sum(self.items[number].price_cents for number in order.item_ids), order.payment_method)
        return f"Order {order.order_id} is cancelled."

    def change_order_address(self, order_id: str, street: str, city: str, postcode: str) -> str:
        """Change where an order that has not been shipped is sent. The customer's account keeps its address.

        Args:
            order_id: Such as W20417.
            street: Street and number.
            city: City.
            postcode: Postcode.
        """
        order = self._order(order_id)
        if order.status not in ("pending", "processing"):
            raise Refusal(f"Order {order.order_id} is {order.status}; its address can no longer be changed.")
        address = {"street": street.strip(), "city": city.strip(), "postcode": postcode.strip()}
        if not all(1 <= len(part) <= MAX_CHARS for part in address.values()):
            raise Refusal(f"Street, city and postcode are needed, of at most {MAX_CHARS} characters each.")
        order.address = address
        return f"Order {order.order_id} goes to {', '.join(address.values())}."

    def return_items(self, order_id: str, item_ids: list[str], refund_cents: int, refund_to: str) -> str:
        """Take back items of a delivered order and pay the refund.

        Args:
            order_id: Such as W20417.
            item_ids: The items to take back.
            refund_cents: The whole refund for them, in cents.
            refund_to: A payment method of the customer.
        """
        order = self._delivered(order_id)
        self._check_items(order, item_ids)
        price = sum(self.items[number].price_cents for number in item_ids)
        if not 0 <= refund_cents <= price:
            raise Refusal(f"The items cost {price} cents; {refund_cents} is no refund for them.")
        if refund_to not in self.customers[order.customer_id].payment_methods:
            raise Refusal(f"The customer has no payment method {refund_to[:MAX_CHARS]!r}.")
        order.returned_item_ids = sorted([*order.returned_item_ids, *item_ids])
        self._pay_back(order, refund_cents, refund_to)
        return f"Returned from order {order.order_id}: {', '.join(item_ids)}; {refund_cents} cents to {refund_to}."

    def exchange_item(self, order_id: str, item_id: str, new_item_id: str) -> str:
        """Exchange an item of a delivered order for another. The difference in price is settled by itself.

        Args:
            order_id: Such as W20417.
            item_id: The item that comes back.
            new_item_id: The item that is sent instead.
        """
        order = self._delivered(order_id)
        self._check_items(order, [item_id])
        new = self.items.get(new_item_id)
        if new is None:
            raise Refusal(f"There is no item {new_item_id[:MAX_CHARS]!r}; get_product shows the variants.")
        if not new.in_stock:
            raise Refusal(f"{new.item_id}, {new.name}, is out of stock.")
        order.item_ids = [new.item_id if number == item_id else number for number in order.item_ids]
        self._pay_back(order, self.items[item_id].price_cents - new.price_cents, order.payment_method)
        return f"Order {order.order_id}: {item_id} is exchanged for {new.item_id}, {new.name}."

    def _order(self, order_id: str) -> Order:
        order = self.orders.get(order_id.strip().lstrip("#"))
        if order is None:
            raise Refusal(f"There is no order {order_id[:MAX_CHARS]!r}; get_customer shows a customer's orders.")
        return order

    def _delivered(self, order_id: str) -> Order:
        order = self._order(order_id)
        if order.status != "delivered":
            raise Refusal(f"Order {order.order_id} is {order.status}, not delivered.")
        return order

    def _check_items(self, order: Order, item_ids: Sequence[str]) -> None:
        if not item_ids or len(set(item_ids)) != len(item_ids):
            raise Refusal("Name each item once, and at least one.")
        for number in item_ids:
            if number not in order.item_ids or number in order.returned_item_ids:
                raise Refusal(f"Order {order.order_id} has no item {number[:MAX_CHARS]!r} (any more).")

    def _pay_back(self, order: Order, cents: int, method: str) -> None:
        if cents:
            self.payments.append({"order_id": order.order_id, "refund_cents": cents, "method": method})
