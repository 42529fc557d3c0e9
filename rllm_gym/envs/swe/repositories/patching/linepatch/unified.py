"""The unified format, as ``diff -u`` and ``git diff`` write it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from linepatch.hunks import Hunk, make_hunks
from linepatch.lines import split_lines

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@.*\n?")
_NO_END = "\\ No newline at end of file\n"
NOWHERE = "/dev/null"


class PatchError(ValueError):
    """The text is no patch."""


@dataclass(frozen=True)
class FilePatch:
    """The changes of one file. ``old_path`` is ``None`` for a file that is made, ``new_path`` for one that goes."""

    old_path: str | None
    new_path: str | None
    hunks: tuple[Hunk, ...]

    def __str__(self) -> str:
        return format_patch(self)


def make_patch(old: str, new: str, *, path: str = "file", context: int = 3) -> FilePatch:
    """The patch that turns ``old`` into ``new``."""
    return FilePatch(path, path, tuple(make_hunks(split_lines(old), split_lines(new), context)))


def format_patch(patch: FilePatch) -> str:
    """The text of a patch; nothing if it changes nothing."""
    if not patch.hunks:
        return ""
    old = NOWHERE if patch.old_path is None else f"a/{patch.old_path}"
    new = NOWHERE if patch.new_path is None else f"b/{patch.new_path}"
    out = [f"--- {old}\n", f"+++ {new}\n"]
    for hunk in patch.hunks:
        old_range = _range(hunk.old_start, len(hunk.old_lines))
        new_range = _range(hunk.new_start, len(hunk.new_lines))
        out.append(f"@@ -{old_range} +{new_range} @@\n")
        for mark, line in hunk.body:
            out.append(mark + line)
            if not line.endswith("\n"):
                out.append("\n" + _NO_END)
    return "".join(out)


def _range(start: int, count: int) -> str:
    """Lines count from 1; an empty range names the line before it; a count of 1 is left out."""
    if count == 0:
        return f"{start},0"
    return str(start + 1) if count == 1 else f"{start + 1},{count}"


def parse_patch(text: str) -> list[FilePatch]:
    """Read a patch of any number of files. What stands between the files (``diff --git``, ``index``) is left out."""
    lines = split_lines(text)
    patches: list[FilePatch] = []
    place = 0
    while place < len(lines):
        if lines[place].startswith("--- ") and place + 1 < len(lines) and lines[place + 1].startswith("+++ "):
            old, new = _path(lines[place], "a/"), _path(lines[place + 1], "b/")
            hunks, place = _read_hunks(lines, place + 2)
            patches.append(FilePatch(old, new, tuple(hunks)))
        elif lines[place].startswith("@@ "):
            raise PatchError(f"line {place + 1}: a hunk without the names of its file")
        else:
            place += 1
    return patches


def _path(line: str, prefix: str) -> str | None:
    # A tab separates the name from the time, if there is one.
    path = line[4:].rstrip("\n").split("\t")[0].rstrip()
    return None if path == NOWHERE else path.removeprefix(prefix)


def _read_hunks(lines: Sequence[str], place: int) -> tuple[list[Hunk], int]:
    hunks: list[Hunk] = []
    while place < len(lines) and (match := _HUNK.fullmatch(lines[place])):
        old_at, old_count, new_at, new_count = (int(group) if group else 1 for group in match.groups())
        header = place + 1
        place += 1
        body: list[tuple[str, str]] = []
        old_left, new_left = old_count, new_count
        while old_left > 0 or new_left > 0:
            # Some tools strip the only space of an empty line of context.
            line = lines[place] if place < len(lines) else "?"
            mark, content = (" ", line) if line == "\n" else (line[0], line[1:])
            if mark not in "+- ":
                raise PatchError(f"line {header}: the hunk is shorter than it says")
            old_left -= mark != "+"
            new_left -= mark != "-"
            body.append((mark, content))
            place += 1
            if place < len(lines) and lines[place].startswith("\\"):
                body[-1] = (mark, content.removesuffix("\n"))
                place += 1
        if old_left < 0 or new_left < 0:
            raise PatchError(f"line {header}: the hunk is longer than it says")
        # An empty range names the line before it.
        old_start = old_at - 1 if old_count else old_at
        new_start = new_at - 1 if new_count else new_at
        hunks.append(Hunk(old_start, new_start, tuple(body)))
    return hunks, place


def reverse_patch(patch: FilePatch) -> FilePatch:
    """The patch that undoes this one."""
    return FilePatch(patch.new_path, patch.old_path, tuple(hunk.reversed() for hunk in patch.hunks))
