"""A small expression language."""

from calcexpr.errors import EvaluationError, ExpressionError, ParseError
from calcexpr.evaluate import evaluate
from calcexpr.expression import Expression, compile_expression
from calcexpr.parser import parse
from calcexpr.printer import to_text
from calcexpr.simplify import simplify

__all__ = [
    "EvaluationError",
    "Expression",
    "ExpressionError",
    "ParseError",
    "compile_expression",
    "evaluate",
    "parse",
    "simplify",
    "to_text",
]
