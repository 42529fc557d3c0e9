"""The files of this machine that a program sees: a Python, its library, chosen packages, the system's programs."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

ALLOWED = ("numpy", "pytest")
"""Distributions that programs see by default, with their requirements. Those that are not installed are skipped."""

_HIDDEN = ("rllm_gym", "trainers")
# No public name has the interpreter that a virtual environment was created from: sys.executable is the environment's,
# which may be a copy, and a file in sys.base_prefix may have any name. Python's own venv uses _base_executable too.
_QUERY = """
import json, sys, sysconfig
base = {"base": sys.base_prefix, "platbase": sys.base_prefix, "installed_base": sys.base_prefix}
print(json.dumps({
    "prefix": sys.prefix, "base_prefix": sys.base_prefix, "version": list(sys.version_info[:2]),
    "executable": sys._base_executable, "site": sysconfig.get_path("purelib"),
    "base_site": sysconfig.get_path("purelib", vars=base), "stdlib": sysconfig.get_path("stdlib"),
}))
"""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A Python and its packages, visible read-only inside the sandbox. All files keep their paths.

    Attributes:
        python: The interpreter of programs, by its path inside.
        files: Files and directories that are visible, read-only: path inside, path outside. ``/usr`` is always visible.
        hidden: Directories that appear empty, before ``packages`` are added.
        site: The directory inside in which ``packages`` appear.
        packages: The content of ``site``: name there, path outside.
        links: Symbolic links created inside: path, target.
        path: ``PATH`` inside.
    """

    python: str
    files: tuple[tuple[str, str], ...]
    hidden: tuple[str, ...]
    site: str
    packages: tuple[tuple[str, str], ...]
    links: tuple[tuple[str, str], ...]
    path: str

    @classmethod
    def default(cls) -> Runtime:
        """Return the Python of this interpreter without its packages, with those of :data:`ALLOWED`."""
        return _default()

    @classmethod
    def of_python(cls, path: str | os.PathLike[str]) -> Runtime:
        """Return the Python of a virtual environment or interpreter, with every package installed in it.

        Args:
            path: Directory of a virtual environment, or an interpreter.

        Raises:
            ValueError: There is no working Python.
        """
        return _of_python(os.path.abspath(path))


def require_pytest() -> None:
    """Check that programs see pytest in the default runtime.

    Raises:
        ModuleNotFoundError: It is not installed; the message names the extra.
    """
    if all(name != "pytest" for name, _ in Runtime.default().packages):
        raise ModuleNotFoundError(
            "the tests of this task are run by pytest, which is not installed: pip install 'rllm-gym[swe]'",
            name="pytest",
        )


def require_regex() -> None:
    """Check that the graders of repositories can match patterns with a time limit.

    Raises:
        ModuleNotFoundError: ``regex`` is not installed; the message names the extra.
    """
    if importlib.util.find_spec("regex") is None:
        raise ModuleNotFoundError(
            "patterns of hidden tests are matched by regex, which is not installed: pip install 'rllm-gym[swe]'",
            name="regex",
        )


@functools.cache
def _default() -> Runtime:
    facts = {
        "base_prefix": sys.base_prefix,
        "version": list(sys.version_info[:2]),
        "executable": getattr(sys, "_base_executable", sys.executable),  # see _QUERY
        "base_site": sysconfig.get_path("purelib", vars={"base": sys.base_prefix, "installed_base": sys.base_prefix}),
        "stdlib": sysconfig.get_path("stdlib"),
    }
    return _build(facts, _installed(ALLOWED))


@functools.cache
def _of_python(path: str) -> Runtime:
    python = os.path.join(path, "bin", "python") if os.path.isdir(path) else path
    if not os.access(python, os.X_OK):
        raise ValueError(f"{path!r} is neither a virtual environment nor an interpreter: {python} cannot be executed")
    try:
        answer = subprocess.run([python, "-I", "-c", _QUERY], capture_output=True, timeout=60, check=True, env={})
        facts = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ValueError(f"{python!r} is not a working Python: {error}") from error
    base = _build(facts, ())
    site = facts["site"]
    hidden = tuple(entry for name in _HIDDEN if os.path.isdir(entry := os.path.join(site, name)))
    if facts["prefix"] == facts["base_prefix"]:
        return dataclasses.replace(base, hidden=hidden, site=site)
    environment = facts["prefix"]
    return dataclasses.replace(
        base,
        python=os.path.join(environment, "bin", "python"),
        files=(*base.files, (environment, environment)),
        hidden=(*base.hidden, *hidden),
        path=f"{environment}/bin:{base.path}",
    )


def _build(facts: dict[str, Any], packages: tuple[tuple[str, str], ...]) -> Runtime:
    prefix, stdlib, site = facts["base_prefix"], facts["stdlib"], facts["base_site"]
    major, minor = facts["version"]
    name = f"python{major}.{minor}"
    system = prefix in ("/usr", "/")
    python = f"/usr/bin/{name}" if system else f"{prefix}/bin/{name}"
    files: list[tuple[str, str]] = []
    links: list[tuple[str, str]] = []
    if not system:
        # All of lib: Pythons of conda and others keep shared libraries there.
        files += [(python, os.path.realpath(facts["executable"]))]
        files += [(path, path) for path in sorted({f"{prefix}/lib", os.path.dirname(stdlib)}) if os.path.isdir(path)]
        links += [(f"{prefix}/bin/python{major}", name), (f"{prefix}/bin/python", name)]
    hidden = {site, *_package_directories(stdlib), *_system_package_directories()}
    path = "/usr/bin:/bin" if system else f"{prefix}/bin:/usr/bin:/bin"
    return Runtime(python, tuple(files), tuple(sorted(hidden)), site, packages, tuple(links), path)


def _package_directories(stdlib: str) -> Iterable[str]:
    return [path for name in ("site-packages", "dist-packages") if os.path.isdir(path := os.path.join(stdlib, name))]


def _system_package_directories() -> Iterable[str]:
    found: list[str] = []
    for entry in sorted(os.listdir("/usr/lib")):
        if entry.startswith("python3"):
            found += _package_directories(os.path.join("/usr/lib", entry))
    return found


def _installed(names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the top-level entries of distributions and of their requirements."""
    entries: dict[str, str] = {}
    todo, seen = list(names), set()
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in distribution.files or ():
            top = file.parts[0]
            if top in ("..", "__pycache__") or top.endswith(".pth"):
                continue
            outside = distribution.locate_file(top)
            if os.path.exists(str(outside)):
                entries[top] = os.path.realpath(str(outside))
        todo += [
            match.group()
            for requirement in distribution.requires or ()
            if ";" not in requirement and (match := re.match(r"[A-Za-z0-9._-]+", requirement))
        ]
    return tuple(sorted(entries.items()))
