"""``CallLog``: appends the calls of a served agent to a file, a JSON line each, up to a size."""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self


class CallLog:
    """A file of JSON lines. Use it in ``with``.

    A line is written as a whole before the client gets the reply. What was written to the file before is kept. When the
    next line would make the file larger than the limit, or the file system rejects it, logging ends: ``stopped`` says
    why.

    Args:
        path: The file. Its owner alone may read it from then on: it holds what people wrote.
        max_bytes: Maximum size of the file.

    Attributes:
        calls: Number of lines written.
        missed: Number of calls that were not logged.
        stopped: Why logging ended; ``""`` while it goes on.

    Raises:
        OSError: The file cannot be written, or another process logs to it.
    """

    def __init__(self, path: Path, *, max_bytes: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._max_bytes = path, max_bytes
        self.calls = self.missed = 0
        self.stopped = ""
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OSError(f"{path} is the log of another process; choose another file") from None
            if stat.S_ISREG(os.fstat(self._file).st_mode):  # not of a device
                os.fchmod(self._file, 0o600)  # it may have been created by something else
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                os.write(self._file, b"\n")  # a process that was killed left a part of a line
        except BaseException:
            os.close(self._file)
            raise

    def write(self, row: Mapping[str, Any]) -> None:
        """Append a line, unless logging has ended."""
        if self.stopped:
            self.missed += 1
            return
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        size = os.fstat(self._file).st_size
        if size + len(line) > self._max_bytes:
            self._stop(f"{self._path} would be larger than {self._max_bytes / (1 << 20):g} MiB")
            return
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            os.ftruncate(self._file, size)
            self._stop(str(error))
            return
        self.calls += 1

    def _stop(self, reason: str) -> None:
        self.stopped = reason
        self.missed += 1

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
