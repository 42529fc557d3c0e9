import pytest
from tablequery import Table, TableError, read_csv, write_csv
from tablequery.csvfile import guess_delimiter, parse_csv


def test_a_file(orders):
    assert orders.names == ["order", "city", "price", "paid", "day", "note"]
    assert len(orders) == 5
    assert orders.column("price") == [12.5, 8.0, 30.25, None, 8.0]
    assert orders.column("note") == [None, "late, again", "gift", None, "Gift wrap"]


def test_the_signature_of_spreadsheets_is_dropped(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbfa,b\r\n1,2\r\n")
    assert read_csv(path) == Table({"a": [1], "b": [2]})


@pytest.mark.parametrize(
    ("header", "delimiter"),
    [("a,b", ","), ("a;b;c", ";"), ("a\tb", "\t"), ("a|b", "|"), ("a", ","), ('"a,b,c";d', ";"), ("a,b;c,d", ",")],
)
def test_delimiters_are_guessed(header, delimiter):
    assert guess_delimiter(header) == delimiter


def test_a_given_delimiter_wins():
    assert parse_csv("a,b;c\n1,2;3\n", delimiter=";").names == ["a,b", "c"]


def test_blank_lines_and_short_rows():
    assert parse_csv("\na,b\n\n1\n , \n2,3\n") == Table({"a": [1, 2], "b": [None, 3]})


def test_cells_may_hold_line_ends():
    assert parse_csv('a,b\n"x\ny",2\n').column("a") == ["x\ny"]


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "empty"), ("\n\n", "empty"), ("a,a\n", "two columns 'a'"), ("a\n1\n1,2\n", "line 3: 2 cells for 1 columns")],
)
def test_what_is_no_table(text, message):
    with pytest.raises(TableError, match=message):
        parse_csv(text)


def test_writing_and_reading_again(orders):
    assert parse_csv(write_csv(orders)) == orders
    assert write_csv(Table({"a": ['x "y"', None], "b,c": [1.5, 2.0]})) == 'a,"b,c"\n"x ""y""",1.5\n,2\n'
