"""Writes a test file in the form that separates best: tables with a name for each column, and plain assertions.

Only from such a table can :mod:`rllm_gym.grading.swe.erased_values` take the values that nothing but assertions uses.
``for case in CASES: assert total(case["items"]) == case["sum"]`` becomes ``for _c0, _c1 in [([1, 2], 3)]: …``. The ids
of tests stay the same.
"""

from __future__ import annotations

import ast
import copy
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from rllm_gym.grading.swe.erased_values import is_literal
from rllm_gym.grading.swe.taint import Function, bound_names, name_of, parameters, received_names

MAX_ROWS = 2_000
_SETUPS = ("setUp", "setup_method", "asyncSetUp")
_Item = tuple[str, object]
"""How an item of a variable is read: ``("[", key)`` or ``(".", attribute)``."""


def write_tables(tree: ast.Module) -> None:
    """Rewrite a test file in place."""
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    _lower_marks(tree)
    module, records = _assigned_once(tree), _records(tree)
    for function in functions:
        function.body = _plain(function.body)
        if function.name.startswith("test"):
            _drop_texts(function)
        tables = _Tables({**module, **_assigned_once(function)}, records, function)
        _replace(function.body, tables.length)
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and name_of(decorator) == "parametrize":
                tables.parametrization(decorator, functions)
        for node in ast.walk(function):
            if isinstance(node, ast.For):
                tables.loop(node)
    _inline_attributes(tree)
    _inline_fixtures(tree, functions)


def _lower_marks(tree: ast.Module) -> None:
    """Give ``parametrize`` positional arguments, and that of a class to its tests."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef | Function):
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and name_of(decorator) == "parametrize":
                named = {item.arg: item for item in decorator.keywords}
                for item in (named[key] for key in ("argnames", "argvalues") if key in named):
                    decorator.args.append(item.value)
                    decorator.keywords.remove(item)
        if isinstance(node, ast.ClassDef) and not any(isinstance(part, ast.ClassDef) for part in node.body):
            lowered = [mark for mark in node.decorator_list if name_of(mark) == "parametrize"]
            tests = [part for part in node.body if isinstance(part, Function) and part.name.startswith("test")]
            for test in tests:
                test.decorator_list[:0] = copy.deepcopy(lowered)
            node.decorator_list = [mark for mark in node.decorator_list if mark not in lowered or not tests]


def _drop_texts(test: Function) -> None:
    """Remove what only a reader of a test, or of its failure, sees."""
    match test.body:
        case [ast.Expr(value=ast.Constant(value=str(text))), _, *_] if ">>>" not in text:
            del test.body[0]
    for node in ast.walk(test):
        for item in node.items if isinstance(node, ast.With) else ():
            call = item.context_expr
            if isinstance(call, ast.Call) and (name_of(call) == "subTest" or _is_subtests(call.func)):
                call.args, call.keywords = [], []


def _plain(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return statements with ``a, b = 1, 2`` taken apart, and ``if …: pytest.fail()`` as an assertion."""
    found: list[ast.stmt] = []
    for statement in body:
        for name in ("body", "orelse", "finalbody"):
            if isinstance(inner := getattr(statement, name, None), list) and inner and isinstance(inner[0], ast.stmt):
                setattr(statement, name, _plain(inner))
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if (
                len(names) == len(values)
                and all(isinstance(item, ast.Name) for item in names)
                and all(map(is_literal, values))
            ):
                found += [ast.copy_location(ast.Assign([item], value), statement) for item, value in zip(names, values)]
            case ast.If(test=test, body=[only], orelse=[]) if _fails(only):
                found.append(ast.copy_location(ast.Assert(ast.UnaryOp(ast.Not(), test)), statement))
            case _:
                found.append(statement)
    return found


def _fails(statement: ast.stmt) -> bool:
    """Return whether a statement only lets the test fail."""
    match statement:
        case ast.Raise(exc=ast.expr() as error):
            return name_of(error) == "AssertionError"
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name("pytest" | "self"), attr="fail"))):
            return True
    return False


def _is_subtests(function: ast.expr) -> bool:
    return isinstance(function, ast.Attribute) and function.attr == "test" and name_of(function.value) == "subtests"


def _assigned_once(owner: ast.Module | Function) -> dict[str, ast.expr]:
    """Return the values of names that a module or function assigns once, and that nothing changes."""
    stored = Counter(parameters(owner) if isinstance(owner, Function) else ())
    for node in ast.walk(owner):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            stored[node.id] += 1
        elif isinstance(node, ast.Global | ast.Nonlocal):
            stored.update(node.names * 2)
    found = {}
    for statement in owner.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(name)], value=value)
                | ast.AnnAssign(target=ast.Name(name), value=ast.expr() as value)
            ):
                if stored[name] == 1 and _may_be_repeated(value):
                    found[name] = value
    changed = received_names(owner.body) if found else set()
    return {name: value for name, value in found.items() if name not in changed}


def _may_be_repeated(node: ast.AST) -> bool:
    """Return whether an expression may be evaluated again: it calls nothing but classes."""
    if isinstance(node, ast.Lambda):
        return True
    called = re.fullmatch(r"_?[A-Z]\w*|param|dict|list|tuple", name_of(node)) if isinstance(node, ast.Call) else True
    return (
        bool(called)
        and not isinstance(node, ast.Await | ast.NamedExpr)
        and all(map(_may_be_repeated, ast.iter_child_nodes(node)))
    )


def _records(tree: ast.Module) -> dict[str, dict[str, ast.expr | None]]:
    """Return the fields, with their defaults, of the classes of a file that have nothing else."""
    found: dict[str, dict[str, ast.expr | None]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            is_record = "dataclass" in map(name_of, node.decorator_list) or "NamedTuple" in map(name_of, node.bases)
            fields = [
                part for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
            ]
            rest = [part for part in node.body if part not in fields and not isinstance(part, ast.Expr | ast.Pass)]
            if is_record and not rest and len(node.bases) <= 1:
                found[node.name] = {name_of(part.target): part.value for part in fields}
    return found


class _Tables:
    def __init__(
        self, constants: Mapping[str, ast.expr], records: Mapping[str, dict[str, ast.expr | None]], function: Function
    ) -> None:
        self._constants = constants
        self._records = records
        self._function = function
        self._numbers = itertools.count()

    def length(self, node: ast.expr) -> ast.expr | None:
        """Return the length of a table, which is no reason to have it inside."""
        match node:
            case ast.Call(func=ast.Name("len"), args=[ast.Name() as name], keywords=[]):
                table = self._display(name)
                parts = table.keys if isinstance(table, ast.Dict) else table.elts if table is not None else None
                if parts is not None and not any(part is None or isinstance(part, ast.Starred) for part in parts):
                    return ast.Constant(len(parts))
        return None

    def parametrization(self, decorator: ast.Call, functions: list[Function]) -> None:
        if len(decorator.args) != 2 or any(item.arg == "indirect" for item in decorator.keywords):
            return
        rows = self._rows(decorator.args[1])
        if rows is None:
            return
        decorator.args[1] = ast.List(rows, ast.Load())
        own = self._function.args
        names = decorator.args[0]
        name = names.value if isinstance(names, ast.Constant) and isinstance(names.value, str) else ""
        if own.defaults or name not in [item.arg for item in own.args]:
            return
        if any(name in parameters(item) and not item.name.startswith("test") for item in functions):
            return  # a fixture may ask for it
        ids = next((item.value for item in decorator.keywords if item.arg == "ids"), None)
        wrapped = [row.args if isinstance(row, ast.Call) and name_of(row) == "param" else [row] for row in rows]
        if not isinstance(ids, ast.List | ast.Tuple | None) or any(len(cells) != 1 for cells in wrapped):
            return
        parts = self._parts(name, [cells[0] for cells in wrapped], self._function.body)
        if parts is None:
            return
        columns, split = parts
        for at, (row, cells) in enumerate(zip(rows, split)):
            if isinstance(row, ast.Call) and name_of(row) == "param":
                row.args = cells
            else:
                rows[at] = ast.Tuple(cells, ast.Load())
        decorator.args[0] = ast.Constant(",".join(columns))
        if ids is None:
            texts: list[ast.expr] = [ast.Constant(f"{name}{at}") for at in range(len(rows))]
            decorator.keywords.append(ast.keyword("ids", ast.List(texts, ast.Load())))
        place = [item.arg for item in own.args].index(name)
        own.args[place : place + 1] = [ast.arg(column) for column in columns]

    def loop(self, loop: ast.For) -> None:
        if isinstance(loop.iter, ast.Call) and name_of(loop.iter) == "zip":
            loop.iter.args = [self._display(item) or item for item in loop.iter.args]
        rows = self._pairs(loop) or self._rows(loop.iter)
        flat = None if rows is None else _flat(loop.target, rows)
        if flat is None:
            return
        names: list[str] = []
        columns: list[list[ast.expr]] = []
        for name, cells in zip(flat[0], map(list, zip(*flat[1]))):
            parts = self._parts(name, cells, loop.body) if self._is_of_loops(name) else None
            names += [name] if parts is None else parts[0]
            columns += [cells] if parts is None else map(list, zip(*parts[1]))
        many = len(names) > 1
        stored: list[ast.expr] = [ast.Name(name, ast.Store()) for name in names]
        split = [ast.Tuple(list(row), ast.Load()) if many else row[0] for row in zip(*columns)]
        loop.target = ast.Tuple(stored, ast.Store()) if many else stored[0]
        loop.iter = ast.List(split, ast.Load())

    def _is_of_loops(self, name: str) -> bool:
        """Return whether a variable is used in nothing but the loops over it."""
        inside: set[int] = set()
        for loop in ast.walk(self._function):
            if isinstance(loop, ast.For) and name in bound_names(loop.target):
                inside.update(id(node) for part in (loop.target, *loop.body) for node in ast.walk(part))
        return all(id(node) in inside for node in ast.walk(self._function) if getattr(node, "id", "") == name)

    def _display(self, node: ast.expr) -> ast.List | ast.Tuple | ast.Dict | None:
        """Return the list, tuple or dict as which an expression is written, or for which its name stands."""
        if isinstance(node, ast.Name) and node.id in self._constants:
            node = copy.deepcopy(self._constants[node.id])
        return node if isinstance(node, ast.List | ast.Tuple | ast.Dict) else None

    def _rows(self, node: ast.expr) -> list[ast.expr] | None:
        """Return the rows of a table; ``None`` if it is none."""
        found: Iterable[ast.expr] | None = None
        match node:
            case ast.Call(func=ast.Name("list" | "tuple"), args=[inner], keywords=[]):
                found = self._rows(inner)
            case ast.Call(func=ast.Name("enumerate"), args=[inner], keywords=[]):
                found = [
                    ast.Tuple([ast.Constant(at), row], ast.Load()) for at, row in enumerate(self._rows(inner) or ())
                ]
            case ast.Call(func=ast.Name("zip"), args=parts, keywords=[]):
                found = [ast.Tuple(list(row), ast.Load()) for row in zip(*(self._rows(part) or () for part in parts))]
            case ast.Call(func=ast.Attribute(value=inner, attr="items"), args=[], keywords=[]):
                found = _pairs_of(self._display(inner))
            case ast.BinOp(op=ast.Add()):
                left, right = self._rows(node.left), self._rows(node.right)
                found = left and right and [*left, *right]
            case ast.Name() | ast.List() | ast.Tuple():
                table = self._display(node)
                found = table.elts if isinstance(table, ast.List | ast.Tuple) else None
            case ast.Constant(value=str(text)):
                found = [ast.Constant(letter) for letter in text]
        rows = list(found or ())
        usable = 0 < len(rows) <= MAX_ROWS and not any(isinstance(row, ast.Starred) for row in rows)
        return rows if usable else None

    def _pairs(self, loop: ast.For) -> list[ast.expr] | None:
        """Let a loop over the keys of a dict go through its pairs, if it looks up the values."""
        pairs = _pairs_of(self._display(loop.iter))
        if not pairs or not isinstance(loop.target, ast.Name):
            return None
        value = f"_v_{loop.target.id}"
        wanted = ast.dump(ast.Subscript(loop.iter, ast.Name(loop.target.id, ast.Load()), ast.Load()))

        def looked_up(node: ast.expr) -> ast.expr | None:
            return ast.Name(value, ast.Load()) if ast.dump(node) == wanted else None

        if not _replace(loop.body, looked_up):
            return None
        target: list[ast.expr] = [loop.target, ast.Name(value, ast.Store())]
        loop.target = ast.Tuple(target, ast.Store())
        return pairs

    def _parts(
        self, name: str, cells: list[ast.expr], body: list[ast.stmt]
    ) -> tuple[list[str], list[list[ast.expr]]] | None:
        """Give a name to each item of the records for which a variable stands, if nothing but its items is used."""
        rows = [self._items(cell) for cell in cells]
        first = rows[0]
        if first is None or len(first) < 2 or any(row is None or row.keys() != first.keys() for row in rows):
            return None
        number = next(self._numbers)
        names = {item: f"_c{number}_{name}_{at}" for at, item in enumerate(first)}
        nodes = [node for part in body for node in ast.walk(part)]
        read = {id(node): names[item] for node in nodes if (item := _item_of(node, name)) in names}
        spread = isinstance(cells[0], ast.List | ast.Tuple)
        starred = {
            id(node) for node in nodes if spread and isinstance(node, ast.Starred) and name_of(node.value) == name
        }
        uses = sum(isinstance(node, ast.Name) and node.id == name for node in nodes)
        if not uses or uses != len(read) + len(starred):
            return None
        _replace(body, lambda node: ast.Name(read[id(node)], ast.Load()) if id(node) in read else None)
        for node in nodes:
            items: list[ast.expr] = getattr(node, "args" if isinstance(node, ast.Call) else "elts", [])
            for at in reversed(range(len(items))):
                if id(items[at]) in starred:
                    items[at : at + 1] = [ast.Name(column, ast.Load()) for column in names.values()]
        return list(names.values()), [[row[item] for item in first] for row in rows if row is not None]

    def _items(self, cell: ast.expr) -> dict[_Item, ast.expr] | None:
        """Return the items of a written tuple, dict or record."""
        match cell:
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                whole = not any(isinstance(part, ast.Starred) for part in parts)
                return {("[", at): part for at, part in enumerate(parts)} if whole else None
            case ast.Dict():
                pairs = zip(cell.keys, cell.values)
                found: dict[_Item, ast.expr] = {
                    ("[", key.value): value for key, value in pairs if isinstance(key, ast.Constant)
                }
                return found if len(found) == len(cell.keys) else None
            case ast.Call(func=ast.Name(kind)) if kind in self._records:
                fields = self._records[kind]
                given = dict(zip(fields, cell.args)) | {str(item.arg): item.value for item in cell.keywords}
                plain = len(given) == len(cell.args) + len(cell.keywords) and given.keys() <= fields.keys()
                values: dict[_Item, ast.expr | None] = {
                    (".", field): given.get(field, default) for field, default in fields.items()
                }
                filled = {item: copy.deepcopy(value) for item, value in values.items() if value is not None}
                return filled if plain and len(filled) == len(fields) else None
        return None


def _pairs_of(table: ast.expr | None) -> list[ast.expr] | None:
    if not isinstance(table, ast.Dict) or not all(key is not None and is_literal(key) for key in table.keys):
        return None
    return [ast.Tuple([key, value], ast.Load()) for key, value in zip(table.keys, table.values) if key is not None]


def _item_of(node: ast.AST, name: str) -> _Item | None:
    """Return which item of a variable is read."""
    match node:
        case ast.Subscript(value=ast.Name(id), slice=ast.Constant(value), ctx=ast.Load()) if id == name:
            return "[", value
        case ast.Attribute(value=ast.Name(id), attr=attribute, ctx=ast.Load()) if id == name:
            return ".", attribute
    return None


def _flat(target: ast.expr, rows: list[ast.expr]) -> tuple[list[str], list[list[ast.expr]]] | None:
    """Return the names of a target and, for each row, their values; nested tuples are opened."""
    if isinstance(target, ast.Name):
        return [target.id], [[row] for row in rows]
    if not isinstance(target, ast.Tuple | ast.List):
        return None
    names: list[str] = []
    flat: list[list[ast.expr]] = [[] for _ in rows]
    opened = [row.elts for row in rows if isinstance(row, ast.Tuple | ast.List) and len(row.elts) == len(target.elts)]
    if len(opened) != len(rows) or any(isinstance(cell, ast.Starred) for cells in opened for cell in cells):
        return None
    for place, part in enumerate(target.elts):
        inner = _flat(part, [cells[place] for cells in opened])
        if inner is None:
            return None
        names += inner[0]
        flat = [[*before, *more] for before, more in zip(flat, inner[1])]
    return names, flat


def _replace(body: list[ast.stmt], new: Callable[[ast.expr], ast.expr | None]) -> bool:
    """Put other expressions in place of some; return whether there was one."""

    class Replacing(ast.NodeTransformer):
        found = False

        def visit(self, node: ast.AST) -> ast.AST:
            other = new(node) if isinstance(node, ast.expr) else None
            if other is None:
                self.generic_visit(node)
                return node
            self.found = True
            return ast.copy_location(other, node)

    replacing = Replacing()
    for part in body:
        replacing.visit(part)
    return replacing.found


# Attributes and fixtures that are constants


def _inline_attributes(tree: ast.Module) -> None:
    """Write the constant in place of ``self.expected``, if a class or its ``setUp`` assigns it once."""
    nodes = list(ast.walk(tree))
    read: dict[str, list[ast.Attribute]] = {}
    stored: Counter[str] = Counter()
    for node in nodes:
        if isinstance(node, ast.Attribute):
            if isinstance(node.ctx, ast.Load):
                read.setdefault(node.attr, []).append(node)
            else:
                stored[node.attr] += 1
    assigned: list[tuple[str, list[ast.stmt], ast.Assign]] = []
    for kind in nodes:
        if not isinstance(kind, ast.ClassDef):
            continue
        stored.update(part.name for part in kind.body if isinstance(part, Function))
        stored.update(getattr(node, "id", "") for part in kind.body if not isinstance(part, Function)
                      for node in ast.walk(part) if not isinstance(getattr(node, "ctx", None), ast.Load))  # fmt: skip
        if not {*map(name_of, kind.bases)} <= {"object", "TestCase"}:
            continue
        for body in (kind.body, *(part.body for part in kind.body if getattr(part, "name", "") in _SETUPS)):  # type: ignore[attr-defined]
            for statement in body:
                match statement:
                    case ast.Assign(targets=[ast.Name(name)]) if body is kind.body:
                        assigned.append((name, body, statement))
                    case ast.Assign(targets=[ast.Attribute(value=ast.Name("self"), attr=name)]):
                        assigned.append((name, body, statement))
    given = received_names(tree.body, attributes=True)
    identified = {name_of(node) for node in _identified(nodes)}
    for name, body, statement in assigned:
        value, uses = statement.value, read.get(name, [])
        own = all(isinstance(node.value, ast.Name) and node.value.id in ("self", "cls") for node in uses)
        fixed = stored[name] == 1 and is_literal(value) and (name not in given or _is_atom(value))
        if name in identified or (isinstance(value, ast.Constant) and value.value is None):
            continue  # what is None will be assigned by a subclass
        if uses and own and fixed and not name.startswith(("_", "pytest")):
            _put(tree.body, uses, value)
            body[body.index(statement)] = ast.copy_location(ast.Pass(), statement)


def _identified(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """Yield what is asked whether it is an object: no other one will do."""
    for node in nodes:
        match node:
            case ast.Compare() if any(isinstance(kind, ast.Is | ast.IsNot) for kind in node.ops):
                yield from (node.left, *node.comparators)
            case ast.Call() if name_of(node) in ("assertIs", "assertIsNot"):
                yield from node.args


def _put(body: list[ast.stmt], places: Iterable[ast.expr], value: ast.expr) -> None:
    """Write a value in some places."""
    wanted = {id(node) for node in places}
    _replace(body, lambda node: copy.deepcopy(value) if id(node) in wanted else None)


def _is_atom(value: ast.expr) -> bool:
    return not any(isinstance(node, ast.List | ast.Dict | ast.Set) for node in ast.walk(value))


def _inline_fixtures(tree: ast.Module, functions: list[Function]) -> None:
    """Write the constant in place of the parameter that a fixture of the file gives."""
    nodes = list(ast.walk(tree))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    named = {part.strip() for text in texts for part in text.split(",")}
    for fixture, value in list(_constant_fixtures(tree)):
        name = fixture.name
        asking = [item for item in functions if name in parameters(item)]
        uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == name]
        plain = all(item.name.startswith("test") and not item.args.defaults for item in asking)
        plain = plain and all(isinstance(node.ctx, ast.Load) for node in uses)
        given = any(name in received_names(item.body) for item in asking)
        plain = plain and not any(node in uses for node in _identified(nodes))
        if not asking or not plain or name in named or (given and not _is_atom(value)):
            continue
        for item in asking:
            item.args.args = [argument for argument in item.args.args if argument.arg != name]
        _put(tree.body, uses, value)
        tree.body.remove(fixture)


def _constant_fixtures(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef, ast.expr]]:
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef) or parameters(node):
            continue
        match node.decorator_list, node.body[-1]:
            case [mark], ast.Return(value=ast.expr() as value) if name_of(mark) == "fixture" and is_literal(value):
                rest = [part for part in node.body[:-1] if not isinstance(part, ast.Expr)]
                if not rest and not (isinstance(mark, ast.Call) and mark.keywords):
                    yield node, value
