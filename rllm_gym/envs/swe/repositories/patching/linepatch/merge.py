"""Joins two changes of the same text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from linepatch.lines import split_lines
from linepatch.matching import matching_pairs


@dataclass(frozen=True)
class Merged:
    """The joined text, with marks around each of the ``conflicts``."""

    text: str
    conflicts: int


def merge(base: str, ours: str, theirs: str, *, names: tuple[str, str] = ("ours", "theirs")) -> Merged:
    """Apply the changes from ``base`` to ``ours`` and from ``base`` to ``theirs`` both.

    The same change on both sides is one change. Different changes of the same lines are a conflict.
    """
    base_lines, our_lines, their_lines = split_lines(base), split_lines(ours), split_lines(theirs)
    our_match = dict(matching_pairs(base_lines, our_lines))
    their_match = dict(matching_pairs(base_lines, their_lines))
    out: list[str] = []
    conflicts = 0
    i = j = k = 0  # the next line of base, ours, theirs
    for place in [*(p for p in range(len(base_lines)) if p in our_match and p in their_match), len(base_lines)]:
        end = place == len(base_lines)
        ours_at = len(our_lines) if end else our_match[place]
        theirs_at = len(their_lines) if end else their_match[place]
        lines, conflict = _join(base_lines[i:place], our_lines[j:ours_at], their_lines[k:theirs_at], names)
        out += lines
        conflicts += conflict
        if not end:
            out.append(base_lines[place])
        i, j, k = place + 1, ours_at + 1, theirs_at + 1
    return Merged("".join(out), conflicts)


def _join(
    base: Sequence[str], ours: Sequence[str], theirs: Sequence[str], names: tuple[str, str]
) -> tuple[Sequence[str], bool]:
    """The lines between two that all three have, and whether they are in conflict."""
    if ours == theirs or theirs == base:
        return ours, False
    if ours == base:
        return theirs, False
    marked = [f"<<<<<<< {names[0]}\n", *_closed(ours), "=======\n", *_closed(theirs), f">>>>>>> {names[1]}\n"]
    return marked, True


def _closed(lines: Sequence[str]) -> list[str]:
    """The lines, the last one with an end, so that a mark can follow."""
    return [line if line.endswith("\n") else line + "\n" for line in lines]
