"""The editor tool on an agent's workspace, with the behavior and messages of the editor models are trained with.

Files are read and written through the session, not with the agent's programs; the undo history is kept here. Line
ends, tabs and bytes that are not UTF-8 stay unchanged outside of an edit.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import Protocol

from rllm_gym.envs.swe.actions import Create, EditorCommand, Replace, Undo, View
from rllm_gym.envs.swe.text_display import cut, printable
from rllm_gym.sandbox.session_process import WORKDIR
from rllm_gym.sandbox.tree import TreeTooLarge

MAX_FILE_BYTES = 2_000_000
MAX_HISTORY = 20
MAX_HISTORY_BYTES = 32_000_000
MAX_LISTED = 400
_SNIPPET = 4


class EditorWorkspace(Protocol):
    """The methods of a session that the editor needs."""

    @property
    def workdir(self) -> str: ...
    async def read(self, path: str, max_bytes: int) -> bytes: ...
    async def write(self, path: str, data: bytes) -> None: ...
    async def list_directory(self, path: str) -> list[str]: ...


class EditError(Exception):
    """An edit that is impossible; the message is for the model. Nothing was changed."""


@dataclass(slots=True)
class Editor:
    """Executes edits.

    Attributes:
        workspace: The workspace to edit.
        max_shown: Longest answer in characters.
    """

    workspace: EditorWorkspace
    max_shown: int
    _history: list[tuple[str, bytes]] = field(default_factory=list)

    async def do(self, edit: EditorCommand) -> str:
        """Execute one edit.

        Returns:
            The answer for the model.

        Raises:
            EditError: The edit is impossible; the message says why.
            EnvironmentFault: The sandbox failed.
        """
        path = self._inside(edit.path)
        match edit:
            case View(lines=lines):
                return await self._view(path, lines)
            case Create(text=text):
                return await self._create(path, text)
            case Undo():
                return await self._undo(path)
        try:
            data = await self._read(path)
        except IsADirectoryError as error:
            raise EditError(
                f"The path {printable(path)} is a directory and only the `view` command can be used on directories."
            ) from error
        if isinstance(edit, Replace):
            return await self._replace(path, data, edit.old, edit.new)
        return await self._insert(path, data, edit.after, edit.text)

    # Paths and files

    def _inside(self, path: str) -> str:
        root = self.workspace.workdir
        if path == WORKDIR or path.startswith(WORKDIR + "/"):
            path = "." + path.removeprefix(WORKDIR)  # relative to the workspace, whose real path may differ
        full_path = posixpath.normpath(posixpath.join(root, path))
        if full_path != root and not full_path.startswith(root.rstrip("/") + "/"):
            raise EditError(f"The path {printable(path)} is outside the repository, which is at {root}.")
        return full_path

    async def _read(self, path: str) -> bytes:
        try:
            data = await self.workspace.read(path, MAX_FILE_BYTES)
        except IsADirectoryError:
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            raise EditError(f"The path {printable(path)} does not exist. Please provide a valid path.") from error
        except TreeTooLarge as error:
            raise EditError(
                f"The file {printable(path)} is larger than {MAX_FILE_BYTES} bytes; use bash (sed, head, grep) on it."
            ) from error
        except OSError as error:
            raise EditError(f"The file {printable(path)} cannot be read: {error.strerror}.") from error
        if b"\0" in data:
            raise EditError(f"The file {printable(path)} is binary; only text can be viewed and edited.")
        return data

    async def _write(self, path: str, data: bytes) -> None:
        if len(data) > MAX_FILE_BYTES:
            raise EditError(
                f"The file {printable(path)} would have {len(data)} bytes; at most {MAX_FILE_BYTES} are edited."
            )
        try:
            await self.workspace.write(path, data)
        except OSError as error:
            raise EditError(f"The file {printable(path)} cannot be written: {error.strerror}.") from error

    # Commands

    async def _view(self, path: str, lines: tuple[int, int] | None) -> str:
        try:
            text = _text(await self._read(path))
        except IsADirectoryError as error:
            if lines is not None:
                raise EditError(
                    "The `view_range` parameter is not allowed when `path` points to a directory."
                ) from error
            return self._listing(path, await self.workspace.list_directory(path))
        shown = text.split("\n")
        if shown[-1] == "" and len(shown) > 1:
            shown.pop()
        first, last = 1, len(shown)
        if lines is not None:
            first, last = _range(lines, len(shown))
        return cut(
            f"Here's the result of running `cat -n` on {printable(path)}:\n{_numbered(shown[first - 1 : last], first)}",
            self.max_shown,
            "view a part of it with `view_range`",
        )

    def _listing(self, path: str, listed: list[str]) -> str:
        names = "\n".join(printable(name) for name in listed[:MAX_LISTED])
        more = f"\n[... {len(listed) - MAX_LISTED} more]" if len(listed) > MAX_LISTED else ""
        return cut(
            f"Here's the files and directories up to 2 levels deep in {printable(path)}, excluding hidden items:\n"
            f"{names}{more}\n",
            self.max_shown,
            "view a directory below",
        )

    async def _create(self, path: str, text: str) -> str:
        if await self._is_there(path):
            raise EditError(
                f"File already exists at: {printable(path)}. Cannot overwrite files using command `create`; use "
                "`str_replace`, or bash."
            )
        await self._write(path, text.encode())
        return f"File created successfully at: {printable(path)}"

    async def _is_there(self, path: str) -> bool:
        try:
            await self.workspace.read(path, 0)
        except (IsADirectoryError, TreeTooLarge):
            return True
        except OSError:
            return False  # absent, or unreadable: then writing raises the error
        return True

    async def _replace(self, path: str, data: bytes, old: str, new: str) -> str:
        text = _text(data)
        if not old:
            raise EditError("No replacement was performed: `old_str` is empty. Use `insert` to add lines.")
        if "\r\n" in text and "\r\n" not in old:
            windows = old.replace("\n", "\r\n")
            if old not in text and windows in text:
                old, new = windows, new.replace("\r\n", "\n").replace("\n", "\r\n")
        if old == new:
            raise EditError("No replacement was performed: `old_str` and `new_str` are the same.")
        at = text.find(old)
        if at < 0:
            raise EditError(
                f"No replacement was performed, old_str `{_quote(old)}` did not appear verbatim in {printable(path)}."
            )
        if (again := text.find(old, at + 1)) >= 0:
            places = [text.count("\n", 0, at) + 1]
            while again >= 0 and len(places) < 20:
                places.append(places[-1] + text.count("\n", at, again))
                at, again = again, text.find(old, again + 1)
            raise EditError(
                f"No replacement was performed. Multiple occurrences of old_str `{_quote(old)}` in lines {places}. "
                "Please ensure it is unique."
            )
        after = text[:at] + new + text[at + len(old) :]
        await self._change(path, data, after)
        line = text.count("\n", 0, at) + 1
        return self._edited(path, after, line, line + new.count("\n"), f"a snippet of {printable(path)}")

    async def _insert(self, path: str, data: bytes, after: int, text: str) -> str:
        before = _text(data)
        lines = before.split("\n")
        count = len(lines) - (lines[-1] == "")
        if not 0 <= after <= count:
            raise EditError(
                f"Invalid `insert_line` parameter: {after}. It should be within the range of lines of the file: "
                f"{[0, count]}"
            )
        new = text.split("\n")
        if new[-1] == "" and len(new) > 1:
            new.pop()
        if "\r\n" in before:
            new = [line.removesuffix("\r") + "\r" for line in new]
        changed = "\n".join([*lines[:after], *new, *lines[after:]])
        if not before:
            changed = "\n".join([*new, ""])
        await self._change(path, data, changed)
        return self._edited(path, changed, after + 1, after + len(new), "a snippet of the edited file")

    async def _undo(self, path: str) -> str:
        index = next((at for at in reversed(range(len(self._history))) if self._history[at][0] == path), None)
        if index is None:
            raise EditError(f"No edit history found for {printable(path)}.")
        data = self._history[index][1]
        await self._write(path, data)
        del self._history[index]
        lines = _text(data).split("\n")
        return cut(
            f"Last edit to {printable(path)} undone successfully. Here's the result of running `cat -n` on "
            f"{printable(path)}:\n{_numbered(lines, 1)}",
            self.max_shown,
            "view a part of it with `view_range`",
        )

    # Text helpers

    async def _change(self, path: str, before: bytes, after: str) -> None:
        await self._write(path, _bytes(after))
        self._history.append((path, before))
        while len(self._history) > MAX_HISTORY or sum(len(data) for _, data in self._history) > MAX_HISTORY_BYTES:
            self._history.pop(0)

    def _edited(self, path: str, text: str, first: int, last: int, what: str) -> str:
        lines = text.split("\n")
        start, end = max(1, first - _SNIPPET), min(len(lines), last + _SNIPPET)
        snippet = _numbered(lines[start - 1 : end], start)
        return cut(
            f"The file {printable(path)} has been edited. Here's the result of running `cat -n` on {what}:\n{snippet}"
            "Review the changes and make sure they are as expected. Edit the file again if necessary.",
            self.max_shown,
            "view a part of it with `view_range`",
        )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise EditError(f"The text has a lone surrogate ({text[error.start]!r}), which no file can hold.") from error


def _numbered(lines: list[str], first: int) -> str:
    return "".join(f"{number:6}\t{printable(line.removesuffix(chr(13)))}\n" for number, line in enumerate(lines, first))


def _quote(text: str) -> str:
    return printable(
        text if len(text) <= 2_000 else f"{text[:1_000]} [... {len(text) - 2_000} characters ...] {text[-1_000:]}"
    )


def _range(lines: tuple[int, int], count: int) -> tuple[int, int]:
    first, last = lines
    if not 1 <= first <= count:
        raise EditError(
            f"Invalid `view_range`: {list(lines)}. Its first element `{first}` should be within the range of lines of "
            f"the file: {[1, count]}"
        )
    if last == -1:
        return first, count
    if last < first:
        raise EditError(
            f"Invalid `view_range`: {list(lines)}. Its second element `{last}` should be -1, or larger or equal than "
            f"its first `{first}`"
        )
    return first, min(last, count)  # beyond the end, the existing lines are shown
