"""Differences between texts, and patches that carry them from one to another."""

from linepatch.apply import Applied, ApplyError, apply_patch, apply_with_report
from linepatch.hunks import Hunk, make_hunks
from linepatch.merge import Merged, merge
from linepatch.summary import change_counts, similarity
from linepatch.unified import FilePatch, PatchError, format_patch, make_patch, parse_patch, reverse_patch

__all__ = [
    "Applied",
    "ApplyError",
    "FilePatch",
    "Hunk",
    "Merged",
    "PatchError",
    "apply_patch",
    "apply_with_report",
    "change_counts",
    "format_patch",
    "make_hunks",
    "make_patch",
    "merge",
    "parse_patch",
    "reverse_patch",
    "similarity",
]
