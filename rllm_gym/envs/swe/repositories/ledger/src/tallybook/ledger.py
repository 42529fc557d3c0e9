"""Balances of the accounts of a journal."""

from __future__ import annotations

import datetime
from collections.abc import Iterator

from tallybook.accounts import ancestors, is_within
from tallybook.journal import Journal, Posting, Transaction, totals
from tallybook.money import Money


class Ledger:
    """Answers questions about a journal.

    Args:
        journal: What to look at.
        since: Leave out transactions before this day.
        until: Leave out transactions on or after this day.
    """

    def __init__(
        self, journal: Journal, *, since: datetime.date | None = None, until: datetime.date | None = None
    ) -> None:
        self.budgets = dict(journal.budgets)
        self.transactions = sorted(
            (
                transaction
                for transaction in journal
                if (since is None or transaction.date >= since) and (until is None or transaction.date < until)
            ),
            key=lambda transaction: transaction.date,
        )

    def accounts(self) -> list[str]:
        """Every account that is posted to and every account above one, sorted."""
        found: set[str] = set()
        for _, posting in self.postings():
            found.add(posting.account)
            found.update(ancestors(posting.account))
        return sorted(found)

    def postings(self, root: str | None = None) -> Iterator[tuple[Transaction, Posting]]:
        """The postings within ``root`` (all of them by default), by date."""
        for transaction in self.transactions:
            for posting in transaction.postings:
                if root is None or is_within(posting.account, root):
                    yield transaction, posting

    def balances(self, root: str) -> dict[str, Money]:
        """What ``root`` and the accounts under it hold, by currency; currencies that come to zero are left out."""
        sums = totals(posting.amount for _, posting in self.postings(root))
        return {currency: amount for currency, amount in sorted(sums.items()) if amount}

    def balance(self, root: str) -> str:
        """:meth:`balances` as text, ``"0"`` where there is nothing."""
        return ", ".join(str(amount) for amount in self.balances(root).values()) or "0"

    def uncleared(self) -> list[Transaction]:
        """Transactions that the bank has not confirmed: all but those marked with ``*``."""
        return [transaction for transaction in self.transactions if transaction.status != "cleared"]
