"""Task templates for customer service: some requests have to be carried out, others are forbidden by the policy."""

from __future__ import annotations

from random import Random

from rllm_gym.envs.mcp.domains.retail.generate import COLOURS, an_address, build
from rllm_gym.envs.mcp.domains.retail.store import Order, Store, Variant
from rllm_gym.envs.mcp.task import Call, FinalAnswer, InfeasibleReport, ToolTask, ToolTaskTemplate, called
from rllm_gym.envs.mcp.wording import listed

_ACCEPTED = {
    "ordered by mistake": ("I ordered it by mistake", "that was ordered by mistake, sorry"),
    "no longer needed": ("I no longer need it", "it is no longer needed"),
}
_NOT_ACCEPTED = (
    "I have found it cheaper elsewhere",
    "the delivery takes too long for me",
    "I do not like the colour any more",
)


def _letter(store: Store, order: Order, rng: Random, wish: str, *, postcode: str | None = None) -> str:
    work = rng.choice(
        (
            "You work in the customer service of a shop. Answer the following message by doing what it asks for, as "
            "far as the policy (get_policy) allows; if the policy does not allow it, change nothing and report that it "
            "cannot be done.",
            "As a service agent of this shop, handle the message below. The policy that get_policy shows binds you: "
            "where it forbids the request, leave everything as it is and report that it cannot be done.",
        )
    )
    return f"{work}\n\n{_signed(store, order, rng, wish, postcode)}"


def _signed(store: Store, order: Order, rng: Random, wish: str, postcode: str | None = None) -> str:
    customer = store.customers[order.customer_id]
    hello = rng.choice(("Hello", "Good morning", "Dear team", "Hi"))
    return f'"{hello}, {wish}\n{customer.name}, postcode {postcode or customer.address["postcode"]}"'


def _look(store: Store, order: Order) -> tuple[Call, ...]:
    name = store.customers[order.customer_id].name
    return (
        Call("get_policy"),
        Call("find_customer", {"name": name}),
        Call("get_customer", {"customer_id": order.customer_id}),
        Call("get_order", {"order_id": order.order_id}),
    )


def _named(store: Store, order: Order, difficulty: int) -> str:
    """Return how the customer identifies the order: by its number, or by properties found only in the order itself."""
    theirs = [other for other in store.orders.values() if other.customer_id == order.customer_id]
    if difficulty > 1 and sum(other.placed_on == order.placed_on for other in theirs) == 1:
        return f"my order of {order.placed_on}"
    return f"my order {order.order_id}"


# Forbidden requests are worded as allowed ones are, so that the wording alone reveals nothing.


def _wish_to_return(store: Store, order: Order, items: list[Variant], difficulty: int) -> str:
    things = listed(item.name for item in items)
    return f"I would like to return the {things} from {_named(store, order, difficulty)} and get my money back."


def _wish_to_exchange(store: Store, order: Order, old: Variant, colour: str, size: str, difficulty: int) -> str:
    return (
        f"I would like to exchange the {old.name} from {_named(store, order, difficulty)} for one that is {colour} and "
        f"{size}. No other will do."
    )


def _refused(store: Store, order: Order, goal: str, reason: str, *looks: Call) -> ToolTask:
    return ToolTask(goal, (*_look(store, order), *looks, InfeasibleReport(reason)), infeasible=True)


def _chosen(store: Store, order: Order, rng: Random, difficulty: int) -> list[Variant]:
    items = [store.items[number] for number in order.item_ids]
    return sorted(rng.sample(items, min(difficulty, len(items))), key=lambda item: item.item_id)


def _refund(store: Store, items: list[Variant]) -> int:
    return sum(item.price_cents for item in items) * (100 - store.policy.fee_percent) // 100


def _return(order: Order, items: list[Variant], cents: int, method: str) -> Call:
    arguments = {
        "order_id": order.order_id,
        "item_ids": [item.item_id for item in items],
        "refund_cents": cents,
        "refund_to": method,
    }
    return Call("return_items", arguments)


def cancel(store: Store, rng: Random, difficulty: int) -> ToolTask:
    order = store.case("pending")
    reason = rng.choice(sorted(_ACCEPTED))
    wish = f"please cancel {_named(store, order, difficulty)}: {rng.choice(_ACCEPTED[reason])}."

    look = _look(store, order)
    right = Call("cancel_order", {"order_id": order.order_id, "reason": reason})
    return ToolTask(_letter(store, order, rng, wish), (*look, right, FinalAnswer()), called([right]))


def cancel_refused(store: Store, rng: Random, difficulty: int) -> ToolTask:
    if rng.random() < 0.5:
        order, reason_given = store.case("processing"), rng.choice(_ACCEPTED["no longer needed"])
        reason = "The order is already processing."
    else:
        order, reason_given = store.case("pending"), rng.choice(_NOT_ACCEPTED)
        reason = "This reason is not accepted."
    goal = _letter(store, order, rng, f"please cancel {_named(store, order, difficulty)}: {reason_given}.")
    return _refused(store, order, goal, reason)


def change_address(store: Store, rng: Random, difficulty: int) -> ToolTask:
    order = store.case("pending")
    address = an_address(rng)
    wish = (
        f"I shall not be at home: please send {_named(store, order, difficulty)} to {address['street']}, "
        f"{address['postcode']} {address['city']} instead. My account keeps its address."
    )

    look = _look(store, order)
    right = Call("change_order_address", {"order_id": order.order_id, **address})
    return ToolTask(_letter(store, order, rng, wish), (*look, right, FinalAnswer()), called([right]))


def return_items(store: Store, rng: Random, difficulty: int) -> ToolTask:
    order = store.case("returnable")
    items = _chosen(store, order, rng, difficulty)
    wish = _wish_to_return(store, order, items, difficulty)
    cents = _refund(store, items)

    look = _look(store, order)
    right = _return(order, items, cents, order.payment_method)
    return ToolTask(_letter(store, order, rng, wish), (*look, right, FinalAnswer()), called([right]))


def refund_told(store: Store, rng: Random, difficulty: int) -> ToolTask:
    """Create a task in which nothing is changed: the customer asks for the amount of a refund."""
    order = store.case("returnable")
    items = _chosen(store, order, rng, difficulty)
    wish = (
        f"how much would I get back if I returned the {listed(item.name for item in items)} from "
        f"{_named(store, order, difficulty)} today? I only want to know, please do not enter anything yet."
    )
    cents = _refund(store, items)
    goal = _letter(store, order, rng, wish) + "\n\nAnswer with the refund in cents."
    look = _look(store, order)
    answer = {"type": "number", "value": cents}
    return ToolTask(goal, (*look, FinalAnswer(str(cents))), answer=answer)


def return_refused(store: Store, rng: Random, difficulty: int) -> ToolTask:
    case, reason = rng.choice(
        (
            ("late", "The days for returning it are over."),
            ("final sale", "That product is final sale."),
        )
    )
    order = store.case(case)
    items = _chosen(store, order, rng, difficulty)
    wish = _wish_to_return(store, order, items, difficulty)
    return _refused(store, order, _letter(store, order, rng, wish), reason)


def exchange(store: Store, rng: Random, difficulty: int) -> ToolTask:
    order = store.case("returnable")
    old = _chosen(store, order, rng, 1)[0]
    others = [i for i in store.items.values() if i.product == old.product and i.item_id != old.item_id and i.in_stock]
    new = rng.choice(sorted(others, key=lambda item: item.item_id))
    wish = _wish_to_exchange(store, order, old, new.options["colour"], new.options["size"], difficulty)

    look = (*_look(store, order), Call("get_product", {"product": old.product}))
    right = Call("exchange_item", {"order_id": order.order_id, "item_id": old.item_id, "new_item_id": new.item_id})
    return ToolTask(_letter(store, order, rng, wish), (*look, right, FinalAnswer()), called([right]))


def exchange_refused(store: Store, rng: Random, difficulty: int) -> ToolTask:
    order = store.case("returnable")
    old = _chosen(store, order, rng, 1)[0]
    variants = sorted((i for i in store.items.values() if i.product == old.product), key=lambda item: item.item_id)
    there = {(item.options["colour"], item.options["size"]) for item in variants if item.in_stock}
    sizes = sorted({item.options["size"] for item in variants})
    colour, size = rng.choice([(colour, size) for colour in COLOURS for size in sizes if (colour, size) not in there])
    wish = _wish_to_exchange(store, order, old, colour, size, difficulty)
    look = Call("get_product", {"product": old.product})
    return _refused(store, order, _letter(store, order, rng, wish), "That variant is not in stock.", look)


def identity_differs(store: Store, rng: Random, difficulty: int) -> ToolTask:
    order = store.case("pending")
    postcode = an_address(rng)["postcode"]
    if postcode == store.customers[order.customer_id].address["postcode"]:
        postcode = postcode[::-1] + "0"
    wish = f"please cancel {_named(store, order, difficulty)}: {rng.choice(_ACCEPTED['ordered by mistake'])}."
    goal = _letter(store, order, rng, wish, postcode=postcode)
    return _refused(store, order, goal, "The postcode is not that of the account.")


def several_wishes(store: Store, rng: Random, difficulty: int) -> ToolTask:
    """Create a task with separate requests in one message, some of them allowed: do those and name the others."""
    allowed = rng.sample(("pending", "returnable"), 1 if difficulty == 1 else 2)
    forbidden = rng.sample(("processing", "late", "final sale"), 1 if difficulty < 3 else 2)
    wishes: list[str] = []
    done: list[Call] = []
    wrongly: list[Call] = []
    for case in rng.sample([*allowed, *forbidden], len(allowed) + len(forbidden)):
        order = store.case(case)
        calls = done if case in allowed else wrongly
        if case in ("pending", "processing"):
            wishes.append(f"cancel order {order.order_id}, which I no longer need")
            calls.append(Call("cancel_order", {"order_id": order.order_id, "reason": "no longer needed"}))
        else:
            item = _chosen(store, order, rng, 1)[0]
            wishes.append(f"take back the {item.name} from order {order.order_id}")
            calls.append(_return(order, [item], _refund(store, [item]), order.payment_method))
    hero = store.case("pending")
    letter = _signed(store, hero, rng, f"I have {len(wishes)} requests. Please {'; please '.join(wishes)}.")
    goal = (
        "You work in the customer service of a shop. The message below holds separate requests: carry out each that "
        "the policy (get_policy) allows, and leave out the others. Answer with the order numbers of the requests that "
        f"were left out.\n\n{letter}"
    )
    left_out = [str(call.arguments["order_id"]) for call in wrongly]

    look = _look(store, hero)
    answer = FinalAnswer(", ".join(left_out))
    return ToolTask(goal, (*look, *done, answer), called(done), {"type": "set", "value": left_out})


TEMPLATES = (
    ToolTaskTemplate("retail/cancel", build, cancel),
    ToolTaskTemplate("retail/cancel-refused", build, cancel_refused),
    ToolTaskTemplate("retail/change-address", build, change_address),
    ToolTaskTemplate("retail/return", build, return_items),
    ToolTaskTemplate("retail/refund-amount", build, refund_told),
    ToolTaskTemplate("retail/return-refused", build, return_refused),
    ToolTaskTemplate("retail/exchange", build, exchange),
    ToolTaskTemplate("retail/exchange-refused", build, exchange_refused),
    ToolTaskTemplate("retail/identity", build, identity_differs),
    ToolTaskTemplate("retail/several", build, several_wishes),
)
