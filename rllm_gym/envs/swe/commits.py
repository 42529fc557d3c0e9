"""Analysis of a bug-fix commit: the parent's tree, the fix, the tests that came with it, and the statement.

Nothing is run here. :mod:`rllm_gym.envs.swe.from_commit` determines which tests fail and pass.
"""

from __future__ import annotations

import ast
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from rllm_gym.core import TaskError
from rllm_gym.envs.swe.build_outputs import read_text
from rllm_gym.envs.swe.git_objects import GitEntry, GitSource, is_bundle, open_bundle, open_directory
from rllm_gym.envs.swe.patch import file_diff
from rllm_gym.grading.python_source import parse_python
from rllm_gym.grading.swe import is_test_path
from rllm_gym.grading.swe.taint import name_of
from rllm_gym.sandbox.tree import Changes, TreeFile

_COMPILED_SOURCES = (".c", ".cc", ".cpp", ".cxx", ".pyx", ".pxd", ".rs", ".f90", ".go")
_TRAILER = re.compile(r"[A-Z][A-Za-z]*(?:-[A-Za-z]+)+: .*|git-svn-id: .*|\(cherry picked from commit .*\)")
_MERGE = re.compile(r"Merge (?:pull request|branch|remote-tracking branch|MR|tag)\b.*", re.IGNORECASE)
_REFERENCE = re.compile(
    r"\s*[(\[]?(?:(?:closes?|closed|fix(?:es|ed)?|resolves?|resolved|refs?|see|gh|issue|pr|bug|bpo)[\s:-]*)?"
    r"(?:#\d+|GH-\d+|https?://\S+/(?:issues|pull)/\d+)[)\]]?[.,;]?",
    re.IGNORECASE,
)
_MAINTENANCE = re.compile(
    r"\W*(?:bump|release|prepare|drop|typ(?:e|ing)s?\b|annotat|refactor|re-?format|format|lint|style|pre-commit|rename|"
    r"clean|\w+\((?:tests?|docs?|ci|build|lint|types?)\)|tests?:|docs?\b|chore|ci\b|build|upgrade|moderni[sz]e|move|"
    r"merge branch|revert|black|ruff|py3\d?\b|pyupgrade)",
    re.IGNORECASE,
)
_TEST_DATA = re.compile(r"tests?[-_]?(data|files|cases|resources|fixtures)|fixtures", re.IGNORECASE)
_CLOCKS = frozenset({"time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time"})
_FEWEST_WORDS = 4


@dataclass(frozen=True, slots=True)
class FixCommit:
    """A commit and its parent.

    Attributes:
        name: The repository's name, for ids.
        commit: Its full id.
        parent: The id of its first parent.
        message: Its message.
        date: Its date, such as ``2024-05-31``.
        fix: Its changes outside of the tests.
        tests: Test files, and their data files, that it added or changed: text by path.
        left_out: Changes to tests that cannot be hidden, with the reason.
        before: The paths of the parent's tree.
        after: The paths of its own tree.
        patch: ``fix`` as a unified diff.
    """

    name: str
    commit: str
    parent: str
    message: str
    date: str
    fix: Changes
    tests: Mapping[str, str]
    left_out: tuple[str, ...]
    before: frozenset[str]
    after: frozenset[str]
    patch: str

    def compiled(self, module: str) -> str | None:
        """Return the source path of a compiled module of this repository, ``None`` if it is not one."""
        stem = module.rpartition(".")[2].lstrip("_")
        for path in sorted(self.after):
            name = PurePosixPath(path)
            if name.suffix in _COMPILED_SOURCES and stem and name.stem.lstrip("_") == stem:
                return path
        return None


def read_fix(repo: str | os.PathLike[str], revision: str) -> FixCommit:
    """Analyze a commit of a local repository.

    Args:
        repo: A clone (with a work tree or bare), or a git bundle.
        revision: The commit: an id, a tag or a branch.

    Raises:
        TaskError: There is no such repository or commit, the commit has no parent, or it changes no tests or only
            tests; the message names a solution.
    """
    with open_repository(repo) as source:
        return _taken_apart(source, revision, Path(os.path.realpath(os.path.expanduser(repo))))


@contextmanager
def open_repository(repo: str | os.PathLike[str]) -> Iterator[GitSource]:
    """Open a clone or a git bundle for the duration of the block.

    Raises:
        TaskError: It is neither.
    """
    path = Path(os.path.realpath(os.path.expanduser(repo)))
    with ExitStack() as stack:
        source = open_directory(path) if path.is_dir() else None
        if path.is_file() and is_bundle(path):
            source = stack.enter_context(open_bundle(path))
        if source is None:
            raise TaskError(f"{os.fspath(repo)!r} is neither a git repository nor a git bundle; use a local clone")
        yield source


def candidate_commits(source: GitSource, revision: str | None, *, scanned: int, max_files: int = 10) -> Iterator[str]:
    """Yield commits that change Python sources and Python tests, newest first, of one branch and its merges.

    Commits inside merged branches are left out: there the tests often come in one commit and the fix in another, and
    the merge contains both. So are commits whose first line names maintenance, such as ``Bump version``.

    Args:
        source: The repository.
        revision: The newest commit, ``None`` for ``HEAD``.
        scanned: Number of commits looked at.
        max_files: Commits that change more files are left out; they are rarely a fix.
    """
    for commit in source.first_parents(revision, scanned):
        parents, message, _ = source.lineage(commit)
        lines = [line for line in message.splitlines() if line.strip() and not _MERGE.fullmatch(line.strip())]
        if not lines or _MAINTENANCE.match(lines[0]):
            continue
        changed = source.changed_paths(commit, parents[0]) if parents else []
        python = [path for path in changed if path.endswith(".py")]
        tests = [path for path in python if _belongs_to_tests(path)]
        named = any(PurePosixPath(path).name != "conftest.py" for path in tests)
        if named and len(python) > len(tests) and len(changed) <= max_files:
            yield commit


def adds_checks(tests: Mapping[str, str], root: Path) -> bool:
    """Return whether changed test files check anything new; after a refactoring or a reformatting they do not.

    Args:
        tests: The changed files, text by path.
        root: The tree before the change.
    """
    python = {path: text for path, text in tests.items() if path.endswith(".py")}
    new = sum((_checks(text) for text in python.values()), Counter[str]())
    return bool(new - sum((_checks(read_text(root / path)) for path in python), Counter[str]()))


def _checks(text: str) -> Counter[str]:
    """Count the names of tests, the constants, the assertions and the comparisons in a test file."""
    try:
        found: Counter[str] = Counter()
        todo: list[ast.AST] = [parse_python(text)]
        while todo:
            node = todo.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
                marks = "".join(map(ast.dump, node.decorator_list))  # one that is no longer expected to fail is new
                found[node.name + marks] += 1
            elif isinstance(node, ast.With):
                found.update(ast.dump(item) for item in node.items)
            elif (
                isinstance(node, ast.Assert | ast.Compare)
                or (isinstance(node, ast.Constant) and node.value is not None)
                or (isinstance(node, ast.Call) and getattr(node.func, "attr", "").startswith("assert"))
            ):
                found[ast.dump(node)] += 1
            if not isinstance(node, ast.JoinedStr) and not _is_comment(node):
                todo += ast.iter_child_nodes(node)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Counter([text])
    return found


def timed_tests(text: str) -> frozenset[str]:
    """Return the names of the tests that measure time and compare: how busy the machine is decides them.

    >>> sorted(timed_tests("def test_a():\\n    start = time()\\n    f()\\n    assert time() - start < 1\\n"))
    ['test_a']
    """
    found = set()
    try:
        for function in ast.walk(parse_python(text)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name.startswith("test"):
                nodes = list(ast.walk(function))
                if any(map(_is_duration, nodes)) and any(map(_is_ordering, nodes)):
                    found.add(function.name)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return frozenset()
    return frozenset(found)


def _is_duration(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
        return any(isinstance(side, ast.Call) and name_of(side) in _CLOCKS for side in (node.left, node.right))
    return isinstance(node, ast.Call) and name_of(node) == "timeit"


def _is_ordering(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return any(isinstance(kind, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for kind in node.ops)
    return isinstance(node, ast.Call) and name_of(node).startswith(("assertLess", "assertGreater"))


def _is_comment(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _taken_apart(source: GitSource, revision: str, path: Path) -> FixCommit:
    commit = source.resolve(revision)
    parents, message, date = source.lineage(commit)
    if not parents:
        raise TaskError(
            f"{commit[:12]} is the first commit of {str(path)!r}; a task needs a parent commit to start from"
        )
    # The first parent of a merge is the branch that was merged into.
    old = {entry.path: entry for entry in source.entries(parents[0])}
    new = {entry.path: entry for entry in source.entries(commit)}
    changed = [name for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    tests: dict[str, str] = {}
    left_out: list[str] = []
    written: dict[str, TreeFile] = {}
    removed: set[str] = set()
    for name in changed:
        entry = new.get(name)
        if not _belongs_to_tests(name):
            if entry is None:
                removed.add(name)
            else:
                kind = "symlink" if entry.symlink else "file"
                written[name] = TreeFile(kind, entry.data, entry.executable)  # type: ignore[arg-type]
        elif entry is not None:
            try:
                if entry.symlink:
                    raise ValueError("is a symbolic link")
                tests[name] = entry.data.decode()
            except ValueError as error:
                reason = "is not text" if isinstance(error, UnicodeDecodeError) else str(error)
                left_out.append(f"{name} {reason}")
    short = f"{commit[:12]} of {path.name!r}"
    if not any(name.endswith(".py") and PurePosixPath(name).name != "conftest.py" for name in tests):
        raise TaskError(
            f"{short} adds or changes no Python tests ({_listed(changed)}); a task needs tests that fail before the "
            "commit and pass after it. Use a commit that includes its tests"
        )
    if not written and not removed:
        raise TaskError(f"{short} changes only tests ({_listed(changed)}): there is nothing to fix")
    patch = "".join(_diff(name, old.get(name), new.get(name)) for name in changed if not _belongs_to_tests(name))
    return FixCommit(
        name=path.name.removesuffix(".git").removesuffix(".bundle"),
        commit=commit,
        parent=parents[0],
        message=message,
        date=date,
        fix=Changes(written, frozenset(removed)),
        tests=tests,
        left_out=tuple(left_out),
        before=frozenset(old),
        after=frozenset(new),
        patch=patch,
    )


def _belongs_to_tests(path: str) -> bool:
    name = PurePosixPath(path)
    data = name.suffix != ".py" and any(_TEST_DATA.fullmatch(folder) for folder in name.parts[:-1])
    return data or is_test_path(path) or name.name == "conftest.py"


def _diff(path: str, old: GitEntry | None, new: GitEntry | None) -> str:
    modes = {}
    for key, entry in (("old_mode", old), ("new_mode", new)):
        if entry is not None:
            modes[key] = "120000" if entry.symlink else "100755" if entry.executable else "100644"
    return file_diff(path, old.data if old else None, new.data if new else None, **modes)


def _listed(paths: list[str]) -> str:
    shown = ", ".join(paths[:5])
    return f"{shown} and {len(paths) - 5} more" if len(paths) > 5 else shown or "it is empty"


def statement_of(message: str) -> str:
    """Return the message of a commit as the statement of a task: without trailers and references to issues.

    >>> print(statement_of("Fix rounding of negative amounts (#12)\\n\\nFixes #11.\\n\\nSigned-off-by: A <a@b.c>\\n"))
    Fix rounding of negative amounts

    Raises:
        TaskError: The remaining text is too short to work from.
    """
    lines = [line.rstrip() for line in message.strip().splitlines()]
    if lines and _MERGE.fullmatch(lines[0]):
        lines = lines[1:]
    kept = []
    for line in lines:
        if _TRAILER.fullmatch(line.strip()):
            continue
        cleaned = _REFERENCE.sub("", line).rstrip()
        if cleaned.strip(" .,;:-") or not line.strip():
            kept.append(cleaned)
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    if len(re.findall(r"[^\W\d_]{2,}", text)) < _FEWEST_WORDS:
        raise TaskError(
            f"the message of the commit is too short for a task ({message.strip()[:80]!r}); describe the problem "
            "with statement="
        )
    return text
