"""Parses the tokens of an answer to a tree by recursive descent with bounded depth, without ``eval`` or SymPy."""

from __future__ import annotations

from fractions import Fraction

from rllm_gym.grading.math.syntax import Node, Token, Unreadable, children, number, refuses_as_unit, tokenize

MAX_DEPTH = 24
"""Maximum nesting of brackets, fractions and exponents. Deeper answers are unreadable."""

MAX_HEIGHT = 120
"""Maximum number of levels of the whole tree."""

_RELATIONS = frozenset(["=", "<", ">", "le", "ge", "ne", "approx", "in"])
_SEPARATORS = frozenset([",", ";"])
_CLOSERS = frozenset([")", "]", "}", "\\}", "rangle", "rfloor", "rceil", "\\|", "&", "\\\\"])
_END = Token("end", "")
_UNIT_LETTERS = frozenset(Token("letter", letter) for letter in "hsmL")
_FUNCTION_NAMES = frozenset("fghFGH")
_INVERSE = (*(Token("op", sign) for sign in "^{-"), Token("num", "1"), Token("op", "}"), Token("op", "("))
_CANONICAL_FUNCTIONS = {"asin": "arcsin", "acos": "arccos", "atan": "arctan", "lg": "log"}
_NAMED_SYMBOLS = frozenset(
    "angle triangle overline overrightarrow vec hat bar widehat widetilde tilde overarc".split()  # noqa: SIM905
)


def read(tidied: str) -> Node:
    """Return the tree of a tidied answer.

    Raises:
        Unreadable: It uses no known notation, or is nested deeper than ``MAX_DEPTH``.
    """
    reader = _Reader(tokenize(tidied))
    try:
        tree = reader.answer()
    except RecursionError:  # the caller's own stack was nearly full
        raise Unreadable("nested too deeply") from None
    _check_height(tree)
    return tree


def _check_height(tree: Node) -> None:
    """Limit the height of the tree: long products and repeated factorials are deep, and tree walks are recursive."""
    level, height = [tree], 0
    while level:
        height += 1
        if height > MAX_HEIGHT:
            raise Unreadable(f"a tree higher than {MAX_HEIGHT}")
        level = [child for node in level for child in children(node)]


class _Reader:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.open_bars = 0

    # Tokens

    def peek(self, ahead: int = 0) -> Token:
        place = self.at + ahead
        return self.tokens[place] if place < len(self.tokens) else _END

    def next(self) -> Token:
        token = self.peek()
        self.at += 1
        return token

    def sees(self, text: str) -> bool:
        token = self.peek()
        return token.kind == "op" and token.text == text

    def take(self, text: str) -> bool:
        if self.sees(text):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.take(text):
            raise Unreadable(f"{text!r} expected, not {self.peek().text!r}")

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable(f"nested deeper than {MAX_DEPTH}")

    # Lists and statements

    def answer(self) -> Node:
        items = self.items()
        if self.peek() is not _END:
            raise Unreadable(f"unexpected {self.peek().text!r}")
        return items[0] if len(items) == 1 else Node("list", tuple(items))

    def items(self) -> list[Node]:
        """Return the statements up to a closing bracket or the end; skips empty ones (``1, , 2`` or a final comma)."""
        items: list[Node] = []
        while True:
            while self.peek().kind == "op" and self.peek().text in _SEPARATORS:
                self.at += 1
            token = self.peek()
            if token is _END or (token.kind == "op" and token.text in _CLOSERS):
                break
            items.append(self.statement())
            token = self.peek()
            if not (token.kind == "op" and token.text in _SEPARATORS):
                break
        if not items:
            raise Unreadable("nothing where an expression should be")
        return items

    def statement(self) -> Node:
        self.take("=")  # "= 5"
        sides = [self.union()]
        operators: list[str] = []
        while self.peek().kind == "op" and self.peek().text in _RELATIONS:
            operators.append(self.next().text)
            sides.append(self.union())
        if not operators:
            return sides[0]
        return Node("rel", (tuple(operators), tuple(sides)))

    def union(self) -> Node:
        left = self.ratio()
        while self.peek().kind == "op" and self.peek().text in ("cup", "cap", "setminus"):
            op = {"cup": "union", "cap": "inter", "setminus": "minus"}[self.next().text]
            left = Node(op, (left, self.ratio()))
        return left

    def ratio(self) -> Node:
        parts = [self.sum()]
        while self.take(":"):
            parts.append(self.sum())
        if len(parts) == 1:
            return parts[0]
        if parts[0].op == "text" and len(parts) == 2:  # "Answer: 5"
            return Node("rel", (("=",), tuple(parts)))
        return Node("ratio", tuple(parts))

    # Arithmetic

    def sum(self) -> Node:
        terms = [self.signed_term()]
        while True:
            if self.take("+"):
                terms.append(self.signed_term())
            elif self.take("-"):
                terms.append(Node("neg", (self.signed_term(),)))
            elif self.sees("pm") or self.sees("mp"):
                terms.append(Node(self.next().text, (self.signed_term(),)))
            else:
                break
        return terms[0] if len(terms) == 1 else Node("add", tuple(terms))

    def signed_term(self) -> Node:
        negative = False
        while self.peek().kind == "op" and self.peek().text in "+-":
            negative ^= self.next().text == "-"
        if self.sees("pm") or self.sees("mp"):
            return Node(self.next().text, (self.term(),))
        term = self.term()
        return Node("neg", (term,)) if negative else term

    def term(self) -> Node:
        first = self.peek()
        left = self.factor()
        literal = left.op == "num" and left.args[1] is None and first.kind == "num"
        while True:
            token = self.peek()
            if token.kind == "text":
                left = self.with_unit(left)
            elif self.take("*"):
                left = Node("mul", (left, self.factor()))
            elif self.take("/"):
                left = Node("div", (left, self.factor()))
            elif self.take("bmod"):
                left = Node("mod", (left, self.factor()))
            elif self.take("choose"):
                left = Node("fn", ("binom", left, self.factor()))
            elif token.kind == "cmd" and token.text == "pmod":
                self.at += 1
                left = Node("mod", (left, self.argument()))
            elif self.starts_factor(token):
                if token.kind == "num":
                    raise Unreadable("two numbers side by side")
                right = self.factor()
                if literal and token.text == "frac" and _whole_fraction(right):
                    left = Node("add", (left, right))  # a mixed number
                elif literal and token.text == "frac" and right.op in ("pct", "deg") and _whole_fraction(right.args[0]):
                    left = Node(right.op, (Node("add", (left, right.args[0])),))
                elif left.op == "text":
                    left = self.after_words(left, right)
                elif right.op == "text":
                    left = Node("unit", (left, right.args[0]))
                else:
                    left = Node("mul", (left, right))
            else:
                return left
            literal = False

    def starts_factor(self, token: Token) -> bool:
        if token.kind in ("num", "letter", "fn"):
            return True
        if token.kind == "cmd":
            return token.text != "end"
        if token.kind == "op":
            return token.text in ("(", "{", "[", "langle", "lfloor", "lceil") or (
                token.text == "|" and not self.open_bars
            )
        return False

    def with_unit(self, value: Node) -> Node:
        words = self.next().text
        while True:
            if self.peek().kind == "text":
                words += " " + self.next().text
            elif self.sees("^"):
                self.at += 1
                self.exponent()
            elif (self.sees("/") or self.sees("*")) and self.peek(1).kind == "text":
                self.at += 1
            elif self.sees("/") and self.peek(1) in _UNIT_LETTERS:
                self.at += 2
            else:
                break
        if value.op == "text":
            return Node("text", (f"{value.args[0]} {words}",))
        if refuses_as_unit(words):
            raise Unreadable(f"{words!r} is no unit")
        return Node("unit", (value, words.strip()))

    def after_words(self, words: Node, value: Node) -> Node:
        text = words.args[0].strip().lower()
        if text.endswith((" is", " =", " are")) or text in (
            "is",
            "rs",
            "rs.",
            "usd",
            "us",
            "total",
            "about",
            "exactly",
        ):
            return value
        raise Unreadable(f"{text!r} before a value")

    def factor(self) -> Node:
        negative = False
        while self.peek().kind == "op" and self.peek().text in "+-":
            negative ^= self.next().text == "-"
        node = self.postfix(self.primary())
        return Node("neg", (node,)) if negative else node

    def postfix(self, node: Node) -> Node:
        while True:
            if self.sees("!") and not (self.peek(1).kind == "op" and self.peek(1).text == "="):
                self.at += 1
                node = Node("fact", (node,))
            elif self.take("%"):
                node = Node("pct", (node,))
            elif self.take("degree"):
                node = Node("deg", (node,))
                if self.peek() in (Token("letter", "C"), Token("letter", "F")):
                    self.at += 1
            elif self.take("'"):
                if node.op != "sym":
                    raise Unreadable("a prime after something that has no name")
                node = Node("sym", (node.args[0] + "'",))
            elif self.take("^"):
                if self.is_degree():
                    node = Node("deg", (node,))
                else:
                    node = Node("pow", (node, self.exponent()))
            elif self.take("_"):
                node = self.with_subscript(node)
            else:
                return node

    def is_degree(self) -> bool:
        """Parse ``^\\circ``, ``^{\\circ}``, ``^\\degree``, ``^o`` directly after the caret."""
        start = self.at
        braced = self.take("{")
        token = self.next()
        found = (token.kind, token.text) in (("cmd", "circ"), ("op", "degree"))
        if found and (not braced or self.take("}")):
            if self.peek() in (Token("letter", "C"), Token("letter", "F")):
                self.at += 1
            return True
        self.at = start
        return False

    def exponent(self) -> Node:
        """Parse an exponent: a braced group, or one signed factor without further factors. Right-associative."""
        self.deeper()
        negative = False
        while self.peek().kind == "op" and self.peek().text in "+-":
            negative ^= self.next().text == "-"
        node = self.primary()
        if self.sees("!"):
            self.at += 1
            node = Node("fact", (node,))
        if self.take("^"):
            node = Node("pow", (node, self.exponent()))
        self.depth -= 1
        return Node("neg", (node,)) if negative else node

    def with_subscript(self, node: Node) -> Node:
        start = self.at
        subscript = self.spelled_argument()
        if node.op == "sym":
            return Node("sym", (f"{node.args[0]}_{subscript}",))
        if node.op == "num" and node.args[1] is None and self.tokens[start - 2].kind == "num":
            base = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8",
                    "nine": "9", "ten": "10", "twelve": "12", "sixteen": "16"}.get(subscript, subscript)  # fmt: skip
            if base.isdigit():
                return Node("based", (self.tokens[start - 2].text, int(base)))
        raise Unreadable("a subscript of something that has no name")

    def spelled_argument(self) -> str:
        """Return a subscript as it is spelled: names are compared, not computed."""
        token = self.next()
        if token != ("op", "{"):
            return token.text
        spelled, depth = [], 1
        while depth:
            token = self.next()
            if token is _END:
                raise Unreadable("a brace is not closed")
            if token.kind == "op" and token.text in "{}":
                depth += 1 if token.text == "{" else -1
                if not depth:
                    break
            spelled.append(token.text.strip())
        return "".join(spelled)

    # Primaries

    def primary(self) -> Node:
        self.deeper()
        token = self.next()
        if token.kind == "num":
            node = self.number(token)
        elif token.kind == "letter":
            node = self.letter(token.text)
        elif token.kind == "fn":
            node = self.function(token.text)
        elif token.kind == "text":
            node = Node("text", (token.text.strip(),))
        elif token.kind == "cmd":
            node = self.command(token.text)
        elif token.kind == "op":
            node = self.bracket(token.text)
        else:
            raise Unreadable("the answer ends too early")
        self.depth -= 1
        return node

    def number(self, token: Token) -> Node:
        node = number(token.text)
        # "1 1/2"
        if (
            self.peek().kind == "num"
            and self.peek(1) == ("op", "/")
            and self.peek(2).kind == "num"
            and node.args[1] is None
        ):
            top, bottom = number(self.next().text), number(self.tokens[self.at + 1].text)
            self.at += 2
            if top.args[1] is None and bottom.args[1] is None and bottom.args[0] != 0:
                return Node("num", (node.args[0] + top.args[0] / bottom.args[0], None))
            raise Unreadable("two numbers side by side")
        return node

    def letter(self, name: str) -> Node:
        if name == "e":
            return Node("const", ("e",))
        if name == "i":
            return Node("const", ("i",))
        if name in _FUNCTION_NAMES and tuple(self.tokens[self.at : self.at + 6]) == _INVERSE:
            name, self.at = f"{name}^{{-1}}", self.at + 5
        if name[0] in _FUNCTION_NAMES and self.sees("("):
            inner = self.primary()
            return Node("app", (name, *(inner.args[1] if inner.op == "tuple" else (inner,))))
        return Node("sym", (name,))

    def function(self, name: str) -> Node:
        base = power = None
        while True:
            if self.take("_"):
                base = self.subscript_value()
            elif self.take("^"):
                power = self.exponent()
            else:
                break
        name = _CANONICAL_FUNCTIONS.get(name, name)
        arguments = self.function_arguments()
        if name == "det" and len(arguments) == 1 and arguments[0].op == "matrix":
            return _determinant(arguments[0].args)
        if name == "log" and base is not None:
            node = Node("fn", ("logb", base, *arguments))
        elif base is not None:
            raise Unreadable(f"a subscript of {name}")
        else:
            node = Node("fn", (name, *arguments))
        if power is None:
            return node
        if power == Node("neg", (Node("num", (Fraction(1), None)),)) and name in (
            "sin",
            "cos",
            "tan",
            "cot",
            "sec",
            "csc",
        ):
            return Node("fn", ("arc" + name, *arguments))
        return Node("pow", (node, power))

    def subscript_value(self) -> Node:
        """Parse the base of a logarithm. Without braces it is one digit, as in LaTeX."""
        token = self.peek()
        if token.kind == "num" and len(token.text) > 1 and token.text.isdigit() and not self.argument_follows(1):
            self.tokens[self.at] = Token("num", token.text[1:])
            return number(token.text[0])
        return self.primary()

    def argument_follows(self, ahead: int) -> bool:
        return self.starts_factor(self.peek(ahead))

    def function_arguments(self) -> tuple[Node, ...]:
        if self.sees("("):
            inner = self.primary()
            return inner.args[1] if inner.op == "tuple" else (inner,)
        if self.sees("{"):
            return (self.primary(),)
        # sin 2x, ln x: adjacent factors, up to the next function.
        self.deeper()
        nested = self.peek().kind == "fn"  # sin arctan x
        node = self.factor()
        if not nested:
            while self.starts_factor(self.peek()) and self.peek().kind not in ("fn", "num"):
                node = Node("mul", (node, self.factor()))
        self.depth -= 1
        return (node,)

    def argument(self) -> Node:
        r"""Parse an argument of \frac or \sqrt: a braced group, or a single digit, letter or command."""
        token = self.peek()
        if token.kind == "num" and len(token.text) > 1 and token.text.isdigit():
            self.tokens[self.at] = Token("num", token.text[1:])
            return number(token.text[0])
        if token.kind == "op" and token.text == "-":
            self.at += 1
            return Node("neg", (self.argument(),))
        return self.primary()

    def command(self, name: str) -> Node:
        if name == "frac":
            top, bottom = self.argument(), self.argument()
            if top.op == "text" and bottom.op in ("text", "sym"):  # km/h
                return Node("text", (f"{top.args[0]} per {bottom.args[0]}",))
            return Node("div", (top, bottom))
        if name == "sqrt":
            index = None
            if self.take("["):
                index = self.sum()
                self.expect("]")
            radicand = self.primary() if self.sees("(") else self.argument()
            return Node("fn", ("sqrt", radicand)) if index is None else Node("fn", ("root", radicand, index))
        if name == "surd":
            return Node("fn", ("sqrt", self.primary()))
        if name == "cbrt":
            return Node("fn", ("root", self.primary(), Node("num", (Fraction(3), None))))
        if name == "binom":
            return Node("fn", ("binom", self.argument(), self.argument()))
        if name == "pi":
            return Node("const", ("pi",))
        if name == "infty":
            return Node("inf")
        if name == "reals":
            return Node("reals")
        if name == "emptyset":
            return Node("empty")
        if name == "begin":
            return self.environment()
        if name in _NAMED_SYMBOLS:
            return Node("sym", (f"{name}({self.spelled_name()})",))
        if name.startswith("bb"):
            return Node("sym", (name,))
        raise Unreadable(f"\\{name} is not read here")

    def spelled_name(self) -> str:
        if self.sees("{"):
            return self.spelled_argument()
        letters = ""
        while self.peek().kind == "letter":
            letters += self.next().text
        if not letters:
            raise Unreadable("a mark over nothing")
        return letters

    def environment(self) -> Node:
        name = self.spelled_argument()
        if name == "array" and self.sees("{"):
            self.spelled_argument()
        if name not in ("pmatrix", "bmatrix", "matrix", "Bmatrix", "vmatrix", "smallmatrix", "array"):
            raise Unreadable(f"\\begin{{{name}}} is not read here")
        rows: list[tuple[Node, ...]] = []
        row: list[Node] = []
        while not (self.peek().kind == "cmd" and self.peek().text == "end"):
            if self.take("&"):
                continue
            if self.take("\\\\"):
                if row:
                    rows.append(tuple(row))
                row = []
                continue
            row.append(self.statement())
        self.at += 1
        self.spelled_argument()
        if row:
            rows.append(tuple(row))
        if not rows or len({len(row) for row in rows}) != 1:
            raise Unreadable("a matrix with rows of different lengths")
        return _determinant(tuple(rows)) if name == "vmatrix" else Node("matrix", tuple(rows))

    def bracket(self, opening: str) -> Node:
        if opening in ("(", "["):
            items = self.items() if not (self.sees(")") or self.sees("]")) else []
            closing = self.next()
            if closing not in (("op", ")"), ("op", "]")):
                raise Unreadable(f"{opening} is not closed")
            if len(items) == 1:
                if opening == "[" and items[0].op in ("matrix", "tuple"):
                    return Node("tuple", (opening, tuple(items), closing.text)) if items[0].op == "tuple" else items[0]
                if (opening, closing.text) in (("(", ")"), ("[", "]")):
                    return items[0]
            if not items:
                raise Unreadable("empty brackets")
            return Node("tuple", (opening, tuple(items), closing.text))
        if opening == "{":
            items = self.items()
            self.expect("}")
            return items[0] if len(items) == 1 else Node("list", tuple(items))
        if opening == "\\{":
            return self.set()
        if opening == "langle":
            items = self.items()
            self.expect("rangle")
            return Node("tuple", ("(", tuple(items), ")"))
        if opening in ("lfloor", "lceil"):
            inner = self.sum()
            self.expect("rfloor" if opening == "lfloor" else "rceil")
            return Node("fn", ("floor" if opening == "lfloor" else "ceil", inner))
        if opening == "|":
            self.open_bars += 1
            inner = self.sum()
            self.open_bars -= 1
            self.expect("|")
            return Node("fn", ("abs", inner))
        raise Unreadable(f"unexpected {opening!r}")

    def set(self) -> Node:
        if self.take("\\}"):
            return Node("empty")
        bars, self.open_bars = self.open_bars, 1  # a bar here means "such that"
        items = self.items()
        conditions: list[Node] = []
        if self.take("|"):
            conditions = self.items()
        elif len(items) == 1 and items[0].op == "rel" and items[0].args[1][0].op == "ratio":  # \{x : x > 0\}
            operators, sides = items[0].args
            conditions = [Node("rel", (operators, (sides[0].args[-1], *sides[1:])))]
        if conditions:
            self.open_bars = bars
            self.expect("\\}")
            if not all(item.op == "rel" for item in conditions):
                raise Unreadable("a set given by something that is no condition")
            return conditions[0] if len(conditions) == 1 else Node("list", tuple(conditions))
        self.open_bars = bars
        self.expect("\\}")
        return Node("set", tuple(items))


def _determinant(rows: tuple[tuple[Node, ...], ...]) -> Node:
    if len(rows) != len(rows[0]) or len(rows) > 4:
        raise Unreadable("a determinant of no small square matrix")
    if len(rows) == 1:
        return rows[0][0]
    terms = []
    for column, entry in enumerate(rows[0]):
        minor = tuple(row[:column] + row[column + 1 :] for row in rows[1:])
        term = Node("mul", (entry, _determinant(minor)))
        terms.append(Node("neg", (term,)) if column % 2 else term)
    return Node("add", tuple(terms))


def _whole_fraction(node: Node) -> bool:
    return node.op == "div" and all(part.op == "num" and part.args[1] is None for part in node.args)
