"""Locks a run's folder against other runs. The lock ends with the process, even after a crash."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from trainers.config import ConfigError

_LOCK = ".lock"
# The system's lock belongs to the process and does not separate two runs in the same process.
_held: set[Path] = set()


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create the folder and lock it for one run.

    Raises:
        ConfigError: Another run has locked it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = (folder / _LOCK).resolve()
    if path in _held:
        raise ConfigError(_held_by(folder, str(os.getpid())))
    with open(path, "a+") as file:
        _lock(file.fileno(), folder, path)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        _held.add(path)
        try:
            yield
        finally:
            _held.discard(path)


def _lock(descriptor: int, folder: Path, path: Path) -> None:
    if sys.platform == "win32":  # pragma: no cover - nothing here is tested there
        return
    import fcntl

    try:
        # Not flock: forked workers would keep that lock after the run was killed.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(_held_by(folder, path.read_text().strip())) from None


def _held_by(folder: Path, pid: str) -> str:
    return (
        f"output={str(folder)!r} is in use by another run (process {pid}): wait for it to end, or choose another folder"
    )
