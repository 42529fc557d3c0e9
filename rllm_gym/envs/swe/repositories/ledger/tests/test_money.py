import pytest
from tallybook import Money, MoneyError, parse_money


@pytest.mark.parametrize(
    ("text", "units", "currency"),
    [
        ("12.50 EUR", 1250, "EUR"),
        ("12.5 EUR", 1250, "EUR"),
        ("-3 USD", -300, "USD"),
        ("+3 USD", 300, "USD"),
        ("- 3.07 USD", -307, "USD"),
        ("1,250.00 EUR", 125000, "EUR"),
        ("1234567 EUR", 123456700, "EUR"),
        ("500 JPY", 500, "JPY"),
        ("1.25 KWD", 1250, "KWD"),
        (" 0.05EUR ", 5, "EUR"),
    ],
)
def test_amounts_are_read_exactly(text, units, currency):
    assert parse_money(text) == Money(units, currency)


@pytest.mark.parametrize("text", ["", "12", "12.505 EUR", "1.5 JPY", "12,50 EUR", "1,2345 EUR", "12 eur", "EUR 12"])
def test_other_text_is_refused(text):
    with pytest.raises(MoneyError):
        parse_money(text)


def test_amounts_are_shown_as_they_are_read():
    texts = "12.50EUR", "-0.07USD", "1250.00EUR", "1234567EUR", "500 JPY", "1.25 KWD"
    assert [str(parse_money(text)) for text in texts] == [
        "12.50 EUR",
        "-0.07 USD",
        "1,250.00 EUR",
        "1,234,567.00 EUR",
        "500 JPY",
        "1.250 KWD",
    ]


def test_arithmetic_stays_in_one_currency():
    assert Money(5, "EUR") + Money(7, "EUR") == Money(12, "EUR")
    assert Money(5, "EUR") - Money(7, "EUR") == Money(-2, "EUR")
    assert -Money(5, "EUR") == Money(-5, "EUR")
    with pytest.raises(MoneyError, match="different currencies"):
        Money(5, "EUR") + Money(7, "USD")
    with pytest.raises(MoneyError):
        sorted([Money(5, "EUR"), Money(7, "USD")])


def test_amounts_are_ordered():
    five, six = Money(5, "EUR"), Money(6, "EUR")
    assert [five < six, five < five, five <= five, six <= five] == [True, False, True, False]
    assert [bool(Money(units, "EUR")) for units in (0, -1)] == [False, True]


def test_splitting_loses_nothing():
    assert Money(1000, "EUR").split(3) == [Money(334, "EUR"), Money(333, "EUR"), Money(333, "EUR")]
    assert Money(1, "EUR").split(2) == [Money(1, "EUR"), Money(0, "EUR")]
    for units in range(-20, 21):
        for parts in range(1, 7):
            shares = [share.units for share in Money(units, "EUR").split(parts)]
            assert sum(shares) == units
            assert max(shares) - min(shares) <= 1
            assert shares == sorted(shares, reverse=True)
    with pytest.raises(MoneyError):
        Money(1, "EUR").split(0)
