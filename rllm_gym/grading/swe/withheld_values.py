"""Tests without their expected values: only code that computes the values can provide them.

Code under test might recognize a test that must fail, by chance or by timing: code that forges one run and leaves the
next one unchanged is detected only sometimes. It cannot, however, provide a value that does not exist in its process.
Therefore ``assert total([1, 2]) == 3`` is also run as ``assert computed(7, total([1, 2]))``, and the answer is
compared in this process.
"""

from __future__ import annotations

import ast
import copy
import math
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rllm_gym.grading.python_source import parse_python
from rllm_gym.grading.swe.inside.value_digest import Opaque, digest
from rllm_gym.grading.swe.mutated_tests import EQUALITIES, argument_names, name_of, reached
from rllm_gym.grading.swe.taint import Function
from rllm_gym.grading.swe.test_source import Edit, TestSource

MAX_LITERAL = 20_000
MAX_WITHHELD = 20
CHOICES = 12


@dataclass(frozen=True, slots=True)
class WithheldValue:
    """An expected value: a literal's value, compared exactly or with a tolerance."""

    value: Any
    relative: float | None = None
    absolute: float = 0.0

    def is_near(self, answer: object) -> bool:
        """Return whether a float, given as text, is within the tolerance."""
        try:
            return isinstance(answer, str) and math.isclose(
                float(answer), self.value, rel_tol=self.relative or 0.0, abs_tol=self.absolute
            )
        except (ValueError, OverflowError, TypeError):
            return False


@dataclass(slots=True)
class WithheldValues:
    """The withheld values of one function.

    Attributes:
        expected: Each expected value, by its key.
        groups: Groups of keys; every passing run of the function provides at least one key of each group.
        edits: The edits that remove the values from the function's file.
    """

    expected: dict[int, WithheldValue] = field(default_factory=dict)
    groups: list[frozenset[int]] = field(default_factory=list)
    edits: list[Edit] = field(default_factory=list)


RIGHT, OPAQUE, WRONG = "right", "opaque", "wrong"


def check_answers(withheld: WithheldValues, answers: Iterable[object], choices: Mapping[str, list[str]]) -> str:
    """Return whether the answers of one run of a function are right, wrong, or only comparable by their own class."""
    provided: set[int] = set()
    verdict = RIGHT
    for answer in answers:
        match answer:
            case [int(key), "chosen", list(chosen)] if str(key) in choices and key in withheld.expected:
                right = _literal(choices[str(key)], withheld.expected[key])
                if chosen != right:
                    return WRONG
            case [int(key), str() | None as reported, near, bool(itself)] if key in withheld.expected:
                expected = withheld.expected[key]
                same = expected.is_near(near) if expected.relative is not None else reported == digest(expected.value)
                if not same and not itself:
                    return WRONG
                verdict = verdict if same else OPAQUE
            case _:
                return WRONG
        provided.add(key)
    return verdict if all(group & provided for group in withheld.groups) else WRONG


def _literal(choices: list[str], expected: WithheldValue) -> list[bool]:
    return [text == repr(expected.value) for text in choices]


def answer_choices(withheld: WithheldValues, rng: random.Random) -> dict[str, list[str]]:
    """Return several literals for each value, one of them the right one.

    Adjacent literals differ slightly, and the position of the right one is random: it is not what the others have in
    common.
    """
    found = {}
    for key, expected in withheld.expected.items():
        before = rng.randrange(CHOICES)
        texts = {repr(expected.value)}
        for steps in (before, CHOICES - 1 - before):
            value = expected.value
            for _ in range(steps):
                value = _other(value, rng)
                texts.add(repr(value))
        found[str(key)] = rng.sample(sorted(texts), len(texts))
    return found


def _other(value: Any, rng: random.Random) -> Any:
    """Return a value of the same shape that differs in one place."""
    if isinstance(value, bool) or value is None or value is Ellipsis:
        return rng.choice([other for other in (True, False, None, 2, 3) if other != value])
    if isinstance(value, int | float | complex):
        return value + rng.choice([-3, -2, -1, 1, 2, 3, 4, 5, 10, 100])
    if isinstance(value, str):
        place = rng.randrange(len(value) + 1)
        return value[:place] + rng.choice("abcdefghijklmnoprstu0123456789") + value[place + rng.randint(0, 1) :]
    if isinstance(value, bytes):
        return _other(value.decode("latin-1"), rng).encode("latin-1")
    if not value:
        return type(value)([(0, 0)] if isinstance(value, dict) else [rng.randrange(10)])
    if isinstance(value, dict):
        changed = copy.deepcopy(value)
        key = rng.choice(list(changed))
        changed[key] = _other(changed[key], rng)
        return changed
    members = sorted(value, key=repr) if isinstance(value, set | frozenset) else list(value)
    place = rng.randrange(len(members))
    members[place] = _other(members[place], rng)
    return type(value)(members)


def withhold_values(source: TestSource, key: str, placeholder: str, rng: random.Random) -> WithheldValues | None:
    """Return the withheld values of one function; ``None`` if there is nothing to withhold.

    Args:
        source: The test file.
        key: The function.
        placeholder: The name, during the run, of the function that stands for a withheld value.
        rng: The source of random keys.
    """
    if key not in source.functions:
        return None
    function, _ = source.functions[key]
    if any(
        re.search(r"raises|expected|xfail|skip|retry|flaky", name_of(decorator))
        for decorator in function.decorator_list
    ):
        return None
    withheld = _WithheldBuilder(source, function, placeholder, rng).build()
    if not withheld.groups:
        return None
    return withheld if _is_python(source, function, withheld) else None


def _is_python(source: TestSource, function: Function, withheld: WithheldValues) -> bool:
    """Return whether the edited function is valid Python. Unusual parentheses or strings can make an edit invalid."""
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    lines = source.edited(withheld.edits).split("\n")[first - 1 : function.end_lineno]
    block = ["if True:", *lines] if lines[0][:1].isspace() else lines
    try:
        parse_python("\n".join(block))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


class _WithheldBuilder:
    def __init__(self, source: TestSource, function: Function, placeholder: str, rng: random.Random) -> None:
        self._source = source
        self._function = function
        self._placeholder = placeholder.encode()
        self._rng = rng
        self._withheld = WithheldValues()
        self._uses: dict[str, list[ast.Name]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Name):
                self._uses.setdefault(node.id, []).append(node)
        self._named: dict[str, tuple[bytes, frozenset[int]]] = {}

    def build(self) -> WithheldValues:
        for statement in reached(self._function.body):
            if len(self._withheld.groups) >= MAX_WITHHELD:
                break
            if isinstance(statement, ast.Assert):
                self._withhold_in_condition(statement.test)
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                self._withhold_in_call(statement.value)
        return self._withheld

    def _withhold_in_condition(self, test: ast.expr) -> None:
        if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
            for part in test.values:
                self._withhold_in_condition(part)
            return
        if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
            return
        left, right = test.left, test.comparators[0]
        operator = self._find(left, rb"[\s)]*?(==)")
        if operator is None or test.end_lineno is None or test.end_col_offset is None:
            return
        line, start, end = operator
        for side, other in ((right, left), (left, right)):
            if not _is_work(other):
                continue
            found = self._expected(side)
            if found is None:
                continue
            keyed, group = found
            opening = self._placeholder + b"(" + keyed + b", "
            if side is right:
                cut = self._cut(line, start, test.end_lineno, test.end_col_offset, b")")
                edits = [Edit(test.lineno, test.col_offset, test.col_offset, opening), *cut]
            else:
                cut = self._cut(test.lineno, test.col_offset, line, end, opening)
                edits = [*cut, Edit(test.end_lineno, test.end_col_offset, test.end_col_offset, b")")]
            self._withheld.edits += edits
            self._withheld.groups.append(group)
            return

    def _withhold_in_call(self, call: ast.Call) -> None:
        name, function = name_of(call), call.func
        nearly = name == "assertAlmostEqual" and len(call.args) == 2 and not call.keywords
        exactly = name in EQUALITIES - {"assertCountEqual"} and 2 <= len(call.args) <= 3
        if not (nearly or exactly) or not isinstance(function, ast.Attribute) or function.end_col_offset is None:
            return
        if any(keyword.arg != "msg" for keyword in call.keywords) or function.lineno != function.end_lineno:
            return
        comma = self._find(call.args[0], rb"[\s)]*?(,)")
        first, second = call.args[:2]
        opened = function.end_col_offset + 1
        if comma is None or second.end_lineno is None or second.end_col_offset is None:
            return
        if self._source.lines[function.lineno - 1][function.end_col_offset : opened] != b"(":
            return
        line, start, end = comma
        for side, other in ((second, first), (first, second)):
            found = self._expected(side, nearly=nearly) if _is_work(other) else None
            if found is None:
                continue
            keyed, group = found
            opening = Edit(function.lineno, function.col_offset, opened, self._placeholder + b"(" + keyed + b", ")
            if side is second:
                cut = self._cut(line, start, second.end_lineno, second.end_col_offset, b"")
            else:
                cut = self._cut(first.lineno, first.col_offset, line, end, b"")
            self._withheld.edits += [opening, *cut]
            self._withheld.groups.append(group)
            return

    # Expected values

    def _expected(self, side: ast.expr, *, nearly: bool = False) -> tuple[bytes, frozenset[int]] | None:
        """Return the expression of a value's key in the file, and all keys it can have."""
        if isinstance(side, ast.Call) and name_of(side) == "approx" and len(side.args) == 1 and not side.keywords:
            return self._literal(side.args[0], 1e-6, 1e-12)
        if isinstance(side, ast.Name) and not nearly:
            if side.id not in self._named:
                withheld = self._assigned(side.id) or self._parametrized(side.id)
                if withheld is None:
                    return None
                self._named[side.id] = (side.id.encode(), withheld)
            return self._named[side.id]
        return self._literal(side, 0.0, 5e-8) if nearly else self._literal(side)

    def _literal(
        self, node: ast.expr, relative: float | None = None, absolute: float = 0.0
    ) -> tuple[bytes, frozenset[int]] | None:
        key = self._key(node, relative, absolute)
        return None if key is None else (str(key).encode(), frozenset({key}))

    def _key(self, node: ast.expr, relative: float | None = None, absolute: float = 0.0) -> int | None:
        try:
            value = ast.literal_eval(node)
            digest(value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, Opaque):
            return None
        if relative is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            return None
        if value is None or isinstance(value, bool) or len(repr(value)) > MAX_LITERAL:
            return None  # too easy to guess
        key = self._rng.randrange(1 << 40)
        self._withheld.expected[key] = WithheldValue(value, relative, absolute)
        return key

    def _only_compared(self, name: str) -> bool:
        """Return whether every use of a name is one side of an assertion that is replaced."""
        loads = [use for use in self._uses.get(name, []) if isinstance(use.ctx, ast.Load)]
        return len(loads) == 1

    def _assigned(self, name: str) -> frozenset[int] | None:
        """Return the keys of a name that the function assigns a literal once."""
        stores = [use for use in self._uses.get(name, []) if isinstance(use.ctx, ast.Store)]
        for statement in self._function.body:
            if (
                isinstance(statement, ast.Assign)
                and statement.targets == stores
                and self._only_compared(name)
                and (key := self._key(statement.value)) is not None
            ):
                self._withheld.edits += self._replaced(statement.value, key)
                return frozenset({key})
        return None

    def _parametrized(self, name: str) -> frozenset[int] | None:
        """Return the keys of a parameter whose values are all literals."""
        if not self._only_compared(name) or any(isinstance(use.ctx, ast.Store) for use in self._uses[name]):
            return None
        for decorator in self._function.decorator_list:
            if not isinstance(decorator, ast.Call) or name_of(decorator) != "parametrize" or len(decorator.args) != 2:
                continue
            names, rows = argument_names(decorator.args[0]), decorator.args[1]
            if name not in names or not isinstance(rows, ast.List | ast.Tuple):
                continue
            if any(keyword.arg != "ids" for keyword in decorator.keywords):
                return None
            return self._of_rows(rows, names.index(name), len(names))
        return None

    def _of_rows(self, rows: ast.List | ast.Tuple, position: int, width: int) -> frozenset[int] | None:
        edits: list[Edit] = []
        keys: set[int] = set()
        for row in rows.elts:
            if isinstance(row, ast.Call) and name_of(row) == "param":
                cells = row.args
            elif width == 1:
                cells = [row]
            else:
                cells = row.elts if isinstance(row, ast.Tuple | ast.List) else []
            key = self._key(cells[position]) if len(cells) == width else None
            if key is None:
                return None
            keys.add(key)
            edits += self._replaced(cells[position], key)
        self._withheld.edits += edits
        return frozenset(keys)

    # Positions in the text

    def _find(self, node: ast.expr, pattern: bytes) -> tuple[int, int, int] | None:
        """Return line, first and last column of a match directly after a node, on the line where the node ends."""
        if node.end_lineno is None or node.end_col_offset is None:
            return None
        match = re.compile(pattern).match(self._source.lines[node.end_lineno - 1], node.end_col_offset)
        return match and (node.end_lineno, match.start(1), match.end(1))

    def _replaced(self, node: ast.expr, key: int) -> list[Edit]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        if node.lineno == node.end_lineno:
            return [Edit(node.lineno, node.col_offset, node.end_col_offset, str(key).encode())]
        # The lines are kept, so the rest needs parentheses around it.
        cut = self._cut(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, b")")
        first = cut[0]
        return [Edit(first.line, first.start, first.end, b"(" + str(key).encode()), *cut[1:]]

    def _cut(self, line: int, start: int, last: int, end: int, new: bytes) -> list[Edit]:
        """Return edits that empty a region, keeping its lines, and insert a text at its end."""
        if line == last:
            return [Edit(line, start, end, new)]
        lines = self._source.lines
        edits = [Edit(line, start, len(lines[line - 1].rstrip(b"\r")), b"")]
        edits += [Edit(n, 0, len(lines[n - 1].rstrip(b"\r")), b"") for n in range(line + 1, last)]
        return [*edits, Edit(last, 0, end, new)]


def _is_work(node: ast.expr) -> bool:
    """Return whether a value has to be computed; a comparison of two literals proves nothing."""
    return any(isinstance(child, ast.Name) for child in ast.walk(node))
