"""Structural comparison of two answers. Scalars are left to a :class:`Comparer`, which may also answer "unknown".

All results are three-valued: True, False, or None if it cannot be decided.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Protocol

from rllm_gym.grading.math.floating_point import NoValueError, real_value, symbols
from rllm_gym.grading.math.realset import RealSet, as_real_set, is_set_like
from rllm_gym.grading.math.syntax import UNITS, MathNode, children

Verdict = bool | None
MAX_ITEMS = 64
"""Maximum length of lists compared without regard to order."""


class Comparer(Protocol):
    """The interface for comparing single expressions."""

    def equal(self, gold: MathNode, answer: MathNode) -> Verdict:
        """Return whether two expressions have the same value."""
        ...

    def proportional(self, gold: MathNode, answer: MathNode) -> int | None:
        """Return the sign of a constant factor between two expressions; 0 if there is none."""
        ...


def same(gold: MathNode, answer: MathNode, comparer: Comparer) -> Verdict:
    """Return whether ``answer`` is equivalent to ``gold``."""
    if gold == answer:
        return True
    gold, answer = _unmarked(gold), _unmarked(answer)
    for left, right, swap in ((gold, answer, False), (answer, gold, True)):
        if left.op == "rel" and "approx" in left.args[0]:
            exact, rounded = _at_approximation(left)
            verdict = same(right, exact, comparer) if swap else same(exact, right, comparer)
            if verdict is not True and rounded is not None and _roughly(exact, rounded):
                return any_of([verdict, same(right, rounded, comparer) if swap else same(rounded, right, comparer)])
            return verdict
    gold_items, answer_items = _items(gold), _items(answer)
    if gold_items is not None and gold.op == "list" and (bracketed := _square_list(answer)) is not None:
        # [2, 3] for "2, 3". The reverse stays wrong: a gold answer [2, 3] may be an interval.
        return len(gold_items) == len(bracketed) and _in_any_order(gold_items, bracketed, comparer)
    if is_set_like(gold) or is_set_like(answer):
        verdict = _same_sets(gold, answer, comparer)
        if verdict is not None:
            return verdict
    if gold_items is not None or answer_items is not None:
        return _same_lists(gold, answer, gold_items, answer_items, comparer)
    if gold.op == "rel" or answer.op == "rel":
        return _same_statements(gold, answer, comparer)
    return _same_values(gold, answer, comparer)


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Three-valued "and"; stops at the first False."""
    result: Verdict = True
    for verdict in verdicts:
        if verdict is False:
            return False
        if verdict is None:
            result = None
    return result


def any_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Three-valued "or"; stops at the first True."""
    result: Verdict = False
    for verdict in verdicts:
        if verdict is True:
            return True
        if verdict is None:
            result = None
    return result


# Values


def _same_values(gold: MathNode, answer: MathNode, comparer: Comparer) -> Verdict:
    gold_magnitude, answer_magnitude = _magnitude(gold), _magnitude(answer)
    if gold_magnitude != answer_magnitude:
        full = comparer.equal(_times(gold_magnitude, _bare(gold)), _times(answer_magnitude, _bare(answer)))
        if full is True or 1 not in (gold_magnitude, answer_magnitude):
            return full
        # Only one side says "million": the other may count in millions, just as it may omit a unit.
    if not _units_agree(gold, answer):
        return False
    if (renamed := _with_parameter_of(gold, answer)) is not None:
        answer = renamed
    gold_percent, answer_percent = _strip(gold).op == "pct", _strip(answer).op == "pct"
    gold, answer = _bare(gold), _bare(answer)
    if "text" in (gold.op, answer.op):
        return gold.op == answer.op and _letters(gold.args[0]) == _letters(answer.args[0])
    if "empty" in (gold.op, answer.op) or "inf" in (gold.op, answer.op):
        return gold == answer
    if "based" in (gold.op, answer.op):
        return gold.op == answer.op and gold.args[1] == answer.args[1] and comparer.equal(gold, answer)
    if "mod" in (gold.op, answer.op):
        if gold.op == answer.op:
            return all_of([same(gold.args[0], answer.args[0], comparer), same(gold.args[1], answer.args[1], comparer)])
        return same(_residue(gold), _residue(answer), comparer)
    if "ratio" in (gold.op, answer.op):
        return _same_ratios(gold, answer, comparer)
    if _has_matrix(gold) or _has_matrix(answer):
        return _same_matrices(gold, answer, comparer)
    if "tuple" in (gold.op, answer.op):
        return _same_tuples(gold, answer, comparer)
    verdict = comparer.equal(gold, answer)
    if verdict is not True and gold_percent != answer_percent:
        hundredth = MathNode("num", (Fraction(1, 100), None))
        scaled = (
            comparer.equal(MathNode("mul", (gold, hundredth)), answer)
            if gold_percent
            else comparer.equal(gold, MathNode("mul", (answer, hundredth)))
        )
        return any_of([verdict, scaled])
    return verdict


_INTEGER_LETTERS = frozenset("klmnpzKNZ")


def _with_parameter_of(gold: MathNode, answer: MathNode) -> MathNode | None:
    """Return the answer with its only letter renamed to gold's if both are periodic solutions: ``k pi`` for ``n pi``.

    ``None`` unless both contain pi or degrees and one letter that usually stands for any integer.
    """
    mine, other = symbols(gold), symbols(answer)
    if mine == other or not len(mine) == len(other) == 1 or not (mine | other) <= _INTEGER_LETTERS:
        return None
    if not (_has_period(gold) and _has_period(answer)):
        return None
    return _renamed(answer, next(iter(mine)))


def _has_period(node: MathNode) -> bool:
    return node.op == "deg" or node == MathNode("const", ("pi",)) or any(_has_period(child) for child in children(node))


def _renamed(node: MathNode, name: str) -> MathNode:
    if node.op == "sym":
        return MathNode("sym", (name,))
    return MathNode(node.op, tuple(_renamed(one, name) if isinstance(one, MathNode) else one for one in node.args))


_NUMERIC = frozenset(["num", "const", "add", "mul", "div", "pow", "neg", "fn", "abs", "fact"])


def within(gold: MathNode, answer: MathNode, tolerance: float) -> bool:
    """Return whether both are single real numbers (with or without a name or a unit) at most ``tolerance`` apart."""
    if gold.op == answer.op == "mul" and gold.args[-1].op == "sym" and gold.args[-1] == answer.args[-1]:
        return within(gold.args[0], answer.args[0], tolerance)  # a unit of one letter, such as m
    try:
        values = [_number_of(gold), _number_of(answer)]
    except NoValueError:
        return False
    if _magnitude(gold) == _magnitude(answer) and (not _units_agree(gold, answer)):
        return False
    # Ten units of rounding, so that 3.15 is within 0.01 of 3.14.
    return abs(values[0] - values[1]) <= tolerance + 10 * math.ulp(max(map(abs, values)))


def _number_of(node: MathNode) -> float:
    if node.op == "rel" and "approx" in node.args[0]:
        node = _at_approximation(node)[0]
    node = _assigned(_unmarked(node))
    factor, node = _magnitude(node), _bare(node)
    if not _is_numeric(node):
        raise NoValueError("not a single number")
    return factor * real_value(node)


def _is_numeric(node: MathNode) -> bool:
    return node.op in _NUMERIC and all(_is_numeric(child) for child in children(node))


def _unmarked(node: MathNode) -> MathNode:
    """Remove wrappers that only say where a value belongs: the set that a name is in, a matrix with one entry."""
    while node.op in ("set", "list") and len(node.args) == 1 and not _expanded(node.args[0]):
        node = node.args[0]
    if node.op == "rel" and node.args[0] == ("in",):
        return _unmarked(node.args[1][1])
    return node


def _strip(node: MathNode) -> MathNode:
    while node.op in ("unit", "deg"):
        node = node.args[0]
    if node.op == "neg" and node.args[0].op in ("unit", "pct", "deg"):
        inner = _strip(node.args[0])
        return MathNode("pct", (MathNode("neg", inner.args),)) if inner.op == "pct" else MathNode("neg", (inner,))
    return node


def _bare(node: MathNode) -> MathNode:
    node = _strip(node)
    return _strip(node.args[0]) if node.op == "pct" else node


def _residue(node: MathNode) -> MathNode:
    return node.args[0] if node.op == "mod" else node


_MAGNITUDES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}


def _magnitude(node: MathNode) -> int:
    """Return the factor given by words after a number: ``1.2 million``, ``3 hundred thousand dollars``."""
    factor = 1
    while node.op in ("unit", "neg"):
        words = node.args[1].lower().split() if node.op == "unit" else []
        factor *= math.prod(_MAGNITUDES.get(word.removesuffix("s"), 1) for word in words[:3])
        node = node.args[0]
    return factor


def _times(factor: int, node: MathNode) -> MathNode:
    return MathNode("mul", (MathNode("num", (Fraction(factor), None)), node))


def _letters(text: str) -> str:
    text = _ARTICLE.sub("", text)
    return re.sub(r"[\W_]+", "", text.replace("\\", "")).casefold() if len(text.strip()) > 1 else text.strip()


_ARTICLE = re.compile(r"^\s*(?:an?|the)\s+(?=[^\W\d_]{2})", re.IGNORECASE)


def _units_agree(gold: MathNode, answer: MathNode) -> bool:
    """Return False if both name known units that differ, also in their power: a length is no area.

    Of units that are not known, such as ``25 square units``, only an area is distinguished from a volume.
    """
    if not {gold.op, answer.op} <= {"unit", "deg"}:
        return True
    gold_words, answer_words = _unit_words(gold), _unit_words(answer)
    powers = {_unit_power(gold), _unit_power(answer)}
    if gold_words and answer_words:
        return bool(gold_words & answer_words) and len(powers) == 1
    return powers != {2, 3}


def _unit_power(node: MathNode) -> int:
    words = set(re.findall(r"[a-z]+|\^[23]", node.args[1].lower())) if node.op == "unit" else set()
    return 2 if words & {"square", "squared", "sq", "^2"} else 3 if words & {"cubic", "cubed", "^3"} else 1


_UNIT_STEMS = {
    "centimeter": "cm", "centimetre": "cm", "meter": "m", "metre": "m", "kilometer": "km", "kilometre": "km",
    "millimeter": "mm", "inche": "in", "inch": "in", "feet": "ft", "foot": "ft", "yard": "yd", "mile": "mi",
    "hour": "hr", "minute": "min", "second": "sec", "pound": "lb", "ounce": "oz", "gram": "g", "kilogram": "kg",
    "gallon": "gal", "liter": "l", "litre": "l", "usd": "dollar", "year": "yr", "degree": "deg", "h": "hr", "s": "sec",
    "mph": "mi", "milligram": "mg", "milliliter": "ml", "rad": "radian",
}  # fmt: skip
_NO_UNIT = frozenset("square squared cubic cubed sq per unit the of each total a an in".split())  # noqa: SIM905


def _unit_words(node: MathNode) -> set[str]:
    if node.op == "deg":
        return {"deg", "celsius", "fahrenheit"}
    found = set()
    for word in re.findall(r"[a-z]+", node.args[1].lower()):
        stem = word[:-1] if len(word) > 2 and word.endswith("s") else word
        stem = _UNIT_STEMS.get(stem, stem)
        if stem not in _NO_UNIT and (word in UNITS or stem in _UNIT_STEMS.values()):
            found.add(stem)
    return found


def _same_ratios(gold: MathNode, answer: MathNode, comparer: Comparer) -> Verdict:
    if gold.op == answer.op:
        if len(gold.args) != len(answer.args):
            return False
        exactly = all_of(same(a, b, comparer) for a, b in zip(gold.args, answer.args, strict=True))
        if exactly is True or _is_clock(gold) or _is_clock(answer):
            return exactly
        # a : b : c = d : e : f  if  a e = b d  and  a f = c d
        crossed = all_of(
            comparer.equal(MathNode("mul", (gold.args[0], b)), MathNode("mul", (a, answer.args[0])))
            for a, b in zip(gold.args[1:], answer.args[1:], strict=True)
        )
        return any_of([exactly, crossed])
    ratio, other = (gold, answer) if gold.op == "ratio" else (answer, gold)
    if len(ratio.args) != 2 or _is_clock(ratio):
        return False
    return comparer.equal(MathNode("div", ratio.args), other)


def _is_clock(node: MathNode) -> bool:
    """Return whether a node is a time of day such as ``12:00`` or ``4:30 p.m.`` rather than a ratio."""
    if node.op != "ratio" or len(node.args) != 2:
        return False
    if node.args[1].op == "unit" and node.args[1].args[1].strip().lower() in ("am", "pm"):
        return True
    hours, minutes = (_bare(part) for part in node.args)
    if not (hours.op == minutes.op == "num" and hours.args[1] is None and minutes.args[1] is None):
        return False
    return bool(minutes.args[0] == 0)


def _same_matrices(gold: MathNode, answer: MathNode, comparer: Comparer) -> Verdict:
    gold_rows, answer_rows = _rows(gold), _rows(answer)
    if gold_rows is None or answer_rows is None:
        return False
    if len(gold_rows) != len(answer_rows) or len(gold_rows[0]) != len(answer_rows[0]):
        return False
    pairs = zip((x for row in gold_rows for x in row), (x for row in answer_rows for x in row), strict=True)
    return all_of(same(a, b, comparer) for a, b in pairs)


_Rows = tuple[tuple[MathNode, ...], ...]
_MAX_ENTRIES = 36


def _has_matrix(node: MathNode) -> bool:
    if node.op in ("add", "mul", "neg", "div"):
        return any(_has_matrix(child) for child in node.args)
    return node.op == "matrix"


def _rows(node: MathNode) -> _Rows | None:
    """Return the rows of a matrix or matrix expression, of a list of lists, or of a vector written as a tuple."""
    if node.op == "matrix":
        rows: _Rows = node.args
        return rows
    if _has_matrix(node):
        return _matrix_arithmetic(node)
    if node.op == "tuple":
        items = node.args[1]
        if all(item.op == "tuple" for item in items) and node.args[0] == "[":
            rows = tuple(item.args[1] for item in items)
            return rows if len({len(row) for row in rows}) == 1 else None
        return tuple((item,) for item in items)
    return None


def _matrix_arithmetic(node: MathNode) -> _Rows | None:
    """Evaluate sums, multiples and products of small matrices, whose entries remain expressions."""
    parts = [_rows(part) if _has_matrix(part) else None for part in node.args]
    if any(part is not None and len(part) * len(part[0]) > _MAX_ENTRIES for part in parts):
        return None
    if node.op == "neg" and parts[0] is not None:
        return tuple(tuple(MathNode("neg", (x,)) for x in row) for row in parts[0])
    if node.op == "add":
        known = [part for part in parts if part is not None]
        if len(known) != len(parts) or len({(len(part), len(part[0])) for part in known}) != 1:
            return None
        return tuple(
            tuple(MathNode("add", tuple(part[i][j] for part in known)) for j in range(len(known[0][0])))
            for i in range(len(known[0]))
        )
    left, right = parts[0], parts[-1]
    if left is not None and right is not None and node.op == "mul" and len(left[0]) == len(right):
        return tuple(
            tuple(
                MathNode("add", tuple(MathNode("mul", (row[k], right[k][j])) for k in range(len(right))))
                for j in range(len(right[0]))
            )
            for row in left
        )
    if left is None and right is not None and node.op == "mul":
        return tuple(tuple(MathNode("mul", (node.args[0], x)) for x in row) for row in right)
    if left is not None and right is None and node.op in ("mul", "div"):
        return tuple(tuple(MathNode(node.op, (x, node.args[1])) for x in row) for row in left)
    return None


def _same_tuples(gold: MathNode, answer: MathNode, comparer: Comparer) -> Verdict:
    if gold.op != answer.op or (gold.args[0], gold.args[2]) != (answer.args[0], answer.args[2]):
        return False
    return _in_order(gold.args[1], answer.args[1], comparer)


# Collections


def _items(node: MathNode) -> tuple[MathNode, ...] | None:
    """Return the members of a list or set with every ± expanded; ``None`` for a single value."""
    if node.op in ("list", "set"):
        members: list[MathNode] = []
        for item in node.args:
            members += _items(item) or (item,) if item.op in ("list", "rel") or _expanded(item) else (item,)
        return tuple(members)
    if node.op == "rel" and len(node.args[1]) > 1 and node.args[1][-1].op == "list" and node.args[0][-1] == "=":
        # x = {1, 2} in bare LaTeX braces
        return tuple(MathNode("rel", (node.args[0], (*node.args[1][:-1], item))) for item in node.args[1][-1].args)
    if node.op == "rel" and node.args[0] == ("=",) and all(side.op == "tuple" for side in node.args[1]):
        names, values = (side.args[1] for side in node.args[1])
        if len(names) == len(values) and all(_is_name(name) for name in names):
            return None
    expanded = _expanded(node)
    return expanded or None


def _expanded(node: MathNode) -> tuple[MathNode, ...]:
    """Return both readings of an expression with ±; an empty tuple if there is no ±."""
    if not _has_sign_choice(node):
        return ()
    return (_signed(node, True), _signed(node, False))


def _has_sign_choice(node: MathNode) -> bool:
    return node.op in ("pm", "mp") or any(_has_sign_choice(child) for child in children(node))


def _signed(node: MathNode, plus: bool) -> MathNode:
    if node.op in ("pm", "mp"):
        inner = _signed(node.args[0], plus)
        return inner if plus == (node.op == "pm") else MathNode("neg", (inner,))
    return MathNode(node.op, tuple(_signed_argument(argument, plus) for argument in node.args))


def _signed_argument(argument: object, plus: bool) -> object:
    if isinstance(argument, MathNode):
        return _signed(argument, plus)
    if isinstance(argument, tuple):
        return tuple(_signed_argument(inner, plus) for inner in argument)
    return argument


def _same_lists(
    gold: MathNode,
    answer: MathNode,
    gold_items: tuple[MathNode, ...] | None,
    answer_items: tuple[MathNode, ...] | None,
    comparer: Comparer,
) -> Verdict:
    if gold_items is not None and answer_items is not None:
        gold_items, answer_items = _distinct(gold, gold_items), _distinct(answer, answer_items)
        if len(gold_items) == len(answer_items):
            return _in_any_order(gold_items, answer_items, comparer)
        return _as_tuples_of_names(gold_items, answer_items, comparer)
    if (
        gold_items is not None
        and gold.op == "list"
        and all(same(gold_items[0], one, comparer) for one in gold_items[1:])
    ):
        return same(gold_items[0], answer, comparer)  # "15 39/40, or 639/40"
    if answer_items is not None and answer.op == "list" and all(same(gold, one, comparer) for one in answer_items):
        return True  # every listed value is the gold answer: "1/2, or 0.5"
    listed, single = (gold, answer) if gold_items is not None else (answer, gold)
    items = gold_items if gold_items is not None else answer_items
    assert items is not None
    if single.op == "rel" and single.args[0] == ("=",) and single.args[1][1].op == "tuple":
        single = single.args[1][1]  # (x, y) = (1, 2)
    if listed.op == "list" and single.op == "tuple":
        # "x = 1, y = 2" and "1, 2" are accepted for (1, 2). Two numbers in square brackets are an interval.
        if (single.args[0], single.args[2]) != ("(", ")") and not (
            (single.args[0], single.args[2]) == ("[", "]") and len(single.args[1]) > 2
        ):
            return False
        values = tuple(_assigned(item) for item in items)
        gold_values, answer_values = (values, single.args[1]) if gold_items is not None else (single.args[1], values)
        return _in_order(gold_values, answer_values, comparer)
    return False


def _square_list(node: MathNode) -> tuple[MathNode, ...] | None:
    if node.op != "tuple" or (node.args[0], node.args[2]) != ("[", "]"):
        return None
    items: tuple[MathNode, ...] = node.args[1]
    return items


def _distinct(node: MathNode, items: tuple[MathNode, ...]) -> tuple[MathNode, ...]:
    """Remove duplicates from a set or a list of points. In a list of numbers they can be meaningful (a double root)."""
    points = node.op == "set" or all(item.op == "tuple" for item in items)
    return tuple(dict.fromkeys(items)) if points else items


def _as_tuples_of_names(gold: tuple[MathNode, ...], answer: tuple[MathNode, ...], comparer: Comparer) -> Verdict:
    """Compare ``p=5, q=2; p=7, q=2`` with ``(5,2), (7,2)``: repeated assignments to the same names."""
    assigned, tuples = (gold, answer) if len(gold) > len(answer) else (answer, gold)
    if not all(item.op == "tuple" for item in tuples) or len(assigned) % len(tuples):
        return False
    width = len(assigned) // len(tuples)
    names = [item.args[1][0] if item.op == "rel" else None for item in assigned]
    if None in names or any(names[i] != names[i % width] for i in range(len(names))):
        return False
    grouped = tuple(
        MathNode("tuple", ("(", tuple(_assigned(item) for item in assigned[i : i + width]), ")"))
        for i in range(0, len(assigned), width)
    )
    return _in_any_order(grouped if assigned is gold else tuples, tuples if assigned is gold else grouped, comparer)


def _assigned(item: MathNode) -> MathNode:
    if item.op == "rel" and set(item.args[0]) == {"="} and _is_name(item.args[1][0]):
        value: MathNode = item.args[1][-1]
        return value
    return item


def _in_order(gold: tuple[MathNode, ...], answer: tuple[MathNode, ...], comparer: Comparer) -> Verdict:
    if len(gold) != len(answer):
        return False
    return all_of(same(a, b, comparer) for a, b in zip(gold, answer, strict=True))


def _in_any_order(gold: tuple[MathNode, ...], answer: tuple[MathNode, ...], comparer: Comparer) -> Verdict:
    if len(gold) > MAX_ITEMS:
        return _in_order(gold, answer, comparer)
    left = list(answer)
    result: Verdict = True
    for wanted in gold:
        verdicts = []
        for place, candidate in enumerate(left):
            verdict = same(wanted, candidate, comparer)
            verdicts.append(verdict)
            if verdict is True:
                del left[place]
                break
        else:
            if None not in verdicts:
                return False
            result = None
    return result


def _same_sets(gold: MathNode, answer: MathNode, comparer: Comparer) -> Verdict:
    if symbols(gold) and symbols(answer) and symbols(gold) != symbols(answer):
        return None  # conditions on different names
    gold_set, answer_set = as_real_set(gold), as_real_set(answer)
    if gold_set is None or answer_set is None:
        one, other = (gold, answer) if answer_set is None else (answer, gold)
        # One side is a known set and the other cannot be a set.
        return False if (gold_set or answer_set) and is_set_like(one) and not is_set_like(other) else None
    return _same_real_sets(gold_set, answer_set, comparer)


def _same_real_sets(gold: RealSet, answer: RealSet, comparer: Comparer) -> Verdict:
    if len(gold) != len(answer):
        return False
    verdicts = []
    for mine, other in zip(gold, answer, strict=True):
        if (mine.low_open, mine.high_open) != (other.low_open, other.high_open):
            return False
        verdicts += [_same_ends(mine.low, other.low, comparer), _same_ends(mine.high, other.high, comparer)]
    return all_of(verdicts)


def _same_ends(gold: MathNode, answer: MathNode, comparer: Comparer) -> Verdict:
    gold_infinite, answer_infinite = _infinite(gold), _infinite(answer)
    if gold_infinite or answer_infinite:
        return gold_infinite == answer_infinite
    return comparer.equal(_bare(gold), _bare(answer))


def _infinite(node: MathNode) -> int:
    if node.op == "inf":
        return 1
    return -1 if node.op == "neg" and node.args[0].op == "inf" else 0


# Statements


def _same_statements(gold: MathNode, answer: MathNode, comparer: Comparer) -> Verdict:
    if gold.op == answer.op == "rel":
        return _same_relations(gold, answer, comparer)
    statement, value, answer_states = (answer, gold, True) if answer.op == "rel" else (gold, answer, False)
    operators, sides = statement.args
    if set(operators) != {"="}:
        return False
    first, last = sides[0], sides[-1]
    if answer_states:
        # "x + y = 5" states 5. "6 = 5" is false and does not state the requested value.
        consistent: Verdict = True
        for side in sides[:-1]:
            if not symbols(side) and not _is_name(side):
                consistent = all_of([consistent, same(side, last, comparer)])
        if consistent is False:
            return False
        return all_of([consistent, same(value, last, comparer)])
    if not _is_name(first):
        return False
    return same(last, value, comparer)


def _same_relations(gold: MathNode, answer: MathNode, comparer: Comparer) -> Verdict:
    gold, answer = _turned(gold), _turned(answer)
    (gold_signs, gold_sides), (answer_signs, answer_sides) = gold.args, answer.args
    if set(gold_signs) == set(answer_signs) == {"="}:
        return _same_equations(gold_sides, answer_sides, comparer)
    if gold_signs == answer_signs:
        verdict = all_of(same(a, b, comparer) for a, b in zip(gold_sides, answer_sides, strict=True))
        if verdict is not False:
            return verdict
    if len(gold_sides) == len(answer_sides) == 2 and (gold_signs[0] in _ORDER) == (answer_signs[0] in _ORDER):
        if gold_signs != answer_signs:
            return False
        sign = comparer.proportional(_difference(gold_sides), _difference(answer_sides))
        if sign is None:
            return None
        return sign > 0 or (sign != 0 and gold_signs[0] == "ne")
    return False


_ORDER = frozenset(["<", "le"])
_TURNED = {">": "<", "ge": "le"}


def _turned(relation: MathNode) -> MathNode:
    """Replace every ``>`` by ``<`` if the whole chain runs in that direction; ``a = b < c`` is unchanged."""
    operators, sides = relation.args
    if operators and all(operator in _TURNED for operator in operators):
        return MathNode("rel", (tuple(_TURNED[operator] for operator in reversed(operators)), tuple(reversed(sides))))
    return relation


def _same_equations(gold: tuple[MathNode, ...], answer: tuple[MathNode, ...], comparer: Comparer) -> Verdict:
    gold_name, answer_name = gold[0], answer[0]
    if _is_name(gold_name) and _is_name(answer_name):
        verdict = same(gold[-1], answer[-1], comparer)
        if _same_name(gold_name, answer_name) and verdict is not False:
            return verdict
        if verdict is not False and (
            "text" in (gold_name.op, answer_name.op) or {"app", "sym"} == {gold_name.op, answer_name.op}
        ):
            return verdict  # "Area = 5" and "A = 5", "y = 2x" and "f(x) = 2x"
    elif len(gold) == len(answer) == 2:
        exactly = all_of(same(a, b, comparer) for a, b in zip(gold, answer, strict=True))
        if exactly is True:
            return True
    if len(gold) != 2 or len(answer) != 2:
        return False
    for reverse in (False, True):
        sides = answer[::-1] if reverse else answer
        if "text" in (gold[0].op, sides[0].op) and all_of([same(gold[0], sides[0], comparer)]) is not True:
            return False
    sign = comparer.proportional(_difference(gold), _difference(answer))
    return None if sign is None else sign != 0


def _difference(sides: tuple[MathNode, ...]) -> MathNode:
    return MathNode("add", (_bare(sides[0]), MathNode("neg", (_bare(sides[-1]),))))


def _same_name(first: MathNode, second: MathNode) -> bool:
    if first.op == second.op == "text":
        return _letters(first.args[0]) == _letters(second.args[0])
    return bool(first == second)


_NAMING = frozenset(["sin", "cos", "tan", "max", "min", "gcd", "lcm", "arg", "Re", "Im", "abs"])


def _is_name(node: MathNode) -> bool:
    """Return whether it can be assigned to: ``x``, ``AB``, ``f(x)``, ``NO/BO``, ``V_1 : V_2``, ``(p, q)``, ``Area``."""
    if node.op in ("sym", "text", "app"):
        return True
    if node.op == "const":
        return bool(node.args[0] != "pi")
    if node.op in ("mul", "div", "ratio"):
        return all(_is_name(part) for part in node.args)
    if node.op == "fn":
        return node.args[0] in _NAMING and all(_is_name(part) for part in node.args[1:])
    if node.op == "tuple":
        return all(_is_name(part) for part in node.args[1])
    return False


# Approximations


def _at_approximation(relation: MathNode) -> tuple[MathNode, MathNode | None]:
    """Return the part left of the first ≈, and the last part right of it."""
    operators, sides = relation.args
    cut = operators.index("approx")
    exact = sides[0] if cut == 0 else MathNode("rel", (operators[:cut], sides[: cut + 1]))
    if _is_name(exact) and exact.op != "const":  # x ≈ 3.14
        return MathNode("rel", (("=",), (exact, sides[-1]))), None
    return exact, sides[-1]


def _roughly(exact: MathNode, rounded: MathNode) -> bool:
    try:
        a, b = (real_value(_bare(_assigned(side))) for side in (exact, rounded))
    except NoValueError:
        return False
    return abs(a - b) <= 0.02 * max(abs(a), abs(b))
