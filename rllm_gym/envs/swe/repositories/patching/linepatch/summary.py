"""Differences in numbers."""

from __future__ import annotations

from linepatch.lines import split_lines
from linepatch.matching import matching_pairs
from linepatch.unified import FilePatch


def change_counts(patches: list[FilePatch]) -> dict[str, tuple[int, int]]:
    """Lines added and removed in each file, by its new name (by its old one if it goes)."""
    counts: dict[str, tuple[int, int]] = {}
    for patch in patches:
        path = patch.new_path or patch.old_path or ""
        marks = [mark for hunk in patch.hunks for mark, _ in hunk.body]
        added, removed = counts.get(path, (0, 0))
        counts[path] = (added + marks.count("+"), removed + marks.count("-"))
    return counts


def similarity(old: str, new: str) -> float:
    """From 0 (no line in common) to 1 (equal): twice the common lines by the lines of both."""
    old_lines, new_lines = split_lines(old), split_lines(new)
    together = len(old_lines) + len(new_lines)
    if not together:
        return 1.0
    return 2 * len(matching_pairs(old_lines, new_lines)) / together
