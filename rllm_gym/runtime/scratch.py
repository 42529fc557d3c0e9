"""One directory per process for temporary files; directories of killed processes are removed by the next process."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import threading
from multiprocessing.util import Finalize
from pathlib import Path

_PREFIX = "rllm-gym-scratch-"
_guard = threading.Lock()
_root: tuple[int, Path, int] | None = None  # process, directory, descriptor that holds its lock


def scratch_directory(prefix: str) -> Path:
    """Create an empty directory of this process, with mode 0755 below one that others cannot list."""
    path = Path(tempfile.mkdtemp(prefix=prefix, dir=scratch_root()))
    path.chmod(0o755)
    return path


def scratch_root() -> Path:
    """Return this process's directory, which others cannot list.

    It is removed when the process ends, or, if it was killed, by the next process that creates one.
    """
    global _root
    with _guard:
        if _root is None or _root[0] != os.getpid() or not _root[1].is_dir():
            _sweep(Path(tempfile.gettempdir()))
            path, descriptor = _new_directory()
            _root = (os.getpid(), path, descriptor)
            # At exit, including that of a worker process, which calls no other exit functions.
            Finalize(None, shutil.rmtree, (path, True), exitpriority=0)
        return _root[1]


def _new_directory() -> tuple[Path, int]:
    """Create a directory, and return it with the descriptor that holds its lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # Until it is locked, another process may take it for that of a killed process and remove it.
        try:
            path.chmod(0o711)
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return path, descriptor
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove the directories of killed processes: their locks are no longer held."""
    for entry in os.scandir(folder):
        if not entry.name.startswith(_PREFIX):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            descriptor = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:  # another process is removing it too
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(entry.path, ignore_errors=True)
        except BlockingIOError:
            continue  # its process is alive
        finally:
            os.close(descriptor)


def _new_lock_after_fork() -> None:
    global _guard
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_new_lock_after_fork)
