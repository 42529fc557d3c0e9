"""The files of a run that the viewer reads, and reading the new lines of a file that grows or is replaced."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import BinaryIO

from rllm_gym.commands.errors import CommandError

METRICS = "metrics.jsonl"
COMPLETIONS = "completions.jsonl"
RESULTS = "results.json"
EVALUATION = "evaluation.json"
MANIFEST = "manifest.json"
MAX_LINE_BYTES = 128 << 20
"""Longest line that is parsed: an episode of some thirty turns with screenshots."""
_FOLDERS = ("", "episodes", "dropped")
_STEP = re.compile(r"(validation|train)-(\d{1,12})")
_TAIL_BYTES = 256


class FilterError(ValueError):
    """A parameter of a request is unknown or has an invalid value."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run given on the command line.

    Attributes:
        name: Its name on the page and in links; unique.
        path: Its folder, or a file of episodes; absolute, without links.
    """

    name: str
    path: Path

    @property
    def folder(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def metrics(self) -> Path | None:
        """The file of metrics; ``None`` if there is none, or it is a link that leads out of the run."""
        return self._own(METRICS)

    @property
    def results(self) -> Path | None:
        """The file with the results of ``rllm-gym eval``, like :attr:`metrics`."""
        return self._own(RESULTS)

    @property
    def evaluation(self) -> Path | None:
        """The file with the table of the demo, like :attr:`metrics`."""
        return self._own(EVALUATION)

    @property
    def manifest(self) -> Path | None:
        """The manifest, like :attr:`metrics`; that of a file of episodes is beside it."""
        path = self.folder / (MANIFEST if self.path.is_dir() else self.path.with_suffix(f".{MANIFEST}").name)
        return path if path.is_file() and path.resolve() == path else None

    def _own(self, name: str) -> Path | None:
        path = (self.path / name).resolve()
        return path if path.is_file() and path.is_relative_to(self.path) else None


@dataclass(frozen=True, slots=True)
class EpisodeFile:
    """A file with one episode per line.

    Attributes:
        name: Its path relative to the run's folder.
        path: The file.
        kind: ``"validation"``, ``"train"``, ``"dropped"``, ``"completions"`` or ``"other"``, such as an evaluation.
        step: Completed training steps; ``None`` if the name has none.
    """

    name: str
    path: Path
    kind: str
    step: int | None


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a file has been read.

    A file is read from the beginning if it is another one, has become shorter, was written to without becoming longer,
    or differs in the last bytes that were read. Another change of bytes that were read is not noticed if the file has
    also become longer.

    Attributes:
        inode: The file that was read.
        offset: Bytes of the lines that were read.
        line: Their number.
        tail: Checksum of the last bytes before the offset.
        size: Bytes of the whole file when it was read.
        modified: When it had been written to last, in nanoseconds.
    """

    inode: int = 0
    offset: int = 0
    line: int = 0
    tail: int = 0
    size: int = 0
    modified: int = 0

    def __str__(self) -> str:
        return "-".join(str(number) for number in astuple(self))

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Inverse of ``str()``.

        Raises:
            FilterError: The text is not that of a cursor.
        """
        if not re.fullmatch(r"\d{1,20}(-\d{1,20}){5}", text, re.ASCII):
            raise FilterError(f"cursor={text!r:.200} is not a cursor that an earlier reply contained")
        return cls(*(int(number) for number in text.split("-")))


@dataclass(frozen=True, slots=True)
class FileLine:
    """One line: its number from 1, its offset in the file, and its bytes, ``None`` if it is too long."""

    number: int
    offset: int
    length: int
    content: bytes | None


def open_runs(paths: Sequence[Path]) -> list[Run]:
    """Return the runs of the command line.

    Raises:
        CommandError: A path is not a folder with a run's files, or a file of episodes; or it is given twice.
    """
    runs: list[Run] = []
    for path in paths:
        real = path.resolve()
        if not real.exists():
            raise CommandError(f"{path} does not exist; give the output folder of a run, or a file of episodes")
        if any(run.path == real for run in runs):
            raise CommandError(f"{path} is given twice; give each run once")
        run = Run(_unique(real, runs), real)
        if real.is_file() and real.suffix != ".jsonl":
            raise CommandError(f"{path} is not a .jsonl file; give the output folder of a run, or a file of episodes")
        has_output = any((real / name).is_file() for name in (METRICS, "config.yaml"))
        if not has_output and not episode_files(run):
            raise CommandError(
                f"no output of a run in {path}: expected {METRICS} or episodes (*.jsonl, episodes/*.jsonl); give "
                "the output folder of `rllm-gym train`, or that of `rllm-gym eval --output FOLDER/episodes.jsonl`"
            )
        runs.append(run)
    return runs


def _unique(path: Path, runs: Sequence[Run]) -> str:
    taken = {run.name for run in runs}
    names = [path.name or "run", f"{path.parent.name}/{path.name}"]
    return next((name for name in names if name not in taken), str(path))


def episode_files(run: Run) -> list[EpisodeFile]:
    """Return the run's files of episodes, in order of their names. Links that lead out of the run are left out."""
    if run.path.is_file():
        return [EpisodeFile(run.path.name, run.path, "other", None)]
    files = []
    for folder in _FOLDERS:
        real = (run.path / folder).resolve()
        try:
            with os.scandir(real) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError:
            continue  # no such folder
        for entry in entries:
            if entry.name.startswith(".") or entry.name == METRICS or not entry.name.endswith(".jsonl"):
                continue
            # Only links are resolved: a run can have thousands of files, and the page asks every two seconds.
            path = (real / entry.name).resolve() if entry.is_symlink() else real / entry.name
            if entry.is_file() and path.is_relative_to(run.path):
                files.append(_episode_file(f"{folder}/{entry.name}" if folder else entry.name, path))
    return files


def _episode_file(name: str, path: Path) -> EpisodeFile:
    match = _STEP.fullmatch(path.stem)
    kind = "dropped" if name.startswith("dropped/") else match[1] if match else "other"
    if name == COMPLETIONS:
        kind = "completions"
    return EpisodeFile(name, path, kind, int(match[2]) if match else None)


def new_lines(path: Path, cursor: Cursor, max_bytes: int) -> tuple[list[FileLine], Cursor, bool]:
    """Read the complete lines after a cursor. A last line without a newline is left for the next call.

    Args:
        path: The file.
        cursor: The end of the last call; ``Cursor()`` for the beginning.
        max_bytes: Return after the line that reaches this many bytes.

    Returns:
        The lines; the cursor for the next call; whether the file was replaced, so that all earlier lines are void.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        same = cursor.offset <= status.st_size and cursor.inode == status.st_ino
        if cursor.size == status.st_size and cursor.modified != status.st_mtime_ns:
            same = False
        restarted = cursor.offset > 0 and not (same and _tail(file, cursor.offset) == cursor.tail)
        if restarted or not same:
            cursor = Cursor(status.st_ino)
        file.seek(cursor.offset)
        lines: list[FileLine] = []
        for line in _lines(file, cursor.line, cursor.offset):
            lines.append(line)
            if line.offset + line.length - cursor.offset >= max_bytes:
                break
        if lines:
            end = lines[-1].offset + lines[-1].length
            read = replace(cursor, offset=end, line=lines[-1].number, tail=_tail(file, end))
            cursor = replace(read, size=status.st_size, modified=status.st_mtime_ns)
    return lines, cursor, restarted


def lines_at(locations: Sequence[tuple[Path, int, int]]) -> bytes:
    """Return the lines at these files, offsets and lengths; one that is no longer there is left out."""
    lines = []
    for path, in_file in itertools.groupby(locations, key=lambda location: location[0]):
        with contextlib.suppress(OSError), path.open("rb") as file:
            for _, offset, length in in_file:
                file.seek(offset)
                content = file.read(min(length, MAX_LINE_BYTES))
                if content.startswith(b"{") and content.find(b"\n") == length - 1:
                    lines.append(content)
    return b"".join(lines)


def _lines(file: BinaryIO, number: int, offset: int) -> Iterator[FileLine]:
    while content := file.readline(MAX_LINE_BYTES):
        length, last = len(content), content
        while not last.endswith(b"\n"):
            last = file.readline(1 << 20)
            length += len(last)
            if not last:
                return  # incomplete
        number += 1
        yield FileLine(number, offset, length, content if length == len(content) else None)
        offset += length


def _tail(file: BinaryIO, offset: int) -> int:
    start = max(offset - _TAIL_BYTES, 0)
    return zlib.crc32(os.pread(file.fileno(), offset - start, start))
