import pytest
from calcexpr import parse, to_text
from calcexpr.tree import Binary, Literal, Name


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("(a+b)*c", "(a + b) * c"),
        ("(a*b)+c", "a * b + c"),
        ("a-(b-c)", "a - (b - c)"),
        ("(a-b)-c", "a - b - c"),
        ("(a^b)^c", "(a ^ b) ^ c"),
        ("a^(b^c)", "a ^ b ^ c"),
        ("(-a)^b", "(-a) ^ b"),
        ("-(a^b)", "-a ^ b"),
        ("-(a+b)", "-(a + b)"),
        ("not (a and b)", "not (a and b)"),
        ("(not a) and b", "not a and b"),
        ("(a < b) < c", "(a < b) < c"),
        ("a or (b or c)", "a or (b or c)"),
        ("(if a then b else c) + 1", "(if a then b else c) + 1"),
        ("f((a), (b))", "f(a, b)"),
        ("(a + b)[0]", "(a + b)[0]"),
        ("true", "true"),
        ("'a\\n\"'", '"a\\n\\""'),
    ],
)
def test_few_parentheses(source, text):
    assert to_text(parse(source)) == text
    assert parse(to_text(parse(source))) == parse(source)


def test_negative_numbers():
    assert to_text(Binary("^", Literal(-2), Name("a"))) == "(-2) ^ a"
    assert to_text(Binary("*", Literal(-2), Name("a"))) == "-2 * a"
