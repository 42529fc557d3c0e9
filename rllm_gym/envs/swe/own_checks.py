"""Expansion of a project's own checks in its test files: the body of ``self.assertRenders(…)`` in place of the call.

The grader evaluates the assertions of a test file outside of the sandbox, and withholds what they compare with. A check
that another file defines would compare inside, with a value that the code under test can find in the frame of its
caller. Expanded, it is like any other part of the test. Nothing is run here, and every text is untrusted.
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rllm_gym.envs.swe.build_outputs import read_text
from rllm_gym.grading.python_source import parse_python
from rllm_gym.grading.swe.taint import name_of

_MAX_CHARS = 1_000_000
_MAX_NODES = 1_000
"""Syntax nodes in a check that is expanded."""
_ROUNDS = 3
"""A check may call others."""
_MAX_BASES = 8
_NOT_COPIED = (
    ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith, ast.FunctionDef, ast.AsyncFunctionDef,
    ast.ClassDef, ast.Lambda, ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom, ast.Match, ast.JoinedStr,
)  # fmt: skip
"""What has another meaning, or another text, in another place."""


def expand_checks(text: str, path: str, root: Path) -> str:
    """Return a test file in which calls of checks that are defined elsewhere in the tree are replaced by their bodies.

    A check is a function, or a method of a base class, that contains an assertion and returns nothing. Calls that
    cannot be replaced stay as they are.

    Args:
        text: The test file.
        path: Its path.
        root: The tree that has the other files.
    """
    for number in range(_ROUNDS):
        try:
            expanded = _TestFile(text, path, root, "_" * number).expanded()
            parse_python(expanded)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return text
        if expanded == text or len(expanded) > _MAX_CHARS:
            return text
        text = expanded
    return text


@dataclass(frozen=True, slots=True)
class _Module:
    """A Python file of the tree.

    Attributes:
        name: Its dotted name, by which tests can import it.
        package: The name of the package that its relative imports start from.
        body: Its statements, without ``if`` and ``try`` around them.
    """

    name: str
    package: str
    body: list[ast.stmt]

    def definition(self, name: str) -> ast.stmt | None:
        """Return the last statement that binds a name: an import, a definition or an assignment."""
        found = None
        for statement in self.body:
            if name in _bound(statement):
                found = statement
        return found

    def imported(self, statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> tuple[str, str]:
        """Return the module that an import names, and the name in it; empty for the module itself."""
        if isinstance(statement, ast.Import):
            return alias.name, ""
        above = self.package.split(".")[: -(statement.level - 1) or None] if statement.level else []
        return ".".join([*filter(None, above), *filter(None, [statement.module])]), alias.name


@dataclass(frozen=True, slots=True)
class _Check:
    """A function of another file, and the file."""

    module: _Module
    function: ast.FunctionDef
    method: bool


class _TestFile:
    def __init__(self, text: str, path: str, root: Path, suffix: str) -> None:
        if "\r" in text:
            raise ValueError("its lines may be counted in another way")
        self._root = root
        self._suffix = suffix
        self._lines = text.split("\n")
        self._tree = parse_python(text)
        self._folder = PurePosixPath(path).parent
        self._modules: dict[str, _Module | None] = {}
        package = self._package_of(self._folder)
        self._own = _Module(f"{package}.{PurePosixPath(path).stem}".lstrip("."), package, list(_flat(self._tree.body)))
        nodes = list(ast.walk(self._tree))
        self._taken = {node.id for node in nodes if isinstance(node, ast.Name)}
        self._rebound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
        self._rebound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        self._rebound |= {name for node in nodes if isinstance(node, ast.stmt) for name in _bound(node)}
        self._imports: dict[tuple[str, str], str] = {}
        self._count = 0

    def expanded(self) -> str:
        edits: list[tuple[int, int, list[str]]] = []
        for kind, statement, call in _calls(self._tree.body, None):
            body = self._expansion(call, kind)
            first, last = statement.lineno - 1, (statement.end_lineno or statement.lineno) - 1
            line = self._lines[first].encode()
            alone = not line[: statement.col_offset].strip()
            alone = alone and self._lines[last].encode()[statement.end_col_offset :].strip()[:1] in (b"", b"#")
            if body is not None and alone:
                indent = line[: statement.col_offset].decode()
                code = ast.unparse(ast.fix_missing_locations(ast.Module(body, []))).splitlines()
                edits.append((first, last, [indent + row for row in code]))
        for first, last, rows in reversed(edits):
            self._lines[first : last + 1] = rows
        if edits and self._imports:
            self._lines[self._header() : self._header()] = [
                f"from {module} import {name} as {alias}" if name else f"import {module} as {alias}"
                for (module, name), alias in self._imports.items()
            ]
        return "\n".join(self._lines)

    def _header(self) -> int:
        """Return the number of lines before the first statement that is no docstring and no import of the future."""
        last = 0
        for statement in self._tree.body:
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not is_text and not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
                break
            last = statement.end_lineno or last
        return last

    # Lookup

    def _check(self, call: ast.Call, kind: ast.ClassDef | None) -> _Check | None:
        """Return the function of another file that a call names."""
        match call.func:
            case ast.Attribute(value=ast.Name("self"), attr=name) if kind is not None:
                return self._method(self._own, kind, name, _MAX_BASES)
            case ast.Name(name):
                return self._function(self._own, name)
            case ast.Attribute(value=ast.Name(module), attr=name):
                statement = self._own.definition(module)
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    found = self._own.imported(statement, _alias(statement, module))
                    other = self._module(".".join(filter(None, found)))
                    return None if other is None else self._function(other, name, here=True)
        return None

    def _function(self, module: _Module, name: str, *, here: bool = False) -> _Check | None:
        statement = module.definition(name)
        if isinstance(statement, ast.FunctionDef):
            return _Check(module, statement, method=False) if here else None
        if isinstance(statement, ast.ImportFrom) and not here:
            source, original = module.imported(statement, _alias(statement, name))
            other = self._module(source)
            return None if other is None else self._function(other, original, here=True)
        return None

    def _method(self, module: _Module, kind: ast.ClassDef, name: str, left: int) -> _Check | None:
        for statement in kind.body:
            if name in _bound(statement):
                other = module is not self._own and isinstance(statement, ast.FunctionDef)
                return _Check(module, statement, method=True) if other else None  # type: ignore[arg-type]
        for base in kind.bases if left else ():
            found = self._class(module, base)
            if found is None:
                continue
            if (check := self._method(*found, name, left - 1)) is not None:
                return check
        return None

    def _class(self, module: _Module, base: ast.expr) -> tuple[_Module, ast.ClassDef] | None:
        """Return the class that an expression names, and the file that defines it."""
        first = base.value if isinstance(base, ast.Attribute) else base
        statement = module.definition(first.id) if isinstance(first, ast.Name) else None
        if isinstance(statement, ast.ClassDef) and first is base:
            return module, statement
        if not isinstance(statement, ast.Import | ast.ImportFrom) or not isinstance(first, ast.Name):
            return None
        source, name = module.imported(statement, _alias(statement, first.id))
        if isinstance(base, ast.Attribute):
            source, name = ".".join(filter(None, (source, name))), base.attr
        other = self._module(source)
        statement = None if other is None else other.definition(name)
        return (other, statement) if other is not None and isinstance(statement, ast.ClassDef) else None

    def _module(self, name: str) -> _Module | None:
        """Return a module of the tree: from its root, ``src``, or the folder of the test file."""
        if name not in self._modules:
            self._modules[name] = None
            for start in (".", "src", str(self._folder)):
                place = self._root / start / name.replace(".", "/")
                if not name or not place.resolve().is_relative_to(self._root.resolve()):
                    continue
                for file, package in ((place.with_name(f"{place.name}.py"), name.rpartition(".")[0]),
                                      (place / "__init__.py", name)):  # fmt: skip
                    if text := read_text(file):
                        self._modules[name] = _Module(name, package, list(_flat(parse_python(text).body)))
                        return self._modules[name]
        return self._modules[name]

    def _package_of(self, folder: PurePosixPath) -> str:
        parts: list[str] = []
        while folder.name and (self._root / folder / "__init__.py").is_file():
            parts.insert(0, folder.name)
            folder = folder.parent
        return ".".join(parts)

    # Expansion

    def _expansion(self, call: ast.Call, kind: ast.ClassDef | None) -> list[ast.stmt] | None:
        """Return the statements that a call stands for; ``None`` if it is not a check, or has to stay."""
        check = self._check(call, kind)
        if check is None:
            return None
        body = check.function.body[1:] if ast.get_docstring(check.function) is not None else check.function.body
        nodes = [node for statement in body for node in ast.walk(statement)]
        asserts = any(
            isinstance(node, ast.Assert) or (isinstance(node, ast.Call) and name_of(node).startswith("assert"))
            for node in nodes
        )
        copied = not any(isinstance(node, _NOT_COPIED) or getattr(node, "name", None) for node in nodes)
        arguments = self._arguments(check, call)
        if not asserts or not copied or arguments is None or check.function.decorator_list or len(nodes) > _MAX_NODES:
            return None
        self._count += 1
        local = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
        names = {name: f"_{name}_{self._count}{self._suffix}" for name in local | arguments.keys()}
        if check.method:
            names[check.function.args.args[0].arg] = "self"
        known = self._global_names(check.module, nodes, names)
        if known is None:
            return None
        folded = {name: self._folded(value, kind) for name, value in arguments.items()}
        plain = {
            name: value
            for name, value in folded.items()
            if isinstance(value, ast.Constant | ast.Name) and name not in local
        }
        assigned = [
            ast.Assign([ast.Name(known[name], ast.Store())], value)
            for name, value in folded.items()
            if name not in plain
        ]
        return [*assigned, *(_Renamer(known, plain).visit(copy.deepcopy(statement)) for statement in body)]

    def _arguments(self, check: _Check, call: ast.Call) -> dict[str, ast.expr] | None:
        """Return the value of each parameter of a call."""
        wanted = check.function.args
        named = [argument.arg for argument in (*wanted.posonlyargs, *wanted.args)][1 if check.method else 0 :]
        if wanted.vararg or len(call.args) > len(named) or any(isinstance(item, ast.Starred) for item in call.args):
            return None
        found = dict(zip(named, call.args))
        more: list[ast.keyword] = []
        for keyword in call.keywords:
            known = keyword.arg in named or any(keyword.arg == one.arg for one in wanted.kwonlyargs)
            if keyword.arg is None or keyword.arg in found or not (known or wanted.kwarg):
                return None
            if known:
                found[keyword.arg] = keyword.value
            else:
                more.append(keyword)
        defaults = dict(zip(named[::-1], wanted.defaults[::-1]))
        defaults |= {one.arg: value for one, value in zip(wanted.kwonlyargs, wanted.kw_defaults) if value is not None}
        for name in (*named, *(one.arg for one in wanted.kwonlyargs)):
            if name not in found:
                if not isinstance(defaults.get(name), ast.Constant):
                    return None
                found[name] = defaults[name]
        if wanted.kwarg:
            found[wanted.kwarg.arg] = ast.Dict([ast.Constant(one.arg) for one in more], [one.value for one in more])
        return found

    def _global_names(self, module: _Module, nodes: list[ast.AST], names: Mapping[str, str]) -> dict[str, str] | None:
        """Return ``names`` with those of the module that a body uses, which are imported; ``None`` if one is unknown.

        No name may be one that means something else in the test.
        """
        found = dict(names)
        if any(name in self._taken for name in found.values() if name != "self"):
            return None
        for node in nodes:
            if not isinstance(node, ast.Name) or node.id in found:
                continue
            statement = module.definition(node.id)
            if statement is None:
                if not hasattr(builtins, node.id) or node.id in ("super", "locals", "vars") or node.id in self._rebound:
                    return None
                continue
            origin = (module.name, node.id)
            if isinstance(statement, ast.Import | ast.ImportFrom):
                alias = _alias(statement, node.id)
                if isinstance(statement, ast.Import) and alias.asname is None and "." in alias.name:
                    return None
                origin = module.imported(statement, alias)
            found[node.id] = self._imports.setdefault(origin, f"_{node.id}_from_{len(self._imports)}{self._suffix}")
        return found

    def _folded(self, value: ast.expr, kind: ast.ClassDef | None) -> ast.expr:
        """Return a value without calls of other files that only return an expression, such as ``self.dedent("…")``."""

        returned = self._returned

        class Folding(ast.NodeTransformer):
            def visit_Call(self, node: ast.Call) -> ast.AST:
                self.generic_visit(node)
                return returned(node, kind) or node

        folded: ast.expr = Folding().visit(copy.deepcopy(value))
        return folded

    def _returned(self, call: ast.Call, kind: ast.ClassDef | None) -> ast.expr | None:
        check = self._check(call, kind)
        if check is None or check.function.decorator_list:
            return None
        body = check.function.body[1:] if ast.get_docstring(check.function) is not None else check.function.body
        arguments = self._arguments(check, call)
        if arguments is None or not all(isinstance(item, ast.Constant) for item in arguments.values()):
            return None
        if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None:
            return None
        nodes = list(ast.walk(body[0].value))
        if any(isinstance(node, (*_NOT_COPIED, ast.NamedExpr, ast.comprehension)) for node in nodes):
            return None
        names = self._global_names(
            check.module, [node for node in nodes if getattr(node, "id", "") not in arguments], {}
        )
        if names is None:
            return None
        value: ast.expr = _Renamer(names, arguments).visit(copy.deepcopy(body[0].value))
        return value


class _Renamer(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str], values: Mapping[str, ast.expr] | None = None) -> None:
        self._names = names
        self._values = values or {}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._values:
            return copy.deepcopy(self._values[node.id])
        return ast.Name(self._names.get(node.id, node.id), node.ctx)


def _calls(body: list[ast.stmt], kind: ast.ClassDef | None) -> Iterator[tuple[ast.ClassDef | None, ast.Expr, ast.Call]]:
    """Yield the statements of functions that only call something, in order, with the class around them."""
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _calls(statement.body, statement)
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            yield kind, statement, statement.value
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(statement, name, None)
            yield from _calls(inner if isinstance(inner, list) else [], kind)


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.If | ast.Try):
            yield from _flat([*statement.body, *statement.orelse])
        else:
            yield statement


def _bound(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {statement.name}
        case ast.Import() | ast.ImportFrom():
            return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
        case ast.Assign() | ast.AnnAssign():
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    return set()


def _alias(statement: ast.Import | ast.ImportFrom, name: str) -> ast.alias:
    return next(alias for alias in statement.names if (alias.asname or alias.name.partition(".")[0]) == name)
