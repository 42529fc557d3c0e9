"""Filters the changes to a repository: keeps changes to the product, drops what configures or replaces the tests."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shlex
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from rllm_gym.grading.swe.pytest_config_merge import Unmergeable, merge_pyproject, merge_setup_cfg, pytest_table
from rllm_gym.grading.swe.runner_use import find_runner_uses, mentions_runner
from rllm_gym.grading.swe.verdict import RepositoryTests

if TYPE_CHECKING:
    from rllm_gym.sandbox.tree import Changes, TreeFile

MAX_FILES = 5_000
MAX_BYTES = 64 * 1024 * 1024
MAX_SCREENED = 2 * 1024 * 1024
MAX_PATH_BYTES = 1024
MAX_PATH_PARTS = 64
MAX_SHOWN = 1000

_TEST_FOLDER = re.compile(
    r"((unit|integration|functional|regression|acceptance|system|smoke|e2e)[_-]?)?tests?"
    r"([_-]?(data|files|cases|fixtures|resources|inputs|outputs|suite))?",
    re.IGNORECASE,
)
# Folders of test data outside of packages; inside a package they may belong to the product.
_DATA_FOLDERS = frozenset(
    {"fixtures", "expected", "golden", "goldens", "snapshots", "__snapshots__", "cassettes", "baseline", "baselines"}
)
_TEST_FILE = re.compile(r"test_[^/]*\.py|[^/]*_test\.py|tests?\.py", re.IGNORECASE)
_LOOKS_LIKE_TESTS = re.compile(rb"def test|TestCase|pytest")
_INFRASTRUCTURE = frozenset(
    {"conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "pyvenv.cfg"}
)
_STARTUP = frozenset({"sitecustomize", "usercustomize"})
_COMPILED = (".pyc", ".pyo", ".so", ".pyd", ".dll", ".dylib")
_METADATA = (".egg-info", ".dist-info", ".egg-link", ".egg")
# Modules that the run imports besides the standard library. Other installed modules are checked inside, in the runtime.
_RUNNERS = frozenset({"pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments", "exceptiongroup"})


@dataclass(frozen=True, slots=True)
class AllowedChanges:
    """The filtered changes of an agent.

    Attributes:
        changes: The changes to apply to the fresh base.
        dropped: ``path: why`` for each dropped change.
        new_modules: Name and path of new modules at the top of an import root. They must not shadow an installed
            package, which only the runtime can check.
        refusal: Why the whole change is refused; empty if it is not.
    """

    changes: Changes
    dropped: tuple[str, ...]
    new_modules: tuple[tuple[str, str], ...]
    refusal: str


def is_test_path(path: str) -> bool:
    """Return whether a file belongs to the tests by its path or name: below ``test/`` or ``tests/``, ``test_*.py``, …

    Changes to such files never count. Use this function to split a commit into fix and tests.

    >>> is_test_path("src/pkg/tests/data/a.json"), is_test_path("pkg/core_test.py"), is_test_path("pkg/testing.py")
    (True, True, False)
    """
    *folders, name = PurePosixPath(path).parts or ("",)
    return any(_TEST_FOLDER.fullmatch(folder) for folder in folders) or _TEST_FILE.fullmatch(name) is not None


def is_test_infrastructure(path: str) -> bool:
    """Return whether a file configures test runs or interpreters.

    Such files are ``conftest.py``, ``pytest.ini``, ``*.pth``, compiled code, … ``pyproject.toml`` and ``setup.cfg`` do
    so with one table each and are not included: see :func:`allowed_changes`.
    """
    parts = [part.casefold() for part in PurePosixPath(path).parts]
    name = parts[-1] if parts else ""
    return (
        name in _INFRASTRUCTURE
        or name.endswith((".pth", *_COMPILED))
        or ".so." in name
        or any(part == "__pycache__" or part.endswith(_METADATA) for part in parts)
        or any(part.split(".")[0] in _STARTUP for part in parts)
    )


def allowed_changes(base: Path, changes: Changes, tests: RepositoryTests) -> AllowedChanges:
    """Split an agent's changes into those to apply to a fresh base and those to drop.

    Args:
        base: The original tree; trusted, except for symbolic links, which are never followed.
        changes: The differences of the agent's tree. May be hostile: paths, links, contents and sizes.
        tests: The hidden tests; their paths belong to the tests.
    """
    change_filter = _ChangeFilter(base, changes, tests)
    for path in sorted(changes.removed):
        change_filter.remove(path)
    # Removals first: a written file may use a path that a kept removal frees.
    for path in sorted(changes.written):
        change_filter.write(path, changes.written[path])
    return change_filter.result()


class _ChangeFilter:
    def __init__(self, base: Path, changes: Changes, tests: RepositoryTests) -> None:
        self.base = base
        self.changes = changes
        self.hidden = frozenset(tests.hidden_tests)
        self.hidden_folders = frozenset(folder for path in tests.hidden_tests for folder in (".", *_folders_of(path)))
        self.command_files = _run_by(tests.test_command, base)
        self.roots = import_roots(base, tests)
        self.written: dict[str, TreeFile] = {}
        self.removed: set[str] = set()
        self.dropped: list[str] = []
        self.new_modules: list[tuple[str, str]] = []
        self.refusals: list[str] = []
        self.folders: set[str] = set()
        self.modes: dict[str, int] = {}
        self.bytes = 0
        self.screened = 0

    def result(self) -> AllowedChanges:
        dropped = self.dropped
        if len(dropped) > MAX_SHOWN:
            dropped = [*dropped[:MAX_SHOWN], f"and {len(dropped) - MAX_SHOWN} more"]
        return AllowedChanges(
            changes=dataclasses.replace(self.changes, written=self.written, removed=frozenset(self.removed)),
            dropped=tuple(dropped),
            new_modules=tuple(self.new_modules),
            refusal="; ".join(self.refusals[:3]),
        )

    def drop(self, path: str, reason: str) -> None:
        shown = ascii(path)[1:-1]
        self.dropped.append(f"{shown if len(shown) <= 200 else shown[:200] + '…'}: {reason}")

    def remove(self, path: str) -> None:
        reason = _unusable(path) or self._below_a_link(path) or self._belongs_to_the_tests(path)
        name = PurePosixPath(path).name.casefold()
        if not reason and name in ("pyproject.toml", "setup.cfg") and self._steers_pytest(path):
            reason = "holds the test configuration, put back"
        if reason:
            self.drop(path, reason)
        else:
            self.removed.add(path)

    def write(self, path: str, file: TreeFile) -> None:
        reason = (
            _unusable(path)
            or self._too_much(path, file)
            or self._below_a_link(path)
            or self._bad_kind(path, file)
            or self._belongs_to_the_tests(path)
            or self._collides(path)
            or self._shadows(path)
        )
        if reason:
            self.drop(path, reason)
            return
        name = PurePosixPath(path).name.casefold()
        if name in ("pyproject.toml", "setup.cfg"):
            self._merge(path, file, name)
            return
        if name.endswith(".py") and not self._screened(path, file):
            return
        self.written[path] = file
        self.folders.update(_folders_of(path))
        self.bytes += len(file.data)

    def _mode(self, path: str) -> int:
        """Return the file type of the base at a path; asked once for each folder of many files."""
        if path not in self.modes:
            self.modes[path] = _mode(self.base / path)
        return self.modes[path]

    def _below_a_link(self, path: str) -> str:
        for folder in _folders_of(path):
            if self._mode(folder) == stat.S_IFLNK:
                return f"lies behind the symbolic link {folder}"
        return ""

    def _bad_kind(self, path: str, file: TreeFile) -> str:
        if file.kind == "file":
            return ""
        if file.kind != "symlink":
            return f"is a {file.kind}, not a regular file"
        if _mode(self.base / path) != stat.S_IFLNK:
            return "is a new symbolic link"
        target = os.fsdecode(file.data)
        if not target:
            return "is a symbolic link to nothing"
        if target.startswith("/"):
            return "is a symbolic link out of the tree"
        if _unusable(target.replace("../", "").strip("/") or "."):
            return "is a symbolic link to an odd path"
        depth = len(PurePosixPath(path).parts) - 1
        place = list(PurePosixPath(path).parts[:depth])
        for part in target.split("/"):
            if part == "..":
                if not place:
                    return "is a symbolic link out of the tree"
                place.pop()
            elif part not in ("", "."):
                place.append(part)
                if _mode(self.base.joinpath(*place)) == stat.S_IFLNK:
                    return "is a symbolic link to another one"
        return ""

    def _belongs_to_the_tests(self, path: str) -> str:
        if path in self.hidden:
            return "is a hidden test"
        if is_test_infrastructure(path):
            return "steers tests or interpreters"
        if path in self.command_files:
            return "is run by the test command, put back"
        if self._is_test_data(path):
            return "is what tests compare with, put back"
        if not is_test_path(path):
            return ""
        in_base = _mode(self.base / path)
        by_place = any(_TEST_FOLDER.fullmatch(part) for part in PurePosixPath(path).parts[:-1])
        if in_base == stat.S_IFREG and not by_place:
            # pkg/test_runner.py may be part of the product.
            with (self.base / path).open("rb") as stream:
                if _LOOKS_LIKE_TESTS.search(stream.read(1_000_000)) is None:
                    return ""
        return "belongs to the tests, put back" if in_base else "belongs to the tests"

    def _is_test_data(self, path: str) -> bool:
        folders = PurePosixPath(path).parts[:-1]
        if path.endswith(".py") or not any(folder.casefold() in _DATA_FOLDERS for folder in folders):
            return False
        packages = (f"{folder}/__init__.py" for folder in _folders_of(path))
        return bool(self._mode(path)) and not any(map(self._mode, packages))

    def _collides(self, path: str) -> str:
        if path in self.hidden_folders:
            return "is where hidden tests lie"
        in_base = _mode(self.base / path)
        if in_base == stat.S_IFDIR and any(kept not in self.removed for kept in _files_below(self.base, path)):
            return "is a folder whose files were put back"
        for above in _folders_of(path):
            mode = self._mode(above)
            if (mode and mode != stat.S_IFDIR and above not in self.removed) or above in self.written:
                return f"lies below the file {above}"
        return ""

    def _shadows(self, path: str) -> str:
        for root in self.roots:
            name = _module_at(path, root)
            if name is None:
                continue
            folder = self.base / root
            if _mode(folder / f"{name}.py") or _mode(folder / name / "__init__.py"):
                continue  # the project's own module, whatever its name
            if name in sys.stdlib_module_names or name in _RUNNERS:
                return f"would shadow the module {name}"
            self.new_modules.append((name, path))
        return ""

    def _too_much(self, path: str, file: TreeFile) -> str:
        counted = len(self.written) + len(self.folders)
        if counted >= MAX_FILES or counted + len(set(_folders_of(path)) - self.folders) >= MAX_FILES:
            return f"more than {MAX_FILES} files and folders"
        if self.bytes + len(file.data) > MAX_BYTES:
            return f"more than {MAX_BYTES >> 20} MB in all"
        return ""

    def _steers_pytest(self, path: str) -> bool:
        before = _read(self.base / path)
        if PurePosixPath(path).name.casefold() == "setup.cfg":
            return b"pytest" in before
        try:
            return pytest_table(before) != {}
        except Unmergeable:
            return True

    def _merge(self, path: str, file: TreeFile, name: str) -> None:
        merge = merge_pyproject if name == "pyproject.toml" else merge_setup_cfg
        try:
            data = merge(_read(self.base / path), file.data)
        except Unmergeable as error:
            self.drop(path, str(error))
            return
        if data != file.data:
            self.drop(path, "its test configuration was put back; the rest is kept")
        self.written[path] = dataclasses.replace(file, data=data)
        self.bytes += len(data)

    def _screened(self, path: str, file: TreeFile) -> bool:
        """Return whether Python product code may be applied."""
        if mentions_runner(file.data):
            self.screened += len(file.data)
            if self.screened > MAX_SCREENED:
                self.drop(path, f"more than {MAX_SCREENED >> 20} MB of code that speaks of pytest")
                return False
        before = _read(self.base / path)
        found = find_runner_uses(file.data) - find_runner_uses(before)
        if not found or self._product_uses_the_runner():
            return True
        if not before and all(use.startswith("imports ") for use in found):
            self.drop(path, f"is a new file that {min(found)}: taken for a test")
            return False
        self.refusals.append(f"{path} {min(found)}, which no product code did before")
        return False

    def _product_uses_the_runner(self) -> bool:
        """Return whether the project itself is about testing: a pytest plugin, a package of fixtures."""
        for path in _files_below(self.base, ""):
            is_tests = is_test_path(path) or is_test_infrastructure(path)
            if path.endswith(".py") and not is_tests and path.count("/") and find_runner_uses(_read(self.base / path)):
                return True
        return False


_RUN_BY = {"make": ("Makefile", "makefile", "GNUmakefile"), "nox": ("noxfile.py",), "just": ("justfile", "Justfile")}
_SCRIPTS = (".sh", ".bash", ".ini", ".cfg", ".toml", ".mk")


def _run_by(command: str | None, base: Path) -> frozenset[str]:
    """Return the files of the base that determine what a test command does: scripts, recipes, settings."""
    words = shlex.split(command or "")
    found: set[str] = set()
    for before, word in zip(["", *words], words):
        path = str(PurePosixPath(word))
        begins = before in ("", "&&", ";", "||", "|") or before.endswith(";")
        interpreted = PurePosixPath(before).name.rstrip("0123456789.") in ("python", "sh", "bash")
        if word.endswith(_SCRIPTS) or begins or (interpreted and not word.startswith("-")):
            found.add(path)
        found.update(_RUN_BY.get(PurePosixPath(word).name, ()) if begins else ())
    return frozenset(path for path in found if not path.startswith("/") and _mode(base / path) == stat.S_IFREG)


def import_roots(base: Path, tests: RepositoryTests) -> tuple[str, ...]:
    """Return the folders, relative to the repository, from which modules are imported during the run, in order."""
    roots = ["", "src"]
    try:
        table = pytest_table(_read(base / "pyproject.toml"))
    except Unmergeable:
        table = {}
    listed = table.get("ini_options", table).get("pythonpath", [])
    roots += [entry for entry in ([listed] if isinstance(listed, str) else listed) if isinstance(entry, str)]
    for path in tests.hidden_tests:
        folder = PurePosixPath(path).parent
        if f"{folder}/__init__.py" not in tests.hidden_tests and not _mode(base / folder / "__init__.py"):
            roots.append(str(folder))
    clean = [str(PurePosixPath(root)) for root in roots if not root.startswith("/") and ".." not in root.split("/")]
    return tuple(dict.fromkeys("" if root == "." else root for root in clean))


def _module_at(path: str, root: str) -> str | None:
    """Return the name that a file gives a module or package directly below an import root."""
    parts = PurePosixPath(path).parts
    above = PurePosixPath(root).parts
    if parts[: len(above)] != above:
        return None
    rest = parts[len(above) :]
    name = ""
    if len(rest) == 1 and rest[0].endswith(".py"):
        name = rest[0][:-3]
    elif len(rest) == 2 and rest[1] == "__init__.py":
        name = rest[0]
    return name if name.isidentifier() else None  # my.notes.py cannot be imported


def _folders_of(path: str) -> tuple[str, ...]:
    """Return the folders above a path, nearest first."""
    return _with_folders_above(path.rpartition("/")[0])


@functools.lru_cache(maxsize=1024)
def _with_folders_above(folder: str) -> tuple[str, ...]:
    parts = [part for part in folder.split("/") if part not in ("", ".")]
    return tuple("/".join(parts[:end]) for end in range(len(parts), 0, -1))


def _unusable(path: str) -> str:
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "its path is not UTF-8"
    parts = path.split("/")
    if not path or any(part in ("", "..") for part in parts) or (path != "." and "." in parts):
        return "its path is not plain and relative"
    if any(ord(character) < 32 or ord(character) == 127 for character in path) or "\\" in path:
        return "its path holds control characters or backslashes"
    if len(encoded) > MAX_PATH_BYTES or max(len(part.encode()) for part in parts) > 255:
        return "its path is too long"
    if len(parts) > MAX_PATH_PARTS:
        return "lies in too many folders"
    if any(part.casefold() == ".git" for part in parts):
        return "belongs to git"
    return ""


def _mode(path: Path) -> int:
    """Return the file type at a path by ``lstat``; 0 if nothing exists there."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return 0


def _read(path: Path, most: int = 4_000_000) -> bytes:
    """Return the beginning of a regular file of the base; empty if there is none."""
    if _mode(path) != stat.S_IFREG:
        return b""
    with path.open("rb") as stream:
        return stream.read(most)


def _files_below(base: Path, folder: str) -> Iterable[str]:
    for parent, folders, files in os.walk(base / folder, followlinks=False):
        if ".git" in folders:
            folders.remove(".git")
        relative = PurePosixPath(os.path.relpath(parent, base))
        for name in files:
            yield str(relative / name)
