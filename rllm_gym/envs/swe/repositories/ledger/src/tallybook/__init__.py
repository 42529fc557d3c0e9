"""Double-entry bookkeeping in plain text."""

from tallybook.accounts import depth, is_within, parent, shorten
from tallybook.budget import overspent, spent_by_month
from tallybook.errors import BalanceError, JournalError, MoneyError
from tallybook.journal import Posting, Transaction, read_journal
from tallybook.ledger import Ledger
from tallybook.money import Money, parse_money
from tallybook.reports import balance_sheet, register

__all__ = [
    "BalanceError",
    "JournalError",
    "Ledger",
    "Money",
    "MoneyError",
    "Posting",
    "Transaction",
    "balance_sheet",
    "depth",
    "is_within",
    "overspent",
    "parent",
    "parse_money",
    "read_journal",
    "register",
    "shorten",
    "spent_by_month",
]
