"""Tells from the text of a test whether it lets assertions of callbacks fail on purpose: of programs that run tests."""

from __future__ import annotations

import ast
import builtins
import re
from typing import Any

from .free_names import nodes

_NAMES = re.compile(r"(?<![a-z])errors?(?![a-z])|fail|AssertionError", re.IGNORECASE)


def looks_at_failures(trees: list[ast.Module]) -> bool:
    """Return whether a test uses a variable, attribute or key that is named after errors or failures.

    Its comments and messages, and the names of its tests, say nothing about what it looks at.
    """
    left_out = {
        id(item)
        for tree in trees
        for node in nodes(tree)
        for part in (node.msg if isinstance(node, ast.Assert) else None, node if isinstance(node, ast.Raise) else None)
        if part is not None
        for item in nodes(part)
    }
    return any(_NAMES.search(text) for tree in trees for node in nodes(tree) for text in _names(node, left_out))


def _names(node: ast.AST, left_out: set[int]) -> list[str]:
    if id(node) in left_out:
        return []
    if isinstance(node, ast.Name | ast.Attribute):
        return [node.id if isinstance(node, ast.Name) else node.attr]
    keys: list[Any] = []
    if isinstance(node, ast.Subscript):
        keys = [node.slice]
    elif isinstance(node, ast.Compare):
        keys = [node.left, *node.comparators]
    elif isinstance(node, ast.Dict):
        keys = node.keys
    return [key.value for key in keys if isinstance(key, ast.Constant) and type(key.value) is str]


def failing_by_themselves(trees: list[ast.Module]) -> set[str]:
    """Return the names of the test's functions that depend on nothing but themselves: the program has no part in it.

    That is so if they use no parameter and no variable from elsewhere, as in ``def bad(): assert 1 + 1 == 3``.
    """
    functions: dict[str, list[set[str]]] = {}
    for node in (node for tree in trees for node in nodes(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.setdefault(node.name, []).append(_used(node))
    found = set(functions)
    while True:
        known = found | set(dir(builtins))
        kept = {name for name in found if all(used <= known for used in functions[name])}
        if kept == found:
            return found
        found = kept


def _used(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names that a function uses and does not assign itself; of ``self``, all but methods that assert."""
    used, assigned = set[str](), set[str]()
    methods = set()
    for node in (node for statement in function.body for node in nodes(statement)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            if isinstance(owner, ast.Name) and owner.id == "self" and node.func.attr.startswith(("assert", "fail")):
                methods.add(owner)
        elif isinstance(node, ast.Name) and node not in methods:
            (used if isinstance(node.ctx, ast.Load) else assigned).add(node.id)
    return used - assigned
