from tallybook import balance_sheet, register


def test_the_balance_sheet_is_a_tree(book):
    assert balance_sheet(book).splitlines() == [
        "assets         1,747.50 EUR, 30,000 JPY",
        "  bank         1,815.00 EUR",
        "  cash         -67.50 EUR, 30,000 JPY",
        "equity         185.00 EUR, -30,000 JPY",
        "  exchange     185.00 EUR, -30,000 JPY",
        "expenses       67.50 EUR",
        "  food         67.50 EUR",
        "    groceries  42.50 EUR",
        "    out        25.00 EUR",
        "income         -2,000.00 EUR",
        "  salary       -2,000.00 EUR",
    ]


def test_depth_can_be_limited(book):
    assert balance_sheet(book, max_depth=1).splitlines() == [
        "assets    1,747.50 EUR, 30,000 JPY",
        "equity    185.00 EUR, -30,000 JPY",
        "expenses  67.50 EUR",
        "income    -2,000.00 EUR",
    ]
    assert "groceries" not in balance_sheet(book, max_depth=2)


def test_the_register_keeps_a_running_total(book):
    assert register(book, "assets:cash", width=12).splitlines() == [
        "2024-03-01  assets:cash         -42.50 EUR        -42.50 EUR",
        "2024-03-09  assets:cash         -25.00 EUR        -67.50 EUR",
        "2024-04-02  assets:cash         30,000 JPY        30,000 JPY",
    ]


def test_the_register_shortens_names(book):
    assert register(book, "expenses:food:groceries", width=16).splitlines() == [
        "2024-03-01  e:food:groceries         42.50 EUR         42.50 EUR"
    ]


def test_an_empty_report(book):
    assert register(book, "nowhere") == ""
