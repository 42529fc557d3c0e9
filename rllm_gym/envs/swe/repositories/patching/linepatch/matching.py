"""The longest common subsequence of two lists of lines."""

from __future__ import annotations

from collections.abc import Sequence


def matching_pairs(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Places (i, j) with ``old[i] == new[j]``, both ascending and as many as there can be.

    Of several longest ones, the one that takes lines as early as possible.
    """
    # What is equal at both ends needs no search.
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    pairs = [(place, place) for place in range(start)]
    middle = _longest(old[start : len(old) - end], new[start : len(new) - end])
    pairs += [(start + i, start + j) for i, j in middle]
    pairs += [(len(old) - end + place, len(new) - end + place) for place in range(end)]
    return pairs


def _longest(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    # lengths[i][j]: of the longest common subsequence of old[i:] and new[j:].
    lengths = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i in range(len(old) - 1, -1, -1):
        for j in range(len(new) - 1, -1, -1):
            if old[i] == new[j]:
                lengths[i][j] = lengths[i + 1][j + 1] + 1
            else:
                lengths[i][j] = max(lengths[i + 1][j], lengths[i][j + 1])
    pairs = []
    i = j = 0
    while i < len(old) and j < len(new):
        if old[i] == new[j]:
            pairs.append((i, j))
            i += 1
            j += 1
        elif lengths[i + 1][j] >= lengths[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs
