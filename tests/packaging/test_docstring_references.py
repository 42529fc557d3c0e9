"""Names in docstrings exist: the targets of roles, and the exceptions under ``Raises:``.

A rename that forgets a docstring fails here. The sources are parsed and not imported, so that optional dependencies do
not matter; names of other packages are not checked.
"""

from __future__ import annotations

import ast
import builtins
import functools
import gc
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.packaging.test_imports import FILES, tree_of

THIRD_PARTY = {"PettingZooRegistryError"}
"""Classes of other packages whose names are written without the package."""

_ROLE = re.compile(r":(class|func|meth|data|mod|attr|exc|obj):`(?:[^`<]*<)?~?\.?([^`>]*)>?`")
_RAISES = re.compile(r"^( *)Raises:\n((?:\1    .*\n?|\s*\n)*)", re.MULTILINE)
_EXCEPTIONS = re.compile(r"[A-Za-z_][\w.]*(?:(?:, | or )[A-Za-z_][\w.]*)*(?=:\s)")
_BLOCKS = ("body", "orelse", "finalbody", "handlers")


@dataclass(eq=False)
class Scope:
    """The names of a module or a class.

    Attributes:
        names: A scope for each class, the full name for each import, ``""`` for all others.
        bases: The base classes of a class, as written.
        module: The module of a class.
    """

    names: dict[str, Scope | str] = field(default_factory=dict)
    bases: list[str] = field(default_factory=list)
    module: Scope | None = None


@functools.cache
def modules() -> dict[str, tuple[Scope, ast.AST]]:
    """Return the scope and the tree of each module of both packages."""
    found = {}
    gc.disable()  # it would go through all trees after each file
    try:
        for name, path in FILES.items():
            scope, tree = Scope(), tree_of(name)
            collect(scope, scope, tree, name.split(".") if path.name == "__init__.py" else name.split(".")[:-1])
            found[name] = scope, tree
    finally:
        gc.enable()
    return found


@functools.cache
def own_names() -> dict[str, list[Scope | str]]:
    """Return what the modules define, by name: a docstring may name what its module does not import."""
    found: dict[str, list[Scope | str]] = {}
    for scope, _ in modules().values():
        for name, value in scope.names.items():
            if isinstance(value, Scope) or not value:
                found.setdefault(name, []).append(value)
    return found


@functools.cache
def packages() -> set[str]:
    """Return the top-level names of all packages that the modules import."""
    imported = {
        value.partition(".")[0]
        for scope, _ in modules().values()
        for value in scope.names.values()
        if type(value) is str
    }
    return imported - {"", "rllm_gym", "trainers"}


def collect(scope: Scope, module: Scope, block: ast.AST, package: list[str]) -> None:
    """Add the names that the statements of a block define."""
    for node in (node for name in _BLOCKS for node in getattr(block, name, ())):
        if isinstance(node, ast.ClassDef):
            inner = Scope(bases=[ast.unparse(base).partition("[")[0] for base in node.bases], module=module)
            collect(inner, module, node, package)
            scope.names[node.name] = inner
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            scope.names[node.name] = ""
            for item in ast.walk(node) if scope is not module else ():
                if (
                    isinstance(item, ast.Attribute)
                    and isinstance(item.ctx, ast.Store)
                    and isinstance(item.value, ast.Name)
                ):
                    scope.names.setdefault(item.attr, "")
        elif isinstance(node, ast.Import):
            scope.names |= {alias.asname or alias.name.partition(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*parents, *filter(None, [node.module])])
            scope.names |= {alias.asname or alias.name: f"{source}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for item in ast.walk(target):
                    if isinstance(item, ast.Name):
                        scope.names.setdefault(item.id, "")
        else:
            collect(scope, module, node, package)


def exists(target: str, scope: Scope, role: str = "") -> bool:
    """Return whether a dotted name exists: in a class, in its module, absolutely, or in any module."""
    first, *rest = target.split(".")
    for inside in (scope, scope.module):
        value = member(inside, first) if inside is not None else None
        if value is not None:
            return has(value, rest)
    if first in ("rllm_gym", "trainers"):
        return has(target, [])
    if any(has(value, rest) for value in own_names().get(first, ())):
        return True
    if role in ("meth", "attr") and not rest:
        return has_unknown_base(scope)
    return first in packages() if rest else hasattr(builtins, first) or first in THIRD_PARTY


def has(value: Scope | str | None, path: list[str]) -> bool:
    """Return whether a value has the attribute at this path; one whose type is not known has all."""
    for name in path:
        value = followed(value)
        if not isinstance(value, Scope):
            break
        found = member(value, name)
        value = "" if found is None and has_unknown_base(value) else found
    return followed(value) is not None


def member(scope: Scope, name: str) -> Scope | str | None:
    """Return the value of a name in a module, or in a class and its bases; ``None`` if it does not exist."""
    if name in scope.names:
        return scope.names[name]
    found = (member(base, name) for base in bases(scope) if isinstance(base, Scope))
    return next((value for value in found if value is not None), None)


@functools.cache
def has_unknown_base(scope: Scope) -> bool:
    return any(base != "object" if isinstance(base, str) else has_unknown_base(base) for base in bases(scope))


@functools.cache
def bases(scope: Scope) -> list[Scope | str]:
    """Return the base classes of a class; the name of those of other packages."""
    found: list[Scope | str] = []
    for base in scope.bases:
        value: Scope | str | None = scope.module
        for part in base.split("."):
            value = followed(member(value, part)) if isinstance(value, Scope) else None
        found.append(value if isinstance(value, Scope) and value is not scope else base)
    return [base for base in found if base not in ("Generic", "Protocol")]


@functools.cache
def followed(value: Scope | str | None) -> Scope | str | None:
    """Return what an imported name stands for."""
    while isinstance(value, str) and value.partition(".")[0] in ("rllm_gym", "trainers"):
        if value in modules():
            return modules()[value][0]
        owner, _, name = value.rpartition(".")
        inside = followed(owner) if owner else None
        value = member(inside, name) if isinstance(inside, Scope) else inside
    return value


def docstrings(block: ast.AST, scope: Scope) -> Iterator[tuple[int, str, Scope]]:
    """Yield line, text and scope of each docstring, also of attributes."""
    for node in (node for name in _BLOCKS for node in getattr(block, name, ())):
        match node:
            case ast.Expr(ast.Constant(str(text))):
                yield node.lineno, text, scope
            case ast.ClassDef():
                inner = scope.names.get(node.name)
                yield from docstrings(node, inner if isinstance(inner, Scope) else scope)
            case _:
                yield from docstrings(node, scope)


def missing(text: str, scope: Scope) -> list[str]:
    """Return the names in a docstring that do not exist."""
    found = [name for role, name in _ROLE.findall(text) if not exists(name.removesuffix("()"), scope, role)]
    for indent, section in _RAISES.findall(text):
        lines = (_EXCEPTIONS.match(line.removeprefix(f"{indent}    ")) for line in section.splitlines())
        names = [name for line in lines if line for name in re.split(r", | or ", line[0])]
        found += [name for name in names if not exists(name, scope)]
    return found


def test_names_in_docstrings_exist() -> None:
    wrong = [
        f"{FILES[name]}, docstring of line {line}: {target}"
        for name, (scope, tree) in modules().items()
        for line, text, inner in docstrings(tree, scope)
        for target in missing(text, inner)
    ]
    assert not wrong, "these names do not exist:\n" + "\n".join(wrong)


def test_a_name_that_does_not_exist_is_found() -> None:
    scope = modules()["rllm_gym.grading.code.verdict"][0].names["CodeVerdict"]
    assert isinstance(scope, Scope)
    text = """:attr:`correct`, :attr:`correctness`, :class:`~rllm_gym.core.TextEnv`, :func:`rllm_gym.make_nothing`,
    :class:`Nothing`, :meth:`StdioTests.run_nothing`, :attr:`~StdioTests.limits`, :exc:`ValueError`, :func:`run <runs>`

    Raises:
        TaskError, NoError: Nothing.
        ValueError: A word:
            NotError: is none.
        GoneError: It is gone.
    """
    roles = ["correctness", "rllm_gym.make_nothing", "Nothing", "StdioTests.run_nothing", "runs"]
    assert missing(text, scope) == [*roles, "NoError", "GoneError"]
