from tallybook import Ledger, Money, overspent, read_journal, spent_by_month


def test_spending_by_month(book):
    assert spent_by_month(book, "expenses", "EUR") == {"2024-03": Money(6750, "EUR")}
    assert spent_by_month(book, "assets:bank", "EUR") == {
        "2024-02": Money(200000, "EUR"),
        "2024-04": Money(-18500, "EUR"),
    }
    assert spent_by_month(book, "expenses", "USD") == {}


def test_what_is_over_the_budget(book):
    assert overspent(book) == [("2024-03", "expenses:food", Money(750, "EUR"))]


def test_the_budget_itself_may_be_spent():
    text = "budget food  10 EUR\n2024-01-01 x\n food  {} EUR\n cash\n"
    assert overspent(Ledger(read_journal(text.format("10.00")))) == []
    assert overspent(Ledger(read_journal(text.format("10.01")))) == [("2024-01", "food", Money(1, "EUR"))]


def test_the_order_is_by_month():
    text = (
        "budget b  1 EUR\nbudget a  1 EUR\n2024-02-01 x\n a  3 EUR\n b  2 EUR\n cash\n2024-01-01 x\n b  5 EUR\n cash\n"
    )
    assert [row[:2] for row in overspent(Ledger(read_journal(text)))] == [
        ("2024-01", "b"),
        ("2024-02", "a"),
        ("2024-02", "b"),
    ]
