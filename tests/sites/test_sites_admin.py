"""The admin site and its mail-driven tasks: tables show the true state."""

from __future__ import annotations

from functools import partial

import pytest

from rllm_gym.envs.web.sites.admin import ORIGIN, build
from rllm_gym.envs.web.sites.errors import FormError
from rllm_gym.envs.web.sites.moves import Click, Fill, Select
from rllm_gym.envs.web.sites.wording import money
from tests.sites.html_walker import SiteDriver


def rows(driver: SiteDriver, column: int) -> list[str]:
    """Return the cells of a column of the open page."""
    body = next(node for node in driver.page.walk() if node.tag == "tbody")
    cells = [
        [cell for cell in row.children if not isinstance(cell, str)]
        for row in body.children
        if not isinstance(row, str)
    ]
    return [line[column].text for line in cells]


def test_a_table_sorts_by_its_headings_across_pages() -> None:
    site = build(1, 4)
    for path, heading, column, expected in (
        (
            "/products",
            "Price",
            3,
            [money(row.price) for row in sorted(site.products.values(), key=lambda row: row.price)],
        ),
        ("/invoices", "No.", 1, [row.label for row in sorted(site.invoices.values(), key=lambda row: row.number)]),
    ):
        driver = SiteDriver(site, f"{ORIGIN}{path}")
        driver.do(Click("link", heading))
        shown = rows(driver, column)
        while len(shown) < len(expected):
            driver.do(Click("link", "Next ›"))
            shown += rows(driver, column)
        assert shown == expected
        driver.do(Click("link", heading))
        assert rows(driver, column) == expected[::-1][:10]


def test_editing_a_row_keeps_the_filter_and_the_page() -> None:
    site = build(1, 5)
    driver = SiteDriver(site, f"{ORIGIN}/products?category=Furniture&sort=-price&page=2")
    shown = rows(driver, 1)
    name = shown[0]
    driver.do(Click("link", f"Edit {name}"))
    driver.do(Fill(f"Stock of {name}", "7"))
    driver.do(Click("button", "Save"))
    assert rows(driver, 1) == shown
    assert next(row.stock for row in site.products.values() if row.name == name) == 7


def test_an_invalid_price_changes_nothing() -> None:
    site = build(1, 1)
    before = site.facts()
    name = next(iter(site.products.values())).name
    for price in ("", "-1", "1.234", "1e3", "NaN", "99999999999", "five"):
        driver = SiteDriver(site, f"{ORIGIN}/products?edit=1")
        driver.do(Fill(f"Price of {name}", price))
        driver.do(Click("button", "Save"))
        assert "The price must" in driver.page.text, price
        assert site.facts() == before, price


def test_a_refund_is_made_once_with_a_reason_and_is_bounded_by_the_payment() -> None:
    site = build(1, 2)
    paid = next(row for row in site.invoices.values() if row.paid and not row.refunded)
    unpaid = next(row for row in site.invoices.values() if not row.paid)
    reason = "Late delivery"
    for refused in (
        partial(site.refund, unpaid.number, 1, reason),
        partial(site.refund, paid.number, paid.total + 1, reason),
        partial(site.refund, paid.number, 0, reason),
        partial(site.refund, paid.number, 1, "No reason"),
        partial(site.mark_paid, [unpaid.number, paid.number]),
        partial(site.set_employees_active, [1], False),
    ):
        before = site.facts()
        with pytest.raises(FormError):
            refused()
        assert site.facts() == before
    driver = SiteDriver(site, f"{ORIGIN}/invoice/{paid.number}")
    for move in (
        Click("button", "Refund …"),
        Fill("Amount", f"{paid.total / 100:,.2f}"),
        Select("Reason", reason),
        Click("button", "Refund"),
    ):
        driver.do(move)
    assert site.invoices[paid.number].refunded == paid.total
    with pytest.raises(FormError, match="already"):
        site.refund(paid.number, 1, reason)


def test_bulk_actions_affect_only_selected_rows() -> None:
    site = build(1, 1)
    before = site.facts()
    driver = SiteDriver(site, f"{ORIGIN}/staff")
    driver.do(Click("button", "Deactivate"))
    assert "No row was selected" in driver.page.text
    assert site.facts() == before
