"""What an expression is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Literal:
    value: object


@dataclass(frozen=True)
class Name:
    name: str


@dataclass(frozen=True)
class Unary:
    operator: str
    operand: Node


@dataclass(frozen=True)
class Binary:
    operator: str
    left: Node
    right: Node


@dataclass(frozen=True)
class Compare:
    """``first op second op third``; there is one operator fewer than operands."""

    operators: tuple[str, ...]
    operands: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    condition: Node
    yes: Node
    no: Node


@dataclass(frozen=True)
class Call:
    function: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True)
class Items:
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Element:
    of: Node
    index: Node


Node = Literal | Name | Unary | Binary | Compare | Choice | Call | Items | Element


def children(node: Node) -> tuple[Node, ...]:
    """The parts of a node, in the order they are written."""
    match node:
        case Unary(_, operand):
            return (operand,)
        case Binary(_, left, right):
            return left, right
        case Compare(_, operands):
            return operands
        case Choice(condition, yes, no):
            return condition, yes, no
        case Call(_, arguments):
            return arguments
        case Items(items):
            return items
        case Element(of, index):
            return of, index
    return ()


def walk(node: Node) -> Iterator[Node]:
    """The node and everything in it."""
    yield node
    for child in children(node):
        yield from walk(child)


def variables(node: Node) -> set[str]:
    """The names that need a value. Names of functions do not."""
    return {part.name for part in walk(node) if isinstance(part, Name)}
