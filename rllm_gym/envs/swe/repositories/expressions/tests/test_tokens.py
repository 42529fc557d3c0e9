import pytest
from calcexpr import ParseError
from calcexpr.tokens import tokenize


def kinds(source):
    return [token.kind for token in tokenize(source)]


def values(source):
    return [token.value for token in tokenize(source)][:-1]


def test_kinds():
    assert kinds("if x1 >= 2.5 then 'a'") == ["if", "name", ">=", "number", "then", "text", "end"]
    assert kinds("") == ["end"]
    assert kinds("a//b") == ["name", "//", "name", "end"]


def test_one_equals_sign_is_two():
    assert kinds("a = b == c") == ["name", "==", "name", "==", "name", "end"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", 12), ("1.5", 1.5), (".5", 0.5), ("1.", 1.0), ("1e-3", 0.001), ("2E2", 200.0), ("1_000", 1000)],
)
def test_numbers(text, value):
    (found,) = values(text)
    assert found == value
    assert type(found) is type(value)


def test_texts():
    assert values(r'"a\n\"b\"" ' + r"'\\'") == ['a\n"b"', "\\"]
    assert values("'a#b'") == ["a#b"]


def test_comments_end_with_the_line():
    assert values("1 # one\n# two\n+ 2") == [1, "+", 2]


def test_places():
    assert [token.place for token in tokenize("  a +\nbc")] == [2, 4, 6, 8]


@pytest.mark.parametrize(("source", "place"), [("1 + $", 4), ("'abc", 0), (r"'a\q'", 2), ("'a\\", 2)])
def test_errors_have_a_place(source, place):
    with pytest.raises(ParseError) as caught:
        tokenize(source)
    assert caught.value.place == place
