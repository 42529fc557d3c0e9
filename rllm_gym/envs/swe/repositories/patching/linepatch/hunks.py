"""Changes with the lines around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from linepatch.matching import matching_pairs


@dataclass(frozen=True)
class Hunk:
    """One place where two texts differ.

    Attributes:
        old_start: Index of the first line in the old text, from 0.
        new_start: Likewise in the new text.
        body: (mark, line) with the mark ``" "``, ``"-"`` or ``"+"``.
    """

    old_start: int
    new_start: int
    body: tuple[tuple[str, str], ...]

    @property
    def old_lines(self) -> list[str]:
        """What stands there before."""
        return [line for mark, line in self.body if mark != "+"]

    @property
    def new_lines(self) -> list[str]:
        """What stands there afterwards."""
        return [line for mark, line in self.body if mark != "-"]

    def reversed(self) -> Hunk:
        """The hunk that undoes this one; lines that go stand before those that come."""
        turned = {"+": "-", "-": "+", " ": " "}
        body: list[tuple[str, str]] = []
        added: list[tuple[str, str]] = []
        for mark, line in self.body:
            if turned[mark] == "+":
                added.append(("+", line))
                continue
            if mark == " ":
                body += added
                added = []
            body.append((turned[mark], line))
        return Hunk(self.new_start, self.old_start, tuple(body + added))


def make_hunks(old: Sequence[str], new: Sequence[str], context: int = 3) -> list[Hunk]:
    """The differences, each with up to ``context`` equal lines before and after.

    Changes with at most twice as many equal lines between them share a hunk.
    """
    if context < 0:
        raise ValueError(f"there are no {context} lines of context")
    script = _script(old, new)
    changed = [place for place, (mark, _) in enumerate(script) if mark != " "]
    hunks: list[Hunk] = []
    first = 0
    while first < len(changed):
        last = first
        while last + 1 < len(changed) and changed[last + 1] - changed[last] <= 2 * context + 1:
            last += 1
        start = max(0, changed[first] - context)
        end = min(len(script), changed[last] + context + 1)
        before = script[:start]
        hunks.append(
            Hunk(
                sum(mark != "+" for mark, _ in before),
                sum(mark != "-" for mark, _ in before),
                tuple(script[start:end]),
            )
        )
        first = last + 1
    return hunks


def _script(old: Sequence[str], new: Sequence[str]) -> list[tuple[str, str]]:
    """Every line of both texts with its mark; where lines are replaced, the old ones come first."""
    script: list[tuple[str, str]] = []
    i = j = 0
    for match_i, match_j in [*matching_pairs(old, new), (len(old), len(new))]:
        script += [("-", line) for line in old[i:match_i]]
        script += [("+", line) for line in new[j:match_j]]
        if match_i < len(old):
            script.append((" ", old[match_i]))
        i, j = match_i + 1, match_j + 1
    return script
