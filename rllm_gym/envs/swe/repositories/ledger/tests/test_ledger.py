import datetime

from tallybook import Ledger, Money, read_journal


def test_balances_count_sub_accounts(book):
    assert book.balance("expenses:food") == "67.50 EUR"
    assert book.balance("expenses:food:out") == "25.00 EUR"
    assert book.balance("assets") == "1,747.50 EUR, 30,000 JPY"
    assert book.balances("assets:cash") == {"EUR": Money(-6750, "EUR"), "JPY": Money(30000, "JPY")}


def test_nothing_is_zero(book):
    assert book.balance("nowhere") == "0"
    journal = read_journal("2024-01-01 x\n a  5 EUR\n b\n2024-01-02 y\n b  5 EUR\n a\n")
    assert Ledger(journal).balance("a") == "0"
    assert Ledger(journal).balances("a") == {}


def test_accounts_include_those_above(book):
    assert book.accounts() == [
        "assets",
        "assets:bank",
        "assets:cash",
        "equity",
        "equity:exchange",
        "expenses",
        "expenses:food",
        "expenses:food:groceries",
        "expenses:food:out",
        "income",
        "income:salary",
    ]


def test_a_period_begins_on_since_and_ends_before_until(household):
    march = Ledger(household, since=datetime.date(2024, 3, 1), until=datetime.date(2024, 3, 9))
    assert [transaction.description for transaction in march.transactions] == ["Corner shop"]
    longer = Ledger(household, since=datetime.date(2024, 3, 1), until=datetime.date(2024, 3, 10))
    assert len(longer.transactions) == 2


def test_transactions_are_in_order_of_their_dates():
    journal = read_journal("2024-01-02 b\n x  1 EUR\n y\n2024-01-01 a\n x  1 EUR\n y\n2024-01-02 c\n x  1 EUR\n y\n")
    assert [transaction.description for transaction in Ledger(journal).transactions] == ["a", "b", "c"]


def test_uncleared(book):
    assert [transaction.description for transaction in book.uncleared()] == ["Restaurant", "Holiday money"]
