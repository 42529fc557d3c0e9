"""The built-in repositories and the changes that make tasks of them, read from the files next to this module.

``<name>/`` is a finished repository. ``<name>.toml`` contains the hand-written data: names that may be renamed, bugs
and features as edits, and calls whose results show a bug. ``<name>.json`` is written by
``scripts/verify_swe_repositories.py``, which runs everything: which tests fail with which change, the results of the
calls; so is ``<name>.trace``, what the tests observe in the finished repository.
"""

from __future__ import annotations

import functools
import json
import random
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from rllm_gym.core import TaskError, stream_seed

NAMES = ("caching", "expressions", "ledger", "markup", "patching", "schedule", "tables", "versions")
RENAMINGS = 256
"""Number of renamings per repository; the first one keeps the original names."""

_PYTHONS = ("3.11", "3.12", "3.13")
_SYSTEMS = ("Debian 12", "Ubuntu 24.04", "Fedora 41", "Alpine 3.20", "macOS 15", "Windows 11")


@dataclass(frozen=True)
class RepoEdit:
    """A difference between the finished repository and the one with the bug; either text may be empty.

    Attributes:
        path: A file of the repository.
        finished: Text that occurs once in the finished file; empty: the whole file.
        broken: The text that replaces it; empty for a whole file: the file is missing.
    """

    path: str
    finished: str
    broken: str

    def undo(self, text: str) -> str | None:
        """Return the file with the bug, ``None`` if it is missing.

        Raises:
            TaskError: The finished text does not occur exactly once.
        """
        if not self.finished:
            return None
        if text.count(self.finished) != 1:
            raise TaskError(
                f"the text to edit occurs {text.count(self.finished)} times in {self.path!r}; it must occur once"
            )
        return text.replace(self.finished, self.broken)


@dataclass(frozen=True)
class RepoChange:
    """What is missing or wrong in the repository of a task.

    Attributes:
        key: Its name within the repository.
        kind: ``"bug"`` or ``"feature"`` if hand-written, or ``"mutation"``.
        statement: The issue.
        edits: Differences between the finished repository and that of the task.
        fail_to_pass: Ids of the tests that fail with it.
    """

    key: str
    kind: str
    statement: str
    edits: tuple[RepoEdit, ...]
    fail_to_pass: tuple[str, ...]


@dataclass(frozen=True)
class Repository:
    """A finished repository and its changes.

    Attributes:
        name: Its name in ids.
        files: Text by path.
        names: Words that may be renamed everywhere, with their alternatives.
        tests: Ids of its tests; all pass.
        changes: By key.
        trace: What its tests observe; see :func:`~rllm_gym.grading.swe.record_trace`.
    """

    name: str
    files: Mapping[str, str]
    names: Mapping[str, tuple[str, ...]]
    tests: tuple[str, ...]
    changes: Mapping[str, RepoChange]
    trace: str = ""

    @functools.cached_property
    def _words(self) -> re.Pattern[str]:
        # A word may also follow the "\n" of a string literal.
        return re.compile(rf"(?:(?<!\w)|(?<=\\[nt]))(?:{'|'.join(map(re.escape, self.names))})(?!\w)")

    def renaming(self, number: int) -> Mapping[str, str]:
        """Return the replacement of each word of :attr:`names`; number 0 changes nothing."""
        if number == 0:
            return {}
        rng = random.Random(stream_seed("swe renaming", self.name, number))
        return {word: rng.choice((word, *instead)) for word, instead in self.names.items()}

    def statement(self, change: RepoChange, number: int) -> str:
        """Return the issue with the names of a renaming; like most issues, it ends with where the problem was seen."""
        statement = self.renamed(change.statement, self.renaming(number))
        if number == 0:
            return statement
        rng = random.Random(stream_seed("swe machine", self.name, number))
        release = re.search(r'^name = "(.+)"\nversion = "(.+)"$', self.files["pyproject.toml"], re.MULTILINE)
        assert release is not None
        package, python = self.renamed(release[1], self.renaming(number)), rng.choice(_PYTHONS)
        return f"{statement}\n{package} {release[2]}, Python {python}.{rng.randrange(1, 10)}, {rng.choice(_SYSTEMS)}.\n"

    def renamed(self, text: str, renaming: Mapping[str, str]) -> str:
        """Return ``text`` with every word renamed, wherever it occurs: code, documents, paths, ids of tests."""
        return self._words.sub(lambda match: renaming.get(match[0], match[0]), text)

    def broken_files(self, change: RepoChange) -> dict[str, str]:
        """Return the repository an agent starts from: with the bug, without the tests that show it."""
        files = dict(self.files)
        for edit in change.edits:
            text = edit.undo(files[edit.path])
            if text is None:
                del files[edit.path]
            else:
                files[edit.path] = text
        failing: dict[str, set[str]] = {}
        for test in change.fail_to_pass:
            path, _, name = test.partition("::")
            failing.setdefault(path, set()).add(name.partition("[")[0].replace("::", "."))
        for path, names in failing.items():
            rest = without_tests(files.pop(path), names)
            if rest is not None:
                files[path] = rest
        return files

    def hidden_tests(self, renaming: Mapping[str, str]) -> dict[str, str]:
        """Return the finished test files."""
        paths = dict.fromkeys(test.partition("::")[0] for test in self.tests)
        return {self.renamed(path, renaming): self.renamed(self.files[path], renaming) for path in paths}


def without_tests(source: str, names: set[str]) -> str | None:
    """Return a test file without some of its tests (``test_a``, ``TestB.test_c``); ``None`` if no test is left.

    It works on lines: functions are separated by blank lines, as formatted by ``ruff format``, and multi-line strings
    in them are indented. (The parser of Python 3.11 is not thread-safe.)
    """
    lines = source.splitlines(keepends=True)
    kept: list[str] = []
    left, place = 0, 0
    while place < len(lines):
        end = _end_of_block(lines, place)
        block = lines[place:end]
        heading = next((line for line in block if not line.startswith(("@", " ", ")"))), "")
        if heading.startswith("class "):
            body, left_in_class = _without_methods(block, re.split(r"[(:]", heading[6:])[0], names)
            kept += body if left_in_class else []
            left += left_in_class
        else:
            match = re.match(r"def (test\w*)", heading)
            left += match is not None and match[1] not in names
            kept += [] if match is not None and match[1] in names else block
        place = end
    return "".join(kept).rstrip("\n") + "\n" if left else None


def _without_methods(block: list[str], name: str, names: set[str]) -> tuple[list[str], int]:
    """Return a test class without some of its methods, and how many tests are left."""
    kept, left, place = [block[0]], 0, 1
    while place < len(block):
        end = place + 1
        while end < len(block) and not (re.match(r"    [@d]", block[end]) and not block[end - 1].strip()):
            end += 1
        method = block[place:end]
        match = next((found for line in method if (found := re.match(r"    def (test\w*)", line))), None)
        gone = match is not None and f"{name}.{match[1]}" in names
        left += match is not None and not gone
        kept += [] if gone else method
        place = end
    return kept, left


def _end_of_block(lines: list[str], place: int) -> int:
    """Return the end of the block at ``place``: the next line that is not indented and follows a blank one."""
    end = place + 1
    while end < len(lines) and not (lines[end][:1] not in " \n)" and not lines[end - 1].strip()):
        end += 1
    return end


@functools.cache
def load_repository(name: str) -> Repository:
    """Load a repository by its name.

    Raises:
        TaskError: There is no repository of this name.
    """
    if name not in NAMES:
        raise TaskError(f"unknown built-in repository {name!r}; choose from {', '.join(NAMES)}")
    folder = resources.files("rllm_gym.envs.swe.repositories")
    card = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
    table = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    tests = tuple(table["tests"])
    changes: dict[str, RepoChange] = {}
    for task in card["task"]:
        edits = tuple(RepoEdit(edit["path"], edit.get("finished", ""), edit.get("broken", "")) for edit in task["edit"])
        failing = tuple(tests[place] for place in table["fail_to_pass"][task["key"]])
        changes[task["key"]] = RepoChange(task["key"], task["kind"], task["statement"].strip() + "\n", edits, failing)
    for row in table["mutations"]:
        edit = RepoEdit(row["path"], row["finished"], row["broken"])
        failing = tuple(tests[place] for place in row["fail_to_pass"])
        statement = report(card["probe"], table["expected"], row["examples"])
        changes[row["key"]] = RepoChange(row["key"], "mutation", statement, (edit,), failing)
    names = {word: tuple(instead) for word, instead in card["names"].items()}
    trace = (folder / f"{name}.trace").read_text(encoding="utf-8")
    return Repository(name, dict(read_files(folder / name)), names, tests, changes, trace)


def read_files(folder: Traversable, prefix: str = "") -> list[tuple[str, str]]:
    """Return path and text of every file of a repository, sorted, without files that are created by running it."""
    found: list[tuple[str, str]] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name in ("__pycache__", ".pytest_cache") or entry.name.endswith(".pyc"):
            continue
        if entry.is_dir():
            found += read_files(entry, f"{prefix}{entry.name}/")
        else:
            found.append((prefix + entry.name, entry.read_text(encoding="utf-8")))
    return found


def report(probes: list[Mapping[str, Any]], expected: list[str], examples: list[list[Any]]) -> str:
    """Return the issue of a mutation: calls, their actual results and the expected ones.

    Args:
        probes: ``about`` (the expected behavior) and ``code`` (lines, the last one an expression).
        expected: The result of each in the finished repository.
        examples: (index of a probe, its actual result).
    """
    parts = []
    for number, (place, got) in enumerate(examples):
        code, wanted = probes[place]["code"].strip(), expected[place]
        error, expected_error = _error_of(got), _error_of(wanted)
        verb = "print" if code.splitlines()[-1].startswith("print(") else "return"
        parts.append("A second example of the same problem:" if number else _title(got, wanted))
        parts.append(f"The documented behavior: {probes[place]['about'].strip()}")
        if error:
            parts.append(f"This code raises {'the wrong' if expected_error else 'an unexpected'} error:")
        elif expected_error:
            parts.append("This code should raise an error, but it does not:")
        else:
            parts.append(f"This code {verb}s a wrong result:")
        parts.append(f"```python\n{prompted(code)}\n{got}\n```")
        if expected_error:
            parts.append(f"It should raise `{wanted.splitlines()[-1]}`.")
        else:
            parts.append(f"It should {verb}:\n\n```\n{wanted}\n```")
    return "\n\n".join(parts) + "\n"


def _error_of(result: str) -> str:
    """Return the name of the exception that a result shows; empty if it shows none."""
    return result.splitlines()[-1].partition(":")[0].rpartition(".")[2] if result.startswith("Traceback") else ""


def _title(got: str, wanted: str) -> str:
    """Return the first line of an issue: what is wrong with the result of a call."""
    error, expected_error = _error_of(got), _error_of(wanted)
    if error and error == expected_error:
        return f"Wrong message of {error}"
    if error:
        return f"Unexpected {error}"
    return f"{expected_error} is not raised" if expected_error else "Wrong result"


def prompted(code: str) -> str:
    """Format code as in an interactive session."""
    return "\n".join(("... " if line[:1] in ("", " ", ")", "]", "}") else ">>> ") + line for line in code.splitlines())
