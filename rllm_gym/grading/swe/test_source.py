"""A test file as text that can be edited in place: its test functions by node id, with its line numbers kept."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from rllm_gym.grading.python_source import parse_python
from rllm_gym.grading.swe.taint import Function

_T = TypeVar("_T")

MAX_BYTES = 4_000_000


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement of part of one line. Lines count from 1; columns are in UTF-8 bytes, as in :mod:`ast`."""

    line: int
    start: int
    end: int
    new: bytes


@dataclass(frozen=True, slots=True)
class Insertion:
    """An insertion of whole lines after a line."""

    after: int
    new: bytes


class TestSource:
    """The Python source of a test file.

    Raises:
        ValueError: It is not Python that this interpreter can parse, or too long.
    """

    __test__ = False  # not a test class, despite its name

    def __init__(self, text: str) -> None:
        data = text.encode()
        if len(data) > MAX_BYTES:
            raise ValueError(f"a test file has {len(data)} bytes; the maximum is {MAX_BYTES}")
        self.lines = data.split(b"\n")
        if any(b"\r" in line[:-1] or b"\f" in line for line in self.lines):
            raise ValueError("a test file has bare carriage returns or form feeds")
        try:
            self.tree = parse_python(data)
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"a test file is not valid Python: {type(error).__name__}") from None
        self.functions: dict[str, tuple[Function, tuple[ast.ClassDef, ...]]] = {}
        doubled: set[str] = set()
        for key, function, classes in _functions(self.tree.body, ()):
            if key in self.functions:
                doubled.add(key)
            self.functions[key] = (function, classes)
        for key in doubled:
            del self.functions[key]

    def segment(self, node: ast.expr) -> bytes | None:
        """Return the source of a node that is on one line; ``None`` otherwise."""
        if node.lineno != node.end_lineno:
            return None
        return self.lines[node.lineno - 1][node.col_offset : node.end_col_offset]

    def between(self, left: ast.expr, right: ast.expr) -> tuple[int, int, bytes] | None:
        """Return line, column and text between two nodes; ``None`` if they are not on one line."""
        if left.end_lineno != right.lineno or left.end_col_offset is None:
            return None
        start = left.end_col_offset
        return right.lineno, start, self.lines[right.lineno - 1][start : right.col_offset]

    def edited(self, edits: Iterable[Edit], insertions: Iterable[Insertion] = ()) -> str:
        """Return the text after edits, then insertions."""
        lines = list(self.lines)
        for edit in sorted(edits, key=lambda edit: (edit.line, edit.start), reverse=True):
            line = lines[edit.line - 1]
            lines[edit.line - 1] = line[: edit.start] + edit.new + line[edit.end :]
        for insertion in sorted(insertions, key=lambda insertion: insertion.after, reverse=True):
            lines.insert(insertion.after, insertion.new)
        return b"\n".join(lines).decode()

    def constants(self, kind: type[_T]) -> list[_T]:
        """Return the constants of a type in the file, in order."""
        found = (node.value for node in ast.walk(self.tree) if isinstance(node, ast.Constant))
        return [value for value in found if isinstance(value, kind) and not isinstance(value, bool)]


def function_key(node_id: str) -> tuple[str, str]:
    """Return file and function of a pytest node id, without parameters.

    >>> function_key("tests/test_a.py::TestB::test_c[x::y]")
    ('tests/test_a.py', 'TestB::test_c')
    """
    path, _, rest = node_id.partition("::")
    return path, rest.partition("[")[0]


def same_function(one: TestSource, other: TestSource | None, key: str) -> bool:
    """Return whether a test function is identical in two files."""
    if other is None or key not in one.functions or key not in other.functions:
        return False
    return ast.dump(one.functions[key][0]) == ast.dump(other.functions[key][0])


def indentation(source: TestSource, function: Function) -> bytes:
    """Return the indentation of a function's statements."""
    first = function.body[0]
    return source.lines[first.lineno - 1][: first.col_offset] if first.lineno > function.lineno else b""


def plausible_name(rng: random.Random, like: str, source: TestSource) -> str:
    """Return a new test name that resembles the other names in the file."""
    taken = {key.rpartition("::")[2] for key in source.functions}
    words = sorted({word for name in taken for word in name.split("_") if len(word) > 2 and word != "test"})
    stem = [word for word in like.split("_") if word]
    while True:
        more = [*rng.sample(words, min(len(words), rng.randint(1, 2))), rng.choice(_WORDS)]
        rng.shuffle(more)
        name = "_".join([stem[0], *more] if like.startswith("test") and len(stem) > 1 else [like, *more])
        if name not in taken and name.isidentifier():
            return name


_WORDS = (
    "again", "all", "any", "basic", "both", "case", "cases", "copy", "default", "edge", "empty", "first", "input",
    "items", "large", "last", "long", "mixed", "more", "nested", "none", "order", "other", "pair", "partial", "plain",
    "repeated", "result", "same", "short", "simple", "single", "small", "some", "sorted", "two", "value", "values",
)  # fmt: skip


def _functions(
    body: list[ast.stmt], classes: tuple[ast.ClassDef, ...]
) -> Iterator[tuple[str, Function, tuple[ast.ClassDef, ...]]]:
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield "::".join([*(scope.name for scope in classes), statement.name]), statement, classes
        elif isinstance(statement, ast.ClassDef):
            yield from _functions(statement.body, (*classes, statement))
