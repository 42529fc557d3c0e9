"""Which expressions of a test file may depend on the code under test.

An expression that cannot, and that only assertions use, need not be in the process that runs the code. Everything that
is not known to be independent counts as dependent: imports, fixtures, files, clocks, and mutable values that the code
may have changed.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import re
import unittest
from collections.abc import Callable, Collection, Iterator

PURE_MODULES = frozenset(
    {"base64", "binascii", "calendar", "cmath", "collections", "dataclasses", "datetime", "decimal", "enum",
     "fractions", "functools", "hashlib", "html", "ipaddress", "itertools", "math", "numbers", "operator", "pytest",
     "re", "statistics", "string", "struct", "textwrap", "typing", "unicodedata", "__future__"}
)  # fmt: skip
_IMPURE = frozenset(
    {"open", "input", "print", "globals", "locals", "vars", "eval", "exec", "compile", "id", "hash", "__import__",
     "next", "iter", "object", "dir", "breakpoint", "help", "memoryview", "super", "setattr", "delattr", "getattr"}
)  # fmt: skip
_CLOCKS = frozenset({"now", "today", "utcnow", "fromtimestamp"})
_IMMUTABLE_CALLS = frozenset(
    {"str", "int", "float", "bool", "bytes", "complex", "frozenset", "len", "repr", "abs", "round", "min", "max", "sum",
     "ord", "chr", "Decimal", "Fraction", "date", "datetime", "time", "timedelta", "dedent", "range"}
)  # fmt: skip
_TEXT_METHODS = frozenset(dir(str)) | frozenset(dir(bytes))
VALUE_METHODS = _TEXT_METHODS
"""Methods of texts and bytes: what they return depends on nothing but the text and their arguments."""
_SPLITTING = frozenset({"split", "rsplit", "splitlines"})
Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(node: ast.expr) -> str:
    """Return the last part of the name of a function or attribute; empty if it has none."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def bound_names(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name):
            yield node.id


def parameters(function: Function | ast.Lambda) -> list[str]:
    found = function.args
    named = [*found.posonlyargs, *found.args, *found.kwonlyargs, found.vararg, found.kwarg]
    return [argument.arg for argument in named if argument is not None]


class Scope:
    """The names of a module or function, and whether each may depend on the code under test.

    Args:
        body: Its statements.
        outer: The scope around it.
        arguments: Whether each parameter depends on the code.
        changes: Whether mutable values depend on the code that receives them.
    """

    def __init__(
        self, body: list[ast.stmt], outer: Scope | None, arguments: dict[str, bool], *, changes: bool = True
    ) -> None:
        self._outer = outer
        self._arguments = arguments
        self._tainted: dict[str, bool] = dict(arguments)
        self._functions: dict[str, Function] = {}
        self._values: dict[str, dict[int, ast.expr]] = {}
        self._bound_otherwise = set(arguments)
        self._visiting: set[str] = set()
        self.changed = _changed_names(body) if changes else set()
        self._spread = _spread_names(body) if changes else set()
        self._body = body
        # Assume that nothing depends on the code, then propagate until no name changes any more.
        before: dict[str, bool] | None = None
        while before != self._tainted:
            before = dict(self._tainted)
            self._statements(body, depends=False)

    @functools.cached_property
    def unchanged(self) -> Scope:
        """The same names if no code changed the values that it receives."""
        outer = None if self._outer is None else self._outer.unchanged
        return Scope(self._body, outer, self._arguments, changes=False)

    def tainted(self, name: str) -> bool:
        if name in self._tainted:
            return self._tainted[name]
        if self._outer is not None:
            return self._outer.tainted(name)
        return name in _IMPURE or not hasattr(builtins, name)

    def is_local(self, name: str) -> bool:
        """Return whether it is a name of this function, not of the module."""
        return self._outer is not None and name in self._tainted

    def is_closed(self, node: ast.expr) -> bool:
        """Return whether a value depends only on what the module defines and imports, not on a variable of a test."""
        nodes = list(ast.walk(node))
        if any(isinstance(part, ast.Lambda | ast.Await | ast.NamedExpr | ast.comprehension) for part in nodes):
            return False
        names = {part.id for part in nodes if isinstance(part, ast.Name)}
        return not any(self.tainted(name) and self._in_function(name) for name in names)

    def _in_function(self, name: str) -> bool:
        return self.is_local(name) or (self._outer is not None and self._outer._in_function(name))

    def depends(self, node: ast.AST) -> bool:
        """Return whether the value of an expression may depend on the code under test."""
        match node:
            case ast.Name():
                return self.tainted(node.id)
            case ast.Await() | ast.Yield() | ast.YieldFrom() | ast.NamedExpr() | ast.Lambda():
                return True
            case ast.Attribute(attr=name):
                return name in _CLOCKS or name.startswith("__") or self.depends(node.value)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                inner = self
                bound: dict[str, bool] = {}
                for part in node.generators:
                    if inner.depends(part.iter):
                        return True
                    bound |= dict.fromkeys(bound_names(part.target), False)
                    inner = Scope([], self, bound)
                parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                parts += [test for part in node.generators for test in part.ifs]
                return any(inner.depends(part) for part in parts)
        return any(self.depends(child) for child in ast.iter_child_nodes(node))

    def immutable(self, node: ast.expr) -> bool:
        """Return whether the value cannot be changed by code that receives it."""
        match node:
            case ast.Constant() | ast.JoinedStr():
                return True
            case ast.Tuple():
                return all(self.immutable(item) for item in node.elts)
            case ast.UnaryOp():
                return self.immutable(node.operand)
            case ast.BinOp():
                return self.immutable(node.left) and self.immutable(node.right)
            case ast.Call(func=ast.Attribute(attr=name, value=value)) if name in _TEXT_METHODS - _SPLITTING:
                return self.immutable(value) or name == "join"
            case ast.Call():
                return name_of(node) in _IMMUTABLE_CALLS
        return False

    def may_change(self, name: str, value: ast.expr) -> bool:
        """Return whether code of this scope may change a value of this name, or give it away to be changed."""
        items = value.elts if isinstance(value, ast.List | ast.Tuple) else [value]
        return (name in self.changed and not self.immutable(value)) or (
            name in self._spread and not all(self.immutable(item) for item in items)
        )

    @contextlib.contextmanager
    def values_of(self, name: str) -> Iterator[list[ast.expr]]:
        """Yield the expressions that are assigned to a variable which nothing changes; none if others may be."""
        if name not in self._tainted and self._outer is not None:
            with self._outer.values_of(name) as values:
                yield values
            return
        known = name not in self._visiting | self._bound_otherwise | self.changed | self._spread
        self._visiting.add(name)
        yield list(self._values.get(name, {}).values()) if known else []
        self._visiting.discard(name)

    def _mark(self, name: str, depends: bool, value: ast.expr | None = None) -> None:
        self._tainted[name] = self._tainted.get(name, False) or depends
        if value is None:
            self._bound_otherwise.add(name)
        else:
            self._values.setdefault(name, {})[id(value)] = value

    def _assigned(self, target: ast.expr, value: ast.expr, depends: bool) -> None:
        depends = depends or self.depends(value)
        for name in bound_names(target):
            self._mark(name, depends or self.may_change(name, value), value if isinstance(target, ast.Name) else None)

    def _loop(self, loop: ast.For | ast.AsyncFor, depends: bool) -> None:
        """Mark the variables of a loop, each by the column that it takes."""
        parts = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
        tables = [column_cells(loop.iter, place, len(parts)) for place in range(len(parts))]
        if all(tables) and all(isinstance(part, ast.Name) for part in parts):
            for part, cells in zip(parts, tables):
                for _, cell in cells or ():
                    self._assigned(part, cell, depends)
            return
        columns = loop.iter.args if isinstance(loop.iter, ast.Call) and name_of(loop.iter) == "zip" else []
        if len(columns) != len(parts) or len(parts) == 1:
            parts, columns = [loop.target], [loop.iter]
        for part, column in zip(parts, columns):
            self._assigned(part, column, depends or self.depends(column))
        self._bound_otherwise.update(bound_names(loop.target))

    def _statements(self, body: list[ast.stmt], *, depends: bool) -> None:
        for statement in body:
            self._statement(statement, depends)
            for node in ast.walk(statement):
                if isinstance(node, ast.NamedExpr):
                    self._mark(node.target.id, True)

    def _statement(self, statement: ast.stmt, depends: bool) -> None:
        match statement:
            case ast.Import():
                for alias in statement.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    self._mark(name, alias.name.partition(".")[0] not in PURE_MODULES)
            case ast.ImportFrom():
                pure = not statement.level and (statement.module or "").partition(".")[0] in PURE_MODULES
                for alias in statement.names:
                    self._mark(alias.asname or alias.name, not pure)
            case ast.Assign():
                for target in statement.targets:
                    self._assigned(target, statement.value, depends)
            case ast.AnnAssign(value=ast.expr() as value):
                self._assigned(statement.target, value, depends)
            case ast.AugAssign():
                self._assigned(statement.target, statement.value, depends)
                self._bound_otherwise.update(bound_names(statement.target))
            case ast.Delete():
                for target in statement.targets:
                    for name in bound_names(target):
                        self._mark(name, True)
            case ast.Global() | ast.Nonlocal():
                for name in statement.names:
                    self._mark(name, True)
                    if self._outer is not None:
                        self._outer._mark(name, True)
            case ast.ClassDef():
                self._mark(statement.name, True)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._mark(statement.name, depends or self._function_depends(statement))
            case ast.For() | ast.AsyncFor():
                self._loop(statement, depends)
                depends = depends or self.depends(statement.iter)
                self._statements([*statement.body, *statement.orelse], depends=depends)
            case ast.If():
                self._statements([*statement.body, *statement.orelse], depends=depends or self.depends(statement.test))
            case ast.While():
                self._statements([*statement.body, *statement.orelse], depends=True)
            case ast.With() | ast.AsyncWith():
                for item in statement.items:
                    for name in bound_names(item.optional_vars) if item.optional_vars is not None else ():
                        self._mark(name, True)
                guarded = all(name_of(item.context_expr) == "_g_" for item in statement.items)  # in a rewritten file
                self._statements(statement.body, depends=depends or not guarded)
            case ast.Try():
                for handler in statement.handlers:
                    if handler.name:
                        self._mark(handler.name, True)
                    self._statements(handler.body, depends=True)
                self._statements([*statement.body, *statement.orelse, *statement.finalbody], depends=True)
            case ast.Match():
                for case in statement.cases:
                    for node in ast.walk(case.pattern):
                        if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
                            self._mark(node.name, True)
                    self._statements(case.body, depends=True)

    def _function_depends(self, function: Function) -> bool:
        """Return whether a call with independent arguments may depend on the code: by a global name it uses."""
        if function.decorator_list or isinstance(function, ast.AsyncFunctionDef):
            return True
        if any(isinstance(node, ast.Yield | ast.YieldFrom | ast.Global | ast.Nonlocal) for node in ast.walk(function)):
            return True
        own = set(parameters(function))
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                own.add(node.id)
            elif isinstance(node, ast.Import | ast.ImportFrom | ast.Attribute):
                if isinstance(node, ast.Import | ast.ImportFrom) or node.attr in _CLOCKS:
                    return True
            elif isinstance(node, ast.Lambda):
                own |= set(parameters(node))
        used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and node.id not in own}
        return any(self.tainted(name) for name in used - {function.name})


def received_names(body: list[ast.stmt], *, attributes: bool = False) -> set[str]:
    """Return the names, or ``attributes``, whose value code receives that may change or keep it."""
    parts = [child for statement in body for parent in ast.walk(statement) for child in _receiving(parent)]
    nodes = [node for part in parts for node in ast.walk(part)]
    kind = ast.Attribute if attributes else ast.Name
    return {node.attr if isinstance(node, ast.Attribute) else node.id for node in nodes
            if isinstance(node, ast.Attribute | ast.Name) and isinstance(node, kind)}  # fmt: skip


def is_built(node: ast.expr, scope: Scope, own: Collection[str], *, names: bool = False) -> bool:
    """Return whether a value consists of literals and of objects created from them by classes or the file's helpers.

    ``names``: also by the name of a variable that holds nothing else.
    """

    def built(*parts: ast.expr) -> bool:
        return all(is_built(part, scope, own, names=names) for part in parts)

    match node:
        case ast.JoinedStr():
            formatted = [part for part in node.values if isinstance(part, ast.FormattedValue)]
            inner: list[ast.expr] = [part.value for part in formatted]
            inner += [part.format_spec for part in formatted if part.format_spec is not None]
            return built(*inner)
        case ast.BinOp():
            return built(node.left, node.right)
        case ast.Subscript():
            return built(node.value) and not scope.depends(node.slice)
        case ast.Call(func=ast.Attribute(attr=name, value=value)) if name in VALUE_METHODS:
            return built(value, *node.args)
        case ast.Call():
            parts = [*node.args, *(keyword.value for keyword in node.keywords)]
            is_class = re.fullmatch(r"_?[A-Z]\w*|call", name_of(node)) is not None  # the call of a mock
            is_own = isinstance(node.func, ast.Name) and node.func.id in own and not scope.is_local(node.func.id)
            return (is_class or is_own) and built(*parts)
        case ast.List() | ast.Tuple() | ast.Set():
            return built(*node.elts)
        case ast.Dict():
            return built(*(key for key in node.keys if key is not None), *node.values) and None not in node.keys
        case ast.Starred():
            return not scope.depends(node.value)
        case ast.Name(id) if re.fullmatch(r"_?[A-Z][A-Z0-9_]*", id):
            return scope.is_closed(node)  # a constant of the module
        case ast.Attribute(value=value) if names and scope.depends(node):
            return built(value)
        case ast.Name(id) if names and scope.tainted(id):
            with scope.values_of(id) as values:
                return bool(values) and built(*values)
    return not scope.depends(node)


def _changed_names(body: list[ast.stmt]) -> set[str]:
    """Return the names whose value, if it is mutable, may be changed or kept by code that receives it."""
    changed: set[str] = set()
    for statement in body:
        for parent in ast.walk(statement):
            for child in _receiving(parent):
                if not _spreads(child):
                    changed |= {node.id for node in ast.walk(child) if isinstance(node, ast.Name)}
    return changed


def _spread_names(body: list[ast.stmt]) -> set[str]:
    """Return the names whose items, though not the value itself, are given to functions: ``f(*name)``."""
    return {
        child.value.id
        for statement in body
        for parent in ast.walk(statement)
        for child in _receiving(parent)
        if isinstance(child, ast.Starred) and isinstance(child.value, ast.Name)
    }


def _spreads(node: ast.expr) -> bool:
    return isinstance(node, ast.Starred) and isinstance(node.value, ast.Name)


def _receiving(node: ast.AST) -> list[ast.expr]:
    """Return the direct parts of a node through which a value leaves: arguments, receivers, aliases."""
    match node:
        case ast.Call(func=ast.Name(id)) if id in _READERS:
            return []
        case ast.Call(func=ast.Attribute(value=ast.Name(id))) if id in PURE_MODULES:
            return []
        case ast.Call(func=ast.Attribute(value=ast.Name("self"), attr=name)) if name in _UNITTEST:
            return []
        case ast.Call() if name_of(node) == "parametrize":
            return []
        case ast.Call(func=ast.Attribute(value=ast.Constant())):
            return []  # "".join(lines)
        case ast.Call():
            receiver = [node.func.value] if isinstance(node.func, ast.Attribute) and name_of(node) not in _VIEWS else []
            return [*receiver, *node.args, *(keyword.value for keyword in node.keywords)]
        case ast.Assign() if isinstance(node.value, ast.Name | ast.Attribute | ast.Subscript | ast.IfExp | ast.BoolOp):
            return [node.value]
        case ast.Subscript() if not isinstance(node.ctx, ast.Load):
            return [node.value]
        case ast.Return() | ast.Yield() if node.value is not None:
            return [node.value]
        case ast.AugAssign():
            return [node.target]
    return []


_UNITTEST = frozenset(
    name for name in dir(unittest.TestCase) if name.startswith("assert") and not re.search("Raises|Warns", name)
)
"""Assertions of unittest, which call nothing of what they compare."""
_VIEWS = frozenset({"items", "keys", "values"})
_READERS = frozenset(
    {"len", "sorted", "sum", "min", "max", "list", "tuple", "set", "frozenset", "dict", "enumerate", "zip", "reversed",
     "any", "all", "str", "repr", "range", "isinstance", "bool", "type"}
)  # fmt: skip


def column_cells(
    table: ast.expr, position: int, width: int
) -> list[tuple[Callable[[ast.expr], None], ast.expr]] | None:
    """Return one cell of each row of a table, with a function that replaces it; ``None`` if it is no literal table.

    Rows are tuples, lists or calls of ``pytest.param``. With ``width`` 1 a row is the cell itself.
    """
    if not isinstance(table, ast.List | ast.Tuple):
        return None
    found: list[tuple[Callable[[ast.expr], None], ast.expr]] = []
    for number, row in enumerate(table.elts):
        cells = table.elts
        place = number
        if isinstance(row, ast.Call) and name_of(row) == "param":
            cells, place = row.args, position
        elif width > 1:
            if not isinstance(row, ast.Tuple | ast.List):
                return None
            cells, place = row.elts, position
        if (width > 1 and len(cells) != width) or any(isinstance(cell, ast.Starred) for cell in cells):
            return None
        if place >= len(cells):
            return None
        found.append((replacing(cells, place), cells[place]))
    return found


def replacing(cells: list[ast.expr], place: int) -> Callable[[ast.expr], None]:
    """Return a function that replaces an item of a list of expressions."""

    def replace(new: ast.expr) -> None:
        cells[place] = new

    return replace
