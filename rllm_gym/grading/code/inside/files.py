"""Files that a test passes to a program by name. Both sides have copies under the same name, each on its own disk.

A path is synchronized after a test has passed its name to the program; no other file of the test's disk is. Files that
the program writes there come back as plain data, never as something that the test's interpreter would import.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from typing import Any

from .codec import MalformedMessage, expect, from_base64, to_base64

MAX_FILES = 1000
MAX_BYTES = 4 * 1024 * 1024
"""Maximum size of all files in one message."""

# Compiled where they are used: compiling takes longer than a short program.
_MENTIONS = (
    "open(",
    "tempfile",
    "tmp_path",
    "tmpdir",
    "write_text",
    "write_bytes",
    "mkdir",
    "makedirs",
    "savetxt",
    "chdir",
)
_LOADS_CODE = r"pickle|marshal|shelve|joblib|importlib|runpy|\bexec\(|\beval\(|subprocess|os\.system"
_NAME = r"[\w +=,@()\[\]-][\w .+=,@()\[\]-]{0,200}"
_CODE = r"(?i:\.(?:py\w*|so|pth|egg|whl)$|^(?:__\w+__|conftest.*|pytest.*|tox\.ini|setup\.cfg|pyproject\.toml)$)"

Location = tuple[str, str]
"""``"work"`` or ``"tmp"``, and a path in it."""


class OwnPaths:
    """Renames the directories of the test to those of the program in messages, where the two have different ones."""

    def __init__(self) -> None:
        self._work = os.path.realpath(os.getcwd())
        self._pairs: list[tuple[bytes, bytes]] = []

    def incoming(self, data: bytes) -> bytes:
        known = self._pairs or b'"roots":["' not in data  # a pattern takes longer to compile than a short program
        if not known and (found := re.search(rb'"roots":\["([^"\\]+)","([^"\\]+)"\]', data)):
            self._pairs = [(other, own.encode()) for other, own in zip(found.groups(), _roots(self._work).values())]
        for other, own in self._pairs:
            data = _renamed(data, other, own)
        return data

    def outgoing(self, data: bytes) -> bytes:
        for other, own in self._pairs:
            data = _renamed(data, own, other)
        return data


def _roots(work: str) -> dict[str, str]:
    import tempfile  # takes longer than a short program

    return {"work": work, "tmp": os.path.realpath(tempfile.gettempdir())}


def _renamed(data: bytes, old: bytes, new: bytes) -> bytes:
    if old == new or old not in data:
        return data
    return re.sub(re.escape(old) + rb"(?![\w.-])", lambda match: new, data)


class Files:
    """The synchronized files of one side.

    Args:
        guarded: Whether the other side is untrusted and may write anything.
    """

    def __init__(self, *, guarded: bool) -> None:
        self._guarded = guarded
        self._roots = _roots(os.path.realpath(os.getcwd()))
        self._named: set[Location] = set()
        self._known: dict[Location, Any] = {}
        self._here: Location = ("work", "")

    @staticmethod
    def needed(test: str) -> bool:
        return any(word in test for word in _MENTIONS)

    @staticmethod
    def loads_code(test: str) -> bool:
        """Return whether the test may execute the content of a file."""
        return re.search(_LOADS_CODE, test) is not None

    # Sending

    def name(self, value: Any, depth: int = 3) -> None:
        """Synchronize the paths among these values from now on."""
        kind = type(value)
        if kind is str or isinstance(value, os.PathLike):
            text = str(value)
            location = self._locate(text) if 0 < len(text) < 1000 and "\0" not in text else None
            # The parent must exist; otherwise the text is not a path, or cannot be written. The root of the scratch
            # space is excluded.
            if location is not None and location[1] and os.path.exists(os.path.dirname(self._path(location))):
                self._named.add(location)
        elif depth and kind in (list, tuple, dict):
            for item in list(value.items() if kind is dict else value)[:100]:
                self.name(item, depth - 1)
        elif depth and type(getattr(value, "name", None)) is str and hasattr(value, "read"):
            self.name(value.name, 0)

    def _locate(self, text: str) -> Location | None:
        path = os.path.realpath(text)
        for root, folder in self._roots.items():
            if path.startswith(folder + "/"):
                return root, path[len(folder) + 1 :]
        return None

    def _path(self, location: Location) -> str:
        return os.path.join(self._roots[location[0]], location[1])

    def changes(self) -> dict[str, Any]:
        """Return the changes of the synchronized files, for a message."""
        found: dict[Location, Any] = {}
        for location in sorted(self._named):
            self._look(location, found)
        items: list[Any] = []
        left = MAX_BYTES
        for location, mark in found.items():
            if self._known.get(location) == mark:
                continue
            data = None
            if mark != "folder":
                if mark[1] > left or len(items) >= MAX_FILES:
                    continue
                with open(self._path(location), "rb") as file:
                    data = file.read(left)
                left -= len(data)
            items.append([*location, "folder" if data is None else to_base64(data)])
        items += [[*location, None] for location in sorted(self._known, reverse=True) if location not in found]
        self._known = found
        here = self._locate(os.getcwd() + "/.") or ("work", "")
        moved, self._here = here != self._here, here
        message: dict[str, Any] = {"files": items} if items else {}
        if not self._guarded:
            return message
        message |= {"named": sorted(self._named), "roots": list(self._roots.values())}
        return message | ({"here": here} if moved else {})

    def _look(self, location: Location, found: dict[Location, Any]) -> None:
        if len(found) >= MAX_FILES:
            return
        try:
            path = self._path(location)
            status = os.lstat(path)
            if stat.S_ISDIR(status.st_mode):
                found[location] = "folder"
                for name in sorted(os.listdir(path))[:MAX_FILES]:
                    self._look((location[0], f"{location[1]}/{name}"), found)
            elif stat.S_ISREG(status.st_mode):
                found[location] = (status.st_mtime_ns, status.st_size, status.st_ino)
        except OSError:
            return

    # Receiving

    def take(self, message: dict[str, Any]) -> None:
        """Apply the changes of the other side."""
        if not self._guarded:
            for root, name in message.get("named", ()):
                self._named.add((root, name))
                with contextlib.suppress(OSError):  # the program may write there, so the folder exists for it as well
                    os.makedirs(os.path.dirname(self._path((root, name))), exist_ok=True)
        for root, name, data in expect(message.get("files", []), list)[: 2 * MAX_FILES]:
            location = (expect(root, str), expect(name, str))
            if self._guarded and not self._is_harmless(location):
                continue
            try:
                self._write(location, data)
            except OSError:
                continue
        here = message.get("here")
        if here is not None and not self._guarded and os.path.isdir(self._path((here[0], here[1]))):
            os.chdir(self._path((here[0], here[1])))

    def _is_harmless(self, location: Location) -> bool:
        root, name = location
        for other, named in self._named:
            if root == other and f"{name}/".startswith(f"{named}/"):
                parts = name[len(named) + 1 :].split("/") if name != named else [name.rpartition("/")[2]]
                return all(re.fullmatch(_NAME, part) and not re.search(_CODE, part) for part in parts)
        return False

    def _write(self, location: Location, data: Any) -> None:
        path = self._path(location)
        if self._guarded and os.path.realpath(os.path.dirname(path)) != os.path.dirname(path):
            raise OSError("a way through a link")
        if data is None:
            self._known.pop(location, None)
            os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
            return
        if data == "folder":
            os.makedirs(path, exist_ok=True)
        else:
            content = from_base64(data)
            if len(content) > MAX_BYTES:
                raise MalformedMessage("a file that is too long")
            if not self._guarded:
                os.makedirs(os.path.dirname(path), exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open(path, flags, 0o644), "wb") as file:
                file.write(content)
        marks: dict[Location, Any] = {}
        self._look(location, marks)
        self._known |= {location: marks[location]} if location in marks else {}
