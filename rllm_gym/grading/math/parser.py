"""Parses the tokens of an answer to a tree by recursive descent with bounded depth, without ``eval`` or SymPy."""

from __future__ import annotations

from fractions import Fraction

from rllm_gym.grading.math.syntax import MathNode, MathSyntaxError, Token, children, number, refuses_as_unit, tokenize

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


def parse(normalized: str) -> MathNode:
    """Return the tree of a normalized answer.

    Raises:
        MathSyntaxError: It uses no known notation, or is nested deeper than ``MAX_DEPTH``.
    """
    reader = _Parser(tokenize(normalized))
    try:
        tree = reader.answer()
    except RecursionError:  # the caller's own stack was nearly full
        raise MathSyntaxError("nested too deeply") from None
    _check_height(tree)
    return tree


def _check_height(tree: MathNode) -> None:
    """Limit the height of the tree: long products and repeated factorials are deep, and tree walks are recursive."""
    level, height = [tree], 0
    while level:
        height += 1
        if height > MAX_HEIGHT:
            raise MathSyntaxError(f"a tree higher than {MAX_HEIGHT}")
        level = [child for node in level for child in children(node)]


class _Parser:
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
            raise MathSyntaxError(f"{text!r} expected, not {self.peek().text!r}")

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise MathSyntaxError(f"nested deeper than {MAX_DEPTH}")

    # Lists and statements

    def answer(self) -> MathNode:
        items = self.items()
        if self.peek() is not _END:
            raise MathSyntaxError(f"unexpected {self.peek().text!r}")
        return items[0] if len(items) == 1 else MathNode("list", tuple(items))

    def items(self) -> list[MathNode]:
        """Return the statements up to a closing bracket or the end; skips empty ones (``1, , 2`` or a final comma)."""
        items: list[MathNode] = []
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
            raise MathSyntaxError("expected an expression")
        return items

    def statement(self) -> MathNode:
        if not self.take("="):  # "= 5"
            self.take("approx")
        sides = [self.union()]
        operators: list[str] = []
        while self.peek().kind == "op" and self.peek().text in _RELATIONS:
            operators.append(self.next().text)
            sides.append(self.union())
        if not operators:
            return sides[0]
        return MathNode("rel", (tuple(operators), tuple(sides)))

    def union(self) -> MathNode:
        left = self.ratio()
        while self.peek().kind == "op" and self.peek().text in ("cup", "cap", "setminus"):
            op = {"cup": "union", "cap": "inter", "setminus": "minus"}[self.next().text]
            left = MathNode(op, (left, self.ratio()))
        return left

    def ratio(self) -> MathNode:
        parts = [self.sum()]
        while self.take(":"):
            parts.append(self.sum())
        if len(parts) == 1:
            return parts[0]
        if parts[0].op == "text" and len(parts) == 2:  # "Answer: 5"
            return MathNode("rel", (("=",), tuple(parts)))
        return MathNode("ratio", tuple(parts))

    # Arithmetic

    def sum(self) -> MathNode:
        terms = [self.signed_term()]
        while True:
            if self.take("+"):
                terms.append(self.signed_term())
            elif self.take("-"):
                terms.append(MathNode("neg", (self.signed_term(),)))
            elif self.sees("pm") or self.sees("mp"):
                terms.append(MathNode(self.next().text, (self.signed_term(),)))
            else:
                break
        return terms[0] if len(terms) == 1 else MathNode("add", tuple(terms))

    def signed_term(self) -> MathNode:
        negative = False
        while self.peek().kind == "op" and self.peek().text in "+-":
            negative ^= self.next().text == "-"
        if self.sees("pm") or self.sees("mp"):
            return MathNode(self.next().text, (self.term(),))
        term = self.term()
        return MathNode("neg", (term,)) if negative else term

    def term(self) -> MathNode:
        first = self.peek()
        left = self.factor()
        literal = left.op == "num" and left.args[1] is None and first.kind == "num"
        last = left
        while True:
            token = self.peek()
            if token.kind == "text":
                left = self.with_unit(left)
            elif self.take("*"):
                left = MathNode("mul", (left, self.factor()))
            elif self.take("/"):
                left = MathNode("div", (left, self.factor()))
            elif self.take("bmod"):
                left = MathNode("mod", (left, self.factor()))
            elif self.take("choose"):
                left = MathNode("fn", ("binom", left, self.factor()))
            elif token.kind == "cmd" and token.text == "pmod":
                self.at += 1
                left = MathNode("mod", (left, self.argument()))
            elif self.starts_factor(token):
                if token.kind == "num" and last.op != "fact":  # 3! 7!
                    raise MathSyntaxError("two numbers side by side")
                right = last = self.factor()
                if literal and token.text == "frac" and _whole_fraction(right):
                    left = MathNode("add", (left, right))  # a mixed number
                elif literal and token.text == "frac" and right.op in ("pct", "deg") and _whole_fraction(right.args[0]):
                    left = MathNode(right.op, (MathNode("add", (left, right.args[0])),))
                elif left.op == "text":
                    left = self.after_words(left, right)
                elif right.op == "text":
                    left = MathNode("unit", (left, right.args[0]))
                else:
                    left = MathNode("mul", (left, right))
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

    def with_unit(self, value: MathNode) -> MathNode:
        words = self.next().text
        while True:
            if self.peek().kind == "text":
                words += " " + self.next().text
            elif self.take("^"):
                power = self.exponent()
                words += {2: " squared", 3: " cubed"}.get(power.args[0], "") if power.op == "num" else ""
            elif (self.sees("/") or self.sees("*")) and self.peek(1).kind == "text":
                self.at += 1
            elif self.sees("/") and self.peek(1) in _UNIT_LETTERS:
                self.at += 2
            else:
                break
        if value.op == "text":
            return MathNode("text", (f"{value.args[0]} {words}",))
        if refuses_as_unit(words):
            raise MathSyntaxError(f"{words!r} is not a unit")
        return MathNode("unit", (value, words.strip()))

    def after_words(self, words: MathNode, value: MathNode) -> MathNode:
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
        raise MathSyntaxError(f"{text!r} before a value")

    def factor(self) -> MathNode:
        negative = False
        while self.peek().kind == "op" and self.peek().text in "+-":
            negative ^= self.next().text == "-"
        node = self.postfix(self.primary())
        return MathNode("neg", (node,)) if negative else node

    def postfix(self, node: MathNode) -> MathNode:
        while True:
            if self.sees("!") and not (self.peek(1).kind == "op" and self.peek(1).text == "="):
                self.at += 1
                node = MathNode("fact", (node,))
            elif self.take("%"):
                node = MathNode("pct", (node,))
            elif self.take("degree"):
                node = MathNode("deg", (node,))
                if self.peek() in (Token("letter", "C"), Token("letter", "F")):
                    self.at += 1
            elif self.take("'"):
                if node.op != "sym":
                    raise MathSyntaxError("a prime after something that has no name")
                node = MathNode("sym", (node.args[0] + "'",))
            elif self.take("^"):
                if self.is_degree():
                    node = MathNode("deg", (node,))
                else:
                    node = MathNode("pow", (node, self.exponent()))
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

    def exponent(self) -> MathNode:
        """Parse an exponent: a braced group, or one signed factor without further factors. Right-associative."""
        self.deeper()
        negative = False
        while self.peek().kind == "op" and self.peek().text in "+-":
            negative ^= self.next().text == "-"
        node = self.primary()
        if self.sees("!"):
            self.at += 1
            node = MathNode("fact", (node,))
        if self.take("^"):
            node = MathNode("pow", (node, self.exponent()))
        self.depth -= 1
        return MathNode("neg", (node,)) if negative else node

    def with_subscript(self, node: MathNode) -> MathNode:
        start = self.at
        subscript = self.spelled_argument()
        if node.op == "sym":
            return MathNode("sym", (f"{node.args[0]}_{subscript}",))
        if node.op == "num" and node.args[1] is None and self.tokens[start - 2].kind == "num":
            subscript = subscript.strip("()")
            base = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8",
                    "nine": "9", "ten": "10", "twelve": "12", "sixteen": "16"}.get(subscript, subscript)  # fmt: skip
            if base.isdigit():
                return MathNode("based", (self.tokens[start - 2].text, int(base)))
        raise MathSyntaxError("a subscript of something that has no name")

    def spelled_argument(self) -> str:
        """Return a subscript as it is spelled: names are compared, not computed."""
        token = self.next()
        if token != ("op", "{"):
            return token.text
        spelled, depth = [], 1
        while depth:
            token = self.next()
            if token is _END:
                raise MathSyntaxError("a brace is not closed")
            if token.kind == "op" and token.text in "{}":
                depth += 1 if token.text == "{" else -1
                if not depth:
                    break
            spelled.append(token.text.strip())
        return "".join(spelled)

    # Primaries

    def primary(self) -> MathNode:
        self.deeper()
        token = self.next()
        if token.kind == "num":
            node = self.number(token)
        elif token.kind == "letter":
            node = self.letter(token.text)
        elif token.kind == "fn":
            node = self.function(token.text)
        elif token.kind == "text":
            node = MathNode("text", (token.text.strip(),))
        elif token.kind == "cmd":
            node = self.command(token.text)
        elif token.kind == "op":
            node = self.bracket(token.text)
        else:
            raise MathSyntaxError("the answer ends too early")
        self.depth -= 1
        return node

    def number(self, token: Token) -> MathNode:
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
                return MathNode("num", (node.args[0] + top.args[0] / bottom.args[0], None))
            raise MathSyntaxError("two numbers side by side")
        return node

    def letter(self, name: str) -> MathNode:
        if name == "e":
            return MathNode("const", ("e",))
        if name == "i":
            return MathNode("const", ("i",))
        if name in _FUNCTION_NAMES and tuple(self.tokens[self.at : self.at + 6]) == _INVERSE:
            name, self.at = f"{name}^{{-1}}", self.at + 5
        if name[0] in _FUNCTION_NAMES and self.sees("("):
            inner = self.primary()
            return MathNode("app", (name, *(inner.args[1] if inner.op == "tuple" else (inner,))))
        return MathNode("sym", (name,))

    def function(self, name: str) -> MathNode:
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
            node = MathNode("fn", ("logb", base, *arguments))
        elif base is not None:
            raise MathSyntaxError(f"a subscript of {name}")
        else:
            node = MathNode("fn", (name, *arguments))
        if power is None:
            return node
        if power == MathNode("neg", (MathNode("num", (Fraction(1), None)),)) and name in (
            "sin",
            "cos",
            "tan",
            "cot",
            "sec",
            "csc",
        ):
            return MathNode("fn", ("arc" + name, *arguments))
        return MathNode("pow", (node, power))

    def subscript_value(self) -> MathNode:
        """Parse the base of a logarithm. Without braces it is one digit, as in LaTeX."""
        token = self.peek()
        if token.kind == "num" and len(token.text) > 1 and token.text.isdigit() and not self.argument_follows(1):
            self.tokens[self.at] = Token("num", token.text[1:])
            return number(token.text[0])
        return self.primary()

    def argument_follows(self, ahead: int) -> bool:
        return self.starts_factor(self.peek(ahead))

    def function_arguments(self) -> tuple[MathNode, ...]:
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
                node = MathNode("mul", (node, self.factor()))
        self.depth -= 1
        return (node,)

    def argument(self) -> MathNode:
        r"""Parse an argument of \frac or \sqrt: a braced group, or a single digit, letter or command."""
        token = self.peek()
        if token.kind == "num" and len(token.text) > 1 and token.text.isdigit():
            self.tokens[self.at] = Token("num", token.text[1:])
            return number(token.text[0])
        if token.kind == "op" and token.text == "-":
            self.at += 1
            return MathNode("neg", (self.argument(),))
        return self.primary()

    def command(self, name: str) -> MathNode:
        if name == "frac":
            top, bottom = self.argument(), self.argument()
            if top.op == "text" and bottom.op in ("text", "sym"):  # km/h
                return MathNode("text", (f"{top.args[0]} per {bottom.args[0]}",))
            return MathNode("div", (top, bottom))
        if name == "sqrt":
            index = None
            if self.take("["):
                index = self.sum()
                self.expect("]")
            radicand = self.primary() if self.sees("(") else self.argument()
            return MathNode("fn", ("sqrt", radicand)) if index is None else MathNode("fn", ("root", radicand, index))
        if name == "surd":
            return MathNode("fn", ("sqrt", self.primary()))
        if name == "cbrt":
            return MathNode("fn", ("root", self.primary(), MathNode("num", (Fraction(3), None))))
        if name == "binom":
            return MathNode("fn", ("binom", self.argument(), self.argument()))
        if name == "pi":
            return MathNode("const", ("pi",))
        if name == "infty":
            return MathNode("inf")
        if name == "reals":
            return MathNode("reals")
        if name == "emptyset":
            return MathNode("empty")
        if name == "begin":
            return self.environment()
        if name in _NAMED_SYMBOLS:
            return MathNode("sym", (f"{name}({self.spelled_name()})",))
        if name.startswith("bb"):
            return MathNode("sym", (name,))
        raise MathSyntaxError(f"\\{name} is not supported")

    def spelled_name(self) -> str:
        if self.sees("{"):
            return self.spelled_argument()
        letters = ""
        while self.peek().kind == "letter":
            letters += self.next().text
        if not letters:
            raise MathSyntaxError("an accent without an argument")
        return letters

    def environment(self) -> MathNode:
        name = self.spelled_argument()
        if name == "array" and self.sees("{"):
            self.spelled_argument()
        if name not in ("pmatrix", "bmatrix", "matrix", "Bmatrix", "vmatrix", "smallmatrix", "array"):
            raise MathSyntaxError(f"\\begin{{{name}}} is not supported")
        rows: list[tuple[MathNode, ...]] = []
        row: list[MathNode] = []
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
            raise MathSyntaxError("a matrix with rows of different lengths")
        return _determinant(tuple(rows)) if name == "vmatrix" else MathNode("matrix", tuple(rows))

    def bracket(self, opening: str) -> MathNode:
        if opening in ("(", "["):
            items = self.items() if not (self.sees(")") or self.sees("]")) else []
            closing = self.next()
            if closing not in (("op", ")"), ("op", "]")):
                raise MathSyntaxError(f"{opening} is not closed")
            if len(items) == 1:
                if opening == "[" and items[0].op in ("matrix", "tuple"):
                    return (
                        MathNode("tuple", (opening, tuple(items), closing.text)) if items[0].op == "tuple" else items[0]
                    )
                if (opening, closing.text) in (("(", ")"), ("[", "]")):
                    return items[0]
            if not items:
                raise MathSyntaxError("empty brackets")
            return MathNode("tuple", (opening, tuple(items), closing.text))
        if opening == "{":
            items = self.items()
            self.expect("}")
            return items[0] if len(items) == 1 else MathNode("list", tuple(items))
        if opening == "\\{":
            return self.set()
        if opening == "langle":
            items = self.items()
            self.expect("rangle")
            return MathNode("tuple", ("(", tuple(items), ")"))
        if opening in ("lfloor", "lceil"):
            inner = self.sum()
            self.expect("rfloor" if opening == "lfloor" else "rceil")
            return MathNode("fn", ("floor" if opening == "lfloor" else "ceil", inner))
        if opening == "|":
            self.open_bars += 1
            inner = self.sum()
            self.open_bars -= 1
            self.expect("|")
            return MathNode("fn", ("abs", inner))
        raise MathSyntaxError(f"unexpected {opening!r}")

    def set(self) -> MathNode:
        if self.take("\\}"):
            return MathNode("empty")
        bars, self.open_bars = self.open_bars, 1  # a bar here means "such that"
        items = self.items()
        conditions: list[MathNode] = []
        if self.take("|"):
            conditions = self.items()
        elif len(items) == 1 and items[0].op == "rel" and items[0].args[1][0].op == "ratio":  # \{x : x > 0\}
            operators, sides = items[0].args
            conditions = [MathNode("rel", (operators, (sides[0].args[-1], *sides[1:])))]
        if conditions:
            self.open_bars = bars
            self.expect("\\}")
            if not all(item.op == "rel" for item in conditions):
                raise MathSyntaxError("the definition of a set is not a condition")
            return conditions[0] if len(conditions) == 1 else MathNode("list", tuple(conditions))
        self.open_bars = bars
        self.expect("\\}")
        return MathNode("set", tuple(items))


def _determinant(rows: tuple[tuple[MathNode, ...], ...]) -> MathNode:
    if len(rows) != len(rows[0]) or len(rows) > 4:
        raise MathSyntaxError("a determinant of a matrix that is not small and square")
    if len(rows) == 1:
        return rows[0][0]
    terms = []
    for column, entry in enumerate(rows[0]):
        minor = tuple(row[:column] + row[column + 1 :] for row in rows[1:])
        term = MathNode("mul", (entry, _determinant(minor)))
        terms.append(MathNode("neg", (term,)) if column % 2 else term)
    return MathNode("add", tuple(terms))


def _whole_fraction(node: MathNode) -> bool:
    return node.op == "div" and all(part.op == "num" and part.args[1] is None for part in node.args)
