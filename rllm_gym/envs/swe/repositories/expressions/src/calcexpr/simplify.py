"""A smaller tree with the same value."""

from __future__ import annotations

from calcexpr.errors import EvaluationError
from calcexpr.evaluate import evaluate
from calcexpr.tree import Binary, Call, Choice, Compare, Element, Items, Literal, Node, Unary, variables


def simplify(node: Node) -> Node:
    """Compute what needs no variable and drop what changes nothing: ``x * 1``, ``x + 0``, ``not not (a < b)``.

    What would be an error stays as it is: it is an error only when it is evaluated.
    """
    node = _with_simple_parts(node)
    if not isinstance(node, Literal | Items) and not variables(node):
        try:
            value = evaluate(node)
        except EvaluationError:
            return node
        return node if isinstance(value, list) else Literal(value)
    match node:
        case Binary("+" | "-", left, Literal(0)) if _is_number(left):
            return left
        case Binary("+", Literal(0), right) if _is_number(right):
            return right
        case Binary("*" | "/", left, Literal(1)) if _is_number(left):
            return left
        case Binary("*", Literal(1), right) if _is_number(right):
            return right
        case Unary("-", Unary("-", operand)):
            return operand if _is_number(operand) else node
        case Unary("not", Unary("not", operand)) if isinstance(operand, Compare):
            return operand
        case Unary("not", Compare((operator,), operands)) if operator in _OPPOSITE:
            return Compare((_OPPOSITE[operator],), operands)
        case Choice(Literal(condition), yes, no):
            return yes if condition else no
        case Choice(_, yes, no) if yes == no and yes:
            return yes
    return node


_OPPOSITE = {"==": "!=", "!=": "=="}


def _is_number(node: Node) -> bool:
    """Whether a node can only be a number or an error: a variable could be a text."""
    match node:
        case Literal(value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case Unary("-" | "+", _) | Binary("-" | "*" | "/" | "//" | "%" | "^", _, _):
            return True
        case Binary("+", left, right):
            return _is_number(left) or _is_number(right)
        case Call("abs" | "round" | "len" | "sqrt" | "floor" | "ceil", _):
            return True
    return False


def _with_simple_parts(node: Node) -> Node:
    match node:
        case Unary(operator, operand):
            return Unary(operator, simplify(operand))
        case Binary(operator, left, right):
            return Binary(operator, simplify(left), simplify(right))
        case Compare(operators, operands):
            return Compare(operators, tuple(map(simplify, operands)))
        case Choice(condition, yes, no):
            return Choice(simplify(condition), simplify(yes), simplify(no))
        case Call(function, arguments):
            return Call(function, tuple(map(simplify, arguments)))
        case Items(items):
            return Items(tuple(map(simplify, items)))
        case Element(of, index):
            return Element(simplify(of), simplify(index))
    return node
