"""Writes docs/tested-with.md: the versions of the pinned files of the tests, beside the ranges that are allowed.

python scripts/tested_with.py > docs/tested-with.md       (part of `make docs`)
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
_REQUIREMENTS = ROOT / "tests" / "integrations" / "requirements"


def pinned(file: Path) -> dict[str, str]:
    """Return the versions in a file of pins."""
    lines = [line for line in file.read_text().splitlines() if "==" in line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}


def table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table in Markdown; the first row has the headings."""
    heading, *others = rows
    return ["| " + " | ".join(row) + " |" for row in (heading, ("---",) * len(heading), *others)]


def page() -> str:
    """Return the page."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = {"": project["dependencies"], **project["optional-dependencies"]}
    versions, own = pinned(ROOT / "constraints.txt"), {}
    for file in sorted(_REQUIREMENTS.glob("*.txt")):
        own |= {library.replace("_", "-"): pinned(file) for library in file.stem.split("+")}
    packages: dict[tuple[str, str, str], list[str]] = {}
    for extra, texts in extras.items():
        if extra == "dev":
            continue
        for requirement in map(Requirement, texts):
            name = canonicalize_name(requirement.name)
            version = own.get(extra, versions)[name]
            allowed = ", ".join(sorted(map(str, requirement.specifier), reverse=True)) or "any"
            packages.setdefault((name, allowed, version), []).append(f"`{extra}`" if extra else "base")
    language = "Programming Language :: Python :: "
    pythons = [name.removeprefix(language) for name in project["classifiers"] if name.startswith(f"{language}3.")]
    rows = [(name, allowed, version, ", ".join(users)) for (name, allowed, version), users in sorted(packages.items())]
    lines = [
        "# Tested with",
        "",
        "This page is generated from `constraints.txt`, `tests/integrations/requirements` and `pyproject.toml` by",
        "`make docs`.",
        "",
        f"`make release` installs the wheel with each Python of {', '.join(pythons)} that is found. All tests run with",
        "the Python of `.venv` (`make setup`) and the versions below; libraries that are an extra of their own run in",
        "an environment of their own (`make test-integrations`). Other allowed versions may work, and are not tested.",
        "",
        *table([("package", "allowed", "tested", "needed by"), *rows]),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
