"""Reads the text of a query."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import date

from tablequery.aggregates import AGGREGATES
from tablequery.conditions import Condition, Every, Missing, Some, Test
from tablequery.errors import QueryError
from tablequery.types import Cell

_WORD = re.compile(
    r"""\s*(?:
    (?P<date>\d{4}-\d\d-\d\d)
    | (?P<number>-?(?:\d+\.?\d*|\.\d+))
    | '(?P<text>(?:[^']|'')*)'
    | "(?P<quoted>[^"]+)"
    | (?P<name>[^\W\d]\w*)
    | (?P<symbol>!=|<=|>=|[=<>~(),*])
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Column:
    """A column of the result: a column of the table (``function`` is ``None``) or an aggregate of one."""

    name: str
    source: str
    function: str | None = None


@dataclass
class Query:
    """``columns`` is empty for ``select *``."""

    columns: list[Column] = field(default_factory=list)
    where: Condition | None = None
    group_by: list[str] = field(default_factory=list)
    order_by: list[tuple[str, bool]] = field(default_factory=list)
    limit: int | None = None


def parse_query(text: str) -> Query:
    """Read a query; :class:`~tablequery.errors.QueryError` if it is none."""
    parser = _Parser(text)
    found = parser.query()
    if parser.at < len(parser.words):
        raise QueryError(f"did not expect {parser.words[parser.at][1]!r}")
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self.words: list[tuple[str, str]] = []
        self.at = 0
        place = 0
        text = text.rstrip()
        while place < len(text):
            match = _WORD.match(text, place)
            if match is None:
                raise QueryError(f"cannot read {text[place:].strip()[:20]!r}")
            assert match.lastgroup is not None
            self.words.append((match.lastgroup, match[match.lastgroup]))
            place = match.end()

    def accept(self, *wanted: str) -> str | None:
        """The next word in lower case if it is one of these words or symbols, which is then taken."""
        kind, text = self.words[self.at] if self.at < len(self.words) else ("end", "")
        if kind in ("name", "symbol") and text.lower() in wanted:
            self.at += 1
            return text.lower()
        return None

    def expect(self, wanted: str) -> None:
        if self.accept(wanted) is None:
            raise QueryError(f"expected {wanted!r}, found {self.next_word()!r}")

    def next_word(self) -> str:
        return self.words[self.at][1] if self.at < len(self.words) else "the end"

    def take(self, *kinds: str) -> str:
        if self.at < len(self.words) and self.words[self.at][0] in kinds:
            self.at += 1
            return self.words[self.at - 1][1]
        raise QueryError(f"expected a {kinds[-1]}, found {self.next_word()!r}")

    def name(self) -> str:
        return self.take("quoted", "name")

    def query(self) -> Query:
        self.expect("select")
        found = Query()
        if not self.accept("*"):
            found.columns.append(self.column())
            while self.accept(","):
                found.columns.append(self.column())
        if self.accept("where"):
            found.where = self.disjunction()
        if self.accept("group"):
            self.expect("by")
            found.group_by.append(self.name())
            while self.accept(","):
                found.group_by.append(self.name())
        if self.accept("order"):
            self.expect("by")
            found.order_by.append(self.ordering())
            while self.accept(","):
                found.order_by.append(self.ordering())
        if self.accept("limit"):
            found.limit = int(self.whole_number())
        return found

    def column(self) -> Column:
        source = self.name()
        function = None
        name = source
        if self.accept("("):
            function = source.lower()
            if function not in AGGREGATES:
                raise QueryError(f"there is no aggregate {source!r}; there are {', '.join(sorted(AGGREGATES))}")
            source = "" if function == "count" and self.next_word() == ")" else self.name()
            self.expect(")")
            name = f"{function}_{source}" if source else function
        if self.accept("as"):
            name = self.name()
        return Column(name, source, function)

    def ordering(self) -> tuple[str, bool]:
        """A column, and whether it is descending."""
        name = self.name()
        return name, self.accept("asc", "desc") == "desc"

    def whole_number(self) -> str:
        text = self.take("number")
        if not text.isdecimal():
            raise QueryError(f"a limit is a whole number, not {text}")
        return text

    def disjunction(self) -> Condition:
        parts = [self.conjunction()]
        while self.accept("or"):
            parts.append(self.conjunction())
        return parts[0] if len(parts) == 1 else Some(tuple(parts))

    def conjunction(self) -> Condition:
        parts = [self.test()]
        while self.accept("and"):
            parts.append(self.test())
        return parts[0] if len(parts) == 1 else Every(tuple(parts))

    def test(self) -> Condition:
        if self.accept("("):
            inner = self.disjunction()
            self.expect(")")
            return inner
        name = self.name()
        if self.accept("is"):
            wanted = self.accept("not") is None
            self.expect("missing")
            return Missing(name, wanted)
        symbol = self.accept("=", "!=", "<", "<=", ">", ">=", "~")
        if symbol is None:
            raise QueryError(f"expected a comparison after {name!r}, found {self.next_word()!r}")
        return Test(name, symbol, self.value())

    def value(self) -> Cell:
        if word := self.accept("true", "false"):
            return word == "true"
        kind = self.words[self.at][0] if self.at < len(self.words) else "end"
        text = self.take("date", "number", "text", "value")
        if kind == "number":
            return float(text) if "." in text else int(text)
        if kind == "date":
            try:
                return date.fromisoformat(text)
            except ValueError:
                raise QueryError(f"there is no day {text}") from None
        return text.replace("''", "'")
