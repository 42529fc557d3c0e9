import datetime

import pytest
from tallybook import BalanceError, JournalError, Money, Posting, read_journal


def one(text):
    (transaction,) = read_journal(text)
    return transaction


def test_a_transaction(household):
    shop = household.transactions[1]
    assert shop.date == datetime.date(2024, 3, 1)
    assert shop.description == "Corner shop"
    assert shop.status == "cleared"
    assert shop.line == 8
    assert shop.postings == (
        Posting("expenses:food:groceries", Money(4250, "EUR")),
        Posting("assets:cash", Money(-4250, "EUR")),
    )


def test_statuses(household):
    assert [transaction.status for transaction in household] == ["cleared", "cleared", "pending", "open"]


def test_the_missing_amount_may_stand_anywhere():
    transaction = one("2024-01-01 x\n a  5 EUR\n b\n c  1 EUR\n")
    assert [(posting.account, posting.amount.units) for posting in transaction.postings] == [
        ("a", 500),
        ("b", -600),
        ("c", 100),
    ]


def test_the_missing_amount_takes_every_currency(household):
    exchange = household.transactions[3]
    assert exchange.postings[2:] == (
        Posting("equity:exchange", Money(-30000, "JPY")),
        Posting("equity:exchange", Money(18500, "EUR")),
    )


def test_a_transaction_must_balance():
    with pytest.raises(BalanceError, match=r"line 2: off by 0\.01 EUR"):
        read_journal("\n2024-01-01 x\n a  5.01 EUR\n b  -5 EUR\n")
    with pytest.raises(BalanceError, match="more than one"):
        read_journal("2024-01-01 x\n a\n b\n")


def test_different_currencies_do_not_balance_each_other():
    with pytest.raises(BalanceError):
        read_journal("2024-01-01 x\n a  5 EUR\n b  -5 USD\n")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (" a  5 EUR\n", 1),
        ("2024-01-01 x\n a  five EUR\n b\n", 2),
        ("2024-02-30 x\n", 1),
        ("# fine\n\nno date\n", 3),
        ("budget food\n", 1),
    ],
)
def test_errors_name_the_line(text, line):
    with pytest.raises(JournalError) as caught:
        read_journal(text)
    assert caught.value.line == line


def test_comments_and_blank_lines():
    transaction = one("# note\n\n; note\n2024-01-01 x ; why\n\n a  5 EUR ; cash\n  ; nothing\n b\n")
    assert transaction.description == "x"
    assert len(transaction.postings) == 2


def test_account_names_may_have_single_spaces_and_tabs_separate():
    transaction = one("2024-01-01 x\n petty cash\t5 EUR\n my bank\n")
    assert [posting.account for posting in transaction.postings] == ["petty cash", "my bank"]


def test_a_description_may_be_missing():
    assert one("2024-01-01\n a  1 EUR\n b\n").description == ""


def test_budgets(household):
    assert household.budgets == {"expenses:food": Money(6000, "EUR")}
    assert len(household) == 4
