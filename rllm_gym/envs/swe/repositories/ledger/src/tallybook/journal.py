"""Reads the text of a journal into transactions that balance."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tallybook.errors import BalanceError, JournalError, MoneyError
from tallybook.money import Money, parse_money

_HEADER = re.compile(r"(\d{4})[-/](\d{1,2})[-/](\d{1,2})(?:\s+([*!]))?(?:\s+(.*))?")
_STATUS = {"*": "cleared", "!": "pending", None: "open"}


@dataclass(frozen=True)
class Posting:
    account: str
    amount: Money


@dataclass(frozen=True)
class Transaction:
    date: datetime.date
    description: str
    postings: tuple[Posting, ...]
    status: str = "open"
    line: int = 0


@dataclass
class Journal:
    """Transactions in the order of the file, and the monthly budgets by account."""

    transactions: list[Transaction] = field(default_factory=list)
    budgets: dict[str, Money] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self.transactions)

    def __len__(self) -> int:
        return len(self.transactions)


@dataclass
class _Draft:
    """A transaction whose postings are still being read."""

    date: datetime.date
    description: str
    status: str
    line: int
    postings: list[tuple[str, Money | None]] = field(default_factory=list)


def read_journal(text: str) -> Journal:
    """Read a whole journal.

    Raises:
        JournalError: A line cannot be understood.
        BalanceError: A transaction does not add up to zero in every currency.
    """
    journal = Journal()
    draft: _Draft | None = None
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.split(";", 1)[0].rstrip()
        if not line or raw.startswith("#"):
            continue
        if line[0] in " \t":
            if draft is None:
                raise JournalError("a posting before any transaction", number)
            draft.postings.append(_read_posting(line.strip(), number))
            continue
        if draft is not None:
            journal.transactions.append(_finish(draft))
            draft = None
        if line.startswith("budget "):
            account, amount = _read_posting(line.removeprefix("budget ").strip(), number)
            if amount is None:
                raise JournalError(f"the budget of {account} has no amount", number)
            journal.budgets[account] = amount
        else:
            draft = _read_header(line, number)
    if draft is not None:
        journal.transactions.append(_finish(draft))
    return journal


def _read_header(line: str, number: int) -> _Draft:
    match = _HEADER.fullmatch(line)
    if match is None:
        raise JournalError(f"expected a date and a description, found {line!r}", number)
    year, month, day, mark, description = match.groups()
    try:
        date = datetime.date(int(year), int(month), int(day))
    except ValueError:
        raise JournalError(f"there is no such day: {year}-{month}-{day}", number) from None
    return _Draft(date, (description or "").strip(), _STATUS[mark], number)


def _read_posting(text: str, number: int) -> tuple[str, Money | None]:
    account, *rest = re.split(r"\t| {2,}", text, maxsplit=1)
    if not rest:
        return account, None
    try:
        return account, parse_money(rest[0])
    except MoneyError as error:
        raise JournalError(str(error), number) from error


def _finish(draft: _Draft) -> Transaction:
    missing = [place for place, (_, amount) in enumerate(draft.postings) if amount is None]
    if len(missing) > 1:
        raise BalanceError("more than one posting has no amount", draft.line)
    sums = totals(amount for _, amount in draft.postings if amount is not None)
    uneven = [amount for amount in sums.values() if amount]
    postings = [Posting(account, amount) for account, amount in draft.postings if amount is not None]
    if missing:
        account = draft.postings[missing[0]][0]
        # One posting for every currency that is left over.
        postings[missing[0] : missing[0]] = [Posting(account, -amount) for amount in uneven]
    elif uneven:
        raise BalanceError(f"off by {', '.join(map(str, uneven))}", draft.line)
    return Transaction(draft.date, draft.description, tuple(postings), draft.status, draft.line)


def totals(amounts: Iterable[Money]) -> dict[str, Money]:
    """The sum of the amounts in each currency, by currency."""
    sums: dict[str, Money] = {}
    for amount in amounts:
        sums[amount.currency] = sums[amount.currency] + amount if amount.currency in sums else amount
    return sums
