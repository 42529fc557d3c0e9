"""Trees of files as values: the content of a workspace, its changes, and reading and writing a directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rllm_gym.core import RllmGymError
from rllm_gym.sandbox.inside import files

EXCLUDED = frozenset({".git"})
"""Top-level names excluded from a workspace's tree: grading does not use the agent's history."""

MAX_BYTES = 256 * 1024 * 1024
"""Default maximum size of a tree in bytes, all files together."""

MAX_FILES = 50_000
"""Default maximum number of files and links in a tree."""


class TreeTooLarge(RllmGymError, ValueError):
    """A file or tree exceeds the requested limit. In a workspace the agent causes this: not an environment fault."""


@dataclass(frozen=True, slots=True)
class TreeFile:
    """One regular file or symbolic link.

    Attributes:
        kind: ``"file"`` or ``"symlink"``.
        data: The content, or the target of the link (never followed).
        executable: Whether its owner may execute it; always False for links.
    """

    kind: Literal["file", "symlink"]
    data: bytes
    executable: bool = False


Tree = dict[str, TreeFile]
"""Files by relative path with ``/``; bytes that are not UTF-8 are surrogate-escaped. Directories are implied by
paths."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The difference between two trees.

    Attributes:
        written: New and changed files and links.
        removed: Paths of the old tree that are removed or replaced by a directory.
    """

    written: Mapping[str, TreeFile]
    removed: frozenset[str]

    def apply(self, base: Mapping[str, TreeFile]) -> Tree:
        """Return ``base`` without the removed files and with the written ones.

        >>> Changes({"b": TreeFile("file", b"2")}, frozenset({"a"})).apply({"a": TreeFile("file", b"1")})
        {'b': TreeFile(kind='file', data=b'2', executable=False)}
        """
        tree = {path: file for path, file in base.items() if path not in self.removed}
        tree.update(self.written)
        return tree

    @classmethod
    def between(cls, base: Mapping[str, TreeFile], tree: Mapping[str, TreeFile]) -> Changes:
        """Return the changes that turn ``base`` into ``tree``."""
        return cls(
            {path: file for path, file in tree.items() if base.get(path) != file},
            frozenset(path for path in base if path not in tree),
        )

    def __bool__(self) -> bool:
        return bool(self.written or self.removed)


def tree_of(entries: Iterable[files.FileEntry]) -> Tree:
    """Return the entries of a reading, by path."""
    return {entry.path: TreeFile(_kind(entry.kind), entry.data, entry.executable) for entry in entries}


def _kind(text: str) -> Literal["file", "symlink"]:
    return "symlink" if text == "symlink" else "file"


def read_directory(
    directory: Path,
    *,
    max_bytes: int = MAX_BYTES,
    max_files: int = MAX_FILES,
    leave_out: frozenset[str] = EXCLUDED,
) -> Tree:
    """Return all files and links below ``directory``, which may be hostile.

    Nothing in it is followed, run or waited for. FIFOs, sockets and devices are skipped.

    Raises:
        TreeTooLarge: It has more bytes or files than allowed, or is too deep.
        OSError: ``directory`` or something in it cannot be read.
    """
    root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return tree_of(files.walk(root, files.ReadBudget(max_bytes, max_files), leave_out))
    except files.FileTooLarge as error:
        raise TreeTooLarge(f"{directory}: {error}") from None
    finally:
        os.close(root)


def write_directory(tree: Mapping[str, TreeFile], directory: Path) -> None:
    """Write ``tree`` into ``directory``, which must be empty or missing. Links are created, never followed.

    Raises:
        ValueError: A path is absolute, leads out, or lies below a file or link of the tree.
        FileExistsError: The directory is not empty.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty; name a new directory")
    root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path in sorted(tree):
            check_path(path)
            for parent in _parents(path):
                if parent in tree:
                    raise ValueError(f"{path!r} lies below {parent!r}, which is a {tree[parent].kind}")
            file = tree[path]
            if file.kind == "symlink":
                files.link_file(root, path, file.data)
            else:
                files.write_file(root, path, "/", file.data, file.executable)
    finally:
        os.close(root)


def check_path(path: str) -> None:
    """Check a path.

    Raises:
        ValueError: It is not a plain relative path: absolute, empty parts, ``.``, ``..``, or a NUL.
    """
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{path!r} is not a plain relative path")


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]


@dataclass(frozen=True, slots=True)
class DirectoryStats:
    """The content of a directory, counted recursively.

    Attributes:
        owner: User and group of everything in it; ``None`` if there are several.
        entries: Number of files, links and directories.
        size: Bytes of the files.
    """

    owner: tuple[int, int] | None
    entries: int
    size: int


def directory_stats(directory: Path) -> DirectoryStats:
    """Count everything below a trusted directory, without opening files.

    Raises:
        OSError: A directory cannot be listed.
    """
    top = os.lstat(directory)
    owner: tuple[int, int] | None = (top.st_uid, top.st_gid)
    entries, size = 0, 0
    todo = [os.fspath(directory)]
    while todo:
        with os.scandir(todo.pop()) as found:
            for entry in found:
                status = entry.stat(follow_symlinks=False)
                entries += 1
                if (status.st_uid, status.st_gid) != owner:
                    owner = None
                if stat.S_ISDIR(status.st_mode):
                    todo.append(entry.path)
                else:
                    size += status.st_size
    return DirectoryStats(owner, entries, size)
