"""Imports go one way: no circles between modules, and packages in layers.

Every import statement counts, also inside functions and under ``TYPE_CHECKING``. ``import a.b`` counts as an import of
``a.b`` and not of ``a``: a package's ``__init__`` imports its own modules to export their names.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import itertools
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement

from rllm_gym.grading.python_source import parse_python

ROOT = Path(__file__).resolve().parents[2]

LAYERS = (
    "rllm_gym.version",
    "rllm_gym.trainer_package",
    "rllm_gym.argument_checks",
    "rllm_gym.core",
    "rllm_gym.runtime",
    "rllm_gym.parsing",
    "rllm_gym.chat",
    "rllm_gym.data",
    "rllm_gym.sandbox",
    "rllm_gym.grading",
    "rllm_gym.envs.web.sites",
    "rllm_gym.envs.web.browser",
    "rllm_gym.mcp",
    "rllm_gym.envs",
    "rllm_gym.multiagent",
    "rllm_gym",  # the root package itself, which registers the environments and games
    "rllm_gym.vector",
    "rllm_gym.agents",
    "rllm_gym.samplers",
    "rllm_gym.llm_judge",
    "rllm_gym.user_model",
    "rllm_gym.chat_server",
    "rllm_gym.engine",
    "rllm_gym.serving",
    "rllm_gym.testing",
    "rllm_gym.integrations",
    "rllm_gym.compat",
    "rllm_gym.commands",
    "rllm_gym.__main__",
    "trainers",
)
"""The packages, lowest first. A package may import those before it. Parts of a package can be packages of their own."""

UPWARD = {
    ("rllm_gym.compat.hydra_config", "trainers.config.other_names"),
    ("rllm_gym.compat.hydra_config", "trainers.option_checks"),
    ("rllm_gym.compat.trainer", "trainers"),
    ("rllm_gym.compat.trainer", "trainers.config.mapping"),
    ("rllm_gym.compat.trainer", "trainers.config_loading"),
    ("rllm_gym.compat.trainer", "trainers.fine_tuning.sft"),
    ("rllm_gym.compat.trainer", "trainers.train_env"),
}
"""Modules that import a higher package inside a function: rLLM's trainers, which need torch only when they are used."""


def source_files() -> dict[str, Path]:
    """Return the modules of both packages by name, without the repositories that are data of ``rllm/SWE-v0``."""
    found = {}
    for package in ("rllm_gym", "trainers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[:4] == ("rllm_gym", "envs", "swe", "repositories") and len(parts) > 5:
                continue
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


FILES = source_files()


def imports(module: str, tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the modules of :data:`FILES` that the statements in ``tree`` import, with the line."""
    package = module if FILES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [node.module])])
            names = [name if (name := f"{base}.{alias.name}") in FILES else base for alias in node.names]
        else:
            continue
        yield from ((name, node.lineno) for name in names if name in FILES and name != module)


def tree_of(module: str) -> ast.AST:
    return parse_python(FILES[module].read_text("utf-8"))


@functools.cache
def graph() -> dict[str, dict[str, int]]:
    """Return for each module the modules that it imports, with the line."""
    return {module: dict(imports(module, tree_of(module))) for module in FILES}


def place(module: str, imported: str) -> str:
    return f"{FILES[module].relative_to(ROOT)}:{graph()[module][imported]} imports {imported}"


def layer(module: str) -> str:
    """Return the longest of :data:`LAYERS` that contains the module, or else the package that is missing there."""
    parts = module.split(".")
    prefixes = [".".join(parts[:length]) for length in range(len(parts), 1, -1)]
    return "trainers" if parts[0] == "trainers" else next((p for p in prefixes if p in LAYERS), ".".join(parts[:2]))


def test_no_modules_import_each_other() -> None:
    try:
        graphlib.TopologicalSorter(graph()).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1][::-1]  # from the importing to the imported module
        lines = [place(module, imported) for module, imported in itertools.pairwise(circle)]
        raise AssertionError("modules import each other:\n" + "\n".join(lines)) from None


def test_no_parts_of_the_trainer_import_each_other() -> None:
    """Its parts are the packages and modules directly in ``trainers``."""
    parts: dict[str, set[str]] = {}
    for module, targets in graph().items():
        part = ".".join(module.split(".")[:2])
        if module.startswith("trainers."):
            imported = {".".join(target.split(".")[:2]) for target in targets if target.startswith("trainers.")}
            parts.setdefault(part, set()).update(imported - {part})
    try:
        graphlib.TopologicalSorter(parts).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1][::-1]
        lines = [
            place(module, target)
            for part, other in itertools.pairwise(circle)
            for module, targets in graph().items()
            for target in targets
            if f"{module}.".startswith(f"{part}.") and f"{target}.".startswith(f"{other}.")
        ]
        raise AssertionError("parts of the trainer import each other:\n" + "\n".join(lines)) from None


def test_no_package_imports_a_higher_one() -> None:
    unknown = {layer(module) for module in graph()} - set(LAYERS)
    assert not unknown, f"add these packages to LAYERS: {sorted(unknown)}"
    upward = {
        (module, imported)
        for module, targets in graph().items()
        for imported in targets
        if LAYERS.index(layer(imported)) > LAYERS.index(layer(module))
    }
    assert upward == UPWARD, "\n".join(place(*pair) for pair in sorted(upward - UPWARD)) or "remove the rest of UPWARD"


def test_rllm_gym_imports_nothing_of_the_trainers_at_module_level() -> None:
    for module, targets in graph().items():
        if layer(module) == "trainers" or not any(layer(imported) == "trainers" for imported in targets):
            continue
        functions = [node for node in ast.walk(tree_of(module)) if isinstance(node, ast.FunctionDef)]
        inside = {line for function in functions for _, line in imports(module, function)}
        for imported, line in imports(module, tree_of(module)):
            if layer(imported) == "trainers":
                assert line in inside, f"{FILES[module].relative_to(ROOT)}:{line} imports {imported} at module level"


def test_the_base_dependencies_are_imported_without_an_extra() -> None:
    """A dependency of the trainer, or of a single environment, belongs to an extra."""
    imported = set()
    for module in FILES:
        if layer(module) not in ("trainers", "rllm_gym.integrations"):
            for node in ast.iter_child_nodes(tree_of(module)):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                imported |= {name.partition(".")[0] for name in names}
    base = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    unused = {name for name in (Requirement(text).name for text in base) if name.replace("-", "_") not in imported}
    assert not unused, f"move to an extra: {sorted(unused)}"
