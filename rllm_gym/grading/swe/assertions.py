"""Evaluates an assertion over plain values, outside the process that computed them.

The expression comes from a hidden test, the values from the code under test. Only the operations below exist, the
values are plain data of bounded size, and the number of steps is bounded.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set, Sized
from decimal import Decimal
from fractions import Fraction
from typing import Any

from rllm_gym.grading.swe.observed_values import MAX_KEYS, ClassRef

MAX_STEPS = 200_000
_ITEMS_PER_STEP = 20
_COMPARED_PER_STEP = 100
MAX_REPEATED = 1_000_000
MAX_MATCHED_TEXT = 20_000
MAX_MATCH_S = 2.0
MAX_PLACES = 400
MAX_DENOMINATOR = 1 << 4_000

TYPES: dict[str, type] = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset)
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
    ast.Is: lambda one, other: _identical(one, other),
    ast.IsNot: lambda one, other: not _identical(one, other),
}
_MEMBERSHIP = ast.In | ast.NotIn
_OPERATIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
METHODS = frozenset(
    {"startswith", "endswith", "isdigit", "isalpha", "isalnum", "isupper", "islower", "isspace", "istitle",
     "isidentifier", "isnumeric", "isdecimal", "isascii", "isprintable", "isdisjoint", "issubset", "issuperset",
     "difference", "intersection", "symmetric_difference", "union", "items", "keys", "values", "get", "find", "rfind",
     "index", "rindex", "count"}
)  # fmt: skip
"""Methods of texts, sets and dicts whose result is not larger than their operands."""
KEYWORDS = frozenset({"default", "reverse", "start", "strict"})
"""Keyword arguments of :data:`CALLS` of builtin functions."""


class UnsupportedAssertion(Exception):
    """The assertion cannot be evaluated over these values."""


class Approximately:
    """Like ``pytest.approx``: equal to numbers, and containers of them, within a tolerance."""

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None, nan_ok: bool = False) -> None:
        self._expected = expected
        self._relative = rel
        self._absolute = abs
        self._nan_ok = nan_ok

    def __eq__(self, other: object) -> bool:
        return self._near(other, self._expected)

    __hash__ = None  # type: ignore[assignment]

    def _near(self, found: Any, expected: Any) -> bool:
        if isinstance(expected, dict):
            return (
                isinstance(found, dict)
                and found.keys() == expected.keys()
                and all(self._near(found[key], value) for key, value in expected.items())
            )
        if isinstance(expected, list | tuple):
            return (
                isinstance(found, list | tuple)
                and len(found) == len(expected)
                and all(map(self._near, found, expected))
            )
        if isinstance(expected, bool) or expected is None or isinstance(expected, str | bytes):
            return type(found) is type(expected) and bool(found == expected)
        if isinstance(found, bool | str | bytes | list | tuple | dict | None):
            return False
        if found == expected:
            return True
        if math.isnan(abs(expected)) or math.isnan(abs(found)):
            return self._nan_ok and math.isnan(abs(expected)) and math.isnan(abs(found))
        if math.isinf(abs(expected)) or math.isinf(abs(found)):
            return False
        absolute = 1e-12 if self._absolute is None else self._absolute
        relative = (0.0 if self._absolute is not None else 1e-6) if self._relative is None else self._relative
        return bool(abs(found - expected) <= max(absolute, type(absolute)(relative * abs(expected))))


def nearly_equal(one: Any, other: Any, places: int | None = None, delta: Any = None) -> bool:
    """Evaluate unittest's ``assertAlmostEqual``."""
    if one == other:
        return True
    difference = abs(one - other)
    return (
        bool(difference <= delta)
        if delta is not None
        else bool(bounded_round(difference, 7 if places is None else places) == 0)
    )


def near_everywhere(
    one: Any, other: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False, **_: Any
) -> bool:
    """Evaluate ``numpy.allclose`` for numbers and nested lists of the same shape, or one number for all items."""

    def near(left: Any, right: Any) -> bool:
        if not math.isfinite(abs(left)) or not math.isfinite(abs(right)):
            return bool(left == right or (equal_nan and left != left and right != right))
        return bool(abs(left - right) <= atol + rtol * abs(right))

    return _everywhere(near, one, other)


def near_by_digits(one: Any, other: Any, decimal: int, **_: Any) -> bool:
    """Evaluate ``numpy.testing.assert_almost_equal``."""
    return near_everywhere(one, other, 0, 1.5 * 10.0 ** -min(decimal, 300), equal_nan=True)


def equal_everywhere(one: Any, other: Any, *, equal_nan: bool = False, **_: Any) -> bool:
    """Evaluate ``numpy.array_equal``, or ``numpy.testing.assert_array_equal`` with ``equal_nan``."""
    return _everywhere(lambda left, right: left == right or (equal_nan and left != left and right != right), one, other)


def _everywhere(test: Callable[[Any, Any], bool], one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_everywhere(test, *pair) for pair in zip(one, other))
    if isinstance(one, list | tuple):
        return all(_everywhere(test, item, other) for item in one)
    if isinstance(other, list | tuple):
        return all(_everywhere(test, one, item) for item in other)
    return test(one, other)


def bounded_range(*parts: int) -> range:
    found = range(*parts)
    if len(found) > MAX_STEPS:
        raise UnsupportedAssertion
    return found


def bounded_round(number: Any, places: Any = None) -> Any:
    """Evaluate ``round``, which computes a power of ten."""
    if places is not None and not -MAX_PLACES <= places <= MAX_PLACES:
        raise UnsupportedAssertion
    return round(number, places)


def linear_sum(items: Any, /, start: Any = 0) -> Any:
    """Evaluate ``sum``, whose time for lists and fractions is the square of their number."""
    if not isinstance(start, list | tuple):
        for item in items:
            start = start + item
            if isinstance(start, Fraction) and start.denominator > MAX_DENOMINATOR:
                raise UnsupportedAssertion
        return start
    if not all(isinstance(item, type(start)) for item in items):
        raise TypeError
    kind: Any = type(start)
    return kind(itertools.chain(start, *items))


def equal_counts(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Evaluate unittest's ``assertCountEqual``."""
    rest = list(other)
    if len(one) != len(rest):
        return False
    if len(rest) > 2_000:
        raise UnsupportedAssertion
    for item in one:
        if item not in rest:
            return False
        rest.remove(item)
    return not rest


def searches(pattern: Any, text: Any) -> bool:
    """Return whether a pattern of the test occurs in a text of the code under test.

    ``regex`` rather than ``re``, which has no time limit: a text can be made to take hours with ``.*a.*b``.
    """
    import regex  # of the extra swe: rllm_gym.sandbox.runtime.require_regex

    if not isinstance(pattern, str) or not isinstance(text, str) or len(text) > MAX_MATCHED_TEXT:
        raise UnsupportedAssertion
    try:
        return regex.search(pattern, text, timeout=MAX_MATCH_S, concurrent=True) is not None
    except (TimeoutError, regex.error):
        raise UnsupportedAssertion from None


def _instance(value: Any, kinds: Any) -> bool:
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    names = [f"builtins:{kind.__name__}" if isinstance(kind, type) else kind.name for kind in kinds]
    if isinstance(value, ClassRef):
        return "builtins:type" in names
    own = [base.__name__ for base in type(value).__mro__]
    return any(name.rpartition(":")[2] in own for name in names)


CALLS: dict[str, Callable[..., Any]] = {
    "abs": abs, "len": len, "round": bounded_round, "min": min, "max": max, "sum": linear_sum, "sorted": sorted,
    "all": all, "any": any, "bool": bool, "set": set, "list": list, "tuple": tuple, "frozenset": frozenset,
    "dict": dict, "enumerate": lambda *parts, **named: list(enumerate(*parts, **named)),
    "zip": lambda *parts, **named: list(zip(*parts, **named)), "range": bounded_range,
    "isinstance": _instance, "approx": Approximately, "_nearly_": nearly_equal, "_counts_": equal_counts,
    "_searches_": searches, "_close_": math.isclose, "_finite_": math.isfinite, "_nan_": math.isnan,
    "_infinite_": math.isinf, "_all_near_": near_everywhere, "_all_equal_": equal_everywhere,
    "_near_by_digits_": near_by_digits,
}  # fmt: skip
"""Functions of an assertion. Those of other modules than ``builtins`` have names of this module."""
_IMMEDIATE = frozenset({"len", "isinstance", "bool", "get", "items", "keys", "values", "startswith", "endswith"})
"""Functions and methods whose time does not depend on the number of items."""
_HASHING = frozenset(
    {"set", "frozenset", "dict", "union", "difference", "intersection", "symmetric_difference", "issubset",
     "issuperset", "isdisjoint"}
)  # fmt: skip


def _identical(one: Any, other: Any) -> bool:
    if isinstance(one, ClassRef | type) or isinstance(other, ClassRef | type):
        names = [item if isinstance(item, ClassRef) else ClassRef(f"builtins:{item.__name__}")
                 for item in (one, other) if isinstance(item, ClassRef | type)]  # fmt: skip
        return len(names) == 2 and names[0] == names[1]
    if one is None or isinstance(one, bool) or one is Ellipsis or one is NotImplemented:
        return one is other
    return type(one) is type(other) and bool(one == other)


def _spread(items: Any) -> Any:
    """Return items that may be hashed: of many tuples or large numbers, all could have the same hash."""
    odd = sum(not (isinstance(item, str | bytes | float | None) or _is_small(item)) for item in items)
    if odd > MAX_KEYS:
        raise UnsupportedAssertion
    return items


def _is_small(value: Any) -> bool:
    return isinstance(value, int) and -(2**60) < value < 2**60


def _finite(result: Any, *operands: Any) -> Any:
    """Return the result of an operation; infinity that it makes of finite numbers is in every tolerance."""
    if _is_infinite(result) and not any(map(_is_infinite, operands)):
        raise UnsupportedAssertion
    return result


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def evaluate(test: ast.expr, values: Mapping[str, Any]) -> Any:
    """Evaluate an expression with values for its names.

    Raises:
        UnsupportedAssertion: It contains another operation, or takes too many steps.
        Exception: What the operation raises for these values, such as ``TypeError``.
    """
    return _Evaluator(dict(values)).value(test)


class _Evaluator:
    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values
        self._steps = 0.0
        self._weights: dict[int, tuple[Any, float]] = {}

    def value(self, node: ast.expr) -> Any:
        self._count(1)
        match node:
            case ast.Constant():
                return node.value
            case ast.Name(id):
                return self._values[id] if id in self._values else TYPES[id]
            case ast.Compare():
                left = self.value(node.left)
                for kind, comparator in zip(node.ops, node.comparators):
                    right = self.value(comparator)
                    looked_up = isinstance(kind, _MEMBERSHIP) and isinstance(right, Set | dict)
                    self._count(self._weight(left) + (0 if looked_up else self._weight(right)))
                    if not _COMPARISONS[type(kind)](left, right):
                        return False
                    left = right
                return True
            case ast.BoolOp():
                result: Any = None
                for part in node.values:
                    result = self.value(part)
                    if bool(result) is isinstance(node.op, ast.Or):
                        break
                return result
            case ast.UnaryOp():
                return _UNARY[type(node.op)](self.value(node.operand))
            case ast.BinOp():
                return self._made(self._operation(node.op, self.value(node.left), self.value(node.right)))
            case ast.List():
                return [self.value(item) for item in node.elts]
            case ast.Tuple():
                return tuple(self.value(item) for item in node.elts)
            case ast.Set():
                return {self.value(item) for item in node.elts}
            case ast.Dict():
                keys = [self.value(key) for key in node.keys if key is not None]
                return dict(zip(keys, (self.value(item) for item in node.values)))
            case ast.Subscript():
                part = self.value(node.value)[self.value(node.slice)]
                return self._made(part) if isinstance(node.slice, ast.Slice) else part
            case ast.Slice():
                return slice(*(part and self.value(part) for part in (node.lower, node.upper, node.step)))
            case ast.ListComp() | ast.GeneratorExp():
                return [self.value(node.elt) for _ in self._bindings(node.generators)]
            case ast.SetComp():
                return set(_spread([self.value(node.elt) for _ in self._bindings(node.generators)]))
            case ast.Call(func=ast.Name(id)):
                named = {str(keyword.arg): self.value(keyword.value) for keyword in node.keywords}
                return self._called(id, CALLS[id], [self.value(item) for item in node.args], named)
            case ast.Call(func=ast.Attribute(attr=name, value=value)):
                receiver = self.value(value)
                kinds = list | tuple if name in ("index", "count") else set | frozenset | dict
                if name not in METHODS or not isinstance(receiver, str | bytes | kinds):
                    raise UnsupportedAssertion
                method = getattr(type(receiver), name)
                return self._called(name, method, [receiver, *(self.value(item) for item in node.args)], {})
        raise UnsupportedAssertion

    def _called(self, name: str, function: Callable[..., Any], arguments: list[Any], named: Mapping[str, Any]) -> Any:
        if name in _IMMEDIATE:
            self._count(sum(map(self._weight, arguments[1:])))
            return function(*arguments, **named)
        self._count(sum(map(self._weight, arguments)))
        if name in _HASHING:
            arguments = [_spread(item) if isinstance(item, Collection) else item for item in arguments]
        return self._made(function(*map(self._made, arguments), **named))

    def _count(self, steps: float) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise UnsupportedAssertion

    def _made(self, value: Any) -> Any:
        """Return a value that takes time and memory in each step of a comprehension, and count both."""
        if isinstance(value, Sized):
            self._count(len(value) // _ITEMS_PER_STEP)
        return value

    def _weight(self, value: Any) -> float:
        """Return about how many steps a comparison with a value takes, or an operation on a number."""
        match value:
            case int():
                return float((value.bit_length() // 1_000) ** 2)
            case Decimal() if value.is_finite():
                return float((value.adjusted() // 100) ** 2)
            case Fraction(numerator=above, denominator=below):
                return float(((above.bit_length() + below.bit_length()) // 1_000) ** 2 // 2)
            case str() | bytes() | bytearray():
                return len(value) / _COMPARED_PER_STEP
            case range():
                return len(value) / _ITEMS_PER_STEP
            case Collection():
                if id(value) not in self._weights:
                    self._count(1 + len(value) / 10)
                    items = itertools.chain(value, value.values()) if isinstance(value, dict) else value
                    weight = len(value) / _COMPARED_PER_STEP + sum(map(self._weight, items))
                    self._weights[id(value)] = value, weight  # kept, so that no other gets its number
                return self._weights[id(value)][1]
        return 0.0

    def _operation(self, kind: ast.operator, left: Any, right: Any) -> Any:
        self._count(self._weight(left) + self._weight(right))
        if isinstance(left, Set) and not isinstance(left, set | frozenset):
            left, right = _spread(left), _spread(right)  # a view of a dict; a set was checked when it was created
        if isinstance(kind, ast.Mult):
            for one, other in ((left, right), (right, left)):
                if isinstance(one, str | bytes | bytearray | list | tuple) and not (
                    isinstance(other, int) and len(one) * other <= MAX_REPEATED
                ):
                    raise UnsupportedAssertion
            return _finite(left * right, left, right)
        if isinstance(kind, ast.Mod):
            if isinstance(left, str | bytes):
                raise UnsupportedAssertion
            return left % right
        if type(kind) not in _OPERATIONS:
            raise UnsupportedAssertion
        return _finite(_OPERATIONS[type(kind)](left, right), left, right)

    def _bindings(self, generators: list[ast.comprehension]) -> Iterator[None]:
        if not generators:
            yield None
            return
        first, *rest = generators
        for item in self.value(first.iter):
            self._count(1)
            self._bind(first.target, item)
            if all(self.value(condition) for condition in first.ifs):
                yield from self._bindings(rest)

    def _bind(self, target: ast.expr, item: Any) -> None:
        if isinstance(target, ast.Name):
            self._values[target.id] = item
        elif isinstance(target, ast.Tuple | ast.List):
            parts = tuple(item)
            if len(parts) != len(target.elts):
                raise ValueError("a value has another number of parts")
            for name, part in zip(target.elts, parts):
                self._bind(name, part)
        else:
            raise UnsupportedAssertion
