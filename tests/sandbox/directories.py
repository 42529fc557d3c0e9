"""Trees on disk: what a session reports is compared with what is in a directory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rllm_gym.sandbox import TreeFile
from rllm_gym.sandbox.inside import files
from rllm_gym.sandbox.tree import EXCLUDED, MAX_BYTES, MAX_FILES, FileTree, tree_of


def read_directory(directory: Path, *, leave_out: frozenset[str] = EXCLUDED) -> FileTree:
    """Read a directory as the trusted process of a session does."""
    root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return tree_of(files.walk(root, files.ReadBudget(MAX_BYTES, MAX_FILES), leave_out))
    finally:
        os.close(root)


def write_directory(tree: Mapping[str, TreeFile], directory: Path) -> None:
    """Write a tree into a new directory."""
    directory.mkdir(parents=True)
    for name, file in tree.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if file.kind == "symlink":
            os.symlink(file.data, os.fsencode(path))
        else:
            path.write_bytes(file.data)
            path.chmod(0o755 if file.executable else 0o644)
