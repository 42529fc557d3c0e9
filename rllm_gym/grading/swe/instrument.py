"""Rewrites a test file so that nothing in it decides: operands and exceptions are recorded, and evaluated elsewhere.

``assert total([1, 2]) == 3`` becomes ``with _g_(7): _a_(7, [total([1, 2])])``, and so do ``total([1, 2])`` on its own
and the body of ``pytest.raises``: the code under test sees the same call in every run, without expected values. See
:mod:`rllm_gym.grading.swe.inside.observer` for what the calls do, :mod:`rllm_gym.grading.swe.assertions` for how an
assertion is evaluated, and :mod:`rllm_gym.grading.swe.taint` for which expressions stay away from the code.
"""

from __future__ import annotations

import ast
import copy
import enum
import functools
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from rllm_gym.grading.python_source import parse_python
from rllm_gym.grading.swe.assertions import CALLS, KEYWORDS, METHODS, TYPES
from rllm_gym.grading.swe.erased_values import ValueEraser, is_literal, literal_arguments, parametrizations
from rllm_gym.grading.swe.literal_tables import write_tables
from rllm_gym.grading.swe.stated_assertions import as_assertion, imported_from_numpy
from rllm_gym.grading.swe.taint import (
    Function,
    Scope,
    bound_names,
    column_cells,
    is_built,
    name_of,
    parameters,
)

MODULE = "_observer"
"""The name under which rewritten tests import what records."""

MAX_BYTES = 4_000_000
_ASSERTS = re.compile(r"_*(assert|check|expect|verify|ensure)(_\w+|[A-Z]\w*)?")
_RAISES = frozenset({"raises", "assertRaises", "assertRaisesRegex", "assertRaisesRegexp"})
_WARNS = frozenset({"warns", "assertWarns", "assertWarnsRegex"})
_OWN_CALLS = frozenset(name for name in CALLS if name.startswith("_"))
_MODULE_CALLS = {
    ("re", "search"): "_searches_",
    ("math", "isclose"): "_close_",
    ("math", "isfinite"): "_finite_",
    ("math", "isnan"): "_nan_",
    ("math", "isinf"): "_infinite_",
    **{(numpy, name): "_all_near_" for numpy in ("np", "numpy") for name in ("allclose", "isclose")},
    **{(numpy, "array_equal"): "_all_equal_" for numpy in ("np", "numpy")},
}
_ITERATING = frozenset(
    {"all", "any", "sum", "min", "max", "sorted", "list", "tuple", "set", "frozenset", "enumerate", "zip"}
)
_CONSUMING = frozenset({"sum", "min", "max", "sorted", "list", "tuple", "set", "frozenset"})
"""Functions that go through all items of an iterator, whatever these are."""
_EQUALITIES = re.compile(r"(\w*_)?(same|equals?|equivalent|identical)(_\w+)?")
_DIFFERING = frozenset({"hash", "id"})
_DEEP_CALLS = frozenset(CALLS) - {"isinstance", "approx"} - _OWN_CALLS


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
                sides = [_operands_in(_without_tolerance(side)) for side in (node.left, *node.comparators)]
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
                        for place in _operands_in(side)
                    )  # fmt: skip
                    if any(isinstance(kind, ast.Gt | ast.GtE) for kind in node.ops):
                        found |= _operands_in(node.left)
                case ast.BinOp(op=ast.Sub(), right=right):
                    found |= _operands_in(right)  # a set of everything leaves nothing
                case ast.Call(func=ast.Attribute(attr="issubset" | "difference"), args=[*others]):
                    found |= set().union(*map(_operands_in, others))
                case ast.Call(func=ast.Name("_searches_"), args=[_, text]):
                    found |= _operands_in(text)
                case ast.Call(func=ast.Name("any"), args=[part]):
                    found |= _operands_in(part)
                case ast.Call(func=ast.Attribute(attr=attr, value=value)) if attr in _SEARCHING:
                    found |= _operands_in(value)
        return frozenset(found)

    @property
    def concerns_items(self) -> bool:
        """Whether the assertion says something of the items of an operand, or of their number."""
        return any(
            isinstance(node, _COMPREHENSIONS | ast.BinOp)
            or (isinstance(node, ast.Call) and name_of(node) in _OF_ITEMS)
            or (isinstance(node, ast.Compare) and any(isinstance(kind, _ORDERS) for kind in node.ops))
            for node in ast.walk(self.test or ast.Pass())
        )

    @property
    def paired(self) -> frozenset[int]:
        """Operands of which each item has to equal one of the test's, by place or key: none may be missing."""
        found: set[int] = set()
        for node in ast.walk(self.test or ast.Pass()):
            if not isinstance(node, _COMPREHENSIONS):
                continue
            sources = [part.iter for part in node.generators]
            partners = [item for source in sources if name_of(source) == "zip" for item in _arguments(source)]
            for part in ast.walk(node.elt):
                if isinstance(part, ast.Compare) and all(isinstance(kind, ast.Eq | ast.Is) for kind in part.ops):
                    partners += [item.value for item in ast.walk(part) if isinstance(item, ast.Subscript)]
                    if any(map(self._is_of_test, partners)):
                        found.update(*map(_operands_in, sources))
        return frozenset(found)

    def _is_of_test(self, node: ast.expr) -> bool:
        """Return whether a value is in the text of the assertion, or independent of the code."""
        places = _operands_in(node)
        return is_literal(node) or (bool(places) and all(self.known[place] for place in places))

    @property
    def nested(self) -> bool:
        """Whether it says something of the items of items."""
        loops = [node for node in ast.walk(self.test or ast.Pass()) if isinstance(node, _COMPREHENSIONS)]
        return len(loops) > 1 or any(len(node.generators) > 1 for node in loops)

    @property
    def ranged(self) -> frozenset[int]:
        """Operands that are themselves a number of items."""
        calls = [
            node
            for node in ast.walk(self.test or ast.Pass())
            if isinstance(node, ast.Call) and name_of(node) == "range"
        ]
        arguments = [item for call in calls for item in _arguments(call) if isinstance(item, ast.Name)]
        return frozenset(place for item in arguments for place in _operands_in(item))

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


_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.GeneratorExp
_SEARCHING = frozenset({"issuperset", "isdisjoint", "find", "rfind", "index", "rindex", "count"})
_ORDERS = ast.Lt | ast.LtE | ast.Gt | ast.GtE
_OF_ITEMS = frozenset(
    {"all", "any", "len", "sum", "min", "max", "sorted", "set", "_all_near_", "_all_equal_", "_near_by_digits_",
     "issubset", "isdisjoint", "difference", "intersection"}
)  # fmt: skip


def _arguments(node: ast.AST) -> list[ast.expr]:
    return node.args if isinstance(node, ast.Call) else []


def _without_tolerance(side: ast.expr) -> ast.expr:
    return _arguments(side)[0] if _is_approx(side) else side


def _operands_in(node: ast.AST) -> set[int]:
    names = (part.id for part in ast.walk(node) if isinstance(part, ast.Name))
    return {int(name[2:]) for name in names if re.fullmatch(r"_v\d+", name)}


@dataclass(slots=True)
class InstrumentedFile:
    """A rewritten test file.

    Attributes:
        text: The file.
        sites: Its recorded places, in order.
    """

    text: str
    sites: list[RecordedSite]


@dataclass(frozen=True, slots=True)
class SitePlan:
    """What the runs of the reference solution showed about a site: see :class:`RecordedSite`."""

    level: Level = Level.DEEP
    kept: bool = False


def instrument(text: str, plan: Mapping[int, SitePlan], *, first: int, recording: bool) -> InstrumentedFile:
    """Rewrite a test file.

    Args:
        text: Its source.
        plan: By number of the site in the file, what the default would not be.
        first: The number of the first site.
        recording: Keep known operands and expected exceptions, to record them with the reference solution.

    Raises:
        ValueError: It is not Python that this interpreter can parse, or too long.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"a test file has {len(text)} characters; the maximum is {MAX_BYTES}")
    try:
        tree = parse_python(text)
        write_tables(tree)
        rewriter = _Rewriter(tree, plan, first, recording)
        rewriter.rewrite()
        written = ast.unparse(ast.fix_missing_locations(tree))
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"a test file is not valid Python: {type(error).__name__}") from None
    return InstrumentedFile(written + "\n", rewriter.sites)


class _NotSeparable(Exception):
    """Part of a comprehension needs the code under test for each item."""


def _load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


class _Operands:
    """Takes one assertion apart: the expression to evaluate outside, and the operands."""

    def __init__(
        self, scope: Scope, own: Collection[str], *, inside: bool, helpers: Mapping[str, ast.FunctionDef] | None = None
    ) -> None:
        self._scope = scope
        self._own = own
        self._helpers = dict(helpers or {})
        self._inlined = 0
        self._reusing = False
        self._loop_names: frozenset[str] = frozenset()
        self._items: list[ast.expr] = []
        self._inside = inside
        self._approx = None if inside else _load("approx")
        self.operands: list[ast.expr] = []
        self.known: list[bool] = []

    def operand(self, node: ast.expr, *, known: bool = False) -> ast.expr:
        if self._reusing and not isinstance(node, ast.Name):
            same = [place for place, other in enumerate(self.operands) if ast.dump(other) == ast.dump(node)]
            if not same:
                raise _NotSeparable
            return _load(f"_v{same[0]}")
        if isinstance(node, ast.Name):
            for place, other in enumerate(self.operands):
                if name_of(other) == "_i_":
                    other = _arguments(other)[0]
                if isinstance(other, ast.Name) and other.id == node.id and self.known[place] == known:
                    return _load(f"_v{place}")
        self.operands.append(node)
        self.known.append(known)
        return _load(f"_v{len(self.operands) - 1}")

    def part(self, node: ast.expr, bound: frozenset[str] = frozenset(), *, shallow: bool = False) -> ast.expr:
        """Return the expression for outside."""
        own = {item.id for item in ast.walk(node) if isinstance(item, ast.Name)} & bound if bound else set()
        if isinstance(node, ast.Name) and node.id in bound:
            return self._item(node) if node.id in self._loop_names else node
        if is_literal(node):
            return node
        if not own and not self._scope.depends(node) and not _is_approx(node):
            return self.operand(node, known=True)
        taken = self._apart(node, bound, shallow)
        if taken is not None:
            return taken
        if own and own <= self._loop_names:
            return self._item(node)
        if own:
            raise _NotSeparable
        return self.operand(node)

    def _item(self, node: ast.expr) -> ast.expr:
        """Return the name for outside of what is computed inside for each item of a comprehension."""
        same = [place for place, other in enumerate(self._items) if ast.dump(other) == ast.dump(node)]
        if not same:
            if self._reusing and not isinstance(node, ast.Name):
                raise _NotSeparable
            same = [len(self._items)]
            self._items.append(node)
        return _load(f"_q{same[0]}")

    def _apart(self, node: ast.expr, bound: frozenset[str], shallow: bool) -> ast.expr | None:
        def inner(child: ast.expr) -> ast.expr:
            return self.operand_or_literal(child) if shallow else self.part(child, bound)

        match node:
            case ast.Compare():
                sides = [node.left, *node.comparators]
                computed = any(self._scope.unchanged.depends(side) for side in sides)
                expected = None if bound or self._inside else expected_side(node, self._scope, self._own)
                left, *rest = [
                    self.operand(side, known=True)
                    if (side is expected and self._scope.depends(side)) or (computed and self._is_own_result(side))
                    else inner(side)
                    for side in sides
                ]
                return ast.Compare(left, node.ops, rest)
            case ast.BoolOp(op=ast.And()):
                return ast.BoolOp(node.op, [self.part(child, bound, shallow=shallow) for child in node.values])
            case ast.UnaryOp(op=ast.Not()):
                return ast.UnaryOp(node.op, self.part(node.operand, bound, shallow=shallow))
            case ast.Call() if _is_approx(node) and not any(keyword.arg is None for keyword in node.keywords):
                keywords = [ast.keyword(item.arg, self.part(item.value, bound)) for item in node.keywords]
                return ast.Call(self._approx or node.func, [self.part(item, bound) for item in node.args], keywords)
            case ast.Call(func=ast.Name(id)) if id in _OWN_CALLS:
                keywords = [ast.keyword(item.arg, inner(item.value)) for item in node.keywords]
                return ast.Call(node.func, [inner(item) for item in node.args], keywords)
        if shallow:
            return None
        match node:
            case ast.BoolOp():
                return self._either(node, bound)
            case ast.UnaryOp():
                return ast.UnaryOp(node.op, inner(node.operand))
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() | ast.FloorDiv() | ast.Mod()):
                return ast.BinOp(inner(node.left), node.op, inner(node.right))
            case ast.List() | ast.Tuple() | ast.Set():
                if any(isinstance(item, ast.Starred) for item in node.elts):
                    return None
                elements = [inner(item) for item in node.elts]
                return ast.Set(elements) if isinstance(node, ast.Set) else type(node)(elements, ast.Load())
            case ast.Subscript(slice=ast.Constant()) if bound:
                return ast.Subscript(inner(node.value), node.slice, ast.Load())
            case ast.Subscript(slice=ast.Slice(lower, upper, step)) if bound:
                limits = [part and inner(part) for part in (lower, upper, step)]
                return ast.Subscript(inner(node.value), ast.Slice(*limits), ast.Load())
            case ast.Subscript() if bound and not isinstance(node.slice, ast.Tuple):
                return ast.Subscript(inner(node.value), inner(node.slice), ast.Load())
            case ast.Call() if not self._inside and (compared := _everywhere(node)) is not None:
                return ast.Call(_load("_all_equal_"), [inner(compared.left), inner(compared.comparators[0])], [])
            case ast.Call() if not self._inside and (function := self._module_call(node)) is not None:
                keywords = [ast.keyword(item.arg, inner(item.value)) for item in node.keywords]
                return ast.Call(_load(function), [inner(item) for item in node.args], keywords)
            case ast.Call(func=ast.Name(id)) if id in self._helpers and not self._inside:
                return self._inline(self._helpers[id], node, bound)
            case ast.Call(func=ast.Name(id)) if id in ("isinstance", *_DEEP_CALLS) and not self._plain_call(node):
                return None
            case ast.Call(func=ast.Name("isinstance")):
                kinds = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
                if not all(isinstance(kind, ast.Name) and kind.id in TYPES for kind in kinds):
                    return None
                return ast.Call(node.func, [inner(node.args[0]), node.args[1]], [])
            case ast.Call(func=ast.Name(id)) if id in _DEEP_CALLS:
                keywords = [ast.keyword(item.arg, inner(item.value)) for item in node.keywords]
                if not isinstance(node.args[0], _COMPREHENSIONS):
                    each = self._iterated if id in _ITERATING else self.part
                    if id in _CONSUMING and len(node.args) == 1:
                        each = functools.partial(self._iterated, consumed=True)
                    return ast.Call(node.func, [each(item, bound) for item in node.args], keywords)
                first = self._comprehended(node.args[0], bound)
                return first and ast.Call(node.func, [first, *map(inner, node.args[1:])], keywords)
            case ast.ListComp() | ast.SetComp():
                return self._comprehended(node, bound)
            case ast.Call(func=ast.Attribute(attr=name, value=value)) if name in METHODS and not node.keywords:
                receiver = inner(value)
                return ast.Call(ast.Attribute(receiver, name, ast.Load()), [inner(item) for item in node.args], [])
        return None

    def _either(self, node: ast.BoolOp, bound: frozenset[str]) -> ast.expr | None:
        """Take ``… or …`` apart if the first part needs everything that the others do: they may not be reached."""
        before, items, reusing = len(self.operands), len(self._items), self._reusing
        try:
            parts = [self.part(node.values[0], bound)]
            self._reusing = True
            parts += [self.part(child, bound) for child in node.values[1:]]
            return ast.BoolOp(node.op, parts)
        except _NotSeparable:
            del self.operands[before:], self.known[before:], self._items[items:]
            return None
        finally:
            self._reusing = reusing

    def _module_call(self, node: ast.Call) -> str | None:
        """Return the name for outside of a function that the module of a comparison has, such as ``math.isclose``."""
        if any(isinstance(item, ast.Starred) for item in node.args) or any(item.arg is None for item in node.keywords):
            return None
        if isinstance(node.func, ast.Attribute):
            return _MODULE_CALLS.get((name_of(node.func.value), node.func.attr))
        name = name_of(node)
        return None if self._scope.tainted(name) or name in self._own else _MODULE_CALLS.get(("math", name))

    def _inline(self, helper: ast.FunctionDef, node: ast.Call, bound: frozenset[str]) -> ast.expr | None:
        """Take a call of a function of the test file apart that returns one expression."""
        names = parameters(helper)
        result = helper.body[-1]
        assert isinstance(result, ast.Return)
        assert result.value is not None
        if node.keywords or len(names) != len(node.args) or any(isinstance(item, ast.Starred) for item in node.args):
            return None
        body = copy.deepcopy(result.value)
        used = [item for item in ast.walk(body) if isinstance(item, ast.Name)]
        own = {*names, *(item.id for item in used if isinstance(item.ctx, ast.Store))}
        if any(self._scope.is_local(item.id) for item in used if item.id not in own):
            return None
        self._inlined += 1
        for item in used:
            if item.id in own:
                item.id = f"_h{self._inlined}_{item.id}"
        inner = frozenset(f"_h{self._inlined}_{name}" for name in names)
        before, items = len(self.operands), len(self._items)
        del self._helpers[helper.name]  # it may call itself
        try:
            arguments = ast.Tuple([self._iterated(item, bound) for item in node.args], ast.Load())
            target = ast.Tuple([ast.Name(f"_h{self._inlined}_{name}", ast.Store()) for name in names], ast.Store())
            value = self.part(body, bound | inner)
        except _NotSeparable:
            del self.operands[before:], self.known[before:], self._items[items:]
            return None
        finally:
            self._helpers[helper.name] = helper
        generator = ast.comprehension(target, ast.List([arguments], ast.Load()), [], 0)
        return ast.Subscript(ast.ListComp(value, [generator]), ast.Constant(0), ast.Load())

    def _iterated(self, node: ast.expr, bound: frozenset[str] = frozenset(), *, consumed: bool = False) -> ast.expr:
        """Take a value apart whose items are used, and nothing else: an iterator is replaced by a list of them."""
        before = len(self.operands)
        found = self.part(node, bound)
        whole = len(self.operands) == before + 1 and self.operands[before] is node
        if whole and (consumed or not isinstance(node, ast.Name)):  # the test may go on to use one that has a name
            self.operands[before] = ast.Call(_load("_i_"), [node], [])
        return found

    def _is_own_result(self, node: ast.expr) -> bool:
        """Return whether a function of the test file computes this from inputs that the code has at most changed."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in self._own:
            return False
        return not self._scope.unchanged.depends(node)

    def _plain_call(self, node: ast.Call) -> bool:
        """Return whether it is a call of the builtin function with positional arguments."""
        plain = bool(node.args) and not any(isinstance(item, ast.Starred) for item in node.args)
        plain = plain and all(item.arg in KEYWORDS for item in node.keywords)
        return plain and isinstance(node.func, ast.Name) and not self._scope.tainted(node.func.id)

    def operand_or_literal(self, node: ast.expr) -> ast.expr:
        if is_literal(node):
            return node
        if _is_approx(node):
            return self.part(node)
        return self.operand(node, known=not self._scope.depends(node))

    def _comprehended(
        self, inner: ast.GeneratorExp | ast.ListComp | ast.SetComp, bound: frozenset[str]
    ) -> ast.expr | None:
        """Take ``… for … in …`` apart if the code under test is not needed for each item."""
        before, items = len(self.operands), len(self._items)
        outer = bound
        try:
            generators = []
            for part in inner.generators:
                if part.is_async:
                    return None
                consumed = isinstance(inner, ast.ListComp | ast.SetComp) and part is inner.generators[0]
                source = self._iterated(part.iter, bound, consumed=consumed)
                bound = bound | set(bound_names(part.target))
                generators.append(
                    ast.comprehension(part.target, source, [self.part(test, bound) for test in part.ifs], 0)
                )
            return type(inner)(self.part(inner.elt, bound), generators)
        except _NotSeparable:
            del self.operands[before:], self.known[before:], self._items[items:]
            return None if outer or self._inside else self._projected(inner)

    def _projected(self, inner: ast.GeneratorExp | ast.ListComp | ast.SetComp) -> ast.expr | None:
        """Take ``… for … in …`` apart that needs the code for each item: what it computes is a list, made inside."""
        before = len(self.operands)
        loop = frozenset(name for part in inner.generators for name in bound_names(part.target))
        self._loop_names, self._items = loop, []
        try:
            element = self.part(inner.elt, loop)
        except _NotSeparable:
            del self.operands[before:], self.known[before:]
            return None
        finally:
            items, self._loop_names, self._items = self._items, frozenset(), []
        listed = self.operand(ast.ListComp(ast.Tuple(items, ast.Load()), inner.generators))
        target = ast.Tuple([ast.Name(f"_q{place}", ast.Store()) for place in range(len(items))], ast.Store())
        return type(inner)(element, [ast.comprehension(target, listed, [], 0)])


def _identities(test: ast.expr) -> list[ast.expr]:
    """Return the parts of an assertion that say of two operands that they are the same object."""
    match test:
        case ast.BoolOp(op=ast.And(), values=parts):
            return [found for part in parts for found in _identities(part)]
        case ast.Compare(left=ast.Name(one), ops=[ast.Is()], comparators=[ast.Name(other)]) if one != other:
            return [test]
    return []


def _everywhere(node: ast.Call) -> ast.Compare | None:
    """Return the comparison of two arrays of ``(one == other).all()`` or ``np.all(one == other)``."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name("np" | "numpy"), attr="all"), args=[compared], keywords=[]):
            pass
        case ast.Call(func=ast.Attribute(value=compared, attr="all"), args=[], keywords=[]):
            pass
        case _:
            return None
    is_equality = isinstance(compared, ast.Compare) and [*map(type, compared.ops)] == [ast.Eq]
    return compared if is_equality and isinstance(compared, ast.Compare) else None


def _judged(operand: ast.expr, scope: Scope) -> list[str]:
    """Return the variables whose own methods decide what an operand is, since it compares inside."""
    nodes = list(ast.walk(operand))
    if not any(isinstance(node, ast.Compare | ast.BoolOp) or getattr(node, "ifs", None) for node in nodes):
        return []
    names = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return [name for name in dict.fromkeys(names) if name not in bound and scope.is_local(name) and scope.tainted(name)]


def expected_side(node: ast.expr, scope: Scope, own: Collection[str]) -> ast.expr | None:
    """Return the side of an equality that the code under test need not compute: what the other one is compared with.

    It is built from literals by classes and helpers of the test file, or nothing but literals is given to functions and
    it has fewer calls; of two such sides it is the right one. Computed inside, it would be there to be repeated, so the
    other side is held against what it was with the reference solution.
    """
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or not isinstance(node.ops[0], ast.Eq):
        return None
    sides = [node.left, node.comparators[0]]
    calls = [[part for part in ast.walk(side) if isinstance(part, ast.Call)] for side in sides]
    if any(name_of(call) in _DIFFERING for found in calls for call in found):
        return None
    for names in (False, True):
        built = is_built(sides[0], scope, (), names=names), is_built(sides[1], scope, own, names=names)
        if built in ((True, False), (False, True)):
            return sides[built.index(True)]
    if not all(scope.depends(side) and scope.is_closed(side) for side in sides):
        return None
    return sides[0] if len(calls[0]) < len(calls[1]) else sides[1]


def _is_approx(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and name_of(node) == "approx" and len(node.args) == 1


class _Rewriter:
    def __init__(self, tree: ast.Module, plan: Mapping[int, SitePlan], first: int, recording: bool) -> None:
        self._tree = tree
        self._plan = plan
        self._first = first
        self._recording = recording
        self._module = Scope(tree.body, None, {})
        self._own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        self._helpers = _expressions(tree)
        self._of_numpy = imported_from_numpy(tree)
        self._given = {name: tuple(values) for name, values in literal_arguments(tree, self._module).items()}
        self.sites: list[RecordedSite] = []

    def rewrite(self) -> None:
        functions = [node for node in ast.walk(self._tree) if isinstance(node, Function)]
        self._tree.body = self._top_level(self._tree.body, self._module)
        if self.sites:
            place = _after_header(self._tree.body)
            renamed = {"guard": "_g_", "operands": "_a_", "warned": "_w_", "listed": "_i_"}
            names = [ast.alias(name, short) for name, short in renamed.items()]
            self._tree.body.insert(place, ast.ImportFrom(MODULE, names, 0))
        if not self._recording:
            ValueEraser(self._tree, functions, self._module).erase()

    def _top_level(self, body: list[ast.stmt], scope: Scope) -> list[ast.stmt]:
        for statement in body:
            if isinstance(statement, ast.ClassDef):
                statement.body = self._top_level(statement.body, scope)
            elif isinstance(statement, Function):
                self._function(statement, scope, test=statement.name.startswith("test"))
            elif isinstance(statement, ast.If | ast.Try):
                statement.body = self._top_level(statement.body, scope)
                statement.orelse = self._top_level(statement.orelse, scope)
        return body

    def _function(self, function: Function, scope: Scope, *, test: bool) -> None:
        arguments = dict.fromkeys(parameters(function), True)
        if test:
            for name, independent in _parametrized(function, scope).items():
                if name in arguments:
                    arguments[name] = not independent
        arguments |= dict.fromkeys(self._given.get(function.name, ()), False)
        inner = Scope(function.body, scope, arguments)
        function.body = self._body(function.body, inner, guarded=test)

    def _body(self, body: list[ast.stmt], scope: Scope, *, guarded: bool) -> list[ast.stmt]:
        return [self._statement(statement, scope, guarded) for statement in body]

    # Statements

    def _site(self, kind: SiteKind, statement: ast.stmt) -> tuple[int, RecordedSite]:
        number = len(self.sites)
        planned = self._plan.get(number, SitePlan())
        site = RecordedSite(kind, level=planned.level, kept=planned.kept, line=statement.lineno)
        self.sites.append(site)
        return self._first + number, site

    def _statement(self, statement: ast.stmt, scope: Scope, guarded: bool) -> ast.stmt:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(statement, scope, test=False)
                return statement
            case ast.ClassDef():
                statement.body = self._top_level(statement.body, scope)
                return statement
            case ast.Import() | ast.ImportFrom() | ast.Global() | ast.Nonlocal() | ast.Pass() | ast.Return():
                return statement
            case ast.Break() | ast.Continue() | ast.Raise():
                return statement
            case ast.With() | ast.AsyncWith():
                return self._with(statement, scope, guarded)
            case ast.Assert() | ast.Expr():
                return self._expression(statement, scope, guarded)
        if not guarded:
            self._inner(statement, scope, guarded=False)
            return statement
        number, _ = self._site(SiteKind.STATEMENT, statement)
        self._inner(statement, scope, guarded=isinstance(statement, ast.For | ast.If | ast.AsyncFor))
        return self._guarded(number, statement)

    def _inner(self, statement: ast.stmt, scope: Scope, *, guarded: bool) -> None:
        for name in ("body", "orelse", "finalbody"):
            if isinstance(inner := getattr(statement, name, None), list):
                setattr(statement, name, self._body(inner, scope, guarded=guarded))
        for handler in getattr(statement, "handlers", ()):
            handler.body = self._body(handler.body, scope, guarded=False)
        for case in getattr(statement, "cases", ()):
            case.body = self._body(case.body, scope, guarded=False)

    def _guarded(self, number: int, statement: ast.stmt, expected: list[ast.expr] | None = None) -> ast.stmt:
        call = ast.Call(_load("_g_"), [ast.Constant(number), *(expected or [])], [])
        return ast.copy_location(ast.With([ast.withitem(call, None)], [statement]), statement)

    def _recorded(self, number: int, operands: list[ast.expr], *more: ast.expr) -> ast.stmt:
        arguments = [ast.Constant(number), ast.List(operands, ast.Load()), *more]
        return ast.Expr(ast.Call(_load("_a_"), arguments, []))

    def _with(self, statement: ast.With | ast.AsyncWith, scope: Scope, guarded: bool) -> ast.stmt:
        recorded: int | None = None
        for item in statement.items:
            call = item.context_expr
            kind = {**dict.fromkeys(_RAISES, SiteKind.RAISES), **dict.fromkeys(_WARNS, SiteKind.WARNS)}.get(
                name_of(call)
            )
            if kind is None or not isinstance(call, ast.Call) or not 1 <= len(call.args) <= 2:
                continue
            number, _ = self._site(kind, statement)
            expected = self._expected(call)
            function = "_g_" if kind is SiteKind.RAISES else "_w_"
            item.context_expr = ast.Call(_load(function), [ast.Constant(number), *expected], [])
            recorded = number
        only = statement.body[0]
        if recorded is not None and len(statement.body) == 1 and isinstance(only, ast.Expr):
            if not isinstance(only.value, ast.Yield | ast.YieldFrom):
                statement.body = [self._recorded(recorded, [only.value])]
        else:
            # The code's own context manager has to see the exceptions of its block.
            own = any(scope.depends(item.context_expr) for item in statement.items)
            statement.body = self._body(statement.body, scope, guarded=guarded and recorded is None and not own)
        if not guarded or (recorded is not None and len(statement.items) == 1):
            return statement
        number, _ = self._site(SiteKind.STATEMENT, statement)
        return self._guarded(number, statement)

    def _expected(self, call: ast.Call) -> list[ast.expr]:
        """Return the expected class and pattern as arguments for a recording; nothing for a graded run."""
        if not self._recording:
            return []
        pattern = call.args[1] if len(call.args) > 1 else None
        for keyword in call.keywords:
            pattern = keyword.value if keyword.arg == "match" else pattern
        return [call.args[0], *([pattern] if pattern is not None else [])]

    def _expression(self, statement: ast.Assert | ast.Expr, scope: Scope, guarded: bool) -> ast.stmt:
        value = statement.test if isinstance(statement, ast.Assert) else statement.value
        original: ast.expr | None = None
        if isinstance(statement, ast.Expr):
            if isinstance(value, ast.Constant | ast.Yield | ast.YieldFrom):
                return statement
            call = value.value if isinstance(value, ast.Await) else value
            place = 2 if "Regex" in name_of(call) else 1
            if isinstance(call, ast.Call) and name_of(call) in _RAISES and len(call.args) > place:
                number, _ = self._site(SiteKind.RAISES, statement)
                called = ast.Call(call.args[place], call.args[place + 1 :], call.keywords)
                expected = call.args[:place] if self._recording else []
                return self._guarded(number, self._recorded(number, [called]), expected)
            asserted = as_assertion(call, self._of_numpy) if isinstance(call, ast.Call) else None
            if asserted is None:
                return self._plain(statement, value, scope, guarded)
            if any(isinstance(node, ast.Name) and node.id in _OWN_CALLS for node in ast.walk(asserted)):
                original = call
            value = asserted
        if isinstance(value, ast.Call) and len(value.args) > 1 and self._is_of_project(value, scope, _EQUALITIES):
            return self._check(statement, value, value, scope, guarded)
        number, site = self._site(SiteKind.ASSERTION, statement)
        site.test, operands, more = self._taken_apart(value, original, site, scope)
        recorded = self._recorded(number, operands, *more)
        return self._guarded(number, recorded) if guarded else ast.copy_location(recorded, statement)

    def _plain(self, statement: ast.Expr, value: ast.expr, scope: Scope, guarded: bool) -> ast.stmt:
        """Record an expression statement like an assertion; the arguments of a check of the repository's own, too."""
        if isinstance(value, ast.Call) and self._is_of_project(value, scope, _ASSERTS):
            return self._check(statement, value, ast.Constant(1), scope, guarded)
        if not guarded:
            return statement
        number, _ = self._site(SiteKind.STATEMENT, statement)
        return self._guarded(number, self._recorded(number, [value]))

    def _is_of_project(self, call: ast.Call, scope: Scope, names: re.Pattern[str]) -> bool:
        """Return whether a call is one of a function of the repository with such a name."""
        plain = not call.keywords and not any(isinstance(item, ast.Starred) for item in call.args)
        own = name_of(call) in self._own or not scope.depends(call.func)
        return plain and not own and names.fullmatch(name_of(call)) is not None

    def _check(self, statement: ast.stmt, call: ast.Call, holds: ast.expr, scope: Scope, guarded: bool) -> ast.stmt:
        """Record the arguments of a check of the repository's own. ``holds``: what is true if it passes."""
        number, site = self._site(SiteKind.ASSERTION, statement)
        names = [_load(f"_v{place}") for place in range(len(call.args))]
        site.test, site.level = ast.Call(call.func, list[ast.expr](names), []), Level.WHOLE
        known = [not scope.depends(item) for item in call.args]
        # What ``self`` computes from literals, such as ``self.dedent("…")``, is an input too.
        inputs = Scope([], scope, {"self": False})
        site.passed_only = frozenset(place for place, item in enumerate(call.args) if not inputs.depends(item))
        if any(known) and len(site.passed_only) < len(known):
            # What it compares with is not needed inside: the other arguments are held against the reference's.
            site.level, site.known = Level.STATE, known
            sent = [item for item, known in zip(call.args, site.known) if self._recording or not known]
            recorded = self._recorded(number, sent)
        else:
            site.known = [False] * len(names)
            result = site.test if holds is call else ast.Tuple([site.test, holds], ast.Load())
            recorded = self._recorded(number, call.args, self._whole(result, range(len(names))))
        return self._guarded(number, recorded) if guarded else ast.copy_location(recorded, statement)

    def _taken_apart(
        self, test: ast.expr, original: ast.expr | None, site: RecordedSite, scope: Scope
    ) -> tuple[ast.expr, list[ast.expr], list[ast.expr]]:
        if site.level == Level.STATE:
            expected = expected_side(test, scope, self._own)
            if expected is not None and isinstance(test, ast.Compare):
                sides = [test.left, *test.comparators]
                site.known = [side is expected for side in sides]
                kept = self._recording or site.kept
                return test, [side for side in sides if kept or side is not expected], []
            site.level = Level.WHOLE
        if site.level == Level.WHOLE and isinstance(original, ast.Call):
            operands, site.known = original.args[:2], [False, False]
            names = [_load("_v0"), _load("_v1")]
            call = ast.Call(original.func, [*names, *original.args[2:]], original.keywords)
            return test, operands, [self._whole(ast.Tuple([call, ast.Constant(1)], ast.Load()), range(2))]
        inside = site.level == Level.WHOLE
        taken = _Operands(scope, () if inside else self._own, inside=inside, helpers=self._helpers)
        outside = taken.part(copy.deepcopy(test), shallow=site.level == Level.SHALLOW)
        calls = [node for operand in taken.operands for node in ast.walk(operand) if isinstance(node, ast.Call)]
        site.varies = any(name_of(call) in _DIFFERING for call in calls)
        for operand in list(taken.operands):
            for name in _judged(operand, scope):
                site.evidence.append(len(taken.operands))
                taken.operand(_load(name))
        site.known = taken.known
        if site.level == Level.WHOLE:
            site.known = [False] * len(taken.known)
            return outside, taken.operands, [self._whole(outside, range(len(taken.operands)))]
        sent = [place for place, known in enumerate(taken.known) if self._recording or site.kept or not known]
        # Of plain values, only the process that has them can tell whether they are the same object.
        same = [part for part in _identities(outside) if _operands_in(part) <= set(sent)]
        site.identity = bool(same)
        whole = same[0] if len(same) == 1 else ast.BoolOp(ast.And(), same)
        more = [self._whole(whole, sent)] if same else []
        return outside, [taken.operands[place] for place in sent], more

    def _whole(self, outside: ast.expr, sent: Sequence[int]) -> ast.expr:
        """Return a function that evaluates an assertion inside, from the operands that are sent."""

        class Inside(ast.NodeTransformer):
            def visit_Name(self, node: ast.Name) -> ast.expr:
                if node.id in places:
                    return ast.Subscript(_load("_v"), ast.Constant(places[node.id]), ast.Load())
                return node

        places = {f"_v{place}": at for at, place in enumerate(sent)}
        arguments = ast.arguments([], [ast.arg("_v")], None, [], [], None, [])
        return ast.Lambda(arguments, Inside().visit(copy.deepcopy(outside)))


def _expressions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Return the functions of a module that return an expression of their parameters, and do nothing else."""
    defined = Counter(node.name for node in ast.walk(tree) if isinstance(node, Function | ast.ClassDef))
    found: dict[str, ast.FunctionDef] = {}
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or node.decorator_list or defined[node.name] > 1:
            continue
        args = node.args
        match [part for part in node.body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))]:
            case [ast.Return(value=ast.expr())] if len(parameters(node)) == len(args.args) > 0 and not args.defaults:
                found[node.name] = node
    return found


def _after_header(body: list[ast.stmt]) -> int:
    """Return the place after the docstring and imports from ``__future__``."""
    place = 0
    for number, statement in enumerate(body):
        is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if is_text or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            place = number + 1
        else:
            break
    return place


def _parametrized(function: Function, scope: Scope) -> dict[str, bool]:
    """Return the parameters of a test, and whether each is independent of the code under test."""
    found: dict[str, bool] = {}
    body = Scope(function.body, scope, {})
    for decorator, names in parametrizations(function):
        indirect = any(keyword.arg == "indirect" for keyword in decorator.keywords)
        for position, name in enumerate(names):
            cells = column_cells(decorator.args[1], position, len(names))
            if cells is None:
                independent = not scope.depends(decorator.args[1]) and not body.may_change(name, ast.Name(name))
            else:
                independent = all(
                    (not scope.depends(cell) or is_built(cell, scope, ())) and not body.may_change(name, cell)
                    for _, cell in cells
                )
            found[name] = independent and not indirect
    return found
