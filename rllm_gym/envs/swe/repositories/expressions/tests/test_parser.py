import pytest
from calcexpr import ParseError, parse
from calcexpr.tree import Binary, Call, Choice, Compare, Element, Items, Literal, Name, Unary, variables

A, B, C = Name("a"), Name("b"), Name("c")


@pytest.mark.parametrize(
    ("source", "tree"),
    [
        ("a - b - c", Binary("-", Binary("-", A, B), C)),
        ("a + b * c", Binary("+", A, Binary("*", B, C))),
        ("(a + b) * c", Binary("*", Binary("+", A, B), C)),
        ("a ^ b ^ c", Binary("^", A, Binary("^", B, C))),
        ("-a ^ b", Unary("-", Binary("^", A, B))),
        ("a ^ -b", Binary("^", A, Unary("-", B))),
        ("-+a", Unary("-", Unary("+", A))),
        ("a * -b", Binary("*", A, Unary("-", B))),
        ("a or b and c", Binary("or", A, Binary("and", B, C))),
        ("not a == b", Unary("not", Compare(("==",), (A, B)))),
        ("a < b <= c", Compare(("<", "<="), (A, B, C))),
        ("a in [b, c]", Compare(("in",), (A, Items((B, C))))),
        ("if a then b else c", Choice(A, B, C)),
        ("a[b][0]", Element(Element(A, B), Literal(0))),
        ("f(a, b)[0]", Element(Call("f", (A, B)), Literal(0))),
        ("f()", Call("f", ())),
        ("[a,]", Items((A,))),
        ("true", Literal(True)),
    ],
)
def test_trees(source, tree):
    assert parse(source) == tree


def test_choices_nest_without_parentheses():
    assert parse("if a then b else if b then c else a") == Choice(A, B, Choice(B, C, A))


@pytest.mark.parametrize(
    ("source", "place"),
    [("", 0), ("a +", 3), ("a b", 2), ("(a", 2), ("f(a", 3), ("[a b]", 3), ("if a then b", 11), ("a)", 1), ("f(,)", 2)],
)
def test_errors_have_a_place(source, place):
    with pytest.raises(ParseError) as caught:
        parse(source)
    assert caught.value.place == place


def test_messages_say_what_was_expected():
    with pytest.raises(ParseError, match=r"expected '\)', found the end \(at character 3\)"):
        parse("(a")
    with pytest.raises(ParseError, match="expected the end, found 'b'"):
        parse("a b")


def test_nesting_has_a_limit():
    assert parse("(" * 50 + "a" + ")" * 50) == A
    with pytest.raises(ParseError, match="too deep"):
        parse("(" * 100 + "a" + ")" * 100)


def test_variables_are_not_functions():
    assert variables(parse("f(a) + b[c] * a")) == {"a", "b", "c"}
