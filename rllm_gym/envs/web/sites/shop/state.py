"""The state of the shop: stock, and the customer's basket, orders, addresses, wish list and reviews.

Facts: the basket with its coupon; every order with its lines, status, address, shipping and total; requested returns;
the wish list; the addresses and the default one; the customer's own reviews. Searching, sorting and filtering change
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from random import Random
from typing import Any

from rllm_gym.envs.web.sites.errors import FormError, NotFound
from rllm_gym.envs.web.sites.wording import money, people

SHIPPING = {"Standard": 490, "Express": 1250, "Economy": 250}
"""Shipping methods with their prices in cents."""

RETURN_REASONS = ("Arrived damaged", "Wrong item", "Does not fit", "Changed my mind")
RETURN_DAYS = 30
MAX_QUANTITY = 20

# Texts of reviews. They may repeat, because no task depends on them.
PRAISE = ("Does what it should.", "Well made and easy to clean.", "Would buy it again.", "Better than I expected.")
BLAME = ("Feels cheap.", "Arrived with a scratch.", "Smaller than it looks.", "Stopped working after a month.")


def shipping_label(name: str) -> str:
    """Return the shipping method with its price, as shown at checkout."""
    return f"{name} ({money(SHIPPING[name])})"


@dataclass(frozen=True, slots=True)
class Product:
    """A product.

    Attributes:
        number: Id of the product, part of its URL.
        price: Price in cents, unique in its category.
        rating: Mean rating in tenths of a star: 43 means 4.3.
        ratings: Number of ratings.
        colours: Available colours; empty if there is no choice.
        details: Rows of the specification.
    """

    number: int
    name: str
    brand: str
    category: str
    price: int
    rating: int
    ratings: int
    colours: tuple[str, ...]
    details: tuple[tuple[str, str], ...]
    blurb: str


@dataclass(frozen=True, slots=True)
class Review:
    author: str
    stars: int
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Address:
    label: str
    name: str
    street: str
    city: str
    postcode: str

    def lines(self) -> list[str]:
        return [self.name, self.street, f"{self.postcode} {self.city}"]

    @property
    def choice(self) -> str:
        """The address as shown at checkout."""
        return f"{self.label}: {self.street}, {self.postcode} {self.city}"


@dataclass(slots=True)
class OrderLine:
    """A quantity of a product, in one colour if it has several. ``price`` is the unit price in cents."""

    product: Product
    colour: str
    quantity: int
    returned: str = ""

    @property
    def named(self) -> str:
        return f"{self.product.name} ({self.colour})" if self.colour else self.product.name

    def facts(self) -> list[Any]:
        return [self.product.number, self.colour, self.quantity, self.returned]


@dataclass(slots=True)
class Order:
    number: int
    day: date
    lines: list[OrderLine]
    status: str
    address: Address
    shipping: str
    coupon: str
    total: int
    card: str = ""

    def facts(self) -> list[Any]:
        lines = sorted(line.facts() for line in self.lines)
        address = [self.address.label, *self.address.lines()]
        paid = [self.card] if self.card else []
        return [self.number, self.status, lines, address, self.shipping, self.coupon, self.total, *paid]

    def holds(self, product: Product) -> bool:
        return any(line.product is product for line in self.lines)


@dataclass(frozen=True, slots=True)
class Coupon:
    """A discount of ``percent`` on the goods until the day ``last``."""

    code: str
    percent: int
    last: date


@dataclass
class Shop:
    """The shop of one customer. If there are ``cards``, one of them must be chosen, as ``card``, to place an order."""

    today: date
    user: str
    products: dict[int, Product]
    stock: dict[tuple[int, str], int]
    coupons: dict[str, Coupon]
    addresses: list[Address]
    default_address: str
    orders: list[Order]
    seed: int
    basket: list[OrderLine] = field(default_factory=list)
    coupon: str = ""
    wishes: list[int] = field(default_factory=list)
    reviews: dict[int, Review] = field(default_factory=dict)
    cards: tuple[str, ...] = ()
    card: str = ""

    def facts(self) -> Any:
        return {
            "basket": sorted(line.facts() for line in self.basket),
            "coupon": self.coupon,
            "card": self.card,
            "orders": [order.facts() for order in self.orders],
            "wishes": sorted(self.wishes),
            "addresses": sorted([a.label, *a.lines()] for a in self.addresses),
            "default_address": self.default_address,
            "reviews": {str(n): [r.stars, r.title, r.text] for n, r in sorted(self.reviews.items())},
        }

    # Queries

    @cached_property
    def categories(self) -> list[str]:
        return sorted({product.category for product in self.products.values()})

    @property
    def basket_label(self) -> str:
        """The label in the header, with the number of products in the basket."""
        return f"Basket ({sum(line.quantity for line in self.basket)})"

    def product(self, number: int) -> Product:
        if number not in self.products:
            raise NotFound(f"There is no product {number}.")
        return self.products[number]

    def order(self, number: int) -> Order:
        for order in self.orders:
            if order.number == number:
                return order
        raise NotFound(f"There is no order {number}.")

    def left(self, product: Product, colour: str | None = None) -> int:
        """Return the available quantity in one colour or, without ``colour``, in all colours."""
        colours = [colour] if colour is not None else product.colours or ("",)
        return sum(self.stock[product.number, c] for c in colours)

    def others_reviews(self, product: Product) -> list[Review]:
        """Return other customers' reviews. They are generated on access, the same each time."""
        rng = Random(f"{self.seed}/{product.number}")
        written = []
        for author in people(rng, rng.randint(1, 6)):
            stars = min(5, max(1, round(product.rating / 10 + rng.choice((-1, 0, 0, 0, 1)))))
            text = rng.choice(PRAISE if stars > 3 else BLAME)
            written.append(Review(author, stars, text.split(".")[0], text))
        return written

    def goods(self, lines: list[OrderLine]) -> int:
        return sum(line.product.price * line.quantity for line in lines)

    def discount(self, lines: list[OrderLine], code: str) -> int:
        """Return the discount in cents, rounded down."""
        return self.goods(lines) * self.coupons[code].percent // 100 if code else 0

    def colour_label(self, product: Product, colour: str) -> str:
        """Return the colour as shown in the list of colours, with a note if few are left."""
        left = self.left(product, colour)
        return colour if left >= 5 else f"{colour} – {left} left" if left else f"{colour} – sold out"

    # Basket

    def add(self, number: int, colour: str, quantity: int) -> None:
        product = self.product(number)
        if product.colours and colour not in product.colours:
            raise FormError(f"Choose a colour of {product.name}.")
        colour = colour if product.colours else ""
        line = self._line(number, colour)
        self._check_stock(product, colour, quantity + (line.quantity if line else 0))
        if line:
            line.quantity += quantity
        else:
            self.basket.append(OrderLine(product, colour, quantity))

    def set_quantity(self, number: int, colour: str, quantity: int) -> None:
        """Set the quantity of a basket line; 0 removes it."""
        line = self._line(number, colour)
        if line is None:
            raise FormError("This is no longer in your basket.")
        if quantity:
            self._check_stock(line.product, colour, quantity)
            line.quantity = quantity
        else:
            self.basket.remove(line)
            self.coupon = self.coupon if self.basket else ""

    def apply_coupon(self, code: str) -> None:
        coupon = self.coupons.get(code.upper())
        if coupon is None:
            raise FormError(f"There is no coupon {code}.")
        if coupon.last < self.today:
            raise FormError(f"The coupon {coupon.code} has expired.")
        if not self.basket:
            raise FormError("Your basket is empty.")
        self.coupon = coupon.code

    def remove_coupon(self) -> None:
        self.coupon = ""

    def place_order(self, label: str, shipping: str) -> Order:
        """Buy the contents of the basket."""
        if not self.basket:
            raise FormError("Your basket is empty.")
        address = next((a for a in self.addresses if a.label == label), None)
        if address is None:
            raise FormError("Choose an address.")
        if shipping not in SHIPPING:
            raise FormError("Choose a way of shipping.")
        if self.cards and not self.card:
            raise FormError("Choose a card to pay with.")
        total = self.goods(self.basket) - self.discount(self.basket, self.coupon) + SHIPPING[shipping]
        number = max(order.number for order in self.orders) + 1
        order = Order(number, self.today, self.basket, "Processing", address, shipping, self.coupon, total, self.card)
        for line in self.basket:
            self.stock[line.product.number, line.colour] -= line.quantity
        self.orders.append(order)
        self.basket, self.coupon, self.card = [], "", ""
        return order

    def choose_card(self, card: str) -> None:
        if card not in self.cards:
            raise FormError("Choose one of your cards.")
        self.card = card

    def _line(self, number: int, colour: str) -> OrderLine | None:
        return next((x for x in self.basket if x.product.number == number and x.colour == colour), None)

    def _check_stock(self, product: Product, colour: str, quantity: int) -> None:
        left = self.left(product, colour)
        named = f"{product.name} in {colour}" if colour else product.name
        if left == 0:
            raise FormError(f"{named} is sold out.")
        if quantity > left:
            raise FormError(f"Only {left} of {named} left in stock.")
        if quantity > MAX_QUANTITY:
            raise FormError(f"At most {MAX_QUANTITY} of one product can be ordered.")

    # Orders

    def cancel(self, number: int) -> None:
        order = self.order(number)
        if order.status != "Processing":
            raise FormError(f"Order {number} cannot be cancelled: it is {order.status.lower()}.")
        order.status = "Cancelled"
        for line in order.lines:
            self.stock[line.product.number, line.colour] += line.quantity

    def returnable(self, order: Order) -> bool:
        return order.status == "Delivered" and (self.today - order.day).days <= RETURN_DAYS

    def request_return(self, number: int, product: int, colour: str, reason: str) -> None:
        order = self.order(number)
        line = next((x for x in order.lines if x.product.number == product and x.colour == colour), None)
        if line is None:
            raise FormError(f"This is not part of order {number}.")
        if not self.returnable(order):
            raise FormError(f"Order {number} cannot be returned: only within {RETURN_DAYS} days and after delivery.")
        if line.returned:
            raise FormError("A return of this was asked for already.")
        if reason not in RETURN_REASONS:
            raise FormError("Choose a reason.")
        line.returned = reason

    # Wish list, reviews, addresses

    def wish(self, number: int) -> None:
        if self.product(number).number not in self.wishes:
            self.wishes.append(number)

    def unwish(self, number: int) -> None:
        if number in self.wishes:
            self.wishes.remove(number)

    def write_review(self, number: int, stars: int, title: str, text: str) -> None:
        """Write the customer's review of a product. A second review replaces the first."""
        product = self.product(number)
        if not any(order.holds(product) and order.status == "Delivered" for order in self.orders):
            raise FormError("Only customers who have received a product can review it.")
        self.reviews[number] = Review(self.user, stars, title, text)

    def add_address(self, address: Address) -> None:
        if any(a.label.casefold() == address.label.casefold() for a in self.addresses):
            raise FormError(f"You have an address called {address.label} already.")
        if len(self.addresses) >= 20:
            raise FormError("You can keep at most 20 addresses.")
        self.addresses.append(address)

    def change_address(self, label: str, address: Address) -> None:
        """Change all fields of an address except its label."""
        self.addresses[self._address(label)] = address

    def set_default(self, label: str) -> None:
        self.default_address = self.addresses[self._address(label)].label

    def _address(self, label: str) -> int:
        for i, address in enumerate(self.addresses):
            if address.label == label:
                return i
        raise FormError(f"You have no address called {label}.")
