"""Requirements of a project's tests, read from its metadata. Nothing of the project is run.

:mod:`rllm_gym.envs.swe.environment` installs them.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rllm_gym.envs.swe.build_outputs import name_and_version, read_text, read_toml, setup_arguments, table

_TESTS = re.compile(r"test|^dev|^ci$|^all$|^check")
"""Names of extras and groups that tests need."""
_NOT_TESTS = re.compile(
    r"doc|sphinx|rtd|lint|typ(e|ing)|mypy|pyright|pre.?commit|format|build|release|publish|bench|profil|fuzz|diff|tox|"
    r"emscripten|cibw|pyinstaller|hatch|width|watch|packaging$|style|example|website|random|windows|wmi|min|old"
)
_TOOLS = re.compile(
    r"tox.*|pre-commit|mypy|black|ruff|flake8.*|pylint|isort|sphinx.*|build|twine|wheel|setuptools.*|bump.*|coveralls|"
    r"codecov|pyright|nox|pip-tools|furo|ty|uv|flit|hatch.*|types-.*|poetry|pip|towncrier|"
    r"pytest-(codspeed|watch|memray|mypy|ruff|checkdocs|enabler|black.*|flake8|pylint|isort|pycodestyle)|"
    r"zest.*|check-manifest|prek|atheris|pyinstaller|memray"
)
"""Packages that no test needs and whose own requirements conflict with others, or that check sources in every run."""
_BOUND = r" *(?:===?|[<>!~]=|[<>]) *[\w.*+!-]+ *"
_REQUIREMENT = re.compile(
    rf"([A-Za-z0-9][A-Za-z0-9._-]*) *(\[[\w ,.-]*\])? *\(?((?:{_BOUND})?(?:,{_BOUND})*)\)? *(;[\w .'\"<>=!~()-]*)?"
)
_PLUGINS = {
    r"asyncio_mode|--asyncio-mode": "pytest-asyncio",
    r"^\s*timeout\s*=|pytest_timeout": "pytest-timeout",
    r"--benchmark": "pytest-benchmark",
    r"DJANGO_SETTINGS_MODULE": "pytest-django",
    r"--cov\b": "pytest-cov",
}
"""Settings that only a plugin knows."""
_FOLDERS = ("requirements", "reqs", "tests", "test", ".meta", "dev-requirements")
_MAX_REQUIREMENTS = 1_000


@dataclass(frozen=True, slots=True)
class ProjectRequirements:
    """What the tests of a project need.

    Attributes:
        name: The normalized name of its distribution, empty if it is not stated.
        python: The versions of Python that it states (``requires-python``).
        minors: The minor versions of Python 3 that its classifiers name.
        needed: Its dependencies and those of its tests, without exact pins.
        optional: Those of its other extras, which tests may use.
    """

    name: str
    python: str
    minors: frozenset[int]
    needed: tuple[str, ...]
    optional: tuple[str, ...]


def read_requirements(root: Path) -> ProjectRequirements:
    """Read ``pyproject.toml``, ``setup.cfg``, ``setup.py``, ``tox.ini`` and requirement files of a tree."""
    project = read_toml(root / "pyproject.toml")
    stated, tool = table(project, "project"), table(project, "tool")
    poetry = table(tool, "poetry")
    setup = {**setup_arguments(root), **_setup_cfg(root)}
    stated_name = name_and_version(root, project)[0] or _text(setup.get("name"))
    name = normalized(stated_name) if re.fullmatch(r"[A-Za-z0-9._-]+", stated_name) else ""
    named = _named_lists(project, setup)
    wanted = set(_tox(root, named))
    for section in [table(table(tool, "tox"), "env_run_base"), *_tables(table(table(tool, "tox"), "env")).values()]:
        wanted |= {normalized(item) for key in ("extras", "dependency_groups") for item in _lines(section.get(key))}
        named.setdefault("tests", []).extend(_lines(section.get("deps")))
    needed = [*_lines(stated.get("dependencies")), *_lines(setup.get("install_requires"))]
    optional: list[str] = []
    for dependency, value in table(poetry, "dependencies").items():
        into = optional if isinstance(value, Mapping) and value.get("optional") else needed
        into.append("" if dependency.lower() == "python" else _of_poetry(dependency, value))
    for key in named:
        if key in wanted or _TESTS.search(key):
            needed += _expanded(named, key, name)
        elif not _NOT_TESTS.search(key):
            optional += _expanded(named, key, name)
    needed += _requirement_files(root)
    settings = "\n".join(read_text(root / file) for file in ("pyproject.toml", "setup.cfg", "tox.ini", "pytest.ini"))
    needed += [plugin for pattern, plugin in _PLUGINS.items() if re.search(pattern, settings, re.MULTILINE)]
    python = (
        stated.get("requires-python") or setup.get("python_requires") or table(poetry, "dependencies").get("python")
    )
    return ProjectRequirements(
        name,
        _text(python),
        frozenset(map(int, re.findall(r"Python :: 3\.(\d{1,2})\b", settings + read_text(root / "setup.py")))),
        _cleaned(root, ["pytest", *needed], name),
        _cleaned(root, optional, name),
    )


def normalized(name: str) -> str:
    """Return the normalized name of a distribution, extra or group."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _named_lists(project: Mapping[str, Any], setup: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the extras and groups by normalized name."""
    tool = table(project, "tool")
    named: dict[str, list[Any]] = {}
    extras = [table(table(project, "project"), "optional-dependencies"), table(setup, "extras_require")]
    for found in (*extras, table(project, "dependency-groups"), table(table(tool, "pdm"), "dev-dependencies")):
        for key, value in found.items():
            named.setdefault(normalized(key.partition(":")[0]), []).extend(
                value if isinstance(value, list) else _lines(value)
            )
    groups = {"dev": {}, **_tables(table(table(tool, "poetry"), "group"))}
    for key, group in groups.items():
        entries = {**table(group, "dependencies")}
        if key == "dev":
            entries |= table(table(tool, "poetry"), "dev-dependencies")
        named.setdefault(normalized(key), []).extend(_of_poetry(*item) for item in entries.items())
    for key, env in _tables(table(table(tool, "hatch"), "envs")).items():
        if key in ("default", "test", "tests", "testing", "dev", "hatch-test"):
            items = [*_lines(env.get("dependencies")), *_lines(env.get("extra-dependencies"))]
            named.setdefault("tests", []).extend(items)
    named.setdefault("tests", []).extend(_lines(setup.get("tests_require")))
    return named


def _expanded(named: Mapping[str, list[Any]], key: str, own: str, seen: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the requirements of an extra or group, with those of the ones that it includes."""
    if key in seen:
        return
    for item in named.get(key, ()):
        if isinstance(item, Mapping):
            yield from _expanded(named, normalized(_text(item.get("include-group"))), own, seen | {key})
            continue
        match = _REQUIREMENT.match(_text(item))
        if match and normalized(match[1]) == own:
            for extra in (match[2] or "[]")[1:-1].split(","):
                yield from _expanded(named, normalized(extra.strip()), own, seen | {key})
        else:
            yield _text(item)


def _tox(root: Path, named: dict[str, list[Any]]) -> Iterator[str]:
    """Add the requirements of the test environments of ``tox.ini``; yield the extras and groups that they name."""
    parser = _ini(root / "tox.ini")
    for section in parser.sections():
        if section != "testenv" and not re.match(r"testenv:(py|test)", section):
            continue
        for line in _lines(parser.get(section, "deps", fallback="")):
            line = re.sub(r"^[\w{},!.-]+:\s+", "", line.strip()).replace("{toxinidir}/", "")
            named.setdefault("tests", []).append("" if "{" in line else line)
        for key in ("extras", "dependency_groups"):
            yield from map(normalized, re.findall(r"[\w.-]+", parser.get(section, key, fallback="") or ""))


def _setup_cfg(root: Path) -> dict[str, Any]:
    parser = _ini(root / "setup.cfg")
    found: dict[str, Any] = dict(parser.items("options")) if parser.has_section("options") else {}
    if parser.has_section("options.extras_require"):
        found["extras_require"] = {key: _lines(value) for key, value in parser.items("options.extras_require")}
    return found


def _requirement_files(root: Path) -> Iterator[str]:
    paths = [*root.glob("*.txt"), *root.glob("*.in")]
    paths += [path for folder in _FOLDERS for kind in ("*.txt", "*.in") for path in (root / folder).glob(kind)]
    for path in sorted(paths)[:100]:
        stem = path.stem.lower()
        if ("require" not in stem and path.parent.name not in _FOLDERS[:2]) or _NOT_TESTS.search(stem):
            continue
        if re.search(r"test|dev|ci\b", stem) or stem in ("requirements", "default", "base", "main"):
            yield f"-r {path.relative_to(root)}"


def _cleaned(root: Path, lines: Iterable[str], own: str) -> tuple[str, ...]:
    """Return requirements without duplicates, pins, options, addresses, tools and the project itself."""
    todo, found, files = list(lines)[::-1], dict[str, None](), set[str]()
    while todo and len(found) < _MAX_REQUIREMENTS:
        line = re.sub(r"(^|\s)#.*|\s--hash=.*", "", todo.pop()).strip().rstrip("\\").strip()
        included = re.match(r"(?:-r|--requirement)[ =]?\s*(\S+)", line)
        if included:
            file = str(PurePosixPath(included[1]))
            inside = (root / file).resolve().is_relative_to(root.resolve())  # the tree may contain links
            if inside and file not in files and len(files) < 50:
                files.add(file)
                text = read_text(root / file).replace("\\\n", " ")
                inner = re.sub(r"^(\s*-r\s*)", rf"\g<1>{PurePosixPath(file).parent}/", text, flags=re.MULTILINE)
                todo += inner.splitlines()[::-1]
            continue
        match = _REQUIREMENT.fullmatch(line)
        if match is None or normalized(match[1]) == own or _TOOLS.fullmatch(normalized(match[1])):
            continue
        # The date of the commit selects versions (see environment.py); pins would only conflict with each other.
        bounds = [bound.strip() for bound in match[3].split(",") if not bound.strip().startswith("==")]
        bounds = [">=7"] if normalized(match[1]) == "pytest" else bounds
        found[f"{match[1]}{match[2] or ''}{','.join(filter(None, bounds))}{match[4] or ''}"] = None
    return tuple(found)


def _of_poetry(name: str, value: Any) -> str:
    value = value[0] if isinstance(value, list) and value else value
    entry = value if isinstance(value, Mapping) else {"version": value}
    if {"git", "path", "url"} & entry.keys():
        return ""
    version = re.sub(r"^[\^~](?!=)", ">=", _text(entry.get("version")).strip())
    version = "" if version == "*" or version[:1].isdigit() else version
    extras = ",".join(_lines(entry.get("extras")))
    markers = _text(entry.get("markers"))
    return f"{name}{f'[{extras}]' if extras else ''}{version}{f' ; {markers}' if markers else ''}"


def _ini(path: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    try:
        parser.read_string(read_text(path))
    except configparser.Error:
        return configparser.RawConfigParser()
    return parser


def _lines(value: Any) -> list[str]:
    if isinstance(value, str):
        return value.splitlines()
    return [item for item in value if isinstance(item, str)] if isinstance(value, list | tuple) else []


def _tables(value: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {key: item for key, item in value.items() if isinstance(item, Mapping)}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
