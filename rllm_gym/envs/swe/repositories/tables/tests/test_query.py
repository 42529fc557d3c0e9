import pytest
from tablequery import QueryError, Table, TableError, query


def orders_of(table, text):
    return query(table, text).column("order")


def test_everything(orders):
    assert query(orders, "select *") == orders
    assert query(orders, "SELECT city AS town, order LIMIT 1") == Table({"town": ["Lisbon"], "order": [1]})


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("price = 8", [2, 5]),
        ("price != 8", [1, 3]),
        ("price >= 12.5", [1, 3]),
        ("price > 12.5", [3]),
        ("price < 12.5", [2, 5]),
        ("price <= 12.5", [1, 2, 5]),
        ("city = 'Oslo' and paid = true", [5]),
        ("city = 'Quito' or city = 'Oslo' and paid = true", [4, 5]),
        ("(city = 'Quito' or city = 'Oslo') and paid = false", [2, 4]),
        ("day < 2024-03-02", [1, 4]),
        ("note ~ 'gift'", [3, 5]),
        ("note is missing", [1, 4]),
        ("note is not missing and price > 8", [3]),
        ("city > 5", []),
        ("price > -1", [1, 2, 3, 5]),
        ("\"city\" = 'Oslo'", [2, 5]),
    ],
)
def test_conditions(orders, condition, found):
    assert orders_of(orders, f"select order where {condition}") == found


def test_quotes_in_texts():
    table = Table({"order": [1, 2], "who": ["O'Hara", "Ohara"]})
    assert orders_of(table, "select order where who = 'O''Hara'") == [1]


def test_ordering(orders):
    assert orders_of(orders, "select order order by price") == [2, 5, 1, 3, 4]
    assert orders_of(orders, "select order order by price desc") == [3, 1, 2, 5, 4]
    assert orders_of(orders, "select order order by city, day desc") == [3, 1, 5, 2, 4]
    assert orders_of(orders, "select order, price as p order by p limit 2") == [2, 5]


def test_groups(orders):
    found = query(orders, "select city, count(), sum(price), mean(price) as m group by city")
    assert found == Table(
        {
            "city": ["Lisbon", "Oslo", "Quito"],
            "count": [2, 2, 1],
            "sum_price": [42.75, 16.0, 0],
            "m": [21.375, 8.0, None],
        }
    )


def test_groups_are_filtered_before_and_ordered_after(orders):
    found = query(orders, "select city, max(price) as top where paid = true group by city order by top desc limit 1")
    assert list(found) == [{"city": "Lisbon", "top": 30.25}]


def test_groups_of_several_columns(orders):
    found = query(orders, "select city, paid, count() as n group by city, paid order by n desc, city")
    assert [tuple(row.values()) for row in found] == [
        ("Lisbon", True, 2),
        ("Oslo", False, 1),
        ("Oslo", True, 1),
        ("Quito", False, 1),
    ]


def test_aggregates_of_the_whole_table(orders):
    assert list(query(orders, "select count(), count(price), min(day)")) == [
        {"count": 5, "count_price": 4, "min_day": orders.column("day")[3]}
    ]
    assert list(query(orders, "select count(), sum(price), max(price) where city = 'Rome'")) == [
        {"count": 0, "sum_price": 0, "max_price": None}
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "price",
        "select",
        "select price where",
        "select price where price",
        "select price where price =",
        "select price limit 2.5",
        "select price limit -1",
        "select median(price)",
        "select city, count()",
        "select * group by city",
        "select price price",
        "select price where price ? 1",
        "select price where day = 2024-02-30",
        "select sum(city)",
    ],
)
def test_other_text_is_refused(orders, text):
    with pytest.raises(QueryError):
        query(orders, text)


@pytest.mark.parametrize(
    "text",
    ["select x", "select city where x = 1", "select city order by x", "select x, count() group by x", "select sum(x)"],
)
def test_unknown_columns(orders, text):
    with pytest.raises(TableError, match="no column 'x'"):
        query(orders, text)
