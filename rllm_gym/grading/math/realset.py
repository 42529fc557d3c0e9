"""Sets of real numbers: converts intervals, unions, inequalities and ``\\ne`` to one sorted form."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from rllm_gym.grading.math.floating_point import NoValueError, real_value, symbols
from rllm_gym.grading.math.syntax import MathNode


@dataclass(frozen=True, slots=True)
class Interval:
    """One interval. ``low`` and ``high`` are nodes (``inf`` for infinite ends); the floats are for sorting only."""

    low: MathNode
    low_open: bool
    high: MathNode
    high_open: bool
    from_: float
    to: float


RealSet = tuple[Interval, ...]
"""Disjoint spans in ascending order."""

_INF = MathNode("inf")
_MINUS_INF = MathNode("neg", (_INF,))
_EVERYTHING = Interval(_MINUS_INF, True, _INF, True, float("-inf"), float("inf"))
_ZERO = MathNode("num", (Fraction(0), None))
_MAX_SPANS = 64


def is_set_like(node: MathNode) -> bool:
    """Return whether a node can only be a set of reals: a union, an inequality, an interval to infinity."""
    if node.op in ("union", "inter", "minus", "reals"):
        return True
    if node.op == "rel":
        return any(operator in ("<", ">", "le", "ge", "ne") for operator in node.args[0])
    if node.op == "list":
        return bool(node.args) and all(item.op in ("rel", "tuple") and is_set_like(item) for item in node.args)
    if node.op == "tuple":
        return len(node.args[1]) == 2 and any(_is_infinite(end) for end in node.args[1])
    return False


def as_real_set(node: MathNode) -> RealSet | None:
    """Return the set; ``None`` if the node is not a set, or has ends that are not real constants."""
    try:
        return _convert(node)
    except (NoValueError, _NotASet):
        return None


class _NotASet(ValueError):
    pass


def _is_infinite(node: MathNode) -> bool:
    return node.op == "inf" or (node.op == "neg" and node.args[0].op == "inf")


def _convert(node: MathNode) -> RealSet:
    op, args = node.op, node.args
    if op == "reals":
        return (_EVERYTHING,)
    if op == "empty":
        return ()
    if op == "tuple":
        opening, items, closing = args
        if len(items) != 2:
            raise _NotASet
        return _normal([_span(items[0], opening == "(", items[1], closing == ")")])
    if op == "set":
        return _normal([_span(item, False, item, False) for item in args])
    if op == "union":
        return _normal([*_convert(args[0]), *_convert(args[1])])
    if op == "inter":
        return _intersection(_convert(args[0]), _convert(args[1]))
    if op == "minus":
        return _intersection(_convert(args[0]), _complement(_convert(args[1])))
    if op == "rel":
        return _from_relation(node)
    if op == "list":
        return _from_list(args)
    if op in ("num", "neg", "div", "fn", "pow", "add", "mul", "const") and not symbols(node):
        return (_span(node, False, node, False),)
    raise _NotASet


def _span(low: MathNode, low_open: bool, high: MathNode, high_open: bool) -> Interval:
    span = Interval(
        low, low_open or _is_infinite(low), high, high_open or _is_infinite(high), real_value(low), real_value(high)
    )
    if span.from_ > span.to or (span.from_ == span.to and (span.low_open or span.high_open)):
        raise _NotASet
    return span


def _normal(spans: list[Interval]) -> RealSet:
    """Return the spans sorted, with overlapping and touching ones merged."""
    if len(spans) > _MAX_SPANS:
        raise _NotASet
    merged: list[Interval] = []
    for span in sorted(spans, key=lambda s: (s.from_, s.low_open)):
        if merged:
            last = merged[-1]
            touches = _close(last.to, span.from_) and not (last.high_open and span.low_open)
            if (last.to > span.from_ and not _close(last.to, span.from_)) or touches:
                further = span if span.to > last.to or (_close(span.to, last.to) and not span.high_open) else last
                merged[-1] = Interval(last.low, last.low_open, further.high, further.high_open, last.from_, further.to)
                continue
        merged.append(span)
    return tuple(merged)


def _close(a: float, b: float) -> bool:
    return a == b or abs(a - b) <= 1e-12 * max(abs(a), abs(b))


def _complement(spans: RealSet) -> RealSet:
    gaps: list[Interval] = []
    low, low_open, from_ = _MINUS_INF, True, float("-inf")
    for span in spans:
        if span.from_ > from_ or (span.from_ == from_ and not low_open and span.low_open):
            gaps.append(Interval(low, low_open, span.low, not span.low_open, from_, span.from_))
        low, low_open, from_ = span.high, not span.high_open, span.to
    if from_ != float("inf"):
        gaps.append(Interval(low, low_open, _INF, True, from_, float("inf")))
    return tuple(gaps)


def _intersection(first: RealSet, second: RealSet) -> RealSet:
    spans = []
    for a in first:
        for b in second:
            low = max((a, b), key=lambda s: (s.from_, s.low_open))
            high = min((a, b), key=lambda s: (s.to, not s.high_open))
            if low.from_ < high.to or (_close(low.from_, high.to) and not low.low_open and not high.high_open):
                spans.append(Interval(low.low, low.low_open, high.high, high.high_open, low.from_, high.to))
    return _normal(spans)


def _from_relation(node: MathNode) -> RealSet:
    """Convert ``x < 5``, ``1 <= x < 2``, ``x != 3`` or ``x = 2``: one name, and constants around it."""
    operators, sides = node.args
    named = [place for place, side in enumerate(sides) if symbols(side)]
    if len(named) != 1:
        raise _NotASet
    place = named[0]
    name = sides[place]
    in_bars = name.op == "fn" and name.args[0] == "abs" and name.args[1].op == "sym"
    if name.op not in ("sym", "app") and not in_bars:
        raise _NotASet
    result: RealSet = (_EVERYTHING,)
    if place > 0:
        result = _intersection(result, _bound(_FLIPPED[operators[place - 1]], sides[place - 1]))
    if place < len(sides) - 1:
        result = _intersection(result, _bound(operators[place], sides[place + 1]))
    if len(sides) > (place > 0) + (place < len(sides) - 1) + 1:
        raise _NotASet  # a longer chain also states something about its constants
    return _mirrored(result) if in_bars else result


def _mirrored(sizes: RealSet) -> RealSet:
    """Return all x whose absolute value is in ``sizes``."""
    sizes = _intersection(sizes, (Interval(_ZERO, False, _INF, True, 0.0, float("inf")),))
    below = [
        Interval(_negative(one.high), one.high_open, _negative(one.low), one.low_open, -one.to, -one.from_)
        for one in sizes
    ]
    return _normal([*sizes, *below])


def _negative(node: MathNode) -> MathNode:
    return node.args[0] if node.op == "neg" else MathNode("neg", (node,))


_FLIPPED = {"<": ">", ">": "<", "le": "ge", "ge": "le", "=": "=", "ne": "ne", "in": "?", "approx": "?"}


def _bound(operator: str, value: MathNode) -> RealSet:
    if operator == "in":
        return _convert(value)
    at = real_value(value)
    if operator in ("<", "le"):
        return (Interval(_MINUS_INF, True, value, operator == "<" or _is_infinite(value), float("-inf"), at),)
    if operator in (">", "ge"):
        return (Interval(value, operator == ">" or _is_infinite(value), _INF, True, at, float("inf")),)
    if operator == "=":
        return (_span(value, False, value, False),)
    if operator == "ne":
        return _complement((_span(value, False, value, False),))
    raise _NotASet


def _from_list(items: tuple[MathNode, ...]) -> RealSet:
    """Combine a list of conditions.

    "x < 1, x > 3" means either; "x > 1, x < 3" and "x != 0, x != 1" mean both: if "either" would allow every number,
    "both" is meant.
    """
    if len({symbols(item) for item in items}) > 1:
        raise _NotASet  # conditions on different names
    sets = [_convert(item) for item in items]
    either: RealSet = ()
    both: RealSet = (_EVERYTHING,)
    for one in sets:
        either = _normal([*either, *one])
        both = _intersection(both, one)
    overlapping = len(items) > 1 and sum(len(one) for one in sets) > len(either)
    return both if either == (_EVERYTHING,) or (overlapping and both) else either
