"""Removes from a rewritten test file the values that only its assertions used."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator

from rllm_gym.grading.swe.taint import Function, Scope, column_cells, is_built, name_of, parameters, replacing

_Replaceable = tuple[Callable[[ast.expr], None], ast.expr]
"""An expression, with what puts another in its place."""


def is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False
    return True


def parametrizations(function: Function) -> Iterator[tuple[ast.Call, list[str]]]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and name_of(decorator) == "parametrize" and len(decorator.args) == 2:
            names = decorator.args[0]
            if isinstance(names, ast.Constant) and isinstance(names.value, str):
                yield decorator, [name.strip() for name in names.value.split(",") if name.strip()]
            elif isinstance(names, ast.List | ast.Tuple):
                yield decorator, [str(item.value) for item in names.elts if isinstance(item, ast.Constant)]


def literal_arguments(tree: ast.Module, module: Scope) -> dict[str, dict[str, list[_Replaceable]]]:
    """Return the parameters of the file's own helpers to which every call gives a literal, by helper and parameter.

    Helpers are functions of the module, and methods with a name that no other function has: ``self.check(text, 3)``.
    A variable of a loop over a table, or a parameter of a test, stands for the literals in its column.
    """
    found: dict[str, dict[str, list[_Replaceable]]] = {}
    nodes = list(ast.walk(tree))
    defined = Counter(node.name for node in nodes if isinstance(node, Function))
    methods = [part for node in nodes if isinstance(node, ast.ClassDef) for part in node.body]
    scopes: dict[int, Scope] = {}
    for helper in (*tree.body, *methods):
        if not isinstance(helper, Function) or helper.name.startswith("test"):
            continue
        own = helper not in tree.body
        uses = [
            node for node in nodes if helper.name == (getattr(node, "attr", "") if own else getattr(node, "id", ""))
        ]
        calls = [node for node in nodes if isinstance(node, ast.Call) and node.func in uses]
        static = own and [*map(name_of, helper.decorator_list)] == ["staticmethod"]
        plain = (static or not helper.decorator_list) and not helper.args.vararg and not helper.args.kwarg
        if own:
            receivers = [node.value for node in uses if isinstance(node, ast.Attribute)]
            plain = plain and defined[helper.name] == 1 and bool(helper.args.args or helper.args.posonlyargs or static)
            plain = plain and all(isinstance(item, ast.Name) and item.id == "self" for item in receivers)
        if not calls or len(calls) != len(uses) or not plain:
            continue
        inner = Scope(helper.body, module, {})
        bound = own and not static
        names = [argument.arg for argument in (*helper.args.posonlyargs, *helper.args.args)][bound:]
        scopes = scopes or _scopes_of_calls(tree, module)
        for name in parameters(helper)[bound:]:
            place = names.index(name) if name in names else len(names)
            values = [(call, _argument(call, name, place)) for call in calls]
            literals = [
                value
                for call, value in values
                if value is not None and _is_fixed(value[1], scopes.get(id(call), module))
            ]
            if len(literals) == len(calls) and not any(inner.may_change(name, one) for _, one in literals):
                found.setdefault(helper.name, {})[name] = literals
    return found


def _scopes_of_calls(tree: ast.Module, module: Scope) -> dict[int, Scope]:
    """Return the scope of each call in a test, by its identity."""
    found: dict[int, Scope] = {}
    for test in ast.walk(tree):
        if isinstance(test, Function) and test.name.startswith("test"):
            fixed = dict.fromkeys(_fixed_parameters(test, module), False)
            scope = Scope(test.body, module, {**dict.fromkeys(parameters(test), True), **fixed})
            found.update((id(node), scope) for node in ast.walk(test) if isinstance(node, ast.Call))
    return found


def _is_fixed(node: ast.expr, scope: Scope) -> bool:
    return is_literal(node) or (isinstance(node, ast.Name) and scope.is_local(node.id) and not scope.tainted(node.id))


def _fixed_parameters(test: Function, module: Scope) -> Iterator[str]:
    """Yield the parameters of a test to which ``parametrize`` gives literals that nothing changes."""
    body = Scope(test.body, module, {})
    for decorator, names in parametrizations(test):
        for position, name in enumerate(names):
            cells = column_cells(decorator.args[1], position, len(names))
            if cells and all(is_literal(cell) and not body.may_change(name, cell) for _, cell in cells):
                yield name


def _argument(call: ast.Call, name: str, place: int) -> _Replaceable | None:
    if any(isinstance(item, ast.Starred) for item in call.args) or any(item.arg is None for item in call.keywords):
        return None
    if place < len(call.args):
        return replacing(call.args, place), call.args[place]
    for keyword in call.keywords:
        if keyword.arg == name:
            return (lambda new, keyword=keyword: setattr(keyword, "value", new)), keyword.value
    return None


class ValueEraser:
    """Removes from a rewritten file the values that only assertions used: parameters, tables, assigned names."""

    def __init__(self, tree: ast.Module, functions: list[Function], module: Scope) -> None:
        self._tree = tree
        self._functions = functions
        self._module = module

    def erase(self) -> None:
        before = ""
        while (now := ast.dump(self._tree)) != before:
            before = now
            helpers = literal_arguments(self._tree, self._module)
            for function in self._functions:
                used = _loaded(function.body)
                self._parameters(function, used)
                for name, given in helpers.get(function.name, {}).items():
                    for replace, _ in given if name not in used else ():
                        replace(ast.Constant(None))
                self._assignments(function, used)
            everywhere = _loaded(self._tree.body)
            self._tree.body = [item for item in self._tree.body if not self._is_unused(item, everywhere)] or [
                ast.Pass()
            ]

    def _parameters(self, function: Function, used: set[str]) -> None:
        for decorator, names in parametrizations(function):
            for position, name in enumerate(names):
                if name in used or any(keyword.arg == "indirect" for keyword in decorator.keywords):
                    continue
                cells = column_cells(self._table_of(decorator.args[1]), position, len(names))
                if cells is None:
                    continue
                for replace, _ in cells:
                    replace(ast.Constant(None))
                _drop_ids(decorator, self._table_of(decorator.args[1]))

    def _assignments(self, function: Function, used: set[str]) -> None:
        for parent in ast.walk(function):
            for name in ("body", "orelse", "finalbody"):
                body = getattr(parent, name, None)
                if not isinstance(body, list):
                    continue
                for number, statement in enumerate(body):
                    inner = statement
                    if isinstance(statement, ast.With) and len(statement.body) == 1:
                        inner = statement.body[0]
                    if self._is_unused(inner, used, function):
                        body[number] = ast.Pass()
                    elif isinstance(inner, ast.For):
                        target = inner.target if isinstance(inner.target, ast.Tuple) else ast.Tuple([inner.target])
                        self._table(inner.iter, target, used)

    def _table(self, table: ast.expr, target: ast.Tuple, used: set[str]) -> None:
        for position, name in enumerate(target.elts):
            if isinstance(name, ast.Name) and name.id not in used:
                cells = column_cells(self._table_of(table), position, len(target.elts))
                if isinstance(table, ast.Call) and name_of(table) == "zip" and len(table.args) == len(target.elts):
                    cells = column_cells(table.args[position], 0, 1)
                for replace, cell in cells or ():
                    if is_built(cell, self._module, ()):
                        replace(ast.Constant(None))

    def _table_of(self, table: ast.expr) -> ast.expr:
        """Return the literal that a name of the module stands for, if nothing else uses the name."""
        if not isinstance(table, ast.Name):
            return table
        uses = [node for node in ast.walk(self._tree) if isinstance(node, ast.Name) and node.id == table.id]
        found = [
            statement.value
            for statement in self._tree.body
            if isinstance(statement, ast.Assign) and [name_of(target) for target in statement.targets] == [table.id]
        ]
        return found[0] if len(found) == 1 and len(uses) == 2 else table

    def _is_unused(self, statement: ast.stmt, used: set[str], within: Function | None = None) -> bool:
        if isinstance(statement, ast.FunctionDef) and within is None and not statement.decorator_list:
            named_by_pytest = re.match(r"test|pytest_|setup|teardown|__", statement.name)
            return statement.name not in used and not named_by_pytest
        if not isinstance(statement, ast.Assign) or not all(isinstance(name, ast.Name) for name in statement.targets):
            return False
        names = [name.id for name in statement.targets if isinstance(name, ast.Name)]
        if any(name in used or name.startswith(("pytest", "__")) for name in names):
            return False
        if is_literal(statement.value) or not self._module.depends(statement.value):
            return True
        arguments = dict.fromkeys(parameters(within), True) if within is not None else {}
        return is_built(statement.value, Scope(within.body, self._module, arguments) if within else self._module, ())


def _loaded(body: list[ast.stmt]) -> set[str]:
    return {
        node.id
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store)
    }


def _drop_ids(decorator: ast.Call, table: ast.expr) -> None:
    decorator.keywords = [keyword for keyword in decorator.keywords if keyword.arg != "ids"]
    for row in getattr(table, "elts", ()):
        if isinstance(row, ast.Call):
            row.keywords = [keyword for keyword in row.keywords if keyword.arg != "id"]
