"""The customer pages of the shop (orders, wish list and addresses), and the shop with all its pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rllm_gym.envs.web.sites import pages
from rllm_gym.envs.web.sites.errors import NotFound
from rllm_gym.envs.web.sites.http import Handler
from rllm_gym.envs.web.sites.markup import Content, Markup, h, join, url
from rllm_gym.envs.web.sites.pages import HtmlPage, form
from rllm_gym.envs.web.sites.shop import state
from rllm_gym.envs.web.sites.shop.state import ORIGIN, Address, Line, Order, Shop
from rllm_gym.envs.web.sites.shop.views import SITE, availability, product_of
from rllm_gym.envs.web.sites.site import Redirect, Visit
from rllm_gym.envs.web.sites.wording import long_date, money, short_date

ORDERS_PER_PAGE = 8


@dataclass
class ShopApp(Shop):
    """The shop with its pages."""

    def handlers(self) -> Mapping[str, Handler]:
        return {ORIGIN: SITE.handler(self)}


# Orders


@SITE.get("/orders")
def orders(shop: Shop, visit: Visit) -> HtmlPage:
    part = pages.paginate(shop.orders[::-1], visit.page(), ORDERS_PER_PAGE)
    rows = [
        [
            h("a", order.number, href=f"/orders/{order.number}"),
            short_date(order.day),
            ", ".join(line.product.name for line in order.lines),
            _status(order),
            money(order.total),
        ]
        for order in part.items
    ]
    body = [pages.table(["Order", "Date", "Products", "Status", "Total"], rows, numeric=[4])]
    return HtmlPage("Your orders", [body, pages.page_links(part, "/orders")])


@SITE.get("/orders/<int:number>")
def order(shop: Shop, visit: Visit, number: int) -> HtmlPage:
    found = shop.order(number)
    rows = [_order_row(shop, found, line) for line in found.lines]
    cancel = found.status == "Processing" and pages.post_button(
        "Cancel order", f"/orders/{number}/cancel", tone="danger", confirm=f"Cancel order {number}?"
    )
    facts: list[tuple[str, Content]] = [
        ("Ordered on", long_date(found.day)),
        ("Status", _status(found)),
        ("Delivered to", [found.address.label, ": ", ", ".join(found.address.lines())]),
        ("Shipping", state.shipping_label(found.shipping)),
        ("Coupon", found.coupon or "none"),
        ("Total", h("strong", money(found.total))),
    ]
    body = [
        pages.card(pages.described(facts)),
        pages.table(["Product", "Colour", "Quantity", "Price", "Return"], rows, numeric=[2, 3]),
    ]
    return HtmlPage(f"Order {number}", body, trail=[("Your orders", "/orders")], actions=cancel or None)


def _order_row(shop: Shop, order: Order, line: Line) -> list[Content]:
    back: Content = line.returned and f"Return asked for: {line.returned}"
    if not back and shop.returnable(order):
        back = pages.dialog(
            f"return-{line.product.number}",
            "Return",
            f"Return {line.product.name}",
            form(
                f"/orders/{order.number}/return",
                pages.hidden("product", line.product.number),
                pages.hidden("colour", line.colour),
                pages.choice("Reason", "reason", state.RETURN_REASONS, key=line.product.number),
                pages.button("Ask for return"),
            ),
        )
    name = h("a", line.product.name, href=f"/product/{line.product.number}")
    return [name, line.colour or "–", line.quantity, money(line.product.price), back or "not possible"]


def _status(order: Order) -> Markup:
    tones = {"Delivered": "good", "Cancelled": "bad", "Processing": "warn"}
    return pages.badge(order.status, tones.get(order.status, ""))


@SITE.post("/orders/<int:number>/cancel")
def cancel(shop: Shop, visit: Visit, number: int) -> Redirect:
    shop.cancel(number)
    return Redirect(f"/orders/{number}", f"Order {number} is cancelled.")


@SITE.post("/orders/<int:number>/return")
def ask_for_return(shop: Shop, visit: Visit, number: int) -> Redirect:
    item = product_of(shop, visit)
    reason = visit.line("reason", "The reason")
    shop.request_return(number, item.number, visit.line("colour", "The colour", required=False), reason)
    return Redirect(f"/orders/{number}", f"We have noted the return of {item.name}.")


# Wish list and addresses


@SITE.get("/wishes")
def wishes(shop: Shop, visit: Visit) -> HtmlPage:
    rows = [
        [
            h("a", item.name, href=f"/product/{item.number}"),
            money(item.price),
            availability(shop.left(item)),
            pages.post_button("Remove", "/wishes/remove", fields={"product": item.number}, tone="danger"),
        ]
        for item in map(shop.product, shop.wishes)
    ]
    empty = h("p", "There is nothing on your wish list.")
    return HtmlPage("Wish list", pages.table(["Product", "Price", "Stock", ""], rows, numeric=[1]) if rows else empty)


@SITE.post("/wishes/add")
def add_wish(shop: Shop, visit: Visit) -> Redirect:
    item = product_of(shop, visit)
    shop.wish(item.number)
    return Redirect(f"/product/{item.number}", f"{item.name} is on your wish list.")


@SITE.post("/wishes/remove")
def remove_wish(shop: Shop, visit: Visit) -> Redirect:
    item = product_of(shop, visit)
    shop.unwish(item.number)
    return Redirect("/wishes", f"{item.name} is no longer on your wish list.")


@SITE.get("/addresses")
def addresses(shop: Shop, visit: Visit) -> HtmlPage:
    cards = [
        pages.card(
            h("div.split", h("h2", a.label), a.label == shop.default_address and pages.badge("Default", "good")),
            h("p", [[h("br") if i else None, line] for i, line in enumerate(a.lines())]),
            h(
                "div.buttons",
                pages.link_button("Edit", url("/addresses/edit", label=a.label)),
                a.label != shop.default_address
                and pages.post_button("Make default", "/addresses/default", fields={"label": a.label}),
            ),
        )
        for a in shop.addresses
    ]
    new = pages.link_button("Add an address", "/addresses/new", tone="")
    return HtmlPage("Addresses", h("div.grid", cards), actions=new)


@SITE.get("/addresses/new")
def new_address(shop: Shop, visit: Visit) -> HtmlPage:
    fields = form("/addresses/new", pages.field("Label", "label"), _address_fields(None), pages.button("Save address"))
    return HtmlPage("New address", pages.card(fields), trail=[("Addresses", "/addresses")])


@SITE.get("/addresses/edit")
def edit_address(shop: Shop, visit: Visit) -> HtmlPage:
    label = visit.asked("label")
    found = next((a for a in shop.addresses if a.label == label), None)
    if found is None:
        raise NotFound(f"You have no address called {label}.")
    fixed = pages.hidden("label", label)
    fields = form("/addresses/edit", fixed, _address_fields(found), pages.button("Save address"))
    return HtmlPage(f"Edit address: {label}", pages.card(fields), trail=[("Addresses", "/addresses")])


def _address_fields(address: Address | None) -> Markup:
    return join(
        pages.field("Name", "name", address.name if address else ""),
        pages.field("Street and number", "street", address.street if address else ""),
        pages.field("City", "city", address.city if address else ""),
        pages.field("Postcode", "postcode", address.postcode if address else ""),
    )


@SITE.post("/addresses/new")
def save_new_address(shop: Shop, visit: Visit) -> Redirect:
    shop.add_address(_address_of(visit))
    return Redirect("/addresses", "Address saved.")


@SITE.post("/addresses/edit")
def save_address(shop: Shop, visit: Visit) -> Redirect:
    address = _address_of(visit)
    shop.change_address(address.label, address)
    return Redirect("/addresses", "Address saved.")


@SITE.post("/addresses/default")
def make_default(shop: Shop, visit: Visit) -> Redirect:
    shop.set_default(visit.line("label", "The label"))
    return Redirect("/addresses", "Default address changed.")


def _address_of(visit: Visit) -> Address:
    return Address(
        visit.line("label", "The label", limit=40),
        visit.line("name", "The name", limit=80),
        visit.line("street", "The street", limit=80),
        visit.line("city", "The city", limit=60),
        visit.line("postcode", "The postcode", limit=12),
    )
