"""Trees of files as values: the content of a workspace, and its changes."""

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


FileTree = dict[str, TreeFile]
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

    def apply(self, base: Mapping[str, TreeFile]) -> FileTree:
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


def tree_of(entries: Iterable[files.FileEntry]) -> FileTree:
    """Return the entries of a reading, by path."""
    return {entry.path: TreeFile(_kind(entry.kind), entry.data, entry.executable) for entry in entries}


def _kind(text: str) -> Literal["file", "symlink"]:
    return "symlink" if text == "symlink" else "file"


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
