"""Tells from the source of a program whether it may do something else in another run with the same tests."""

from __future__ import annotations

import ast
import builtins
import importlib
import types

from rllm_gym.grading.python_source import parse_python

_MODULES = frozenset(
    {
        "__future__", "abc", "array", "base64", "bisect", "cmath", "collections", "collections.abc", "copy",
        "dataclasses", "decimal", "difflib", "enum", "fractions", "functools", "hashlib", "heapq", "html",
        "itertools", "json", "math", "numbers", "operator", "re", "statistics", "string", "struct", "textwrap",
        "typing", "unicodedata", "zlib",
    }
)  # fmt: skip
"""Modules without functions that read anything but their arguments."""

_NAMES = frozenset(dir(builtins)) - {
    "__build_class__", "__import__", "__loader__", "__spec__", "breakpoint", "compile", "copyright",
    "credits", "delattr",
    "dir", "eval", "exec", "exit", "getattr", "globals", "hash", "help", "id", "input", "license", "locals",
    "memoryview",
    "open", "quit", "setattr", "vars",
}  # fmt: skip
"""Builtins without access to addresses, files or names."""

_ATTRIBUTES = frozenset({"__class__", "__dict__", "__doc__", "__name__", "__qualname__"})
"""Special attributes, besides methods that a class may define, that lead nowhere."""
_LEADING_ELSEWHERE = frozenset(
    {
        "ForwardRef", "NormalDist", "__dir__", "__getattribute__", "__reduce__", "__reduce_ex__",
        "__sizeof__", "__subclasses__",
        "attrgetter", "get_type_hints", "make_dataclass", "methodcaller",
    }
)  # fmt: skip


def may_vary(source: str) -> bool:
    """Return whether a program may do something else in another run: it could read the time, random numbers,
    addresses.

    False only if all that it names is known to depend on nothing but its arguments.
    """
    try:
        tree = parse_python(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    aliases: dict[str, types.ModuleType] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name not in _MODULES:
                    return True
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                aliases[alias.asname or name] = importlib.import_module(name)
        elif isinstance(node, ast.ImportFrom):
            if node.level or node.module not in _MODULES:
                return True
            module = importlib.import_module(node.module)
            if any(alias.name != "*" and not _plain_member(module, alias.name) for alias in node.names):
                return True
    return any(_may_vary(node, aliases) for node in ast.walk(tree))


def _plain_member(module: types.ModuleType, name: str) -> bool:
    is_module = isinstance(getattr(module, name, module), types.ModuleType)
    return not (is_module or name.startswith("_") or name in _LEADING_ELSEWHERE)


def _module(node: ast.AST, modules: dict[str, types.ModuleType]) -> types.ModuleType | None:
    if isinstance(node, ast.Attribute):
        owner = _module(node.value, modules)
        found = getattr(owner, node.attr, None)
        return found if isinstance(found, types.ModuleType) else None
    return modules.get(node.id) if isinstance(node, ast.Name) else None


def _may_vary(node: ast.AST, modules: dict[str, types.ModuleType]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in vars(builtins) and node.id not in _NAMES | {"__name__", "__doc__"}
    if isinstance(node, ast.Attribute):
        owner = _module(node.value, modules)
        if owner is not None:
            named = f"{owner.__name__}.{node.attr}"
            return named not in _MODULES and not _plain_member(owner, node.attr)
        if node.attr.startswith("__") and node.attr.endswith("__"):
            defined = node.attr in vars(object) or node.attr in vars(int) or node.attr in vars(list)
            return node.attr not in _ATTRIBUTES and (not defined or node.attr in _LEADING_ELSEWHERE)
        return node.attr in _OF_FRAMES
    if isinstance(node, ast.Global):
        return any(name.startswith("__") for name in node.names)
    return isinstance(node, ast.AsyncFunctionDef | ast.Await)


_OF_FRAMES = frozenset({"f_globals", "f_builtins", "f_back", "gi_frame", "tb_frame", "cr_frame", "ag_frame"})
