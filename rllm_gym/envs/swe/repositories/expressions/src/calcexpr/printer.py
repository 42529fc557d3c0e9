"""The text of a tree, with as few parentheses as it needs."""

from __future__ import annotations

from calcexpr.tree import Binary, Call, Choice, Compare, Element, Items, Literal, Name, Node, Unary

_CHOICE, _NOT, _COMPARE, _SIGN, _POWER, _POSTFIX = 0, 3, 4, 7, 8, 9
_LEVELS = {"or": 1, "and": 2, "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6, "^": _POWER}


def to_text(node: Node) -> str:
    """Text that parses to ``node`` again."""
    return _text(node, _CHOICE)


def _text(node: Node, loosest: int) -> str:
    """The text of a node, in parentheses if it binds more loosely than its place allows."""
    text, level = _written(node)
    return text if level >= loosest else f"({text})"


def _written(node: Node) -> tuple[str, int]:
    match node:
        case Literal(value):
            return _literal(value)
        case Name(name):
            return name, _POSTFIX
        case Unary("not", operand):
            return f"not {_text(operand, _NOT)}", _NOT
        case Unary(sign, operand):
            return f"{sign}{_text(operand, _SIGN)}", _SIGN
        case Binary("^", left, right):
            return f"{_text(left, _POSTFIX)} ^ {_text(right, _SIGN)}", _POWER
        case Binary(operator, left, right):
            level = _LEVELS[operator]
            # These operators go from left to right: a - (b - c) keeps its parentheses.
            return f"{_text(left, level)} {operator} {_text(right, level + 1)}", level
        case Compare(operators, operands):
            parts = [_text(operands[0], _COMPARE + 1)]
            for operator, operand in zip(operators, operands[1:]):
                parts += [operator, _text(operand, _COMPARE + 1)]
            return " ".join(parts), _COMPARE
        case Choice(condition, yes, no):
            return f"if {to_text(condition)} then {to_text(yes)} else {to_text(no)}", _CHOICE
        case Call(function, arguments):
            return f"{function}({', '.join(map(to_text, arguments))})", _POSTFIX
        case Items(items):
            return f"[{', '.join(map(to_text, items))}]", _POSTFIX
        case Element(of, index):
            return f"{_text(of, _POSTFIX)}[{to_text(index)}]", _POSTFIX


def _literal(value: object) -> tuple[str, int]:
    if isinstance(value, bool):
        return str(value).lower(), _POSTFIX
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
        return f'"{escaped}"', _POSTFIX
    # A negative number is written with a sign.
    return str(value), _SIGN if isinstance(value, int | float) and value < 0 else _POSTFIX
