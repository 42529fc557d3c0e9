"""A folder that a model can read and change through tools; nothing outside of it can be reached."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import wraps
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from rllm_gym.envs.mcp.serving import Refusal, ToolMethod

MAX_FILE_BYTES = 200_000
MAX_TOTAL_BYTES = 4_000_000
MAX_ENTRIES = 1_000
"""Most files and folders in the workspace."""
MAX_DEPTH = 8
MAX_SHOWN_CHARS = 20_000
MAX_LISTED = 200

Tool = TypeVar("Tool", bound=ToolMethod)


def _in_words(tool: Tool) -> Tool:
    """Report errors of the file system by their reason, without the path of the workspace on this machine."""

    @wraps(tool)
    def description(*args: Any, **kwargs: Any) -> Any:
        try:
            return tool(*args, **kwargs)
        except OSError as error:
            raise Refusal(f"The file system refuses: {error.strerror or type(error).__name__}.") from None

    return description  # type: ignore[return-value]


class Folder:
    """The tools of a file server for one folder. Paths are relative to it; ``/notes/a.txt`` is ``notes/a.txt``.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.realpath(root))

    def tools(self) -> Sequence[Callable[..., Any]]:
        return (
            self.list_directory,
            self.search_files,
            self.read_text_file,
            self.write_file,
            self.edit_file,
            self.move_file,
            self.delete_file,
            self.create_directory,
        )

    @_in_words
    def list_directory(self, path: str = ".") -> str:
        """List what is in a directory: [DIR] or [FILE] and the name, sorted by name.

        Args:
            path: The directory, relative to the root; "." is the root.
        """
        folder = self._existing(path, folder=True)
        names = sorted(os.listdir(folder))
        lines = [f"{'[DIR] ' if (folder / name).is_dir() else '[FILE]'} {name}" for name in names[:MAX_LISTED]]
        if len(names) > MAX_LISTED:
            lines.append(f"({len(names) - MAX_LISTED} more; search_files finds them by name)")
        return "\n".join(lines) or "(empty)"

    @_in_words
    def search_files(self, pattern: str, path: str = ".") -> str:
        """Find files by name, in a directory and everything below it. Returns their paths, one a line, sorted.

        Args:
            pattern: Pattern of the file name, with * and ?, such as *.csv.
            path: The directory to search, relative to the root.
        """
        if len(pattern) > 100 or pattern.count("*") > 5:
            raise Refusal("The pattern is too long: at most 100 characters and 5 times *.")
        folder = self._existing(path, folder=True)
        found = sorted(
            str(file.relative_to(self._root)) for file, _ in _entries(folder) if fnmatchcase(file.name, pattern)
        )
        more = [f"({len(found) - MAX_LISTED} more; search in a directory below)"] if len(found) > MAX_LISTED else []
        return "\n".join([*found[:MAX_LISTED], *more]) or "No files found."

    @_in_words
    def read_text_file(self, path: str, first_line: int = 1, last_line: int | None = None) -> str:
        """Read a text file, whole or some of its lines.

        Args:
            path: The file, relative to the root.
            first_line: Number of the first line to read, from 1 on.
            last_line: Number of the last line to read; the end of the file if left out.
        """
        if first_line < 1 or (last_line is not None and last_line < first_line):
            raise Refusal(f"There are no lines {first_line} to {last_line}; lines are counted from 1.")
        text = self._read(self._existing(path))
        lines = text.splitlines(keepends=True)
        wanted = "".join(lines[first_line - 1 : last_line])
        if len(wanted) > MAX_SHOWN_CHARS:
            return (
                f"{wanted[:MAX_SHOWN_CHARS]}\n(cut after {MAX_SHOWN_CHARS} characters of {len(lines)} lines: "
                "read it in parts, with first_line and last_line)"
            )
        return wanted

    @_in_words
    def write_file(self, path: str, content: str) -> str:
        """Write a text file: a new one, or over all of what an existing one holds. Its directory must exist.

        Args:
            path: The file, relative to the root.
            content: The whole text.
        """
        file = self._place(path)
        self._write(file, content)
        return f"Wrote {len(content)} characters to {self._name(file)}."

    @_in_words
    def edit_file(self, path: str, old_text: str, new_text: str) -> str:
        """Replace a piece of a text file. The old text must occur in it exactly once.

        Args:
            path: The file, relative to the root.
            old_text: The piece as it stands there, with its line breaks.
            new_text: What takes its place.
        """
        file = self._existing(path)
        text = self._read(file)
        times = text.count(old_text) if old_text else 0
        if times != 1:
            raise Refusal(f"The old text occurs {times} times in {self._name(file)}; it must occur exactly once.")
        self._write(file, text.replace(old_text, new_text))
        return f"Edited {self._name(file)}."

    @_in_words
    def move_file(self, source: str, destination: str) -> str:
        """Move or rename a file. The destination must not exist, its directory must.

        Args:
            source: The file, relative to the root.
            destination: Its new path with the file name, relative to the root.
        """
        file, place = self._existing(source), self._place(destination)
        if os.path.lexists(place):
            raise Refusal(f"{self._name(place)} exists already; nothing was moved.")
        file.rename(place)
        return f"Moved {self._name(file)} to {self._name(place)}."

    @_in_words
    def delete_file(self, path: str) -> str:
        """Delete a file for good.

        Args:
            path: The file, relative to the root.
        """
        file = self._existing(path)
        file.unlink()
        return f"Deleted {self._name(file)}."

    @_in_words
    def create_directory(self, path: str) -> str:
        """Create a directory and those above it. It is no error if it exists.

        Args:
            path: The directory, relative to the root.
        """
        folder = self._inside(path)
        if not folder.is_dir() and sum(1 for _ in _everything(self._root)) + MAX_DEPTH > MAX_ENTRIES:
            raise Refusal(f"There is room for {MAX_ENTRIES} files and directories, and they are there.")
        folder.mkdir(parents=True, exist_ok=True)
        return f"{self._name(folder)} is there."

    # Path resolution

    def _inside(self, path: str) -> Path:
        if "\0" in path or len(path) > 500 or not _encodable(path):
            raise Refusal("That is no path: at most 500 characters, none of them unprintable.")
        relative = PurePosixPath(path.strip().lstrip("/") or ".")
        if len(relative.parts) > MAX_DEPTH:
            raise Refusal(f"{path!r} is too deep: at most {MAX_DEPTH} directories and names.")
        place = Path(os.path.realpath(self._root / relative))
        if place != self._root and self._root not in place.parents:
            raise Refusal(f"{path!r} leads outside the root; paths are relative to it and stay within.")
        return place

    def _existing(self, path: str, *, folder: bool = False) -> Path:
        place = self._inside(path)
        kind = "directory" if folder else "file"
        if not place.exists():
            raise Refusal(f"There is no {kind} {path!r}. list_directory shows what is there.")
        mode = place.stat().st_mode
        if not (stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)):
            raise Refusal(f"{path!r} is not a {kind}.")
        return place

    def _place(self, path: str) -> Path:
        """Return the path at which a file may be written."""
        place = self._inside(path)
        if place == self._root or place.is_dir():
            raise Refusal(f"{path!r} is a directory; give the path of a file.")
        if not place.parent.is_dir():
            raise Refusal(f"The directory {self._name(place.parent)!r} does not exist; create_directory makes it.")
        return place

    def _name(self, place: Path) -> str:
        return str(place.relative_to(self._root))

    def _read(self, file: Path) -> str:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise Refusal(f"{self._name(file)} has more than {MAX_FILE_BYTES} bytes.")
        try:
            return file.read_bytes().decode()
        except UnicodeDecodeError:
            raise Refusal(f"{self._name(file)} is not a text file.") from None

    def _write(self, file: Path, content: str) -> None:
        if not _encodable(content):
            raise Refusal("The text holds halves of surrogate pairs, which no file can.")
        data = content.encode()
        if len(data) > MAX_FILE_BYTES:
            raise Refusal(f"The text has {len(data)} bytes; a file may have {MAX_FILE_BYTES}.")
        sizes = [size for _, size in _entries(self._root)]
        if len(sizes) >= MAX_ENTRIES or sum(sizes) + len(data) > MAX_TOTAL_BYTES:
            raise Refusal(f"There is room for {MAX_ENTRIES} files and {MAX_TOTAL_BYTES} bytes, and it is used up.")
        file.write_bytes(data)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _everything(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield every entry below a folder, without following links."""
    for entry in os.scandir(folder):
        yield entry
        if entry.is_dir(follow_symlinks=False):
            yield from _everything(Path(entry.path))


def _entries(folder: Path) -> Iterator[tuple[Path, int]]:
    """Yield every file below a folder with its size in bytes, without following links."""
    for entry in _everything(folder):
        if entry.is_file(follow_symlinks=False):
            yield Path(entry.path), entry.stat(follow_symlinks=False).st_size


def tree(root: Path) -> dict[str, str]:
    """Return the content of a folder by path: the digest of each file. Whether the last line ends with a line break is
    ignored, and so are directories without files. A link or a pipe is recorded as such and not followed."""
    return dict(sorted((str(Path(entry.path).relative_to(root)), _digest(entry)) for entry in _leaves(root)))


def _leaves(root: Path) -> Iterator[os.DirEntry[str]]:
    return (entry for entry in _everything(root) if not entry.is_dir(follow_symlinks=False))


def _digest(entry: os.DirEntry[str]) -> str:
    if not entry.is_file(follow_symlinks=False):
        return "not a file"
    if (size := entry.stat(follow_symlinks=False).st_size) > MAX_FILE_BYTES:
        return f"{size} bytes"  # larger than any task requires
    return hashlib.sha256(Path(entry.path).read_bytes().rstrip(b"\n")).hexdigest()
