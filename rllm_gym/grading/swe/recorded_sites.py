"""The recorded places of a test file, and what their assertions say of the operands."""

from __future__ import annotations

import ast
import enum
import functools
import re
from dataclasses import dataclass, field

from rllm_gym.grading.swe.erased_values import is_literal
from rllm_gym.grading.swe.taint import name_of


class Level(enum.IntEnum):
    """How far an assertion is taken apart; the first level whose operands are plain data is used."""

    DEEP = 0  # operands of comparisons, arithmetic, len(), all(), startswith(), …
    SHALLOW = 1  # operands of the comparison
    STATE = 2  # the side of an equality that is not built from literals, as an observed object
    WHOLE = 3  # the result, computed inside, and the operands as observed objects


class SiteKind(enum.Enum):
    ASSERTION = "assertion"
    STATEMENT = "statement"
    RAISES = "raises"
    WARNS = "warns"


@dataclass(slots=True)
class RecordedSite:
    """A recorded place of a test file.

    Attributes:
        kind: What it is.
        test: The assertion, with ``_v0``, ``_v1``, … for its operands.
        known: For each operand whether it is independent of the code under test: its value is then known.
        kept: Whether known operands are evaluated inside nevertheless, because they vary.
        level: How far the assertion is taken apart.
        line: The line of the statement in the original file.
        evidence: Operands that are not part of the assertion, but what one of its parts was computed from.
        varies: Whether an operand may differ between solutions: a hash.
        passed_only: Operands of a check of the repository's own that are only passed to it: they tell nothing about
            the code.
        identity: Whether two operands must be the same object, which is evaluated inside.
    """

    kind: SiteKind
    test: ast.expr | None = None
    known: list[bool] = field(default_factory=list)
    kept: bool = False
    level: Level = Level.DEEP
    line: int = 0
    evidence: list[int] = field(default_factory=list)
    varies: bool = False
    passed_only: frozenset[int] = frozenset()
    identity: bool = False

    @property
    def sent(self) -> list[int]:
        """The operands that a graded run records."""
        return [place for place, known in enumerate(self.known) if not known or self.kept]

    @property
    def faced(self) -> frozenset[int]:
        """Operands of equalities of which no side is independent of the code: only the reference's values tell."""
        found: set[int] = set()
        todo: list[ast.AST] = [] if self.test is None or self.varies else [self.test]
        while todo:
            node = todo.pop()
            if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                continue  # it says only that they differ
            if isinstance(node, ast.Compare) and all(isinstance(kind, ast.Eq | ast.Is) for kind in node.ops):
                sides = [operands_in(_without_tolerance(side)) for side in (node.left, *node.comparators)]
                if len(set(map(frozenset, sides))) == 1:
                    continue  # it says of one value that it is sorted, for example, or has no item twice
                if all(not all(self.known[place] for place in side) for side in sides):
                    found.update(place for side in sides for place in side if not self.known[place])
            todo += ast.iter_child_nodes(node)
        return frozenset(found)

    @property
    def searched(self) -> frozenset[int]:
        """Operands in which the assertion looks for a part: one that is large enough has every part."""
        found: set[int] = set()
        for node in ast.walk(self.test) if self.test is not None else ():
            match node:
                case ast.Compare():
                    sides = zip(node.ops, node.comparators)
                    found.update(
                        place for kind, side in sides if isinstance(kind, ast.In | ast.Lt | ast.LtE)
                        for place in operands_in(side)
                    )  # fmt: skip
                    if any(isinstance(kind, ast.Gt | ast.GtE) for kind in node.ops):
                        found |= operands_in(node.left)
                case ast.BinOp(op=ast.Sub(), right=right):
                    found |= operands_in(right)  # a set of everything leaves nothing
                case ast.Call(func=ast.Attribute(attr="issubset" | "difference"), args=[*others]):
                    found |= set().union(*map(operands_in, others))
                case ast.Call(func=ast.Name("_searches_"), args=[_, text]):
                    found |= operands_in(text)
                case ast.Call(func=ast.Name("any"), args=[part]):
                    found |= operands_in(part)
                case ast.Call(func=ast.Attribute(attr=attr, value=value)) if attr in _SEARCHING:
                    found |= operands_in(value)
        return frozenset(found)

    @property
    def concerns_items(self) -> bool:
        """Whether the assertion says something of the items of an operand, or of their number."""
        return any(
            isinstance(node, COMPREHENSIONS | ast.BinOp)
            or (isinstance(node, ast.Call) and name_of(node) in _OF_ITEMS)
            or (isinstance(node, ast.Compare) and any(isinstance(kind, _ORDERS) for kind in node.ops))
            for node in ast.walk(self.test or ast.Pass())
        )

    @property
    def paired(self) -> frozenset[int]:
        """Operands of which each item has to equal one of the test's, by place or key: none may be missing."""
        found: set[int] = set()
        for node in ast.walk(self.test or ast.Pass()):
            if not isinstance(node, COMPREHENSIONS):
                continue
            sources = [part.iter for part in node.generators]
            partners = [item for source in sources if name_of(source) == "zip" for item in arguments_of(source)]
            for part in ast.walk(node.elt):
                if isinstance(part, ast.Compare) and all(isinstance(kind, ast.Eq | ast.Is) for kind in part.ops):
                    partners += [item.value for item in ast.walk(part) if isinstance(item, ast.Subscript)]
                    if any(map(self._is_of_test, partners)):
                        found.update(*map(operands_in, sources))
        return frozenset(found)

    def _is_of_test(self, node: ast.expr) -> bool:
        """Return whether a value is in the text of the assertion, or independent of the code."""
        places = operands_in(node)
        return is_literal(node) or (bool(places) and all(self.known[place] for place in places))

    @property
    def nested(self) -> bool:
        """Whether it says something of the items of items."""
        loops = [node for node in ast.walk(self.test or ast.Pass()) if isinstance(node, COMPREHENSIONS)]
        return len(loops) > 1 or any(len(node.generators) > 1 for node in loops)

    @property
    def ranged(self) -> frozenset[int]:
        """Operands that are themselves a number of items."""
        calls = [
            node
            for node in ast.walk(self.test or ast.Pass())
            if isinstance(node, ast.Call) and name_of(node) == "range"
        ]
        arguments = [item for call in calls for item in arguments_of(call) if isinstance(item, ast.Name)]
        return frozenset(place for item in arguments for place in operands_in(item))

    @property
    def compares_own(self) -> bool:
        """Whether both sides of an equality come from the code under test: only the reference's values tell."""
        if not isinstance(self.test, ast.Compare) or self.varies or any(self.known) or len(self.known) < 2:
            return False
        if not all(isinstance(kind, ast.Eq | ast.Is) for kind in self.test.ops):
            return False
        return not _has_constant(self.test)


@functools.lru_cache(maxsize=10_000)
def _has_constant(test: ast.expr) -> bool:
    """Return whether an assertion contains a constant; asked for each of the events of a loop."""
    return any(isinstance(node, ast.Constant) for node in ast.walk(test))


COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.GeneratorExp
_SEARCHING = frozenset({"issuperset", "isdisjoint", "find", "rfind", "index", "rindex", "count"})
_ORDERS = ast.Lt | ast.LtE | ast.Gt | ast.GtE
_OF_ITEMS = frozenset(
    {"all", "any", "len", "sum", "min", "max", "sorted", "set", "_all_near_", "_all_equal_", "_near_by_digits_",
     "issubset", "isdisjoint", "difference", "intersection"}
)  # fmt: skip


def arguments_of(node: ast.AST) -> list[ast.expr]:
    return node.args if isinstance(node, ast.Call) else []


def _without_tolerance(side: ast.expr) -> ast.expr:
    return arguments_of(side)[0] if is_approx(side) else side


def operands_in(node: ast.AST) -> set[int]:
    names = (part.id for part in ast.walk(node) if isinstance(part, ast.Name))
    return {int(name[2:]) for name in names if re.fullmatch(r"_v\d+", name)}


def is_approx(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and name_of(node) == "approx" and len(node.args) == 1
