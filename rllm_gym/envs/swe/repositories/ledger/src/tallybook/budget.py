"""What was spent, month by month, against what was planned."""

from __future__ import annotations

from tallybook.ledger import Ledger
from tallybook.money import Money


def spent_by_month(book: Ledger, account: str, currency: str) -> dict[str, Money]:
    """What went to ``account`` and the accounts under it, by month (``"2024-03"``), in one currency."""
    months: dict[str, Money] = {}
    for transaction, posting in book.postings(account):
        if posting.amount.currency == currency:
            month = transaction.date.strftime("%Y-%m")
            months[month] = months.get(month, Money(0, currency)) + posting.amount
    return months


def overspent(book: Ledger) -> list[tuple[str, str, Money]]:
    """Each (month, account, amount over the budget), by month and then by account.

    Spending exactly the budget is fine.
    """
    found = []
    for account, limit in book.budgets.items():
        for month, spent in spent_by_month(book, account, limit.currency).items():
            if limit < spent:
                found.append((month, account, spent - limit))
    return sorted(found, key=lambda row: row[:2])
