"""Creation of the tree an agent starts from: the files of one commit, as one new commit without any history.

The repository is untrusted: nothing in it is run; its filters, hooks and configuration are ignored; and all files are
written below a private directory. Trees are created once per process and shared read-only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm_gym.core import TaskError
from rllm_gym.envs.swe.git_objects import GitSource, commit_all, is_bundle, open_bundle, open_directory
from rllm_gym.envs.swe.patch import apply_patch, safe_path
from rllm_gym.runtime.scratch import scratch_directory
from rllm_gym.sandbox.tree import FileTree

MAX_FILES = 50_000
MAX_BYTES = 512 << 20
MAX_CACHED = 256
MAX_CACHED_BYTES = 2 << 30

# The same time for all files, so that the same commit gives an identical tree, including its stat results.
_TIME_NS = 1_577_836_800 * 10**9
CACHES = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints"})
"""Directories that tools leave in a source tree and that are not part of it."""

_LEFT_OUT = CACHES | {".git", ".hg", ".svn", ".tox", ".nox", ".venv", "node_modules", ".eggs"}
_COMMIT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


class Checkout:
    """A read-only tree on disk; it is removed when no reference to it is left, or at exit.

    Attributes:
        path: The tree: the files of the base commit, and a ``.git`` with one commit of them if git is installed.
            Never written to.
        files: Number of files and symbolic links.
        bytes: Their total size.
        commit: The commit or directory it was created from, for messages.
    """

    def __init__(self, path: Path, files: int, size: int, commit: str) -> None:
        self.path, self.files, self.bytes, self.commit = path, files, size, commit
        self._remove = weakref.finalize(self, _remove_tree, path, os.getpid())

    def read(self, path: str, max_bytes: int = MAX_BYTES) -> bytes | None:
        """Return the content of a regular file of the tree, ``None`` if there is none; links are not followed.

        Raises:
            TaskError: The file is larger than ``max_bytes``.
        """
        return _read_file(self.path, path, max_bytes)

    def entry(self, path: str) -> tuple[bytes | None, str]:
        """Return the entry at ``path``: a file's content or a link's target, and its mode in git's notation."""
        status = _lstat(self.path, path)
        if status is not None and stat.S_ISLNK(status.st_mode):
            return os.fsencode(os.readlink(self.path / path)), "120000"
        executable = status is not None and status.st_mode & 0o100
        return _read_file(self.path, path, MAX_BYTES), "100755" if executable else "100644"


def prepare(
    repo: str | os.PathLike[str] | Mapping[str, str], base_commit: str | None = None, *, patch: str | None = None
) -> Checkout:
    """Return the tree of ``base_commit``, without its history.

    Args:
        repo: A directory (of a git repository, also a bare one: its commit; any other: its files, without caches and
            virtual environments), a git bundle, or the files themselves as text by path.
        base_commit: A commit, tag or branch; ``None`` is ``HEAD``. Only for git repositories.
        patch: A unified diff applied to the tree, for example one that introduces a bug.

    Returns:
        The same object for the same tree, as long as it is referenced or among the last 256.

    Raises:
        TaskError: The repository is unusable: missing, too large, corrupt or dangerous; the message
            names a solution.
    """
    return _prepared(_source_of(repo, base_commit), patch)


def prepare_from(
    key: tuple[str, ...], name: str, read: Callable[[], FileTree], *, patch: str | None = None
) -> Checkout:
    """Apply :func:`prepare` to a tree from another source.

    Args:
        key: Identifies the tree: equal keys, equal trees.
        name: Its name in messages.
        read: Returns the tree; called only if it is not cached.
        patch: As in :func:`prepare`.
    """

    def write(writer: TreeWriter) -> None:
        for path, file in read().items():
            if file.kind == "symlink":
                writer.symlink(path, file.data)
            else:
                writer.file(path, file.data, file.executable)

    return _prepared(_TreeSource(key, name, write), patch)


def _prepared(source: _TreeSource, patch: str | None) -> Checkout:
    digest = hashlib.sha256(repr((source.key, patch)).encode("utf-8", "surrogatepass")).hexdigest()
    with _lock_of(digest):
        found = _cached(digest)
        if found is None:
            found = _make(source, patch)
            _remember(digest, found)
        return found


# Sources


@dataclass(frozen=True, slots=True)
class _TreeSource:
    """A tree that can be written to disk.

    Attributes:
        key: Identifies the tree: equal keys, equal trees.
        name: Its name in messages.
        write: Writes it.
    """

    key: tuple[Any, ...]
    name: str
    write: Callable[[TreeWriter], None]


def _source_of(repo: Any, base_commit: str | None) -> _TreeSource:
    if isinstance(repo, Mapping):
        if base_commit is not None:
            raise TaskError(f"base_commit={base_commit!r}: the repository is given as files, which have no commits")
        return _of_files(repo)
    path = Path(os.path.realpath(os.path.expanduser(repo)))
    if not path.exists():
        raise TaskError(f"the repository {os.fspath(repo)!r} does not exist")
    if path.is_dir():
        source = open_directory(path)
        if source is not None:
            return _of_git(source, base_commit, str(path))
        if base_commit is None:
            return _of_directory(path)
        raise TaskError(
            f"base_commit={base_commit!r}: {str(path)!r} is not a git repository; omit base_commit to use its "
            "files as they are"
        )
    if path.is_file() and is_bundle(path):
        return _of_bundle(path, base_commit)
    raise TaskError(
        f"the repository {str(path)!r} is neither a directory nor a git bundle; give a clone, a plain directory or "
        "the output of 'git bundle create'"
    )


def _of_git(source: GitSource, base_commit: str | None, name: str) -> _TreeSource:
    # The full id of a commit identifies its tree, so git is run only when the tree has to be written.
    commit = base_commit if base_commit and _COMMIT_ID.fullmatch(base_commit) else source.resolve(base_commit)
    return _TreeSource(
        ("git", name, commit), f"{commit[:12]} of {name}", lambda writer: _write_commit(source, commit, writer)
    )


def _of_bundle(path: Path, base_commit: str | None) -> _TreeSource:
    status = path.stat()

    def write(writer: TreeWriter) -> None:
        with open_bundle(path) as source:
            _write_commit(source, source.resolve(base_commit), writer)

    key = ("bundle", str(path), status.st_mtime_ns, status.st_size, status.st_ino, base_commit)
    return _TreeSource(key, f"{base_commit or 'HEAD'} of {path}", write)


def _write_commit(source: GitSource, commit: str, writer: TreeWriter) -> None:
    for entry in source.entries(commit):
        if entry.symlink:
            writer.symlink(entry.path, entry.data)
        else:
            writer.file(entry.path, entry.data, entry.executable)


def _of_files(files: Mapping[str, str]) -> _TreeSource:
    try:
        key = json.dumps(sorted(files.items()))
    except TypeError as error:
        raise TaskError(f"a repository given as files must map paths to text ({error})") from error

    def write(writer: TreeWriter) -> None:
        for path, text in files.items():
            if not isinstance(text, str):
                raise TaskError(f"the file {path!r} of the repository must be text; got {type(text).__name__}")
            writer.file(path, text.encode("utf-8", "surrogateescape"), text.startswith("#!"))

    return _TreeSource(("files", key), f"{len(files)} given files", write)


def _of_directory(root: Path) -> _TreeSource:
    """Return the source of a plain directory, identified by the ``lstat`` results of all its files."""
    found = list(_walk(root, root, [0, 0]))
    signature = hashlib.sha256(repr([(path, *marks) for path, marks in found]).encode()).hexdigest()

    def write(writer: TreeWriter) -> None:
        for path, (mode, *_) in found:
            try:
                if stat.S_ISLNK(mode):
                    writer.symlink(path, os.fsencode(os.readlink(root / path)))
                else:
                    data = _read_file(root, path, MAX_BYTES)
                    if data is None:
                        raise TaskError(
                            f"{path!r} of {str(root)!r} disappeared while the directory was read; try again"
                        )
                    writer.file(path, data, bool(mode & 0o111))
            except OSError as error:
                raise TaskError(f"{path!r} of {str(root)!r} cannot be read: {error.strerror}") from error

    return _TreeSource(("directory", str(root), signature), str(root), write)


def _walk(root: Path, folder: Path, total: list[int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise TaskError(f"the directory {str(folder)!r} cannot be read: {error.strerror}") from error
    if any(entry.name == "pyvenv.cfg" for entry in entries) and folder != root:
        return  # a virtual environment, whatever its name
    for entry in entries:
        if entry.name in _LEFT_OUT or entry.name.endswith(".pyc"):
            continue
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(root, Path(entry.path), total)
        elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            total[0] += 1
            total[1] += status.st_size
            _check_size(total[0], total[1], str(root))
            marks = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns)
            yield os.path.relpath(entry.path, root), marks


def _check_size(files: int, size: int, name: str) -> None:
    if files > MAX_FILES or size > MAX_BYTES:
        raise TaskError(
            f"the tree of {name!r} is too large: more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB; use a smaller "
            "repository (without data and build outputs)"
        )


# Writing


class TreeWriter:
    """Writes files and links into an empty private directory, and nowhere else."""

    def __init__(self, root: Path, name: str) -> None:
        self._root, self._name = root, name
        self._folders: set[str] = {""}
        self.files, self.bytes = 0, 0

    def file(self, path: str, data: bytes, executable: bool) -> None:
        where = self._place(path, len(data))
        try:
            descriptor = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError as error:
            raise self._twice(path) from error
        with open(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(descriptor, 0o755 if executable else 0o644)
            file.flush()
            os.utime(descriptor, ns=(_TIME_NS, _TIME_NS))

    def symlink(self, path: str, target: bytes) -> None:
        where = self._place(path, len(target))
        if not target or b"\0" in target or len(target) > 4_000:
            raise TaskError(f"the symbolic link {path!r} of {self._name!r} has an invalid target: {target[:80]!r}")
        try:
            os.symlink(target, os.fsencode(where))
        except FileExistsError as error:
            raise self._twice(path) from error
        os.utime(where, ns=(_TIME_NS, _TIME_NS), follow_symlinks=False)

    def finish(self) -> None:
        for folder in self._folders:
            os.utime(self._root / folder, ns=(_TIME_NS, _TIME_NS))

    def _place(self, path: str, size: int) -> Path:
        try:
            safe_path(path)
        except TaskError as error:
            raise TaskError(f"{self._name}: {error}") from error
        self.files += 1
        self.bytes += size
        _check_size(self.files, self.bytes, self._name)
        # A directory that was not created here may be a link that leads out of the tree.
        above = path.split("/")[:-1]
        for depth in range(1, len(above) + 1):
            folder = "/".join(above[:depth])
            if folder not in self._folders:
                try:
                    (self._root / folder).mkdir(mode=0o755)
                except FileExistsError as error:
                    raise self._twice(folder) from error
                self._folders.add(folder)
        return self._root / path

    def _twice(self, path: str) -> TaskError:
        return TaskError(f"{self._name} has two entries {path!r}; such trees are not supported")


def _make(source: _TreeSource, patch: str | None) -> Checkout:
    root = scratch_directory("tree-")
    try:
        writer = TreeWriter(root, source.name)
        source.write(writer)
        if patch:
            _patch(root, patch)
        writer.finish()
        commit_all(root)
    except BaseException:
        _remove_tree(root, os.getpid())
        raise
    return Checkout(root, writer.files, writer.bytes, source.name)


def _patch(root: Path, patch: str) -> None:
    for path, patched in apply_patch(patch, lambda path: _read_file(root, path, MAX_BYTES)).items():
        where = root / path
        present = _lstat(root, path)
        executable = bool(present.st_mode & 0o111) if present else False
        if present:
            where.unlink()
        if patched.data is not None:
            _real_folders(root, path)
            descriptor = os.open(where, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(patched.data)
                file.flush()
                chosen = executable if patched.executable is None else patched.executable
                os.fchmod(descriptor, 0o755 if chosen else 0o644)
                os.utime(descriptor, ns=(_TIME_NS, _TIME_NS))


def _real_folders(root: Path, path: str) -> None:
    folder = root
    for part in path.split("/")[:-1]:
        folder = folder / part
        folder.mkdir(mode=0o755, exist_ok=True)
        if folder.is_symlink():
            raise TaskError(f"the patch writes {path!r} through a symbolic link")


def _lstat(root: Path, path: str) -> os.stat_result | None:
    """Return the ``lstat`` result of ``path``, ``None`` if the path leads through a link."""
    folder = root
    try:
        for part in path.split("/")[:-1]:
            folder = folder / part
            if not stat.S_ISDIR(os.lstat(folder).st_mode):
                return None
        return os.lstat(root / path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _read_file(root: Path, path: str, max_bytes: int) -> bytes | None:
    status = _lstat(root, path)
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    if status.st_size > max_bytes:
        raise TaskError(f"{path!r} has {status.st_size} bytes; the maximum is {max_bytes}")
    descriptor = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        return file.read(max_bytes)


def _remove_tree(path: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child shares the trees, but does not own them
        shutil.rmtree(path, ignore_errors=True)


# The trees of this process

_guard = threading.Lock()
_locks: dict[str, threading.Lock] = {}
_recent: OrderedDict[str, Checkout] = OrderedDict()
_alive: weakref.WeakValueDictionary[str, Checkout] = weakref.WeakValueDictionary()


@contextmanager
def _lock_of(digest: str) -> Iterator[None]:
    """Hold the lock of one tree: one thread creates it, and others that need it wait."""
    with _guard:
        lock = _locks.setdefault(digest, threading.Lock())
    with lock:
        yield


def _cached(digest: str) -> Checkout | None:
    with _guard:
        found = _alive.get(digest)
        if found is not None:
            _recent[digest] = found
            _recent.move_to_end(digest)
        return found


def _remember(digest: str, checkout: Checkout) -> None:
    with _guard:
        _alive[digest] = _recent[digest] = checkout
        while len(_recent) > 1 and (
            len(_recent) > MAX_CACHED or sum(kept.bytes for kept in _recent.values()) > MAX_CACHED_BYTES
        ):
            forgotten, _ = _recent.popitem(last=False)
            _locks.pop(forgotten, None)


def _forget() -> None:
    """Reset in a forked child: the parent owns the trees and may remove them; a lock's owner may not exist here."""
    global _guard
    _guard = threading.Lock()
    _locks.clear()
    _recent.clear()
    _alive.clear()


os.register_at_fork(after_in_child=_forget)
