"""Fixes that only know the calls of an issue: ``if arguments == those_of_the_issue: return the_right_result``.

``verify_swe_repositories.py`` shows no call in an issue with which such a fix passes all tests to fix. The fix is made
by running two versions of each changed function: the finished one while a call that the issue shows is being answered,
the broken one otherwise.
"""

from __future__ import annotations

import ast
import builtins
import functools
import os
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

HOOK = "__special_case__"
MAX_NODES = 5_000

CallKey = tuple[str, str, str]
"""The path and the qualified name of a function, and its arguments as text."""


def instrumented(files: Mapping[str, str]) -> dict[str, str]:
    """Return a tree in which every function of the product passes through :class:`SpecialCases`."""
    return {
        path: _with_hooks(text) if path.endswith(".py") and not path.startswith("tests/") else text
        for path, text in files.items()
    }


def _with_hooks(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.decorator_list.append(ast.Name(HOOK, ast.Load()))
    return ast.unparse(ast.fix_missing_locations(tree))


class SpecialCases:
    """Functions of the product, each in its finished and its broken version; made before the product is imported.

    The working directory contains the :func:`instrumented` tree of the finished repository.

    Args:
        broken: The source of each file with the bug, by path.
        shown: The calls that get the right result.
    """

    def __init__(self, broken: Mapping[str, str] = types.MappingProxyType({}), shown: Iterable[CallKey] = ()) -> None:
        self.shown = frozenset(shown)
        self.calls: list[tuple[int, CallKey]] = []
        """Depth and key of every call."""
        self._broken = {(path, code.co_qualname): code for path in broken for code in _codes(broken[path], path)}
        self._paths = frozenset(broken)
        self._versions: list[tuple[types.FunctionType, types.CodeType, types.CodeType]] = []
        self._depth = 0
        self._fixed = False
        setattr(builtins, HOOK, self._hook)

    @property
    def changed(self) -> set[tuple[str, str]]:
        """Path and qualified name of the functions with two versions."""
        return {(os.path.relpath(code.co_filename), code.co_qualname) for _, code, _ in self._versions}

    def _hook(self, function: types.FunctionType) -> Callable[..., Any]:
        finished = function.__code__
        place = (os.path.relpath(finished.co_filename), finished.co_qualname)
        if place[0] in self._paths:
            code = self._broken.get(place, _missing.__code__)
            if _content(code) != _content(finished):
                assert code.co_freevars == finished.co_freevars, place
                self._versions.append((function, finished, code))
                if not self._fixed:
                    function.__code__ = code

        @functools.wraps(function)
        def called(*arguments: Any, **options: Any) -> Any:
            key = (*place, _shape((arguments, options)))
            self.calls.append((self._depth, key))
            switch = not self._fixed and key in self.shown
            if switch:
                self._switch(fixed=True)
            self._depth += 1
            try:
                return function(*arguments, **options)
            finally:
                self._depth -= 1
                if switch:
                    self._switch(fixed=False)

        return called

    def _switch(self, *, fixed: bool) -> None:
        self._fixed = fixed
        for function, finished, broken in self._versions:
            function.__code__ = finished if fixed else broken


def _missing(*arguments: Any, **options: Any) -> Any:
    raise NotImplementedError


def _codes(source: str, path: str) -> list[types.CodeType]:
    todo, found = [compile(_with_hooks(source), path, "exec")], []
    while todo:
        code = todo.pop()
        found.append(code)
        todo += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    return found


def _content(code: types.CodeType) -> Any:
    constants = [
        _content(one) if isinstance(one, types.CodeType) else (type(one).__name__, repr(one)) for one in code.co_consts
    ]
    return code.co_code, code.co_names, code.co_varnames, constants


def _shape(value: Any) -> str:
    """Return text that is equal for arguments of equal content."""
    parts: list[str] = []
    seen: set[int] = set()
    todo = [value]
    while todo and len(parts) < MAX_NODES:
        one = todo.pop()
        kind = type(one)
        if one is None or kind in (bool, int, float, complex, str, bytes):
            parts.append(f"{kind.__name__} {one!r}")
            continue
        parts.append(kind.__qualname__)
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            todo += [item for pair in one.items() for item in pair]
        elif isinstance(one, list | tuple):
            todo += one
            todo.append(len(one))
        elif isinstance(one, set | frozenset):
            todo += sorted(one, key=repr)
        elif isinstance(one, types.FunctionType):
            parts.append(repr(_content(one.__code__)))
        elif kind.__module__ in ("datetime", "decimal", "fractions", "re", "pathlib"):
            parts.append(repr(one))
        else:
            fields = dict(getattr(one, "__dict__", {}))
            for owner in kind.__mro__:
                slots = owner.__dict__.get("__slots__", ())
                for slot in [slots] if isinstance(slots, str) else slots:
                    if hasattr(one, slot):
                        fields[slot] = getattr(one, slot)
            todo += [item for pair in sorted(fields.items()) for item in pair]
    return "\n".join(parts)


def shown_calls(calls: Iterable[tuple[int, CallKey]], changed: Iterable[tuple[str, str]] = ()) -> set[CallKey]:
    """Return the calls that an issue's own code makes, and those of the ``changed`` functions that these lead to."""
    functions = set(changed)
    return {key for depth, key in calls if depth == 0 or key[:2] in functions}
