"""The pages of the shop: search and lists, products, the basket, orders, the wish list and addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rllm_gym.envs.web.sites import pages
from rllm_gym.envs.web.sites.errors import NotFound
from rllm_gym.envs.web.sites.http import Response
from rllm_gym.envs.web.sites.markup import Content, Markup, h, join, url
from rllm_gym.envs.web.sites.pages import Frame, HtmlPage, form
from rllm_gym.envs.web.sites.pictures import image
from rllm_gym.envs.web.sites.shop import state
from rllm_gym.envs.web.sites.shop.pictures import product_picture
from rllm_gym.envs.web.sites.shop.state import Address, Order, OrderLine, Product, Shop
from rllm_gym.envs.web.sites.site import Redirect, Site, SiteApp, Visit, whole_number
from rllm_gym.envs.web.sites.wording import long_date, money, plural, short_date

ORIGIN = "http://shop.test"
PAGE_SIZE = 9
_LOOK = pages.read_style(__file__)
ORDERS_PER_PAGE = 8
SORTS = {
    "": "Name",
    "price": "Price: low to high",
    "-price": "Price: high to low",
    "-rating": "Customer rating",
}


def _frame(shop: Shop) -> Frame:
    navigation = [("Products", "/"), ("Orders", "/orders"), ("Wish list", "/wishes"), ("Addresses", "/addresses")]
    basket = [(shop.basket_label, "/basket")]
    return Frame(
        "Fernhill Shop",
        "#b23a12",
        navigation + basket,
        shop.today,
        shop.user,
        ("Search products", "/search"),
        style=_LOOK,
    )


site: Site[Shop] = Site(ORIGIN, _frame)


@dataclass
class ShopApp(SiteApp, Shop):
    """The shop with its pages."""

    routes = site


# Search and lists


@site.get("/")
def home(shop: Shop, visit: Visit) -> HtmlPage:
    cards = []
    for category in shop.categories:
        count = sum(product.category == category for product in shop.products.values())
        heading = h("h2", h("a", category, href=_category_path(category)))
        cards.append(pages.card(heading, h("p.muted", plural(count, "product"))))
    best = sorted(shop.products.values(), key=lambda p: (-p.rating, p.number))[:3]
    return HtmlPage(
        "Welcome",
        [
            h("h2", "Categories"),
            h("div.grid", cards),
            h("h2", "Liked by our customers"),
            h("div.grid", [_card(shop, p) for p in best]),
        ],
    )


@site.get("/category/<name>")
def category(shop: Shop, visit: Visit, name: str) -> HtmlPage:
    title = next((known for known in shop.categories if known.lower() == name.lower()), None)
    if title is None:
        raise NotFound(f"There is no category called {name}.")
    found = [product for product in shop.products.values() if product.category == title]
    return _listing(shop, visit, title, found, _category_path(title), trail=[("Products", "/")])


@site.get("/search")
def search(shop: Shop, visit: Visit) -> HtmlPage:
    asked = visit.asked("q", 80)
    words = asked.lower().split()
    found = [p for p in shop.products.values() if all(word in f"{p.name} {p.category}".lower() for word in words)]
    return _listing(shop, visit, f"Results for “{asked}”" if asked else "All products", found, "/search", q=asked)


def _listing(
    shop: Shop,
    visit: Visit,
    title: str,
    found: list[Product],
    path: str,
    *,
    q: str = "",
    trail: Sequence[tuple[str, str]] = (),
) -> HtmlPage:
    """Return a page of products, sorted and paginated, with filters beside them."""
    brand, low, high = visit.asked("brand"), whole_number(visit.asked("min")), whole_number(visit.asked("max"))
    stars, available, sort = whole_number(visit.asked("stars")), visit.asked("available"), visit.asked("sort")
    sort = sort if sort in SORTS else ""
    shown = [
        product
        for product in found
        if (not brand or product.brand == brand)
        and (low is None or product.price >= low * 100)
        and (high is None or product.price <= high * 100)
        and (stars is None or product.rating >= stars * 10)
        and (not available or shop.left(product))
    ]
    orders = {
        "": lambda p: (p.name,),
        "price": lambda p: (p.price, p.name),
        "-price": lambda p: (-p.price, p.name),
        "-rating": lambda p: (-p.rating, p.name),
    }
    shown.sort(key=orders[sort])
    part = pages.paginate(shown, visit.page(), PAGE_SIZE)
    filters = {"brand": brand, "min": low, "max": high, "stars": stars, "available": available}
    chosen = {"q": q, **filters}
    brands = sorted({product.brand for product in found})
    aside = form(
        path,
        h("h2", "Filter"),
        pages.choice("Brand", "brand", [("", "All brands"), *((b, b) for b in brands)], brand),
        pages.field("Lowest price ($)", "min", "" if low is None else low, type="number", min=0),
        pages.field("Highest price ($)", "max", "" if high is None else high, type="number", min=0),
        pages.choice("Rating", "stars", [("", "Any"), *((n, f"{n} stars and more") for n in (4, 3, 2))], stars or ""),
        pages.checkbox("Only what is in stock", "available", checked=bool(available)),
        q and pages.hidden("q", q),
        sort and pages.hidden("sort", sort),
        pages.button("Apply filters"),
        method="get",
    )
    sorter = form(
        path,
        [pages.hidden(name, value) for name, value in chosen.items() if value not in ("", None)],
        pages.choice("Sort by", "sort", SORTS.items(), sort, data_submit=True),
        method="get",
        class_="row",
    )
    body = [
        h("div.heading", h("p.muted", plural(part.total, "product")), sorter),
        h("div.grid", [_card(shop, product) for product in part.items]) if shown else h("p", "Nothing matches."),
        pages.page_links(part, path, **chosen, sort=sort),
    ]
    return HtmlPage(title, body, aside=aside, trail=trail, query=q)


def _card(shop: Shop, product: Product) -> Markup:
    return pages.card(
        _picture(product, 240),
        h("h3", h("a", product.name, href=f"/product/{product.number}")),
        _stars(product),
        h("div.split", h("span.price", money(product.price)), availability(shop.left(product))),
    )


def _picture(product: Product, width: int) -> Markup:
    return image(f"/pictures/{product.number}.svg", "picture", width)


@site.get("/pictures/<int:number>.svg")
def picture(shop: Shop, visit: Visit, number: int) -> Response:
    return product_picture(shop.product(number))


def _stars(product: Product) -> Markup:
    full = round(product.rating / 10)
    return h(
        "p.small",
        h("span.stars", "★" * full + "☆" * (5 - full), aria_hidden="true"),
        f" {product.rating / 10:.1f} ({product.ratings} ratings)",
    )


def availability(left: int) -> Markup:
    if not left:
        return pages.badge("Sold out", "bad")
    return pages.badge(f"Only {left} left", "warn") if left < 5 else pages.badge("In stock", "good")


def _category_path(name: str) -> str:
    return url(f"/category/{name.lower()}")


# A product


@site.get("/product/<int:number>")
def product(shop: Shop, visit: Visit, number: int) -> HtmlPage:
    item = shop.product(number)
    colours = [(colour, shop.colour_label(item, colour)) for colour in item.colours]
    buy = form(
        "/basket/add",
        pages.hidden("product", number),
        colours and pages.choice("Colour", "colour", [("", "Choose a colour"), *colours]),
        pages.field("Quantity", "quantity", 1, type="number", min=1, max=state.MAX_QUANTITY),
        pages.button("Add to basket") if shop.left(item) else h("p.strong", "This product is sold out."),
    )
    wished = number in shop.wishes
    wish = pages.post_button(
        "Remove from wish list" if wished else "Add to wish list",
        "/wishes/remove" if wished else "/wishes/add",
        fields={"product": number},
    )
    aside = pages.card(
        _picture(item, 400), h("p.price", money(item.price)), h("p", availability(shop.left(item))), buy, wish
    )
    about = [h("p", item.blurb), h("p", f"{item.name} by {item.brand}, from our range for {item.category.lower()}.")]
    body = [
        _stars(item),
        pages.tabs(
            ("Description", pages.card(about)),
            ("Specification", pages.card(pages.described([("Product number", item.number), *item.details]))),
            ("Reviews", _reviews(shop, item)),
        ),
    ]
    return HtmlPage(
        item.name, body, trail=[("Products", "/"), (item.category, _category_path(item.category))], aside=aside
    )


def _reviews(shop: Shop, item: Product) -> Markup:
    own = shop.reviews.get(item.number)
    entries = ([own] if own else []) + shop.others_reviews(item)
    write = pages.dialog(
        "write-review",
        "Write a review",
        f"Your review of {item.name}",
        form(
            "/reviews",
            pages.hidden("product", item.number),
            pages.choice("Stars", "stars", [(n, plural(n, "star")) for n in (5, 4, 3, 2, 1)], own.stars if own else 5),
            pages.field("Title", "title", own.title if own else ""),
            pages.text_area("Your review", "text", own.text if own else "", rows=4),
            pages.button("Send review"),
        ),
    )
    cards = [
        pages.card(
            h("div.split", h("h3", entry.title), h("span.small", plural(entry.stars, "star"))),
            pages.paragraphs(entry.text),
            h("p.muted", f"by {entry.author}"),
        )
        for entry in entries
    ]
    return join(h("p", write), cards)


@site.post("/reviews")
def send_review(shop: Shop, visit: Visit) -> Redirect:
    item = product_of(shop, visit)
    stars = visit.number("stars", "Stars", low=1, high=5)
    title, text = visit.line("title", "The title", limit=100), visit.text("text", "The review", limit=2_000)
    shop.write_review(item.number, stars, title, text)
    return Redirect(f"/product/{item.number}", "Thank you: your review is published.")


def product_of(shop: Shop, visit: Visit) -> Product:
    return shop.product(visit.number("product", "The product", low=0, high=999_999_999))


# Basket and checkout


@site.get("/basket")
def basket(shop: Shop, visit: Visit) -> HtmlPage:
    if not shop.basket:
        return HtmlPage("Basket", [h("p", "Your basket is empty."), pages.link_button("Look at our products", "/")])
    rows = [_basket_row(line) for line in shop.basket]
    code = form(
        "/basket/coupon",
        pages.field("Coupon code", "code"),
        pages.button("Apply coupon", tone="quiet"),
        class_="row",
    )
    used = shop.coupon and h(
        "p",
        f"Coupon {shop.coupon}: {shop.coupons[shop.coupon].percent}% off ",
        pages.post_button("Remove coupon", "/basket/coupon/remove"),
    )
    return HtmlPage(
        "Basket",
        [
            pages.table(["Product", "Price", "Quantity", "Total", ""], rows, numeric=[1, 3]),
            h("div.two", pages.card(used or code), _summary(shop, shop.basket, shop.coupon)),
            h("p.buttons", pages.link_button("Go to checkout", "/checkout", tone="")),
        ],
    )


def _basket_row(line: OrderLine) -> list[Content]:
    key = {"product": line.product.number, "colour": line.colour}
    fixed = [pages.hidden(name, value) for name, value in key.items()]
    quantity = h(
        "input",
        type="number",
        name="quantity",
        value=line.quantity,
        aria_label="Quantity",
        min=0,
        max=state.MAX_QUANTITY,
    )
    return [
        [h("a", line.product.name, href=f"/product/{line.product.number}"), line.colour and f" ({line.colour})"],
        money(line.product.price),
        form("/basket/change", fixed, quantity, pages.button("Update", tone="quiet"), class_="row"),
        money(line.product.price * line.quantity),
        pages.post_button("Remove", "/basket/change", fields={**key, "quantity": 0}, tone="danger"),
    ]


def _summary(shop: Shop, lines: list[OrderLine], code: str) -> Markup:
    goods, discount = shop.goods(lines), shop.discount(lines, code)
    pairs: list[tuple[str, Content]] = [("Goods", money(goods))]
    if code:
        pairs.append((f"Coupon {code}", money(-discount)))
    pairs.append(("Shipping", "chosen at checkout"))
    pairs.append(("Before shipping", h("strong", money(goods - discount))))
    return pages.card(h("h2", "Summary"), pages.described(pairs))


@site.post("/basket/add")
def add(shop: Shop, visit: Visit) -> Redirect:
    item = product_of(shop, visit)
    quantity = visit.number("quantity", "The quantity", low=1, high=state.MAX_QUANTITY)
    shop.add(item.number, visit.line("colour", "The colour", required=False), quantity)
    return Redirect(f"/product/{item.number}", f"{quantity} × {item.name} added to your basket.")


@site.post("/basket/change")
def change_basket(shop: Shop, visit: Visit) -> Redirect:
    item = product_of(shop, visit)
    quantity = visit.number("quantity", "The quantity", low=0, high=state.MAX_QUANTITY)
    shop.set_quantity(item.number, visit.line("colour", "The colour", required=False), quantity)
    return Redirect("/basket", f"{item.name} changed." if quantity else f"{item.name} removed.")


@site.post("/basket/coupon")
def apply_coupon(shop: Shop, visit: Visit) -> Redirect:
    shop.apply_coupon(visit.line("code", "The coupon code", limit=40))
    return Redirect("/basket", f"Coupon {shop.coupon} applied.")


@site.post("/basket/coupon/remove")
def remove_coupon(shop: Shop, visit: Visit) -> Redirect:
    shop.remove_coupon()
    return Redirect("/basket", "Coupon removed.")


@site.get("/checkout")
def checkout(shop: Shop, visit: Visit) -> HtmlPage:
    if not shop.basket:
        return HtmlPage("Checkout", [h("p", "Your basket is empty."), pages.link_button("Look at our products", "/")])
    addresses = [(address.label, address.choice) for address in shop.addresses]
    shipping = [(name, state.shipping_label(name)) for name in state.SHIPPING]
    rows = [(line.named, line.quantity, money(line.product.price)) for line in shop.basket]
    payment = pages.frame("Payment", "/payment", height=330) if shop.cards else None
    body = form(
        "/checkout",
        pages.table(["Product", "Quantity", "Price"], rows, numeric=[1, 2]),
        pages.radios("Deliver to", "address", addresses, shop.default_address),
        pages.radios("Shipping", "shipping", shipping, "Standard"),
        pages.button("Place order"),
        confirm="Place this order now?",
    )
    aside = _summary(shop, shop.basket, shop.coupon)
    return HtmlPage("Checkout", [payment, body] if payment else body, trail=[("Basket", "/basket")], aside=aside)


@site.post("/checkout")
def place_order(shop: Shop, visit: Visit) -> Redirect:
    label, shipping = visit.form.get("address", ""), visit.form.get("shipping", "")
    order = shop.place_order(label, shipping)
    return Redirect(f"/orders/{order.number}", f"Thank you! Your order {order.number} is placed.")


@site.get("/payment")
def payment(shop: Shop, visit: Visit) -> HtmlPage:
    """Return the page in the frame of the checkout."""
    chosen = h("p", h("strong", f"You pay with {shop.card}.")) if shop.card else h("p", "No card is chosen yet.")
    cards = form(
        "/payment",
        pages.radios("Pay with", "card", [(card, card) for card in shop.cards], shop.card),
        pages.button("Use this card"),
    )
    return HtmlPage("Payment", [chosen, cards], framed=True)


@site.post("/payment")
def choose_card(shop: Shop, visit: Visit) -> Redirect:
    shop.choose_card(visit.form.get("card", ""))
    return Redirect("/payment", f"{shop.card} will be charged.")


# Orders


@site.get("/orders")
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


@site.get("/orders/<int:number>")
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
        *([("Paid with", found.card)] if found.card else []),
        ("Total", h("strong", money(found.total))),
    ]
    body = [
        pages.card(pages.described(facts)),
        pages.table(["Product", "Colour", "Quantity", "Price", "Return"], rows, numeric=[2, 3]),
    ]
    return HtmlPage(f"Order {number}", body, trail=[("Your orders", "/orders")], actions=cancel or None)


def _order_row(shop: Shop, order: Order, line: OrderLine) -> list[Content]:
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


@site.post("/orders/<int:number>/cancel")
def cancel(shop: Shop, visit: Visit, number: int) -> Redirect:
    shop.cancel(number)
    return Redirect(f"/orders/{number}", f"Order {number} is cancelled.")


@site.post("/orders/<int:number>/return")
def ask_for_return(shop: Shop, visit: Visit, number: int) -> Redirect:
    item = product_of(shop, visit)
    reason = visit.line("reason", "The reason")
    shop.request_return(number, item.number, visit.line("colour", "The colour", required=False), reason)
    return Redirect(f"/orders/{number}", f"We have noted the return of {item.name}.")


# Wish list and addresses


@site.get("/wishes")
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


@site.post("/wishes/add")
def add_wish(shop: Shop, visit: Visit) -> Redirect:
    item = product_of(shop, visit)
    shop.wish(item.number)
    return Redirect(f"/product/{item.number}", f"{item.name} is on your wish list.")


@site.post("/wishes/remove")
def remove_wish(shop: Shop, visit: Visit) -> Redirect:
    item = product_of(shop, visit)
    shop.unwish(item.number)
    return Redirect("/wishes", f"{item.name} is no longer on your wish list.")


@site.get("/addresses")
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


@site.get("/addresses/new")
def new_address(shop: Shop, visit: Visit) -> HtmlPage:
    fields = form("/addresses/new", pages.field("Label", "label"), _address_fields(None), pages.button("Save address"))
    return HtmlPage("New address", pages.card(fields), trail=[("Addresses", "/addresses")])


@site.get("/addresses/edit")
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


@site.post("/addresses/new")
def save_new_address(shop: Shop, visit: Visit) -> Redirect:
    shop.add_address(_address_of(visit))
    return Redirect("/addresses", "Address saved.")


@site.post("/addresses/edit")
def save_address(shop: Shop, visit: Visit) -> Redirect:
    address = _address_of(visit)
    shop.change_address(address.label, address)
    return Redirect("/addresses", "Address saved.")


@site.post("/addresses/default")
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
