"""Takes an assertion apart: the expression that is evaluated outside, and the operands that are sent."""

from __future__ import annotations

import ast
import copy
import functools
from collections.abc import Collection, Mapping

from rllm_gym.grading.swe.assertions import CALLS, KEYWORDS, METHODS, TYPES
from rllm_gym.grading.swe.erased_values import is_literal
from rllm_gym.grading.swe.recorded_sites import COMPREHENSIONS, arguments_of, is_approx
from rllm_gym.grading.swe.taint import Scope, bound_names, is_built, name_of, parameters

OWN_CALLS = frozenset(name for name in CALLS if name.startswith("_"))
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
DIFFERING = frozenset({"hash", "id"})
_DEEP_CALLS = frozenset(CALLS) - {"isinstance", "approx"} - OWN_CALLS


class _NotSeparable(Exception):
    """Part of a comprehension needs the code under test for each item."""


def load_name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


class AssertionOperands:
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
        self._approx = None if inside else load_name("approx")
        self.operands: list[ast.expr] = []
        self.known: list[bool] = []

    def operand(self, node: ast.expr, *, known: bool = False) -> ast.expr:
        if self._reusing and not isinstance(node, ast.Name):
            same = [place for place, other in enumerate(self.operands) if ast.dump(other) == ast.dump(node)]
            if not same:
                raise _NotSeparable
            return load_name(f"_v{same[0]}")
        if isinstance(node, ast.Name):
            for place, other in enumerate(self.operands):
                if name_of(other) == "_i_":
                    other = arguments_of(other)[0]
                if isinstance(other, ast.Name) and other.id == node.id and self.known[place] == known:
                    return load_name(f"_v{place}")
        self.operands.append(node)
        self.known.append(known)
        return load_name(f"_v{len(self.operands) - 1}")

    def part(self, node: ast.expr, bound: frozenset[str] = frozenset(), *, shallow: bool = False) -> ast.expr:
        """Return the expression for outside."""
        own = {item.id for item in ast.walk(node) if isinstance(item, ast.Name)} & bound if bound else set()
        if isinstance(node, ast.Name) and node.id in bound:
            return self._item(node) if node.id in self._loop_names else node
        if is_literal(node):
            return node
        if not own and not self._scope.depends(node) and not is_approx(node):
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
        return load_name(f"_q{same[0]}")

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
            case ast.Call() if is_approx(node) and not any(keyword.arg is None for keyword in node.keywords):
                keywords = [ast.keyword(item.arg, self.part(item.value, bound)) for item in node.keywords]
                return ast.Call(self._approx or node.func, [self.part(item, bound) for item in node.args], keywords)
            case ast.Call(func=ast.Name(id)) if id in OWN_CALLS:
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
                return ast.Call(load_name("_all_equal_"), [inner(compared.left), inner(compared.comparators[0])], [])
            case ast.Call() if not self._inside and (function := self._module_call(node)) is not None:
                keywords = [ast.keyword(item.arg, inner(item.value)) for item in node.keywords]
                return ast.Call(load_name(function), [inner(item) for item in node.args], keywords)
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
                if not isinstance(node.args[0], COMPREHENSIONS):
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
            self.operands[before] = ast.Call(load_name("_i_"), [node], [])
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
        if is_approx(node):
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
    if any(name_of(call) in DIFFERING for found in calls for call in found):
        return None
    for names in (False, True):
        built = is_built(sides[0], scope, (), names=names), is_built(sides[1], scope, own, names=names)
        if built in ((True, False), (False, True)):
            return sides[built.index(True)]
    if not all(scope.depends(side) and scope.is_closed(side) for side in sides):
        return None
    return sides[0] if len(calls[0]) < len(calls[1]) else sides[1]
