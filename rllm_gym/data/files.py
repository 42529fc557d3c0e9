"""Task stores over files: every row is checked once when a file is opened, and read again when it is needed."""

from __future__ import annotations

import functools
import json
import os
import stat
import threading
import weakref
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rllm_gym.core import Task, TaskError
from rllm_gym.data.conversion import MAX_DEPTH, RowToTask
from rllm_gym.data.rows import MemoryStore, RowReader, RowStore, TaskStore, make_task

MAX_LINE_BYTES = 16 * 2**20
"""Maximum length of a line of a JSONL file in bytes. A longer line is an error, so that it cannot fill the memory."""

MAX_JSON_BYTES = 256 * 2**20
"""Maximum size of a ``.json`` file in bytes, since it is read as a whole; ``.jsonl`` files have no limit."""

MAX_ROW_GROUP_BYTES = 2 * 2**30
"""Maximum size of a row group of a Parquet file in bytes, uncompressed: reading one row reads its group."""

SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")


class MissingTasks(TaskError, FileNotFoundError):
    """Raised if a task file does not exist."""


def open_store(path: str | Path, *, name: str | None, convert: RowToTask) -> TaskStore:
    """Open a file as a task store. Files that have not changed since they were opened are shared within the process.

    Raises:
        TaskError: The file is missing, is not a regular file, has an unknown suffix, is empty, or has a bad row.
    """
    path, suffix, signature = _check_file(path)
    return _open_unchanged(os.path.realpath(path), signature, suffix, name or path.stem, convert)


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Read all rows of a file, without conversion. The file may be empty.

    Raises:
        TaskError: See :func:`open_store`.
    """
    path, suffix, _ = _check_file(path)
    if suffix == ".parquet":
        return list(_parquet_rows(_open_parquet(str(path)), str(path)))
    if suffix == ".json":
        return _json_rows(str(path))
    with open(path, "rb") as file:
        return [row for _, _, _, row in _jsonl_rows(file, str(path))]


def _check_file(path: str | Path) -> tuple[Path, str, tuple[int, int, int]]:
    path = Path(path).expanduser()
    suffix = path.suffix.lower()
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise MissingTasks(
            f"no task file {str(path)!r:.300} ({type(error).__name__}); tasks are a path to "
            f"{', '.join(SUFFIXES)}, 'hf:repo[:config][@split]', or a list of rows"
        ) from error
    if not stat.S_ISREG(found.st_mode):
        raise TaskError(f"{str(path)!r} is not a regular file; give a path to {', '.join(SUFFIXES)}")
    if suffix not in SUFFIXES:
        raise TaskError(f"{str(path)!r}: tasks are read from {', '.join(SUFFIXES)}, not from {suffix or 'no suffix'!r}")
    return path, suffix, _signature(found)


@functools.lru_cache(maxsize=16)
def _open_unchanged(
    path: str, signature: tuple[int, int, int], suffix: str, name: str, convert: RowToTask
) -> TaskStore:
    if suffix == ".parquet":
        return ParquetStore(path, name, convert)
    if suffix == ".json":
        return MemoryStore(_json_rows(path), name, convert)
    return JsonlStore(path, name, convert)


def _signature(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


# JSON


def parse_json(text: bytes) -> Any:
    """Parse strict JSON from UTF-8 bytes: no ``NaN``, no lone surrogates, at most 64 levels deep.

    Raises:
        TaskError: The text is not such JSON; names the position and the fix.
    """
    try:
        value = json.loads(text.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise TaskError(
            f"byte {error.start + 1} of the line is not UTF-8 ({error.reason}); save the file as UTF-8"
        ) from error
    except json.JSONDecodeError as error:
        raise TaskError(f"not JSON: {error.msg} at column {error.pos + 1}; fix or remove the line") from error
    except RecursionError as error:
        raise TaskError(f"nested more than {MAX_DEPTH} levels deep; flatten it") from error
    except ValueError as error:
        # A TaskError of _no_constant, or an integer with more digits than Python converts.
        raise error if isinstance(error, TaskError) else TaskError(f"a number is too long: {error}") from error
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise TaskError(f"nested more than {MAX_DEPTH} levels deep; flatten it")
    if b"\\ud" in text or b"\\uD" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise TaskError(
                "it contains half of a surrogate pair (\\ud800…), which is not a character; remove it"
            ) from error
    return value


def _no_constant(name: str) -> Any:
    raise TaskError(f"{name} is not JSON; write null or omit the field")


def _depth(value: Any) -> int:
    deepest, stack = 0, [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if isinstance(item, dict):
            stack.extend((inner, depth + 1) for inner in item.values())
        elif isinstance(item, list):
            stack.extend((inner, depth + 1) for inner in item)
        else:
            continue
        deepest = max(deepest, depth)
    return deepest


def _json_rows(path: str) -> list[dict[str, Any]]:
    size = os.path.getsize(path)
    if size > MAX_JSON_BYTES:
        raise TaskError(
            f"{path} has {size} bytes but a .json file is read as a whole and may have at most "
            f"{MAX_JSON_BYTES}; write a .jsonl file with one row per line"
        )
    try:
        rows = parse_json(Path(path).read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except TaskError as error:
        hint = " (if the file has one row per line, name it .jsonl)" if "Extra data" in str(error) else ""
        raise TaskError(f"{path}: {error}{hint}") from error
    if not isinstance(rows, list) or not rows:
        raise TaskError(f"{path}: a .json file of tasks must be a non-empty list of rows")
    return rows


class JsonlStore(RowStore):
    """A store over a file with one JSON object per line; blank lines are skipped. Rows are read by byte offset.

    Args:
        path: The file.
        name: Prefix of the ids of rows that have none.
        convert: Converts a row to a task.

    Raises:
        TaskError: A line cannot be used, or there is none; names the file and the line.
    """

    def __init__(self, path: str, name: str, convert: RowToTask) -> None:
        self.path, self.name, self._convert = path, name, convert
        self._offsets, self._lengths, self._lines = array("Q"), array("L"), array("Q")
        reader = RowReader(name, convert, self._where)
        self._open()
        with open(path, "rb") as file:
            for line, offset, length, row in _jsonl_rows(file, path):
                self._offsets.append(offset)
                self._lengths.append(length)
                self._lines.append(line)
                reader.read(row)
        if not len(reader):
            raise TaskError(f"{path} has no rows; write one JSON object per line")
        self.table = reader.table(lambda position: self.task(position).task_id)

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))
        weakref.finalize(self, os.close, self._fd)
        self._signature = _signature(os.fstat(self._fd))

    def _where(self, position: int) -> str:
        return f"{self.path}, line {self._lines[position]}"

    def __len__(self) -> int:
        return len(self._offsets)

    def task(self, position: int) -> Task:
        if _signature(os.fstat(self._fd)) != self._signature:
            raise TaskError(
                f"{self.path} was changed while it was in use; open it again (to change tasks, write a new file)"
            )
        text = os.pread(self._fd, self._lengths[position], self._offsets[position])
        return make_task(parse_json(text), position, self.name, self._convert)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_fd"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        expected = self._signature
        self._open()
        if self._signature != expected:
            raise TaskError(f"{self.path} was changed since the other process opened it; open it again")


def _jsonl_rows(file: BinaryIO, path: str) -> Iterator[tuple[int, int, int, Any]]:
    """Yield line number, byte offset, length in bytes and row of every line that is not blank."""
    offset, number = 0, 0
    while True:
        raw = file.readline(MAX_LINE_BYTES + 1)
        if not raw:
            return
        number += 1
        if len(raw) > MAX_LINE_BYTES:
            raise TaskError(
                f"{path}, line {number}: longer than {MAX_LINE_BYTES} bytes; write one row per line, and store "
                "large data in separate files"
            )
        start = 3 if number == 1 and raw.startswith(b"\xef\xbb\xbf") else 0
        text = raw[start:].rstrip(b"\r\n")
        if text.strip():
            try:
                row = parse_json(text)
            except TaskError as error:
                raise TaskError(f"{path}, line {number}: {error}") from error
            yield number, offset + start, len(text), row
        offset += len(raw)


# Parquet


def _open_parquet(path: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise TaskError(
            f"{path}: reading Parquet needs pyarrow, which is not installed; pip install "
            "'rllm-gym[parquet]', or use a .jsonl file"
        ) from error
    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise TaskError(f"{path}: not a Parquet file ({error!s:.300})") from error
    for index in range(file.metadata.num_row_groups):
        size = file.metadata.row_group(index).total_byte_size
        if size > MAX_ROW_GROUP_BYTES:
            raise TaskError(
                f"{path}: row group {index} has {size} bytes (at most {MAX_ROW_GROUP_BYTES}); rewrite the file "
                "with smaller row groups"
            )
    return file


def _parquet_rows(file: Any, path: str) -> Iterator[dict[str, Any]]:
    import pyarrow

    # Read one group at a time, in batches, so that the whole file is never in memory.
    try:
        for group in range(file.metadata.num_row_groups):
            for batch in file.iter_batches(batch_size=1024, row_groups=[group]):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise TaskError(f"{path}: the Parquet file is corrupt ({error!s:.300}); create it again") from error


class ParquetStore(RowStore):
    """A store over a Parquet file that reads one row group at a time and caches the last one used.

    Raises:
        TaskError: ``pyarrow`` is missing, the file is not a Parquet file, or a row cannot be used.
    """

    def __init__(self, path: str, name: str, convert: RowToTask) -> None:
        self.path, self.name, self._convert = path, name, convert
        self._file = _open_parquet(path)
        groups = self._file.metadata
        self._starts = np.cumsum([0, *(groups.row_group(index).num_rows for index in range(groups.num_row_groups))])
        self._lock = threading.Lock()
        self._kept: tuple[int, Any] = (-1, None)
        reader = RowReader(name, convert, lambda position: f"{path}, row {position}")
        for row in _parquet_rows(self._file, path):
            reader.read(row)
        if not len(reader):
            raise TaskError(f"{path} has no rows")
        self.table = reader.table(lambda position: self.task(position).task_id)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def task(self, position: int) -> Task:
        group = int(np.searchsorted(self._starts, position, side="right")) - 1
        with self._lock:
            if self._kept[0] != group:
                self._kept = (group, self._file.read_row_group(group))
            table = self._kept[1]
        row = table.slice(position - int(self._starts[group]), 1).to_pylist()[0]
        return make_task(row, position, self.name, self._convert)

    def __reduce__(self) -> tuple[object, ...]:
        return ParquetStore, (self.path, self.name, self._convert)
