"""Tables of text made from a ledger."""

from __future__ import annotations

from tallybook.accounts import SEPARATOR, depth, shorten
from tallybook.ledger import Ledger
from tallybook.money import Money


def balance_sheet(book: Ledger, *, max_depth: int | None = None) -> str:
    """Every account with its balance, sub-accounts indented by two spaces and counted into those above.

    Args:
        book: Where the balances come from.
        max_depth: Leave out accounts with more parts than this.
    """
    rows = []
    for account in book.accounts():
        level = depth(account)
        if max_depth is not None and level > max_depth:
            continue
        name = "  " * (level - 1) + account.rpartition(SEPARATOR)[2]
        rows.append((name, book.balance(account)))
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{width}}  {balance}" for name, balance in rows)


def register(book: Ledger, account: str, *, width: int = 30) -> str:
    """The postings within an account by date, each with the running total of its currency."""
    running: dict[str, Money] = {}
    lines = []
    for transaction, posting in book.postings(account):
        currency = posting.amount.currency
        running[currency] = running.get(currency, Money(0, currency)) + posting.amount
        name = shorten(posting.account, width)
        lines.append(f"{transaction.date}  {name:<{width}}  {posting.amount!s:>16}  {running[currency]!s:>16}")
    return "\n".join(lines)
