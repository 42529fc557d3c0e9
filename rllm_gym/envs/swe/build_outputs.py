"""Files that installing a package would create next to its sources: its metadata, and its version file.

Repositories that read their own version when they are imported cannot be tested from a bare checkout. Nothing is
built or run here: these files are written from the project's configuration.
"""

from __future__ import annotations

import ast
import configparser
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllm_gym.grading.python_source import parse_python

VERSION = "0.0.0"
_MAX_BYTES = 1_000_000
_STATED = re.compile(r"""^(?:__version__|version|VERSION)\s*(?::\s*\w+\s*)?=\s*['"]([^'"]+)['"]""", re.MULTILINE)


def missing_outputs(root: Path, modules: set[str], *, metadata: bool) -> dict[str, str]:
    """Return the files to add to a tree so that it can be imported: text by path.

    Args:
        root: The tree.
        modules: Modules that could not be imported, by dotted name.
        metadata: Whether the package's metadata was missing.
    """
    project = read_toml(root / "pyproject.toml")
    found: dict[str, str] = {}
    if metadata:
        name, version = name_and_version(root, project)
        if name is not None:
            folder = re.sub(r"[-.]+", "_", name) + ".egg-info"
            found[f"{folder}/PKG-INFO"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    wanted = _version_file(project)
    for module in sorted(modules):
        path = module.replace(".", "/") + ".py"
        for place in (path, f"src/{path}"):
            stated = wanted is not None and wanted == place
            likely = wanted is None and module.rpartition(".")[2] in ("_version", "version", "__version__")
            if (stated or likely) and (root / place).parent.is_dir() and not (root / place).exists():
                found[place] = _version_module()
                break
    return found


def entry_points(root: Path) -> str:
    """Return the text of ``entry_points.txt`` as the project states it: its commands, its pytest plugins."""
    project = read_toml(root / "pyproject.toml")
    stated, poetry = table(project, "project"), table(table(project, "tool"), "poetry")
    groups: dict[str, Mapping[str, Any]] = {
        **{group: table(table(stated, "entry-points"), group) for group in table(stated, "entry-points")},
        **{group: table(table(poetry, "plugins"), group) for group in table(poetry, "plugins")},
        "console_scripts": {**table(stated, "scripts"), **table(poetry, "scripts")},
    }
    lines = [
        line
        for group, entries in groups.items()
        for line in [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
    ]
    cfg = configparser.RawConfigParser(strict=False)
    try:
        cfg.read_string(read_text(root / "setup.cfg"))
    except configparser.Error:
        return "\n".join(lines) + "\n"
    if cfg.has_section("options.entry_points"):
        for group, text in cfg.items("options.entry_points"):
            lines += [f"[{group}]", *text.strip().splitlines()]
    return "\n".join(lines) + "\n"


def _version_module() -> str:
    parts = ", ".join(VERSION.split("."))
    return f'__version__ = version = "{VERSION}"\n__version_tuple__ = version_tuple = ({parts})\n'


def _version_file(project: Mapping[str, Any]) -> str | None:
    """Return the path to which setuptools-scm, hatch-vcs or pdm would write the version."""
    tool = table(project, "tool")
    scm = table(tool, "setuptools_scm")
    vcs = table(table(table(table(tool, "hatch"), "build"), "hooks"), "vcs")
    pdm = table(table(tool, "pdm"), "version")
    for value in (scm.get("version_file"), scm.get("write_to"), vcs.get("version-file"), pdm.get("write_to")):
        if isinstance(value, str) and value:
            return value
    return None


def name_and_version(root: Path, project: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return the distribution's name, ``None`` if it is not stated, and its version."""
    for stated in (table(project, "project"), table(table(project, "tool"), "poetry")):
        name, version = stated.get("name"), stated.get("version")
        if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9._-]+", name):
            return name, version if isinstance(version, str) else _stated_version(root, name)
    cfg = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        cfg.read_string(read_text(root / "setup.cfg"))
    except configparser.Error:
        return None, VERSION
    name = cfg.get("metadata", "name", fallback="")
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        argument = setup_arguments(root).get("name")
        name = argument if isinstance(argument, str) and re.fullmatch(r"[A-Za-z0-9._-]+", argument) else ""
    return (name, _stated_version(root, name)) if name else (None, VERSION)


def setup_arguments(root: Path) -> dict[str, Any]:
    """Return the arguments of ``setup()`` in ``setup.py`` that are literals, or names of literals."""
    try:
        tree = parse_python(read_text(root / "setup.py"))
        known: dict[str, Any] = {}
        found: dict[str, Any] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                known[node.targets[0].id] = node.value
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "setup":
                for keyword in node.keywords:
                    value = known.get(getattr(keyword.value, "id", ""), keyword.value)
                    try:
                        found[keyword.arg or ""] = ast.literal_eval(value)
                    except ValueError:
                        continue
        return found
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}


def _stated_version(root: Path, name: str) -> str:
    package = re.sub(r"[-.]+", "_", name)
    for place in (package, f"src/{package}", package.lower(), f"src/{package.lower()}"):
        for file in ("_version.py", "__init__.py", "__version__.py", "version.py", "__about__.py"):
            match = _STATED.search(read_text(root / place / file))
            if match and re.fullmatch(r"[0-9A-Za-z.+!-]+", match[1]):
                return match[1]
    return VERSION


def table(parent: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a table in a table, empty if there is none."""
    found = parent.get(key)
    return found if isinstance(found, Mapping) else {}


def read_toml(path: Path) -> Mapping[str, Any]:
    """Return the content of a TOML file, empty if there is none or it is malformed."""
    try:
        return tomllib.loads(read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def read_text(path: Path) -> str:
    """Return the text of a file, at most a megabyte, empty if it is not a regular file."""
    if path.is_symlink() or not path.is_file():
        return ""
    with path.open("rb") as stream:
        return stream.read(_MAX_BYTES).decode("utf-8", "replace")
