"""Tests that must fail: mutated copies of the hidden tests, each wrong at one place, and sentinels between them.

Code under test runs in the test runner's process and can make it report anything. It cannot know which of two runs is
the original one: the mutated copy of a test has the same name, position and shape, and one constant or comparison in it
is false. A run in which a mutated test passes was forged.
"""

from __future__ import annotations

import ast
import builtins
import copy
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rllm_gym.grading.python_source import parse_literal
from rllm_gym.grading.swe.taint import Function
from rllm_gym.grading.swe.test_source import (
    Edit,
    Insertion,
    TestSource,
    indentation,
    plausible_name,
)


@dataclass(frozen=True, slots=True)
class LineSpan:
    """First and last line of a statement."""

    first: int
    last: int


@dataclass(slots=True)
class MutatedTests:
    """A test file in which tests must fail.

    Attributes:
        text: The file.
        mutated: Where each mutated function must fail, by its key (``"TestA::test_b"``). If its parameters were
            changed, the ids of its tests differ, but not their order.
    """

    text: str
    mutated: dict[str, LineSpan] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Mutation:
    """One way to make a test fail.

    ``span`` is where a legitimate run fails. It always does, since the statement is always reached.
    """

    edits: tuple[Edit, ...]
    span: LineSpan
    strength: int


# A forged value that compares equal to everything, and unequal to nothing, makes the negated assertion fail as
# required. It cannot equal both the expected value and a different one.
_ANOTHER_VALUE, _ANOTHER_TYPE, _OPPOSITE_OF_IT = 3, 2, 1


def mutate_tests(
    source: TestSource, keys: Iterable[str], rng: random.Random, more: Iterable[Edit] = ()
) -> MutatedTests:
    """Return the file with each of the functions mutated at one place, where one is found. Line numbers are kept.

    ``more``: additional edits, in other functions.
    """
    edits: list[Edit] = list(more)
    insertions: list[Insertion] = []
    spans: dict[str, LineSpan] = {}
    behind: dict[str, int] = {}
    for key in keys:
        if key not in source.functions:
            continue
        function, _ = source.functions[key]
        found = list(_mutations(source, function, rng))
        if found:
            strongest = max(mutation.strength for mutation in found)
            chosen = rng.choice([mutation for mutation in found if mutation.strength == strongest])
            edits += chosen.edits
            spans[key] = chosen.span
        elif (last := _trailing(source, function, rng)) is not None:
            insertions.append(last)
            # After the line before it, wherever that line ends up.
            behind[key] = last.after
    text = source.edited(edits, insertions)
    mutated = {key: _shift(span, insertions) for key, span in spans.items()}
    for key, line in behind.items():
        own = _shift(LineSpan(line, line), insertions).last + 1
        mutated[key] = LineSpan(own, own)
    return MutatedTests(text, mutated)


def with_sentinel(source: TestSource, beside: str, rng: random.Random) -> tuple[str, str, LineSpan] | None:
    """Return the file with an additional failing test next to ``beside``: text, the new test's key, where it fails.

    The test does not use the product. ``None`` if a new test would break something that the tests there share.
    """
    if beside not in source.functions:
        return None
    function, classes = source.functions[beside]
    if _everywhere_parametrized(source) or any(scope.decorator_list for scope in classes):
        return None
    name = plausible_name(rng, function.name, source)
    step = b"    "
    margin = source.lines[function.lineno - 1][: function.col_offset] if classes else b""
    first, last = _false_statements(source, rng)
    argument = b"self" if classes else b""
    lines = [b"", margin + b"def " + name.encode() + b"(" + argument + b"):", margin + step + first]
    lines.append(margin + step + last)
    after = (classes[-1].end_lineno if classes else len(source.lines)) or len(source.lines)
    if not classes:
        lines.insert(0, b"")
    text = source.edited((), [Insertion(after, b"\n".join(lines))])
    line = after + len(lines)
    key = "::".join([*(scope.name for scope in classes), name])
    return text, key, LineSpan(line, line)


def sentinel_file(rng: random.Random) -> tuple[str, str, LineSpan]:
    """Return a separate file with one failing test, for tests that are not Python: text, key, where it fails."""
    source = TestSource("")
    first, last = _false_statements(source, rng)
    name = plausible_name(rng, "test_" + rng.choice(("values", "order", "result")), source)
    text = b"\n".join([b"def " + name.encode() + b"():", b"    " + first, b"    " + last, b""])
    return text.decode(), name, LineSpan(3, 3)


def _shift(span: LineSpan, insertions: list[Insertion]) -> LineSpan:
    def moved(line: int) -> int:
        return line + sum(insertion.after < line for insertion in insertions)

    return LineSpan(moved(span.first), moved(span.last))


# Statements that are always reached

_PLAIN_WITH = frozenset(
    {"open", "warns", "deprecated_call", "catch_warnings", "TemporaryDirectory", "NamedTemporaryFile", "patch",
     "object", "dict", "context", "assertLogs", "assertWarns", "assertNoLogs", "chdir", "freeze_time", "closing",
     "ThreadPoolExecutor"}
)  # fmt: skip
"""Context managers that do not suppress exceptions, by the last part of their name."""


def _mutations(source: TestSource, function: Function, rng: random.Random) -> Iterator[_Mutation]:
    if _may_pass_failing(function):
        return
    for statement in reached(function.body):
        yield from _mutations_of(source, function, statement, rng)


def _may_pass_failing(function: Function) -> bool:
    """Return whether a decorator may suppress a failure."""
    return any(
        re.search(r"raises|expected|xfail|skip|retry|flaky", name_of(decorator), re.IGNORECASE)
        for decorator in function.decorator_list
    )


def reached(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that every passing run reaches, and whose exceptions nothing catches."""
    for statement in body:
        if isinstance(statement, ast.With | ast.AsyncWith):
            yield statement
            if all(name_of(item.context_expr) in _PLAIN_WITH for item in statement.items):
                yield from reached(statement.body)
        elif isinstance(statement, ast.For):
            if isinstance(statement.iter, ast.List | ast.Tuple) and _always_some(statement.iter):
                yield from reached(statement.body)
        else:
            yield statement
        if _may_leave(statement):
            return


def _always_some(node: ast.List | ast.Tuple) -> bool:
    return bool(node.elts) and not any(isinstance(element, ast.Starred) for element in node.elts)


def _may_leave(statement: ast.stmt) -> bool:
    """Return whether a test can pass without continuing after this statement. A skipped test does not pass."""
    todo: list[tuple[ast.AST, bool]] = [(statement, False)]
    while todo:
        node, in_loop = todo.pop()
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom):
            return True
        if isinstance(node, ast.Break | ast.Continue) and not in_loop:
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            in_loop = in_loop or isinstance(node, ast.For | ast.AsyncFor | ast.While)
            todo += [(child, in_loop) for child in ast.iter_child_nodes(node)]
    return False


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


# Ways to make a statement false


def _mutations_of(
    source: TestSource, function: Function, statement: ast.stmt, rng: random.Random
) -> Iterator[_Mutation]:
    span = LineSpan(statement.lineno, statement.end_lineno or statement.lineno)
    if isinstance(statement, ast.Assert):
        yield from _of_assert(source, function, statement, span, rng)
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        yield from _of_call(source, statement.value, span, rng)
    elif isinstance(statement, ast.With) and len(statement.items) == 1:
        expression = statement.items[0].context_expr
        if isinstance(expression, ast.Call) and name_of(expression) in ("raises", "assertRaises", "assertRaisesRegex"):
            yield from _other_exception(source, expression, span, rng)


def _of_assert(
    source: TestSource, function: Function, statement: ast.Assert, span: LineSpan, rng: random.Random
) -> Iterator[_Mutation]:
    yield from _of_condition(source, function, statement.test, span, rng)


def _of_condition(
    source: TestSource, function: Function, test: ast.expr, span: LineSpan, rng: random.Random
) -> Iterator[_Mutation]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        # A conjunction is false as soon as one part is, and all parts are true in a legitimate run.
        for part in test.values:
            yield from _of_condition(source, function, part, span, rng)
        return
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        if isinstance(test.ops[0], ast.Eq):
            for side in (test.comparators[0], test.left):
                for edit in _other_literal(source, side, rng):
                    yield _Mutation((edit,), span, _ANOTHER_VALUE)
                edits = _other_parameters(source, function, side, rng)
                if edits:
                    yield _Mutation(edits, span, _ANOTHER_VALUE)
            yield from _other_type(source, test.left, test.comparators[0], span)
        elif isinstance(test.ops[0], ast.In):
            edits = _other_members(source, test.comparators[0], rng)
            if edits:
                yield _Mutation(edits, span, _ANOTHER_VALUE)
        operator = _other_operator(source, test)
        if operator is not None:
            yield _Mutation((operator,), span, _OPPOSITE_OF_IT)
            return
    yield _Mutation(_negated(source, test), span, _OPPOSITE_OF_IT)


def _other_type(source: TestSource, left: ast.expr, right: ast.expr, span: LineSpan) -> Iterator[_Mutation]:
    """Compare with the repr of the expected value: it differs from every value that equals the expected one."""
    sides = [side for side in (right, left) if not any(isinstance(node, ast.Call) for node in ast.walk(side))]
    for side in sides or (right, left):
        if side.end_lineno is not None and side.end_col_offset is not None:
            opening = Edit(side.lineno, side.col_offset, side.col_offset, b"repr(")
            closing = Edit(side.end_lineno, side.end_col_offset, side.end_col_offset, b")")
            yield _Mutation((opening, closing), span, _ANOTHER_TYPE)


def _other_members(source: TestSource, container: ast.expr, rng: random.Random) -> tuple[Edit, ...] | None:
    """Return edits that change all constants of a container."""
    if not isinstance(container, ast.List | ast.Tuple | ast.Set):
        return None
    edits = []
    constants = [element for element in container.elts if isinstance(element, ast.Constant)]
    before = [constant.value for constant in constants]
    for constant in constants:
        found = [
            edit for edit in _other_literal(source, constant, rng) if parse_literal(edit.new.decode()) not in before
        ]
        edits += found[:1]
    return tuple(edits) if edits and len(edits) == len(container.elts) else None


_OPPOSITE: dict[type[ast.cmpop], tuple[bytes, bytes]] = {
    ast.Eq: (rb"==", b"!="),
    ast.NotEq: (rb"!=", b"=="),
    ast.Is: (rb"\bis\b", b"is not"),
    ast.IsNot: (rb"\bis\s+not\b", b"is"),
    ast.In: (rb"\bin\b", b"not in"),
    ast.NotIn: (rb"\bnot\s+in\b", b"in"),
    ast.Lt: (rb"<", b">="),
    ast.GtE: (rb">=", b"<"),
    ast.Gt: (rb">", b"<="),
    ast.LtE: (rb"<=", b">"),
}


def _other_operator(source: TestSource, test: ast.Compare) -> Edit | None:
    place = source.between(test.left, test.comparators[0])
    if place is None:
        return None
    line, start, text = place
    pattern, opposite = _OPPOSITE[type(test.ops[0])]
    match = re.search(pattern, text)
    return match and Edit(line, start + match.start(), start + match.end(), opposite)


def _negated(source: TestSource, test: ast.expr) -> tuple[Edit, ...]:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        line = source.lines[test.lineno - 1]
        end = test.col_offset + 3
        if line[end : end + 1] == b" " and line[end + 1 : end + 2].strip():
            end += 1
        return (Edit(test.lineno, test.col_offset, end, b""),)
    assert test.end_lineno is not None
    assert test.end_col_offset is not None
    opening = Edit(test.lineno, test.col_offset, test.col_offset, b"not (")
    closing = Edit(test.end_lineno, test.end_col_offset, test.end_col_offset, b")")
    if isinstance(test, ast.Name | ast.Call | ast.Attribute | ast.Subscript):
        return (Edit(test.lineno, test.col_offset, test.col_offset, b"not "),)
    return opening, closing


_METHODS = {
    "assertEqual": "assertNotEqual", "assertTrue": "assertFalse", "assertIs": "assertIsNot",
    "assertIsNone": "assertIsNotNone", "assertIn": "assertNotIn", "assertIsInstance": "assertNotIsInstance",
    "assertLess": "assertGreaterEqual", "assertGreater": "assertLessEqual", "assertRegex": "assertNotRegex",
    "assertAlmostEqual": "assertNotAlmostEqual",
}  # fmt: skip
_METHODS |= {opposite: name for name, opposite in _METHODS.items()}
EQUALITIES = frozenset(
    {"assertEqual", "assertListEqual", "assertDictEqual", "assertTupleEqual", "assertSetEqual", "assertSequenceEqual",
     "assertCountEqual", "assertMultiLineEqual"}
)  # fmt: skip
_NEARLY = frozenset(
    {"assertAlmostEqual", "assert_allclose", "assert_almost_equal", "assert_array_almost_equal", "assert_equal",
     "assert_array_equal"}
)  # fmt: skip

_SAYS_EQUAL = re.compile(r"(assert|check|expect|verify|ensure)_(\w*_)?(equals?|eq|same)", re.IGNORECASE)
"""Names of comparison functions with two arguments defined by the repository, whose body a change may have emptied."""


def _of_call(source: TestSource, call: ast.Call, span: LineSpan, rng: random.Random) -> Iterator[_Mutation]:
    name = name_of(call)
    if name in ("raises", "assertRaises") and len(call.args) > 1:
        yield from _other_exception(source, call, span, rng)
    of_their_own = len(call.args) == 2 and name not in EQUALITIES and _SAYS_EQUAL.fullmatch(name) is not None
    if len(call.args) >= 2 and not call.keywords and (name in EQUALITIES | _NEARLY or of_their_own):
        for side in call.args[:2]:
            for edit in _other_literal(source, side, rng, far=name not in EQUALITIES):
                yield _Mutation((edit,), span, _ANOTHER_VALUE)
        if name in EQUALITIES:
            yield from _other_type(source, call.args[0], call.args[1], span)
    function = call.func
    if (
        name in _METHODS
        and isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.end_lineno is not None
        and function.end_col_offset is not None
    ):
        start = function.end_col_offset - len(name)
        edit = Edit(function.end_lineno, start, function.end_col_offset, _METHODS[name].encode())
        yield _Mutation((edit,), span, _OPPOSITE_OF_IT)


_OTHER_EXCEPTIONS = ("ZeroDivisionError", "OverflowError", "TimeoutError", "EOFError", "BufferError")


def _other_exception(source: TestSource, call: ast.Call, span: LineSpan, rng: random.Random) -> Iterator[_Mutation]:
    if not call.args or not isinstance(call.args[0], ast.Name | ast.Attribute):
        return
    wanted = call.args[0]
    known = getattr(builtins, wanted.id, None) if isinstance(wanted, ast.Name) else None
    names = [
        name
        for name in _OTHER_EXCEPTIONS
        if not (isinstance(known, type) and issubclass(known, getattr(builtins, name)))
    ]
    if wanted.lineno == wanted.end_lineno and wanted.end_col_offset is not None:
        new = rng.choice(names).encode()
        yield _Mutation((Edit(wanted.lineno, wanted.col_offset, wanted.end_col_offset, new),), span, _OPPOSITE_OF_IT)


def _other_parameters(
    source: TestSource, function: Function, side: ast.expr, rng: random.Random
) -> tuple[Edit, ...] | None:
    """Return other values for a parameter that an assertion compares with, one for each of its literals."""
    if not isinstance(side, ast.Name) or not _only_loaded_once(function, side.id):
        return None
    for decorator in function.decorator_list:
        if not isinstance(decorator, ast.Call) or name_of(decorator) != "parametrize" or len(decorator.args) != 2:
            continue
        names, rows = argument_names(decorator.args[0]), decorator.args[1]
        if side.id not in names or not isinstance(rows, ast.List | ast.Tuple) or decorator.keywords:
            continue
        edits = []
        for row in rows.elts:
            if isinstance(row, ast.Call) and name_of(row) == "param":
                cells = row.args
            elif len(names) == 1:
                cells = [row]
            else:
                cells = row.elts if isinstance(row, ast.Tuple | ast.List) else []
            position = names.index(side.id)
            if len(cells) != len(names):
                return None
            found = _other_literal(source, cells[position], rng)
            if not found:
                return None
            edits.append(rng.choice(found))
        return tuple(edits)
    return None


def argument_names(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [name.strip() for name in node.value.split(",") if name.strip()]
    if isinstance(node, ast.List | ast.Tuple):
        return [str(element.value) for element in node.elts if isinstance(element, ast.Constant)]
    return []


def _only_loaded_once(function: Function, name: str) -> bool:
    """Return whether a name is used once. If it is also an input, the test may still pass with another value."""
    uses = [node.ctx for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == name]
    return len(uses) == 1 and isinstance(uses[0], ast.Load)


# Other values


def _other_literal(source: TestSource, node: ast.expr, rng: random.Random, *, far: bool = False) -> list[Edit]:
    """Return edits, each of which changes a literal's value. ``far``: by enough for comparisons with a tolerance."""
    if isinstance(node, ast.Call) and name_of(node) == "approx" and len(node.args) == 1 and not node.keywords:
        return _other_literal(source, node.args[0], rng, far=True)
    try:
        before = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return []
    empty = {"[]": b"[0]", "()": b"(0,)", "{}": b"{0: 0}", "''": b"'x'", '""': b'"x"'}
    segment = source.segment(node)
    if segment is not None and segment.decode() in empty and not far and node.end_col_offset is not None:
        return [Edit(node.lineno, node.col_offset, node.end_col_offset, empty[segment.decode()])]
    edits = []
    leaves = [leaf for leaf in ast.walk(node) if isinstance(leaf, ast.Constant)]
    for leaf in rng.sample(leaves, min(len(leaves), 8)):
        token = source.segment(leaf)
        if token is None or leaf.end_col_offset is None:
            continue
        new = _other_token(token, leaf.value, rng, far)
        if new is not None and _replaced(node, leaf, new) not in (None, before):
            edits.append(Edit(leaf.lineno, leaf.col_offset, leaf.end_col_offset, new))
    return edits


def _replaced(node: ast.expr, leaf: ast.Constant, token: bytes) -> object:
    """Return the literal's value with another leaf; ``None`` if it is not a valid literal."""
    try:
        value = parse_literal(token.decode())
        changed = copy.deepcopy(node, {id(leaf): ast.copy_location(ast.Constant(value), leaf)})
        return ast.literal_eval(changed)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _other_token(token: bytes, value: object, rng: random.Random, far: bool) -> bytes | None:
    if isinstance(value, bool):
        return None if far else str(not value).encode()
    if isinstance(value, int):
        if far:
            return str(value * 2 + rng.randint(1, 3)).encode()
        new = value + rng.choice((-2, -1, 1, 2, 3, 10) if value > 2 else (1, 2, 3))
        return (hex(new) if token[:2].lower() == b"0x" else str(new)).encode()
    if isinstance(value, float):
        digits = len(token.partition(b".")[2]) if re.fullmatch(rb"\d+\.\d+", token) else 2
        return repr(round(value * (2 if far else 1) + rng.randint(1, 3), digits)).encode()
    if isinstance(value, str | bytes) and not far:
        return _other_string(token, rng)
    return None


def _other_string(token: bytes, rng: random.Random) -> bytes | None:
    """Return another string of nearly the same letters."""
    match = re.fullmatch(rb"([bBuUrR]{0,2})('''|\"\"\"|'|\")(.*)\2", token, re.DOTALL)
    if match is None or b"\\" in match[3]:
        return None
    text = match[3]
    places = [n for n in range(len(text)) if text[n : n + 1].isalnum()]
    if not places:
        # Only punctuation and whitespace: repeat the last one.
        return None if not text or text[0] >= 128 else match[1] + match[2] + text + text[-1:] + match[2]
    place = rng.choice(places)
    old = text[place : place + 1]
    letters = b"0123456789" if old.isdigit() else b"abcdefghijklmnoprstuvwy"
    if old.isupper():
        letters = letters.upper()
    new = rng.choice([letters[n : n + 1] for n in range(len(letters)) if letters[n : n + 1].lower() != old.lower()])
    return match[1] + match[2] + text[:place] + new + text[place + 1 :] + match[2]


# Generated statements


def _trailing(source: TestSource, function: Function, rng: random.Random) -> Insertion | None:
    """Return a false statement after a test in which nothing can be mutated."""
    if _may_pass_failing(function):
        return None
    margin = indentation(source, function)
    if any(_may_leave(statement) for statement in function.body) or not margin or function.end_lineno is None:
        return None
    first, last = _false_statements(source, rng)
    return Insertion(function.end_lineno, margin + first + b"; " + last)


def _false_statements(source: TestSource, rng: random.Random) -> tuple[bytes, bytes]:
    """Return two statements with constants of the file; the second is a false assertion."""
    numbers = [number for number in source.constants(int) if 0 <= number < 1000] + rng.sample(range(2, 40), 4)
    words = [word for word in source.constants(str) if word.isidentifier() and len(word) < 20] + ["left", "right", "b"]
    some = rng.sample(numbers, rng.randint(3, 4)) if len(numbers) > 3 else numbers
    texts = rng.sample(words, 2)
    wrong = some[-1] + rng.choice((1, 2, 5))
    shape = rng.randrange(4)
    if shape == 0:
        return f"values = {some!r}".encode(), f"assert sorted(values) == {sorted([*some[:-1], wrong])!r}".encode()
    if shape == 1:
        return f"values = {some!r}".encode(), f"assert sum(values) == {sum(some) - some[-1] + wrong}".encode()
    if shape == 2:
        return (
            f'text = "{texts[0]} {texts[1]}"'.encode(),
            f'assert text.split() == ["{texts[1]}", "{texts[0]}x"]'.encode(),
        )
    return f'result = {{"{texts[0]}": {some[0]}}}'.encode(), f'assert result["{texts[0]}"] == {some[0] + 1}'.encode()


def _everywhere_parametrized(source: TestSource) -> bool:
    return any(
        isinstance(statement, ast.Assign) and any(name_of(target) == "pytestmark" for target in statement.targets)
        for statement in source.tree.body
    )
