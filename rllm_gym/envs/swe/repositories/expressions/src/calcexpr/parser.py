"""Turns tokens into a tree; one method for each level of the table in ``docs/language.md``."""

from __future__ import annotations

from calcexpr.errors import ParseError
from calcexpr.tokens import Token, tokenize
from calcexpr.tree import Binary, Call, Choice, Compare, Element, Items, Literal, Name, Node, Unary

COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">=", "in"})
MAX_DEPTH = 60


def parse(source: str) -> Node:
    """The tree of an expression.

    Raises:
        ParseError: The text is no expression, or it is nested more than ``MAX_DEPTH`` deep.
    """
    parser = _Parser(tokenize(source))
    node = parser.expression()
    parser.expect("end")
    return node


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.at]

    def accept(self, *kinds: str) -> str | None:
        """The kind of the next token if it is one of these, which is then taken."""
        if self.token.kind in kinds:
            self.at += 1
            return self.tokens[self.at - 1].kind
        return None

    def expect(self, kind: str) -> Token:
        token = self.token
        if self.accept(kind) is None:
            found = "the end" if token.kind == "end" else repr(token.value)
            wanted = "the end" if kind == "end" else repr(kind)
            raise ParseError(f"expected {wanted}, found {found}", token.place)
        return token

    def expression(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ParseError("nested too deep", self.token.place)
        if self.accept("if"):
            condition = self.expression()
            self.expect("then")
            yes = self.expression()
            self.expect("else")
            node: Node = Choice(condition, yes, self.expression())
        else:
            node = self.disjunction()
        self.depth -= 1
        return node

    def disjunction(self) -> Node:
        node = self.conjunction()
        while self.accept("or"):
            node = Binary("or", node, self.conjunction())
        return node

    def conjunction(self) -> Node:
        node = self.negation()
        while self.accept("and"):
            node = Binary("and", node, self.negation())
        return node

    def negation(self) -> Node:
        count = 0
        while self.accept("not"):
            count += 1
        node = self.comparison()
        for _ in range(count):
            node = Unary("not", node)
        return node

    def comparison(self) -> Node:
        operands, operators = [self.sum()], []
        while operator := self.accept(*COMPARISONS):
            operators.append(operator)
            operands.append(self.sum())
        return Compare(tuple(operators), tuple(operands)) if operators else operands[0]

    def sum(self) -> Node:
        node = self.product()
        while operator := self.accept("+", "-"):
            node = Binary(operator, node, self.product())
        return node

    def product(self) -> Node:
        node = self.sign()
        while operator := self.accept("*", "/", "//", "%"):
            node = Binary(operator, node, self.sign())
        return node

    def sign(self) -> Node:
        signs = []
        while operator := self.accept("-", "+"):
            signs.append(operator)
        node = self.power()
        for operator in reversed(signs):
            node = Unary(operator, node)
        return node

    def power(self) -> Node:
        base = self.postfix()
        if not self.accept("^"):
            return base
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ParseError("nested too deep", self.token.place)
        # The exponent may have a sign of its own, and another power.
        node = Binary("^", base, self.sign())
        self.depth -= 1
        return node

    def postfix(self) -> Node:
        node = self.atom()
        while self.accept("["):
            node = Element(node, self.expression())
            self.expect("]")
        return node

    def atom(self) -> Node:
        token = self.token
        match self.accept("number", "text", "name", "true", "false", "(", "["):
            case "number" | "text":
                return Literal(token.value)
            case "true" | "false" as word:
                return Literal(word == "true")
            case "name":
                if self.accept("("):
                    return Call(str(token.value), self.items(")"))
                return Name(str(token.value))
            case "(":
                node = self.expression()
                self.expect(")")
                return node
            case "[":
                return Items(self.items("]"))
        found = "the end" if token.kind == "end" else repr(token.value)
        raise ParseError(f"expected a value, found {found}", token.place)

    def items(self, closing: str) -> tuple[Node, ...]:
        """Expressions between commas up to ``closing``; a comma may follow the last one."""
        found: list[Node] = []
        while not self.accept(closing):
            found.append(self.expression())
            if not self.accept(","):
                self.expect(closing)
                break
        return tuple(found)
