"""The back office and what mail asks to be done there: every errand can be done, and tables show what is so."""

from __future__ import annotations

from functools import partial

import pytest

from rllm_gym.sites.admin import ORIGIN, TEMPLATES, build
from rllm_gym.sites.desk import TEMPLATES as DESK_TEMPLATES
from rllm_gym.sites.errors import FormError
from rllm_gym.sites.task import Click, Fill, Select
from rllm_gym.sites.wording import money
from tests.sites.html_walker import Walker
from tests.sites.task_checks import FEW_SEEDS, MANY_SEEDS, check_task, share_of_today


def test_the_solution_is_rewarded_and_a_near_miss_is_not() -> None:
    check_task(TEMPLATES + DESK_TEMPLATES, FEW_SEEDS)


@pytest.mark.long
def test_the_solution_of_many_seeds() -> None:
    check_task(TEMPLATES + DESK_TEMPLATES, share_of_today(MANY_SEEDS, 25))


def rows(walker: Walker, column: int) -> list[str]:
    """The cells of a column on the page that is open."""
    body = next(node for node in walker.page.walk() if node.tag == "tbody")
    cells = [
        [cell for cell in row.children if not isinstance(cell, str)]
        for row in body.children
        if not isinstance(row, str)
    ]
    return [line[column].text for line in cells]


def test_a_table_sorts_by_its_headings_through_all_of_its_pages() -> None:
    world = build(1, 4)
    for path, heading, column, wanted in (
        (
            "/products",
            "Price",
            3,
            [money(row.price) for row in sorted(world.products.values(), key=lambda row: row.price)],
        ),
        ("/invoices", "No.", 1, [row.label for row in sorted(world.invoices.values(), key=lambda row: row.number)]),
    ):
        walker = Walker(world, f"{ORIGIN}{path}")
        walker.do(Click("link", heading))
        shown = rows(walker, column)
        while len(shown) < len(wanted):
            walker.do(Click("link", "Next ›"))
            shown += rows(walker, column)
        assert shown == wanted
        walker.do(Click("link", heading))
        assert rows(walker, column) == wanted[::-1][:10]


def test_editing_a_row_keeps_the_filter_and_the_page() -> None:
    world = build(1, 5)
    walker = Walker(world, f"{ORIGIN}/products?category=Furniture&sort=-price&page=2")
    shown = rows(walker, 1)
    name = shown[0]
    walker.do(Click("link", f"Edit {name}"))
    walker.do(Fill(f"Stock of {name}", "7"))
    walker.do(Click("button", "Save"))
    assert rows(walker, 1) == shown
    assert next(row.stock for row in world.products.values() if row.name == name) == 7


def test_a_price_that_is_none_changes_nothing() -> None:
    world = build(1, 1)
    before = world.facts()
    name = next(iter(world.products.values())).name
    for price in ("", "-1", "1.234", "1e3", "NaN", "99999999999", "five"):
        walker = Walker(world, f"{ORIGIN}/products?edit=1")
        walker.do(Fill(f"Price of {name}", price))
        walker.do(Click("button", "Save"))
        assert "The price must" in walker.page.text, price
        assert world.facts() == before, price


def test_money_is_given_back_once_for_a_reason_and_never_more_than_came() -> None:
    world = build(1, 2)
    paid = next(row for row in world.invoices.values() if row.paid and not row.refunded)
    unpaid = next(row for row in world.invoices.values() if not row.paid)
    reason = "Late delivery"
    for refused in (
        partial(world.refund, unpaid.number, 1, reason),
        partial(world.refund, paid.number, paid.total + 1, reason),
        partial(world.refund, paid.number, 0, reason),
        partial(world.refund, paid.number, 1, "No reason"),
        partial(world.mark_paid, [unpaid.number, paid.number]),
        partial(world.set_employees_active, [1], False),
    ):
        before = world.facts()
        with pytest.raises(FormError):
            refused()
        assert world.facts() == before
    walker = Walker(world, f"{ORIGIN}/invoice/{paid.number}")
    for move in (
        Click("button", "Refund …"),
        Fill("Amount", f"{paid.total / 100:,.2f}"),
        Select("Reason", reason),
        Click("button", "Refund"),
    ):
        walker.do(move)
    assert world.invoices[paid.number].refunded == paid.total
    with pytest.raises(FormError, match="already"):
        world.refund(paid.number, 1, reason)


def test_nothing_is_done_to_rows_that_nobody_ticked() -> None:
    world = build(1, 1)
    before = world.facts()
    walker = Walker(world, f"{ORIGIN}/staff")
    walker.do(Click("button", "Deactivate"))
    assert "No row was selected" in walker.page.text
    assert world.facts() == before
