"""Assigns sequences to microbatches and chooses their layout: padded, packed, or as prefix trees.

Of three plans, the one with the lowest predicted time is used: all sequences in padded rows; all sequences in
prefix trees, where unrelated sequences are packed next to each other; or sequences with common prefixes in prefix
trees and the rest padded.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from trainers.batching.cost_model import CostModel
from trainers.batching.prefix_tree import PrefixTrees, SortedRows, build_prefix_trees, merge_prefix_trees
from trainers.batching.rows import Row


@dataclass(frozen=True, slots=True)
class Padded:
    """One sequence per row, padded to the longest.

    Attributes:
        sequences: Indices of the rows, longest first.
        length: Length of the longest sequence.
    """

    sequences: tuple[int, ...]
    length: int


Layout = Padded | PrefixTrees


def plan_layouts(rows: Sequence[Row], *, tokens: int, costs: CostModel, share: bool) -> list[Layout]:
    """Choose layouts that contain all rows with at most ``tokens`` tokens each, largest first. Deterministic.

    A longer sequence gets a layout of its own.

    Args:
        rows: The sequences.
        tokens: Maximum of columns times rows, including padding.
        costs: Cost model of the predictions.
        share: Whether the model has tree attention.
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
    return _largest_first(min(plans, key=lambda layouts: sum(predict_seconds(layout, costs) for layout in layouts)))


def predict_seconds(layout: Layout, costs: CostModel) -> float:
    """Predict the seconds of forward and backward pass."""
    if isinstance(layout, PrefixTrees):
        return costs.tree(layout.spans())
    return costs.padded(len(layout.sequences), layout.length)


def layout_tokens(layout: Layout) -> int:
    """Return the number of tokens in the forward pass, including padding."""
    return layout.length if isinstance(layout, PrefixTrees) else len(layout.sequences) * layout.length


def pad(lengths: np.ndarray, chosen: Sequence[int], tokens: int, costs: CostModel) -> list[Layout]:
    """Split the sequences, sorted by length, into padded microbatches with the lowest predicted time.

    More splits save padding, fewer splits save the overhead per microbatch. Among plans of equal cost the most even
    one is chosen.
    """
    order = sorted(chosen, key=lambda index: (-int(lengths[index]), index))
    size = lengths[order]
    # best[i] is the cost of the sequences from i on, cut[i] the end of the microbatch that begins at i.
    best, cut = np.zeros(len(order) + 1), np.zeros(len(order), dtype=np.int64)
    for first in range(len(order) - 1, -1, -1):
        length = int(size[first])
        max_count = min(len(order) - first, max(1, tokens // max(1, length)))
        count = np.arange(1, max_count + 1)
        one = costs.padded(1, length) - costs.padded(0, length)
        # A tiny penalty, quadratic in the size, prefers even plans among equal ones.
        uneven = costs.batch * 1e-3 * (count * length / tokens) ** 2
        cost = costs.padded(0, length) + count * one + uneven + best[first + 1 : first + max_count + 1]
        choice = int(cost.argmin())
        best[first], cut[first] = cost[choice], first + choice + 1
    layouts: list[Layout] = []
    first = 0
    while first < len(order):
        last = int(cut[first])
        layouts.append(Padded(tuple(order[first:last]), int(size[first])))
        first = last
    return layouts


def fill(bundles: Sequence[PrefixTrees], tokens: int) -> list[Layout]:
    """Pack prefix trees into as few rows of at most ``tokens`` columns as possible.

    Each bundle is added to the row with the fewest columns, largest bundle first (longest processing time first:
    Graham 1969)."""
    large = [bundle for bundle in bundles if bundle.length > tokens]
    rest = sorted((bundle for bundle in bundles if bundle.length <= tokens), key=lambda bundle: -bundle.length)
    count = -(-sum(bundle.length for bundle in rest) // tokens)
    while True:
        bins: list[tuple[int, int, list[PrefixTrees]]] = [(0, number, []) for number in range(count)]
        for bundle in rest:
            load, number, members = bins[0]
            if load + bundle.length > tokens:
                break
            heapq.heapreplace(bins, (load + bundle.length, number, [*members, bundle]))
        else:
            return [
                *large,
                *(merge_prefix_trees(members) for _, _, members in sorted(bins, key=lambda entry: entry[1])),
            ]
        count += 1


def _bundles(rows: Sequence[Row], tokens: int, costs: CostModel) -> list[PrefixTrees]:
    """Build a prefix tree for each set of sequences with a prefix worth sharing, in several parts if it would be too
    large.
    """
    together = SortedRows.of(rows)
    trees = build_prefix_trees(together, costs.is_worth_sharing)
    root: list[int] = []
    for index, node in enumerate(trees.nodes):
        root.append(index if node.parent < 0 else root[node.parent])
    root_of = np.array([root[trees.last[int(index)]] for index in together.order])
    edges = [0, *(np.flatnonzero(np.diff(root_of)) + 1).tolist(), len(root_of)]
    bundles = []
    todo = [together.part(first, last) for first, last in pairwise(edges)][::-1]
    while todo:
        part = todo.pop()
        bundle = build_prefix_trees(part, costs.is_worth_sharing)
        count = len(part.order)
        if bundle.length <= tokens or count == 1:
            bundles.append(bundle)
            continue
        # The number of parts needed if each repeats the prefix common to all. They are split evenly, or nearby where
        # less is shared: a prefix shared across the split is computed twice.
        shared = int(part.common[1:].min())
        parts = max(2, -(-(bundle.length - shared) // max(1, tokens - shared)))
        goal, leeway = max(1, round(count * (parts // 2) / parts)), count // (4 * parts)
        near = range(max(1, goal - leeway), min(count, goal + leeway + 1))
        middle = min(near, key=lambda split: (int(part.common[split]), abs(split - goal)))
        todo += [part.part(middle, count), part.part(0, middle)]
    return bundles


def _largest_first(layouts: list[Layout]) -> list[Layout]:
    """Sort the largest layout first, so that running out of memory shows immediately and not after an hour."""
    return sorted(layouts, key=lambda layout: -layout_tokens(layout))
