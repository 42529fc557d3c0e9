"""Tells from the text of a test which of its names hold what the program returned, and which what the test expects."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator

from .free_names import nodes

_BUILTINS = frozenset(dir(builtins))
_ITERATING = frozenset({"enumerate", "len", "list", "range", "reversed", "set", "sorted", "tuple"})
_VIEWS = frozenset({"items", "keys", "values"})
_LONG = 200
_OF_LITERALS = ast.Name | ast.Attribute | ast.Subscript | ast.List | ast.Tuple | ast.Constant


class ProgramValues:
    """What the names of a test hold, whatever scope they are in: a name that is used for two things counts as both.

    Args:
        trees: The test and its setup.
        names: The names that they take from the program.
    """

    def __init__(self, trees: list[ast.Module], names: Iterable[str]) -> None:
        self._returned = {*names, "solution"}
        self._given: set[str] = set()
        self._empty: set[str] = set()
        self._measured: set[str] = set()
        self._bound: dict[str, list[ast.expr | None]] = {}
        functions: dict[str, list[list[str]]] = {}
        flows: list[tuple[set[str], set[str]]] = []
        calls: list[_Call] = []
        for node in (node for tree in trees for node in nodes(tree)):
            if isinstance(node, ast.Call):
                calls.append(_Call(node))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.setdefault(node.name, []).append(_parameters(node.args))
                # The parameter that has the name of a fixture is what that returns.
                results = [
                    item.value for item in nodes(node) if isinstance(item, ast.Return | ast.Yield) and item.value
                ]
                flows += [(names_in(value), {node.name}) for value in results]
            elif isinstance(node, ast.ImportFrom) and node.module == "solution":
                self._returned |= {alias.asname or alias.name for alias in node.names}
            for targets, value in _bindings(node):
                assigned = set[str]().union(*map(names_in, targets))
                flows.append((names_in(value), assigned))
                for name in assigned:
                    self._bound.setdefault(name, []).append(value if isinstance(node, ast.Assign) else None)
            self._empty.update(*map(_sources, _stated_empty(node)))
            self._measured.update(map(_text, _stated_lengths(node)))
        for parameters in functions.get("check", ()):
            self._returned.update(parameters[:1])
        before = -1
        while len(self._returned) > before:
            before = len(self._returned)
            for source, reached in flows:
                if not source.isdisjoint(self._returned):
                    self._returned |= reached
            for call in calls:
                self._returned |= self._received(call, functions)
        self._given.update(*(names for call in calls if self._is_program(call) for names, _ in call.values))

    def _is_program(self, call: _Call) -> bool:
        return not call.function.isdisjoint(self._returned)

    def _received(self, call: _Call, functions: dict[str, list[list[str]]]) -> set[str]:
        """Return the names that a call lets hold something of the program."""
        if self._is_program(call):
            # Of a callback that the program gets, each argument comes from it.
            callbacks = set().union(*(names for names, _ in call.values)) & functions.keys()
            return call.lambdas.union(*(parameters for name in callbacks for parameters in functions[name]))
        found: set[str] = set()
        for at, (names, keyword) in enumerate(call.values):
            if names.isdisjoint(self._returned):
                continue
            found |= call.owner  # ``results.append(f(x))``
            for parameters in functions.get(call.name, ()):
                own = parameters[1:] if call.is_method and parameters[:1] == ["self"] else parameters
                found |= {keyword} if keyword else set(own if call.starred else own[at : at + 1])
        return found

    def is_returned(self, expression: ast.expr) -> bool:
        """Return whether this may be something that the program returned, or made from it."""
        return not names_in(expression).isdisjoint(self._returned)

    def is_result(self, expression: ast.expr, seen: frozenset[str] = frozenset()) -> bool:
        """Return whether this is what the program returned, without a selection by the test."""
        if isinstance(expression, ast.Name):
            values = self._bound.get(expression.id, [None]) if expression.id not in seen else [None]
            return all(value is not None and self.is_result(value, seen | {expression.id}) for value in values)
        if not isinstance(expression, ast.Call):
            return False
        name = _name(expression.func)
        if name in _ITERATING and expression.args:
            return self.is_result(expression.args[0], seen)
        if name in _VIEWS and isinstance(expression.func, ast.Attribute):
            return self.is_result(expression.func.value, seen)
        return self.is_returned(expression.func)

    def is_measured(self, expression: ast.expr) -> bool:
        """Return whether the test compares the length of this with something."""
        return _text(expression) in self._measured

    def is_expected(self, expression: ast.expr) -> bool:
        """Return whether this is data of the test that the program does not get."""
        if not isinstance(expression, _OF_LITERALS) or any(isinstance(item, ast.Call) for item in nodes(expression)):
            return False
        return names_in(expression).isdisjoint(self._returned | self._given)

    def may_be_empty(self, expression: ast.expr) -> bool:
        """Return whether the test says of this, or of another result of the same function, that it is empty."""
        return not _sources(expression).isdisjoint(self._empty)


class _Call:
    """The names in a call."""

    def __init__(self, node: ast.Call) -> None:
        self.name = _name(node.func)
        self.is_method = isinstance(node.func, ast.Attribute)
        self.function = names_in(node.func)
        self.owner = names_in(node.func.value) if isinstance(node.func, ast.Attribute) else set()
        self.starred = any(isinstance(value, ast.Starred) for value in node.args)
        self.values = [(names_in(value), "") for value in node.args]
        self.values += [(names_in(item.value), item.arg or "") for item in node.keywords]
        arguments = [*node.args, *(item.value for item in node.keywords)]
        self.lambdas = {name for item in arguments if isinstance(item, ast.Lambda) for name in _parameters(item.args)}


def names_in(expression: ast.AST) -> set[str]:
    """Return the variables in an expression, and the attributes of ``self``."""
    found = set()
    for item in nodes(expression):
        if isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name) and item.value.id == "self":
            found.add(item.attr)
        elif isinstance(item, ast.Name):
            found.add(item.id)
    return found - {"self"}


def _bindings(node: ast.AST) -> Iterator[tuple[list[ast.expr], ast.expr]]:
    """Yield what a node assigns, after the targets."""
    if isinstance(node, ast.Assign):
        yield node.targets, node.value
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        yield [node.target], node.value
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield [node.target], node.iter
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield [node.optional_vars], node.context_expr


def _parameters(args: ast.arguments) -> list[str]:
    rest = [item for item in (args.vararg, args.kwarg) if item is not None]
    return [item.arg for item in (*args.posonlyargs, *args.args, *args.kwonlyargs, *rest)]


def _name(node: ast.AST) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _sources(expression: ast.expr) -> set[str]:
    """Return the variables or functions that an expression takes its items from."""
    if isinstance(expression, ast.Call):
        within = [expression.func.value] if isinstance(expression.func, ast.Attribute) else []
        within += expression.args if _name(expression.func) in _BUILTINS else []
        return {_name(expression.func)}.union(*map(_sources, within)) - _BUILTINS
    if isinstance(expression, ast.Subscript | ast.NamedExpr):
        return _sources(expression.value)
    return names_in(expression) if isinstance(expression, ast.Name | ast.Attribute) else set()


def _stated_empty(node: ast.AST) -> list[ast.expr]:
    """Return the sides of an assertion that something is empty."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return [node.operand]
    sides: list[ast.expr] = []
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
    elif isinstance(node, ast.Call):
        name = _name(node.func)
        if name == "assertFalse":
            return node.args[:1]
        sides = node.args[:2] if name.startswith("assert") and name.endswith("Equal") else []
    measured = any(isinstance(item, ast.Call) and _name(item.func) == "len" for item in sides)
    zero = measured and any(isinstance(item, ast.Constant) and item.value == 0 for item in sides)
    return sides if zero or any(map(_is_nothing, sides)) else []


def _stated_lengths(node: ast.AST) -> list[ast.expr]:
    """Return what an assertion says the lengths of."""
    sides: list[ast.expr] = []
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
    elif isinstance(node, ast.Call) and _name(node.func).startswith("assert"):
        sides = node.args[:2]
    return [item.args[0] for item in sides if isinstance(item, ast.Call) and _name(item.func) == "len" and item.args]


def _text(expression: ast.expr) -> str:
    """Return a text that is equal for equal expressions; one for all that are long, which may hold megabytes."""
    short = (
        expression.end_col_offset or 0
    ) - expression.col_offset < _LONG and expression.end_lineno == expression.lineno
    return ast.dump(expression) if short else ""


def _is_nothing(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in (str, bytes) and not node.value
    if isinstance(node, ast.Call):
        return _name(node.func) in ("set", "list", "dict", "tuple") and not node.args
    return (isinstance(node, ast.List | ast.Tuple) and not node.elts) or (isinstance(node, ast.Dict) and not node.keys)
