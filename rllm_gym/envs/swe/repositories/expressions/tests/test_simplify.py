import pytest
from calcexpr import parse, simplify, to_text


@pytest.mark.parametrize(
    ("source", "simple"),
    [
        ("1 + 2 * 3", "7"),
        ("x + 2 * 3", "x + 6"),
        ("x * x * 1", "x * x"),
        ("-x + 0", "-x"),
        ("0 + abs(x)", "abs(x)"),
        ("x / y / 1", "x / y"),
        ("1 * (x - y)", "x - y"),
        ("--(-x)", "-x"),
        ("not not (x < 1)", "x < 1"),
        ("not x == 1", "x != 1"),
        ("not x != 1", "x == 1"),
        ("if 1 < 2 then x else y", "x"),
        ("if x then y + 1 - 1 * 0 else y + 1", "y + 1"),
        ("min(1 + 1, x)", "min(2, x)"),
        ("[1 + 1, x][2 - 1]", "[2, x][1]"),
    ],
)
def test_what_can_be_simpler(source, simple):
    assert to_text(simplify(parse(source))) == simple


@pytest.mark.parametrize("source", ["x + 0", "x * 1", "--x", "1 / 0", "0 - x", "1 / x", "not x < 1", "not not x"])
def test_what_must_stay(source):
    assert to_text(simplify(parse(source))) == source
