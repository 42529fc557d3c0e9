"""Applies the hunks of a patch, also where the text has changed around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from linepatch.hunks import Hunk
from linepatch.lines import same_but_for_space, split_lines
from linepatch.unified import FilePatch


class ApplyError(ValueError):
    """A hunk does not fit. ``hunk`` counts from 1."""

    def __init__(self, message: str, hunk: int) -> None:
        super().__init__(f"hunk {hunk}: {message}")
        self.hunk = hunk


@dataclass(frozen=True)
class Applied:
    """The new text, and how far each hunk stood from where the patch says (in lines, down is positive)."""

    text: str
    offsets: tuple[int, ...]


def apply_patch(text: str, patch: FilePatch, *, fuzz: int = 0, ignore_space: bool = False) -> str:
    """The text with the patch applied; see :func:`apply_with_report`."""
    return apply_with_report(text, patch, fuzz=fuzz, ignore_space=ignore_space).text


def apply_with_report(text: str, patch: FilePatch, *, fuzz: int = 0, ignore_space: bool = False) -> Applied:
    """Apply every hunk where its lines are found, the place nearest to the expected one first.

    Args:
        text: What to change.
        patch: The changes.
        fuzz: How many lines of context at each end of a hunk may be ignored if it fits nowhere with them.
        ignore_space: Lines also fit if only the amount of white space differs; context keeps the text's own.

    Raises:
        ApplyError: A hunk fits nowhere.
    """
    lines = split_lines(text)
    out: list[str] = []
    offsets: list[int] = []
    done = 0  # lines of the old text that are in ``out`` or replaced
    drift = 0
    fits = same_but_for_space if ignore_space else str.__eq__
    for number, hunk in enumerate(patch.hunks, start=1):
        for ignored in range(fuzz + 1):
            body, cut = _without_context(hunk, ignored)
            wanted = [line for mark, line in body if mark != "+"]
            place = _find(lines, wanted, hunk.old_start + cut + drift, done, fits)
            if place is not None:
                break
        else:
            raise ApplyError(f"its lines are not in the text near line {hunk.old_start + 1}", number)
        drift = place - hunk.old_start - cut
        offsets.append(drift)
        out += lines[done:place]
        done = place
        for mark, line in body:
            if mark == "+":
                out.append(line)
                continue
            if mark == " ":
                out.append(lines[done])
            done += 1
    return Applied("".join(out + lines[done:]), tuple(offsets))


def _without_context(hunk: Hunk, ignored: int) -> tuple[Sequence[tuple[str, str]], int]:
    """The body without up to ``ignored`` lines of context at each end, and how many went at the start."""
    body = list(hunk.body)
    leading = trailing = 0
    while leading < min(ignored, len(body)) and body[leading][0] == " ":
        leading += 1
    while trailing < min(ignored, len(body) - leading) and body[-1 - trailing][0] == " ":
        trailing += 1
    return body[leading : len(body) - trailing], leading


def _find(
    lines: Sequence[str], wanted: Sequence[str], expected: int, first: int, fits: Callable[[str, str], bool]
) -> int | None:
    """The place nearest to ``expected`` (the earlier of two) and not before ``first`` where ``wanted`` stands."""
    last = len(lines) - len(wanted)
    for distance in range(max(abs(expected - first), abs(last - expected)) + 1):
        for place in (expected - distance, expected + distance):
            if first <= place <= last and all(map(fits, lines[place : place + len(wanted)], wanted)):
                return place
    return None
