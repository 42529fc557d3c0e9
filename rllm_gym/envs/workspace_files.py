"""The initial files of an episode's directory, as rows give them: ``{path: text | {"base64": …}}``."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from rllm_gym.core import TaskError

MAX_FILES = 1_000
MAX_FILE_BYTES = 10_000_000


def read_workspace(files: Any) -> Mapping[str, bytes]:
    """Return the content of the files by relative path; ``None`` is no files.

    Raises:
        TaskError: They are unusable; the message names the file.
    """
    if files is None:
        return {}
    if not isinstance(files, Mapping) or len(files) > MAX_FILES:
        raise TaskError(
            f"its workspace is {files!r:.80}; it must be a mapping of at most {MAX_FILES} relative paths to contents"
        )
    contents = {}
    for name, content in files.items():
        if content is None:  # a column of a Parquet file
            continue
        path = PurePosixPath(name) if isinstance(name, str) and "\0" not in name else None
        if path is None or path.is_absolute() or ".." in path.parts or not path.parts:
            raise TaskError(
                f"its workspace has a file {name!r:.80}; names must be relative paths inside it, such as 'notes/a.txt'"
            )
        contents[name] = _content(name, content)
    return contents


def write_workspace(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into an episode's directory.

    Raises:
        TaskError: A file cannot be written; the message names it.
    """
    for name, content in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError as error:
            raise TaskError(f"its file {name!r:.80} cannot be written: {error.strerror}") from error


def _content(name: str, content: Any) -> bytes:
    if isinstance(content, str):
        data = content.encode("utf-8", "surrogatepass")
    elif isinstance(content, Mapping) and content.keys() == {"base64"}:
        try:
            data = base64.b64decode(content["base64"], validate=True)
        except (ValueError, TypeError) as error:
            raise TaskError(f"its file {name!r:.80} has invalid base64: {error}") from error
    else:
        raise TaskError(
            f"its file {name!r:.80} is {content!r:.80}; it must be a text, or {{'base64': '…'}} for a file of bytes"
        )
    if len(data) > MAX_FILE_BYTES:
        raise TaskError(f"its file {name!r:.80} has {len(data):,} bytes; at most {MAX_FILE_BYTES:,} are accepted")
    return data
