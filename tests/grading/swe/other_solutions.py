# ruff: noqa: E501
"""Honest solutions of built-in tasks that store, name or build things in another way than the reference solution.

Each is the finished repository with some texts replaced. Written from how people program, before they were graded.
"""

from __future__ import annotations

from dataclasses import dataclass

Edit = tuple[str, str, str]
"""A file, a text of it and what replaces each occurrence."""


@dataclass(frozen=True)
class OtherSolution:
    repository: str
    edits: tuple[Edit, ...]


def _solution(repository: str, *edits: Edit) -> OtherSolution:
    return OtherSolution(repository, edits)


_LRU = "src/keepfor/lru.py"
_TTL = "src/keepfor/ttl.py"
_LIMITS = "src/keepfor/limits.py"
_STATS = "src/keepfor/stats.py"
_TREE = "src/calcexpr/tree.py"
_MONEY = "src/tallybook/money.py"
_JOURNAL = "src/tallybook/journal.py"
_LEDGER = "src/tallybook/ledger.py"
_NODES = "marktext/nodes.py"
_SET = "slotplan/spanset.py"
_SPAN = "slotplan/span.py"
_TABLE = "tablequery/table.py"
_VERSION = "src/pickver/version.py"
_RANGES = "src/pickver/ranges.py"

OTHER_SOLUTIONS: dict[str, OtherSolution] = {
    "lru: entries have another private name": _solution("caching", (_LRU, "_entries", "_data")),
    "lru: the weight is summed up": _solution(
        "caching",
        (_LRU, "        self._weight = 0\n", ""),
        (_LRU, "        return self._weight\n", "        return self._used()\n\n    def _used(self) -> int:\n        return sum(self._weigh(value) for value in self._entries.values())\n"),
        (_LRU, "            self._weight -= self._weigh(self._entries.pop(key))", "            self._entries.pop(key)"),
        (_LRU, "        self._weight -= self._weigh(self._entries.pop(key))", "        self._entries.pop(key)"),
        (_LRU, "        self._weight += weight\n", ""),
        (_LRU, "        self._weight -= self._weigh(value)\n", ""),
        (_LRU, "self._weight + weight", "self._used() + weight"),
        (_LRU, "self._weight > self.size", "self._used() > self.size"),
    ),
    "lru: a plain dict": _solution(
        "caching",
        (_LRU, "OrderedDict[K, V] = OrderedDict()", "dict[K, V] = {}"),
        (_LRU, "self._entries.move_to_end(key)", "self._entries[key] = self._entries.pop(key)"),
        (_LRU, "key, value = self._entries.popitem(last=False)", "key = next(iter(self._entries))\n        value = self._entries.pop(key)"),
    ),
    "lru: a large private table": _solution("caching", (_LRU, "        self._weight = 0\n", "        self._weight = 0\n        self._history = [None] * 60_000\n")),
    "ttl: no queue of deaths": _solution(
        "caching",
        (_TTL, "        self._deaths: list[tuple[float, int, K]] = []\n        self._number = 0\n", ""),
        (_TTL, "        self._number += 1\n        heapq.heappush(self._deaths, (death, self._number, key))\n", ""),
        (_TTL, """        while self._deaths and self._deaths[0][0] <= now:
            death, _, key = heapq.heappop(self._deaths)
            if self._is_current(key, death):
                del self._entries[key]
                count += 1
""", """        for key in [key for key, (_, _, death) in self._entries.items() if death <= now]:
            del self._entries[key]
            count += 1
"""),
        (_TTL, """        while True:
            death, _, key = heapq.heappop(self._deaths)
            if self._is_current(key, death):
                del self._entries[key]
                self.stats.evictions += 1
                return
""", """        key = min(self._entries, key=lambda key: self._entries[key][2])
        del self._entries[key]
        self.stats.evictions += 1
"""),
    ),
    "limits: what was spent instead of what is left": _solution(
        "caching",
        (_LIMITS, "self._tokens = float(burst)", "self._spent = 0.0"),
        (_LIMITS, "return self._tokens", "return self.burst - self._spent"),
        (_LIMITS, "cost > self._tokens", "cost > self.burst - self._spent"),
        (_LIMITS, "self._tokens -= cost", "self._spent += cost"),
        (_LIMITS, "(cost - self._tokens) / self.rate", "(cost - self.burst + self._spent) / self.rate"),
        (_LIMITS, "self._tokens = min(float(self.burst), self._tokens + (now - self._filled) * self.rate)", "self._spent = max(0.0, self._spent - (now - self._filled) * self.rate)"),
    ),
    "limits: lists of times": _solution(
        "caching",
        (_LIMITS, "deque[float]", "list[float]"),
        (_LIMITS, "deque()", "[]"),
        (_LIMITS, "times.popleft()", "del times[0]"),
    ),
    "memo: keys of an own class": _solution(
        "caching",
        ("src/keepfor/memo.py", "    return tuple(_freeze(value) for value in args), named\n", "    return _Key((tuple(_freeze(value) for value in args), named))\n\n\nclass _Key:\n    __slots__ = (\"_parts\", \"_hash\")\n\n    def __init__(self, parts: Any) -> None:\n        self._parts = parts\n        self._hash = hash(parts)\n\n    def __hash__(self) -> int:\n        return self._hash\n\n    def __eq__(self, other: object) -> bool:\n        return isinstance(other, _Key) and self._parts == other._parts\n"),
    ),
    "stats: private counters behind properties": _solution(
        "caching",
        (_STATS, "@dataclass\n", ""),
        (_STATS, "    hits: int = 0\n    misses: int = 0\n    evictions: int = 0\n", """    def __init__(self, hits: int = 0, misses: int = 0, evictions: int = 0) -> None:
        self._counts = [hits, misses, evictions]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stats) and self._counts == other._counts

    def _counter(place: int) -> property:
        def get(self):
            return self._counts[place]

        def change(self, value):
            self._counts[place] = value

        return property(get, change)

    hits, misses, evictions = _counter(0), _counter(1), _counter(2)
"""),
    ),
    "stats: slots": _solution("caching", (_STATS, "@dataclass\n", "@dataclass(slots=True)\n")),
    "retry: waits computed at once": _solution(
        "caching",
        ("src/keepfor/retry.py", "    def waits(", "    def __post_init__(self) -> None:\n        waits = [min(self.first * self.factor**n, self.longest) for n in range(self.attempts - 1)]\n        object.__setattr__(self, \"_waits\", waits)\n\n    def waits("),
        ("src/keepfor/retry.py", "        wait = self.first\n        for _ in range(self.attempts - 1):\n            yield min(wait, self.longest)\n            wait *= self.factor\n", "        return iter(self._waits)\n"),
    ),
    "tree: named tuples": _solution(
        "expressions",
        (_TREE, "from dataclasses import dataclass\n", "from typing import NamedTuple\n"),
        (_TREE, "@dataclass(frozen=True)\n", ""),
        *((_TREE, f"class {name}:", f"class {name}(NamedTuple):") for name in ("Literal", "Name", "Unary", "Binary", "Compare", "Choice", "Call", "Items", "Element")),
    ),
    "tree: slots": _solution("expressions", (_TREE, "@dataclass(frozen=True)", "@dataclass(frozen=True, slots=True)")),
    "tree: a remembered hash": _solution(
        "expressions",
        (_TREE, "class Name:\n    name: str\n", "class Name:\n    name: str\n\n    def __post_init__(self) -> None:\n        object.__setattr__(self, \"_hash\", hash(self.name))\n\n    def __hash__(self) -> int:\n        return self._hash\n"),
    ),
    "tree: a binary node of a subclass": _solution(
        "expressions",
        (_TREE, "class Binary:\n    operator: str\n    left: Node\n    right: Node\n", "class Binary:\n    operator: str\n    left: Node\n    right: Node\n\n    def __eq__(self, other: object) -> bool:\n        if not isinstance(other, Binary):\n            return NotImplemented\n        return (self.operator, self.left, self.right) == (other.operator, other.left, other.right)\n\n    def __hash__(self) -> int:\n        return hash((self.operator, self.left, self.right))\n\n\nclass Sum(Binary):\n    pass\n"),
        ("src/calcexpr/parser.py", "node = Binary(operator, node, self.product())", "node = Sum(operator, node, self.product())"),
        ("src/calcexpr/parser.py", "Node, Unary", "Node, Sum, Unary"),
    ),
    "tokens: named tuples": _solution(
        "expressions",
        ("src/calcexpr/tokens.py", "from dataclasses import dataclass\n", "from typing import NamedTuple\n"),
        ("src/calcexpr/tokens.py", "@dataclass(frozen=True)\nclass Token:", "class Token(NamedTuple):"),
    ),
    "expression: a subclass with a cache": _solution(
        "expressions",
        ("src/calcexpr/expression.py", "    return Expression(parse(source))\n", "    return CompiledExpression(parse(source))\n\n\nclass CompiledExpression(Expression):\n    @functools.cached_property\n    def _simple(self):\n        return simplify(self.tree)\n"),
        ("src/calcexpr/expression.py", "from typing import Any\n", "from typing import Any\nimport functools\n"),
        ("src/calcexpr/expression.py", "evaluate(simplify(self.tree), values)", "evaluate(self._simple if isinstance(self, CompiledExpression) else simplify(self.tree), values)"),
    ),
    "evaluate: an error of its own for zero": _solution(
        "expressions",
        ("src/calcexpr/evaluate.py", "MAX_POWER_BITS = 10_000\n", "MAX_POWER_BITS = 10_000\n\n\nclass DivisionError(EvaluationError):\n    pass\n"),
        ("src/calcexpr/evaluate.py", 'raise EvaluationError("division by zero")', 'raise DivisionError("cannot divide by zero")'),
    ),
    "evaluate: other words in messages": _solution("expressions", ("src/calcexpr/evaluate.py", 'f"{name} has no value"', 'f"the variable {name} has no value here"')),
    "money: private fields behind properties": _solution(
        "ledger",
        (_MONEY, "@dataclass(frozen=True)\nclass Money:", "class Money:\n    __slots__ = (\"_units\", \"_currency\")\n"),
        (_MONEY, "    units: int\n    currency: str\n", """    def __init__(self, units: int, currency: str) -> None:
        self._units = units
        self._currency = currency

    @property
    def units(self) -> int:
        return self._units

    @property
    def currency(self) -> str:
        return self._currency

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and (self._units, self._currency) == (other._units, other._currency)

    def __hash__(self) -> int:
        return hash((self._units, self._currency))

    def __repr__(self) -> str:
        return f"Money(units={self._units!r}, currency={self._currency!r})"
"""),
    ),
    "money: a decimal amount": _solution(
        "ledger",
        (_MONEY, "@dataclass(frozen=True)\nclass Money:", "class Money:"),
        (_MONEY, "    units: int\n    currency: str\n", """    def __init__(self, units: int, currency: str) -> None:
        self.currency = currency
        self._amount = Decimal(units).scaleb(-minor_digits(currency))

    @property
    def units(self) -> int:
        return int(self._amount.scaleb(minor_digits(self.currency)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and (self._amount, self.currency) == (other._amount, other.currency)

    def __hash__(self) -> int:
        return hash((self._amount, self.currency))
"""),
        (_MONEY, "import re\n", "import re\nfrom decimal import Decimal\n"),
    ),
    "money: read as a subclass": _solution(
        "ledger",
        (_MONEY, "    units: int\n    currency: str\n", """    units: int
    currency: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and (self.units, self.currency) == (other.units, other.currency)

    def __hash__(self) -> int:
        return hash((self.units, self.currency))
"""),
        (_MONEY, '    return Money(-units if sign == "-" else units, currency)', '    found = ReadMoney(-units if sign == "-" else units, currency)\n    object.__setattr__(found, "source", text)\n    return found\n\n\nclass ReadMoney(Money):\n    pass'),
    ),
    "journal: a list": _solution(
        "ledger",
        (_JOURNAL, "@dataclass\nclass Journal:", "class Journal(list):"),
        (_JOURNAL, """    transactions: list[Transaction] = field(default_factory=list)
    budgets: dict[str, Money] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Transaction]:
        return iter(self.transactions)

    def __len__(self) -> int:
        return len(self.transactions)
""", """    def __init__(self) -> None:
        super().__init__()
        self.budgets: dict[str, Money] = {}

    @property
    def transactions(self) -> list[Transaction]:
        return self
"""),
    ),
    "journal: postings are named tuples": _solution(
        "ledger",
        (_JOURNAL, "@dataclass(frozen=True)\nclass Posting:", "class Posting(NamedTuple):"),
        (_JOURNAL, "import re\n", "import re\nfrom typing import NamedTuple\n"),
    ),
    "journal: transactions with slots": _solution("ledger", (_JOURNAL, "@dataclass(frozen=True)\nclass Transaction", "@dataclass(frozen=True, slots=True)\nclass Transaction")),
    "ledger: an index of accounts": _solution(
        "ledger",
        (_LEDGER, "    def accounts(self)", "        self._index = {posting.account: transaction for transaction in self.transactions for posting in transaction.postings}\n\n    def accounts(self)"),
    ),
    "nodes: slots": _solution("markup", (_NODES, "@dataclass\n", "@dataclass(slots=True)\n")),
    "nodes: headings remember their words": _solution(
        "markup",
        (_NODES, "    text: str\n    id: str = \"\"\n", "    text: str\n    id: str = \"\"\n    _words: list[str] = field(default_factory=list, compare=False, repr=False)\n\n    def __post_init__(self) -> None:\n        self._words = self.text.split()\n"),
    ),
    "contents: entries of a plain class": _solution(
        "markup",
        ("marktext/contents.py", "@dataclass\nclass Entry:", "class Entry:"),
        ("marktext/contents.py", "    title: str\n    id: str\n    level: int\n    children: list[Entry] = field(default_factory=list)\n", """    def __init__(self, title: str, id: str, level: int, children: list[Entry] | None = None) -> None:
        self.title, self.id, self.level = title, id, level
        self.children = children if children is not None else []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entry) and vars(self) == vars(other)
"""),
    ),
    "slugs: numbers are counted": _solution(
        "markup",
        ("marktext/slugs.py", "        self._taken: set[str] = set()\n", "        self._taken: dict[str, int] = {}\n"),
        ("marktext/slugs.py", "self._taken.add(slug)", "self._taken[slug] = number"),
    ),
    "blocks: a list of an own class": _solution(
        "markup",
        ("marktext/blocks.py", "    return _parse(lines, Slugs())\n", "    return Document(_parse(lines, Slugs()))\n\n\nclass Document(list):\n    pass\n"),
    ),
    "hunks: a private body": _solution(
        "patching",
        ("linepatch/hunks.py", "    body: tuple[tuple[str, str], ...]\n", "    body: tuple[tuple[str, str], ...]\n\n    def __post_init__(self) -> None:\n        object.__setattr__(self, \"_marks\", \"\".join(mark for mark, _ in self.body))\n"),
    ),
    "hunks: lines computed once": _solution(
        "patching",
        ("linepatch/hunks.py", "    @property\n", "    @functools.cached_property\n"),
        ("linepatch/hunks.py", "from collections.abc", "import functools\nfrom collections.abc"),
    ),
    "merge: named tuples": _solution(
        "patching",
        ("linepatch/merge.py", "from dataclasses import dataclass\n", "from typing import NamedTuple\n"),
        ("linepatch/merge.py", "@dataclass(frozen=True)\nclass Merged:", "class Merged(NamedTuple):"),
        ("linepatch/apply.py", "from dataclasses import dataclass\n", "from typing import NamedTuple\n"),
        ("linepatch/apply.py", "@dataclass(frozen=True)\nclass Applied:", "class Applied(NamedTuple):"),
    ),
    "spans: parallel lists": _solution(
        "schedule",
        (_SET, "        self._spans = tuple(joined)\n", "        self._starts = [span.start for span in joined]\n        self._ends = [span.end for span in joined]\n\n    @property\n    def _spans(self) -> tuple[Span, ...]:\n        return tuple(map(Span, self._starts, self._ends))\n"),
    ),
    "spans: a list and the minutes": _solution(
        "schedule",
        (_SET, "        self._spans = tuple(joined)\n", "        self._spans = joined\n        self._minutes = sum(span.minutes for span in joined)\n"),
        (_SET, "return hash(self._spans)", "return hash(tuple(self._spans))"),
        (_SET, "return sum(span.minutes for span in self._spans)", "return self._minutes"),
    ),
    "spans: another private name": _solution("schedule", (_SET, "_spans", "_parts")),
    "span: a start and a length": _solution(
        "schedule",
        (_SPAN, "@dataclass(frozen=True, order=True)\nclass Span:", "@total_ordering\nclass Span:"),
        (_SPAN, "    start: datetime\n    end: datetime\n", """    def __init__(self, start: datetime, end: datetime) -> None:
        self._start, self._length = start, end - start
        self.__post_init__()

    @property
    def start(self) -> datetime:
        return self._start

    @property
    def end(self) -> datetime:
        return self._start + self._length

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Span) and (self.start, self.end) == (other.start, other.end)

    def __lt__(self, other: Span) -> bool:
        return (self.start, self.end) < (other.start, other.end)

    def __hash__(self) -> int:
        return hash((self.start, self.end))

    def __repr__(self) -> str:
        return f"Span(start={self.start!r}, end={self.end!r})"
"""),
        (_SPAN, "import re\n", "import re\nfrom functools import total_ordering\n"),
    ),
    "span: slots": _solution("schedule", (_SPAN, "order=True)", "order=True, slots=True)")),
    "repetition: a remembered generator": _solution(
        "schedule",
        ("slotplan/repetition.py", "    until: date | None = None\n\n", "    until: date | None = None\n    _step: int = field(default=0, compare=False, repr=False)\n\n    def __post_init__(self) -> None:\n        object.__setattr__(self, \"_step\", self.every * 7)\n\n"),
        ("slotplan/repetition.py", "import dataclass\n", "import dataclass, field\n"),
    ),
    "table: rows instead of columns": _solution(
        "tables",
        (_TABLE, "        self._columns = {name: list(cells) for name, cells in columns.items()}\n        lengths = {len(cells) for cells in self._columns.values()}\n", "        self._names = list(columns)\n        lengths = {len(cells) for cells in columns.values()}\n"),
        (_TABLE, "        self._length = lengths.pop() if lengths else 0\n", "        self._length = lengths.pop() if lengths else 0\n        self._rows = [tuple(cells) for cells in zip(*columns.values())]\n\n    @property\n    def _columns(self) -> dict[str, list[Cell]]:\n        return {name: [row[place] for row in self._rows] for place, name in enumerate(self._names)}\n"),
    ),
    "table: columns are tuples": _solution(
        "tables",
        (_TABLE, "{name: list(cells) for name", "{name: tuple(cells) for name"),
    ),
    "table: no length": _solution(
        "tables",
        (_TABLE, "        self._length = lengths.pop() if lengths else 0\n", ""),
        (_TABLE, "        return self._length\n", "        return next((len(cells) for cells in self._columns.values()), 0)\n"),
        (_TABLE, "self._length", "len(self)"),
    ),
    "table: a large index": _solution(
        "tables",
        (_TABLE, "        self._length = lengths.pop() if lengths else 0\n", "        self._length = lengths.pop() if lengths else 0\n        self._places = list(range(100_000))\n"),
    ),
    "version: a remembered key": _solution(
        "versions",
        (_VERSION, "    build: str = \"\"\n", "    build: str = \"\"\n\n    def __post_init__(self) -> None:\n        object.__setattr__(self, \"_sort_key\", (self.release, not self.pre))\n"),
    ),
    "version: a private tuple": _solution(
        "versions",
        (_VERSION, "@dataclass(frozen=True)\nclass Version:", "class Version:"),
        (_VERSION, "    major: int\n    minor: int\n    patch: int\n    pre: tuple[int | str, ...] = ()\n    build: str = \"\"\n", """    def __init__(self, major: int, minor: int, patch: int, pre: tuple[int | str, ...] = (), build: str = "") -> None:
        self._numbers = major, minor, patch
        self.pre = pre
        self.build = build

    major = property(lambda self: self._numbers[0])
    minor = property(lambda self: self._numbers[1])
    patch = property(lambda self: self._numbers[2])
"""),
    ),
    "range: a compiled form": _solution(
        "versions",
        (_RANGES, "    text: str\n\n", "    text: str\n\n    def __post_init__(self) -> None:\n        object.__setattr__(self, \"_tests\", [[(b.operator, b.version) for b in bounds] for bounds in self.alternatives])\n\n"),
    ),
    "index: one flat table": _solution(
        "versions",
        ("src/pickver/index.py", "self._releases: dict[str, dict[Version, Release]] = {}", "self._all: dict[tuple[str, Version], Release] = {}"),
        ("src/pickver/index.py", "self._releases.setdefault(release.package, {})[release.version] = release", "self._all[release.package, release.version] = release"),
        ("src/pickver/index.py", "releases = self._releases.get(normalize(package), {}).values()", "releases = [one for (name, _), one in self._all.items() if name == normalize(package)]"),
        ("src/pickver/index.py", "return self._releases[normalize(package)][version]", "return self._all[normalize(package), version]"),
    ),
    "requirement: slots and a subclass": _solution(
        "versions",
        ("src/pickver/requirement.py", "    return Requirement(normalize(name), ", "    return NamedRequirement(normalize(name), "),
        ("src/pickver/requirement.py", "def parse_requirement(", "class NamedRequirement(Requirement):\n    pass\n\n\ndef parse_requirement("),
    ),
}  # fmt: skip
