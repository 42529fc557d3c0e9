"""Finds the names that test code takes from the tested program: those it uses and does not define."""

from __future__ import annotations

import ast
import builtins
import itertools
import sys
from collections.abc import Iterator
from typing import Any

_TEST_NAMES_ITS_OWN = {
    "math": "isclose fabs sqrt ceil floor gcd lcm inf nan pi isnan isinf prod log exp",
    "copy": "deepcopy copy",
    "collections": "Counter OrderedDict defaultdict deque namedtuple",
    "itertools": "permutations combinations product chain zip_longest islice",
    "functools": "reduce partial",
    "typing": "Any Callable Dict Iterable Iterator List Mapping Optional Sequence Set Tuple Union",
    "random": "randint choice shuffle uniform",
    "datetime": "datetime timedelta date",
    "decimal": "Decimal",
    "fractions": "Fraction",
    "unittest": "TestCase",
    "unittest.mock": "ANY Mock MagicMock patch",
}
OFTEN_DEFINED = frozenset(
    "chain combinations exp gcd islice lcm log partial permutations prod product reduce shuffle zip_longest".split()  # noqa: SIM905
)
"""Those that are a program's own if it has one: it may be a task to write them."""
_HOMES = {name: module for module, names in _TEST_NAMES_ITS_OWN.items() for name in names.split()}
_MODULES = frozenset(
    [
        "abc",
        "asyncio",
        "bisect",
        "calendar",
        "cmath",
        "collections",
        "copy",
        "csv",
        "datetime",
        "decimal",
        "enum",
        "fractions",
        "functools",
        "heapq",
        "hashlib",
        "io",
        "itertools",
        "json",
        "math",
        "operator",
        "os",
        "pathlib",
        "random",
        "re",
        "statistics",
        "string",
        "struct",
        "sys",
        "textwrap",
        "time",
        "typing",
        "unittest",
        "uuid",
    ]
)
_SHORT = {"np": "numpy", "numpy": "numpy", "pytest": "pytest", "dt": "datetime"}


class FreeNames:
    """Names used in a test that are neither defined there nor builtins.

    Attributes:
        bound: Names defined at the top level.
        free: Names used.
        modules: The free names used only as ``name.attribute`` that name a module of the standard library, or numpy.
    """

    def __init__(self, trees: list[ast.Module], entry: str) -> None:
        bound: set[str] = set()
        bases: set[str] = set()
        plain: set[str] = set()
        for tree in trees:
            for node in tree.body:
                bound |= _bound_by(node)
            of_attributes = set()
            for item in nodes(tree):
                if isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name):
                    bases.add(item.value.id)
                    of_attributes.add(item.value)
                elif isinstance(item, ast.Name) and item not in of_attributes:
                    plain.add(item.id)
        loaded = bases | plain
        names = {name for name in loaded if name == entry or not hasattr(builtins, name)}
        self.bound = bound
        self.free = sorted(names - bound)
        known = {name for name in names if name in _MODULES or name in _SHORT}
        self.modules = known - plain - {entry}


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree from the root down, without the constants: a test may contain megabytes of them."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                waiting.append(value)
            elif type(value) is list:
                waiting += [item for item in value if type(item) is not ast.Constant and isinstance(item, ast.AST)]


def own_value(name: str, used: FreeNames) -> tuple[bool, Any]:
    """Return whether the test means a standard object despite a missing import, and that object."""
    if name in used.modules:
        return True, _module(_SHORT.get(name, name))
    if name in _HOMES:
        return True, getattr(_module(_HOMES[name]), name)
    return False, None


def module_named(name: str) -> Any:
    """Return a module that the program imported if the test may use it too; ``None`` otherwise."""
    return _module(name) if name in _MODULES or name == "numpy" else None


def missing_module(trees: list[ast.Module]) -> str:
    """Return a module that a test imports whatever the program does, and that is not installed; ``""`` if there is
    none."""
    for tree in trees:
        functions = (node.body for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        for statement in itertools.chain(tree.body, *functions):
            names = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
            if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
                names = [statement.module]
            for name in names:
                root = name.partition(".")[0]
                if root not in sys.modules:
                    from importlib.util import find_spec  # mostly not needed

                    if find_spec(root) is None:
                        return root
    return ""


def _module(name: str) -> Any:
    __import__(name)
    return sys.modules[name]


def expected_names(trees: list[ast.Module]) -> list[list[list[str]]]:
    """Return what the test expects and takes from the program, as paths of names: its constants (``Sign.PLUS``), its
    classes of results, and its exceptions.
    """
    own = {
        name
        for tree in trees
        for node in tree.body
        if not (isinstance(node, ast.ImportFrom) and node.module == "solution")
        for name in _bound_by(node)
    } - {"solution"}
    constants, classes, errors = set[tuple[str, ...]](), set[tuple[str, ...]](), set[tuple[str, ...]]()
    for item in (item for tree in trees for item in nodes(tree)):
        if isinstance(item, ast.Compare) and [type(op) for op in item.ops] in ([ast.Eq], [ast.Is]):
            sides = [item.left, *item.comparators]
            if any(isinstance(side, ast.Call) for side in sides):
                constants |= {path for path in map(_path, sides) if _looks_constant(path)}
        elif isinstance(item, ast.Call):
            name = getattr(item.func, "attr", getattr(item.func, "id", ""))
            if name in ("assertEqual", "assertIs"):
                constants |= {path for path in map(_path, item.args[:2]) if _looks_constant(path)}
            elif name in ("isinstance", "assertIsInstance"):
                classes |= set(map(_path, item.args[1:2]))
            elif name in ("raises", "assertRaises", "assertRaisesRegex"):
                errors |= set(map(_path, item.args[:1]))
        elif isinstance(item, ast.ExceptHandler) and item.type is not None:
            errors.add(_path(item.type))
    groups = []
    for found in (constants, classes, errors):
        paths = {path[1:] if path[:1] == ("solution",) else path for path in found}
        groups.append([list(path) for path in sorted(paths) if path and path[0] not in own])
    return groups


def constants_read(trees: list[ast.Module], names: set[str]) -> list[tuple[list[str], str, str]]:
    """Return where tests read constants of the program's classes and objects: the path of the object, ``"getattr"`` or
    ``"getitem"``, and the name: ``Sign.PLUS``, ``Sign["PLUS"]``.
    """
    found = set()
    for node in (node for tree in trees for node in nodes(tree)):
        path: tuple[str, ...] = ()
        if isinstance(node, ast.Attribute) and node.attr[:1].isupper():
            path, operation, name = _path(node.value), "getattr", node.attr
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and type(node.slice.value) is str:
            path, operation, name = _path(node.value), "getitem", node.slice.value
        path = path[1:] if path[:1] == ("solution",) else path
        if path and path[0] in names and (operation == "getattr" or path[-1][:1].isupper()):
            found.add((path, operation, name))
    return [(list(path), operation, name) for path, operation, name in sorted(found)]


def _looks_constant(path: tuple[str, ...]) -> bool:
    return bool(path) and (path[-1].isupper() or (len(path) > 1 and path[-2][:1].isupper()))


def _path(node: ast.expr) -> tuple[str, ...]:
    if isinstance(node, ast.Attribute):
        before = _path(node.value)
        return (*before, node.attr) if before else ()
    return (node.id,) if isinstance(node, ast.Name) else ()


def _bound_by(node: ast.AST) -> set[str]:
    """Return the names that a top-level statement of a module binds."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    names = {item.id for item in nodes(node) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)}
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler):
            names |= _bound_by(child)
    return names
