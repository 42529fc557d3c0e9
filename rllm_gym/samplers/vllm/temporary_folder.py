"""A private folder, in memory where there is space, and cleanup of the folders of killed processes."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

_NAME = "rllm-gym-vllm-"
_MEMORY = Path("/dev/shm")
_LEAST_FREE = 4 << 30


def private_folder() -> Path:
    """Create a folder that only this user can read, with this process's id in its name; remove those of dead processes.

    In memory (``/dev/shm``) if it has 4 GiB free, else in the directory for temporary files.
    """
    root = Path(tempfile.gettempdir())
    if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free >= _LEAST_FREE:
        root = _MEMORY
    for parent in {root, _MEMORY, Path(tempfile.gettempdir())}:
        _sweep(parent)
    return Path(tempfile.mkdtemp(prefix=f"{_NAME}{os.getpid()}-", dir=root))


def remove_private_folder(folder: Path) -> None:
    """Remove the folder in the process that created it. In a forked child do nothing: the parent uses it."""
    if folder.name.startswith(f"{_NAME}{os.getpid()}-"):
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(parent: Path) -> None:
    if not parent.is_dir():
        return
    for folder in parent.glob(f"{_NAME}*"):
        match = re.fullmatch(rf"{_NAME}(\d+)-.*", folder.name)
        if match is None or Path(f"/proc/{match[1]}").exists() or not Path("/proc/self").exists():
            continue
        if folder.stat().st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)
