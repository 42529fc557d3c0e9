"""Reads training rows from JSONL, JSON, Parquet or the hub, from one or several files, each with its location."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rllm_gym.core import TaskError
from rllm_gym.data import load_tasks
from rllm_gym.data.files import read_rows
from trainers.config import ConfigError, FilePaths


def rows_of_files(files: FilePaths, option: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every row with its location for messages (``"chats.jsonl, line 3"``), file by file in the given order.

    JSONL lines are parsed with Python's ``json``, since saved episodes may contain lone surrogates.

    Args:
        files: Paths, patterns (``episodes/*.jsonl``, ``**`` for any folders) or ``hf:repo[:config][@split]``.
        option: The option with the files, for error messages.

    Raises:
        ConfigError: A file is missing, a pattern matches no file, or a row is not a JSON object; the message names
            it.
    """
    for source in [files] if isinstance(files, str | Path) else files:
        for path in [str(source)] if str(source).startswith("hf:") else _expand(str(source), option):
            try:
                yield from _rows(path)
            except TaskError as error:
                raise ConfigError(f"{option}: {error}") from error


def _expand(source: str, option: str) -> list[str]:
    path = Path(source).expanduser()
    if path.is_file():
        return [str(path)]
    if path.is_dir():
        raise ConfigError(f"{option}={source!r} is a folder; name its files, for example {str(path / '*.jsonl')!r}")
    found = sorted(glob.glob(str(path), recursive=True)) if glob.has_magic(str(path)) else []
    if not found:
        raise ConfigError(f"{option}={source!r} does not exist" + (" (no file matches)" if "*" in source else ""))
    return found


def _rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if path.startswith("hf:"):
        tasks = load_tasks(path)
        for index in range(len(tasks)):
            yield f"{path}, row {index}", tasks[index].to_json()["data"]
    elif Path(path).suffix.lower() in (".json", ".parquet"):
        for index, row in enumerate(read_rows(path)):
            yield f"{path}, row {index}", _object(row, f"{path}, row {index}")
    else:
        # Read bytes: text may contain characters at which Python breaks lines, but JSON does not.
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                where = f"{path}, line {number}"
                try:
                    row = json.loads(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
                except ValueError as error:
                    raise ConfigError(f"{where}: not a JSON object ({error}); fix or delete the line") from error
                yield where, _object(row, where)


def _object(row: Any, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: a row must be a JSON object, not {type(row).__name__}: {row!r:.80}")
    return row
