"""Files that installing a package would create next to its sources: its metadata, and its version file.

Repositories that read their own version when they are imported cannot be tested from a bare checkout. Nothing is
built or run here: these files are written from the project's configuration.
"""

from __future__ import annotations

import configparser
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    project = _toml(root / "pyproject.toml")
    found: dict[str, str] = {}
    if metadata:
        name, version = _name_and_version(root, project)
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


def _version_module() -> str:
    parts = ", ".join(VERSION.split("."))
    return f'__version__ = version = "{VERSION}"\n__version_tuple__ = version_tuple = ({parts})\n'


def _version_file(project: Mapping[str, Any]) -> str | None:
    """Return the path to which setuptools-scm, hatch-vcs or pdm would write the version."""
    tool = _table(project, "tool")
    scm = _table(tool, "setuptools_scm")
    vcs = _table(_table(_table(_table(tool, "hatch"), "build"), "hooks"), "vcs")
    pdm = _table(_table(tool, "pdm"), "version")
    for value in (scm.get("version_file"), scm.get("write_to"), vcs.get("version-file"), pdm.get("write_to")):
        if isinstance(value, str) and value:
            return value
    return None


def _name_and_version(root: Path, project: Mapping[str, Any]) -> tuple[str | None, str]:
    for table in (_table(project, "project"), _table(_table(project, "tool"), "poetry")):
        name, version = table.get("name"), table.get("version")
        if isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9._-]+", name):
            return name, version if isinstance(version, str) else _stated_version(root, name)
    cfg = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        cfg.read_string(_text(root / "setup.cfg"))
    except configparser.Error:
        return None, VERSION
    name = cfg.get("metadata", "name", fallback="")
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        match = re.search(r"""\bname\s*=\s*['"]([A-Za-z0-9._-]+)['"]""", _text(root / "setup.py"))
        name = match[1] if match else ""
    return (name, _stated_version(root, name)) if name else (None, VERSION)


def _stated_version(root: Path, name: str) -> str:
    package = re.sub(r"[-.]+", "_", name)
    for place in (package, f"src/{package}", package.lower(), f"src/{package.lower()}"):
        for file in ("_version.py", "__init__.py", "__version__.py", "version.py", "__about__.py"):
            match = _STATED.search(_text(root / place / file))
            if match and re.fullmatch(r"[0-9A-Za-z.+!-]+", match[1]):
                return match[1]
    return VERSION


def _table(table: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = table.get(key)
    return found if isinstance(found, Mapping) else {}


def _toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def _text(path: Path) -> str:
    if path.is_symlink() or not path.is_file():
        return ""
    with path.open("rb") as stream:
        return stream.read(_MAX_BYTES).decode("utf-8", "replace")
