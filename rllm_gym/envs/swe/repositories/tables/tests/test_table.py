import pytest
from tablequery import Table, TableError


def test_columns_have_one_length():
    with pytest.raises(TableError, match="different lengths"):
        Table({"a": [1], "b": []})
    assert len(Table({})) == 0


def test_rows():
    table = Table.from_rows(["a", "b"], [(1, "x"), (2, "y")])
    assert list(table) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]
    with pytest.raises(TableError, match="1 cells for 2"):
        Table.from_rows(["a", "b"], [(1,)])


def test_unknown_columns_are_named_with_the_known_ones():
    with pytest.raises(TableError, match="no column 'c'; the columns are a, b"):
        Table({"a": [], "b": []}).column("c")


def test_order_matters_for_equality():
    others = [Table({"b": [2], "a": [1]}), Table({"a": [1], "b": [2]})]
    assert [Table({"a": [1], "b": [2]}) == other for other in others] == [False, True]


def test_the_table_is_not_changed_through_a_column():
    table = Table({"a": [1]})
    table.column("a").append(2)
    assert table.column("a") == [1]


def test_sorting_is_stable_and_missing_cells_are_last():
    table = Table({"a": [2, None, 1, 2], "b": ["w", "x", "y", "z"]})
    assert table.order_by("a").column("b") == ["y", "w", "z", "x"]
    assert table.order_by("a", descending=True).column("b") == ["w", "z", "y", "x"]


def test_head_select_filter():
    table = Table({"a": [1, 2, 3], "b": [4, 5, 6]})
    assert table.head(2).column("a") == [1, 2]
    assert table.head(9) == table
    assert table.select({"x": "b"}) == Table({"x": [4, 5, 6]})
    assert table.filter(lambda row: row["a"] != 2).column("b") == [4, 6]


def test_text_for_people():
    table = Table({"name": ["a", None], "n": [5, 120], "ok": [True, False]})
    assert table.to_text() == "name    n  ok\n----  ---  -----\na       5  true\n      120  false"


def test_an_empty_table_has_a_header():
    assert Table({"a": [], "bc": []}).to_text() == "a  bc\n-  --"
