import pytest
from calcexpr import EvaluationError, ParseError, compile_expression


def test_an_expression_is_a_function():
    price = compile_expression("base * (1 + tax / 100) - (if coupon then 5 else 0)")
    assert price(base=20, tax=19, coupon=True) == pytest.approx(18.8)
    assert price.variables == {"base", "tax", "coupon"}


def test_values_must_fit():
    double = compile_expression("2 * x")
    with pytest.raises(EvaluationError, match="no variable y"):
        double(x=1, y=2)
    with pytest.raises(EvaluationError, match="values are needed for x"):
        double()
    with pytest.raises(EvaluationError, match="values are needed for a, b"):
        compile_expression("b + a")()


def test_it_shows_itself():
    assert str(compile_expression("2*(x+1)")) == "2 * (x + 1)"


def test_bad_text_is_refused_at_once():
    with pytest.raises(ParseError):
        compile_expression("2 *")
