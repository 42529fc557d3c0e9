"""Which sequences go through the model together, and how they are laid out: padded, packed, or as a trie.

Three plans are made and the one that is predicted to take the least time is kept: all sequences in padded rows; all in
forests, where sequences that share nothing stand packed side by side; those that share in forests and the rest padded.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from trainers.batching.costs import Costs
from trainers.batching.rows import Row
from trainers.batching.trie import Forest, Sorted, grow, join


@dataclass(frozen=True, slots=True)
class Padded:
    """A row each, padded to the longest.

    Attributes:
        sequences: Indices of the rows, longest first.
        length: Of the longest.
    """

    sequences: tuple[int, ...]
    length: int


Layout = Padded | Forest


def plan(rows: Sequence[Row], *, tokens: int, costs: Costs, share: bool) -> list[Layout]:
    """Layouts that hold all rows and at most so many tokens each, largest first; the same for the same rows.

    A sequence longer than that gets one of its own.

    Args:
        rows: The sequences.
        tokens: Columns times rows at most, padding counted.
        costs: What is predicted from.
        share: Whether the model can be shown trees.
    """
    lengths = np.array([len(row.sequence) for row in rows], dtype=np.int64)
    padded = pad(lengths, range(len(rows)), tokens, costs)
    if not share:
        return _largest_first(padded)
    bundles = _bundles(rows, tokens, costs)
    alone = [index for bundle in bundles if len(bundle.last) == 1 for index in bundle.last]
    plans = [
        padded,
        fill(bundles, tokens),
        [*fill([bundle for bundle in bundles if len(bundle.last) > 1], tokens), *pad(lengths, alone, tokens, costs)],
    ]
    return _largest_first(min(plans, key=lambda layouts: sum(predicted(layout, costs) for layout in layouts)))


def predicted(layout: Layout, costs: Costs) -> float:
    """Seconds of forward and backward pass."""
    if isinstance(layout, Forest):
        return costs.tree(layout.spans())
    return costs.padded(len(layout.sequences), layout.length)


def columns(layout: Layout) -> int:
    """Tokens that go through the model, padding counted."""
    return layout.length if isinstance(layout, Forest) else len(layout.sequences) * layout.length


def pad(lengths: np.ndarray, chosen: Sequence[int], tokens: int, costs: Costs) -> list[Layout]:
    """Cut the sequences, sorted by length, where it is predicted to take the least time.

    Many cuts save padding, and few save the overhead of a micro-batch. Of plans that cost the same the more even one is
    taken.
    """
    order = sorted(chosen, key=lambda index: (-int(lengths[index]), index))
    size = lengths[order]
    # best[i] is the cost of what comes from place i on, cut[i] where the run that begins there ends.
    best, cut = np.zeros(len(order) + 1), np.zeros(len(order), dtype=np.int64)
    for first in range(len(order) - 1, -1, -1):
        length = int(size[first])
        most = min(len(order) - first, max(1, tokens // max(1, length)))
        count = np.arange(1, most + 1)
        one = costs.padded(1, length) - costs.padded(0, length)
        # A hair of a penalty that grows with the square of the size makes equal plans even.
        uneven = costs.batch * 1e-3 * (count * length / tokens) ** 2
        cost = costs.padded(0, length) + count * one + uneven + best[first + 1 : first + most + 1]
        choice = int(cost.argmin())
        best[first], cut[first] = cost[choice], first + choice + 1
    layouts: list[Layout] = []
    first = 0
    while first < len(order):
        last = int(cut[first])
        layouts.append(Padded(tuple(order[first:last]), int(size[first])))
        first = last
    return layouts


def fill(bundles: Sequence[Forest], tokens: int) -> list[Layout]:
    """Forests in as few rows of at most so many columns as it takes, each bundle in the emptiest, largest bundle first
    (longest processing time first: Graham 1969)."""
    large = [bundle for bundle in bundles if bundle.length > tokens]
    rest = sorted((bundle for bundle in bundles if bundle.length <= tokens), key=lambda bundle: -bundle.length)
    count = -(-sum(bundle.length for bundle in rest) // tokens)
    while True:
        bins: list[tuple[int, int, list[Forest]]] = [(0, number, []) for number in range(count)]
        for bundle in rest:
            load, number, members = bins[0]
            if load + bundle.length > tokens:
                break
            heapq.heapreplace(bins, (load + bundle.length, number, [*members, bundle]))
        else:
            return [*large, *(join(members) for _, _, members in sorted(bins, key=lambda entry: entry[1]))]
        count += 1


def _bundles(rows: Sequence[Row], tokens: int, costs: Costs) -> list[Forest]:
    """A forest for each set of sequences that share what is worth sharing, in parts where it would be too large."""
    together = Sorted.of(rows)
    forest = grow(together, costs.saves)
    root: list[int] = []
    for index, node in enumerate(forest.nodes):
        root.append(index if node.parent < 0 else root[node.parent])
    root_of = np.array([root[forest.last[int(index)]] for index in together.order])
    edges = [0, *(np.flatnonzero(np.diff(root_of)) + 1).tolist(), len(root_of)]
    bundles = []
    todo = [together.part(first, last) for first, last in pairwise(edges)][::-1]
    while todo:
        part = todo.pop()
        bundle = grow(part, costs.saves)
        count = len(part.order)
        if bundle.length <= tokens or count == 1:
            bundles.append(bundle)
            continue
        # As many parts as it takes if each keeps what all share; cut so that they come out even, or nearby where less
        # is shared: what is shared across a cut is computed twice.
        shared = int(part.common[1:].min())
        parts = max(2, -(-(bundle.length - shared) // max(1, tokens - shared)))
        goal, leeway = max(1, round(count * (parts // 2) / parts)), count // (4 * parts)
        near = range(max(1, goal - leeway), min(count, goal + leeway + 1))
        middle = min(near, key=lambda place: (int(part.common[place]), abs(place - goal)))
        todo += [part.part(middle, count), part.part(0, middle)]
    return bundles


def _largest_first(layouts: list[Layout]) -> list[Layout]:
    """Memory peaks at once, not after an hour."""
    return sorted(layouts, key=lambda layout: -columns(layout))
