"""Prefix trees of the sequences in one row: shared prefixes are stored once, depth first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from trainers.array_types import IntArray
from trainers.batching.rows import Row


@dataclass(slots=True)
class PrefixNode:
    """Consecutive tokens shared by the same sequences.

    Attributes:
        start, stop, end: The node has the columns ``start`` to ``stop``; its subtree extends to ``end``.
        depth: Position of its first token in the sequences.
        sequence: Index of one of the sequences in the rows.
        parent: Index of the parent node, or -1.
    """

    start: int
    stop: int
    end: int
    depth: int
    sequence: int
    parent: int


@dataclass(slots=True)
class PrefixTrees:
    """Nodes, depth first, and for each sequence the index of its last node."""

    nodes: list[PrefixNode] = field(default_factory=list)
    last: dict[int, int] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Number of columns."""
        return self.nodes[-1].stop if self.nodes else 0

    def spans(self) -> list[tuple[int, int, int]]:
        """Return start, stop and end of each node."""
        return [(node.start, node.stop, node.end) for node in self.nodes]

    def path(self, sequence: int) -> list[PrefixNode]:
        """Return the nodes of a sequence, first to last."""
        path, index = [], self.last[sequence]
        while index >= 0:
            path.append(self.nodes[index])
            index = self.nodes[index].parent
        return path[::-1]


@dataclass(frozen=True, slots=True)
class SortedRows:
    """Sequences in lexicographic order, so that sequences with a common prefix are adjacent.

    Attributes:
        order: Indices of the rows.
        length: Length of each sequence, in that order.
        common: Length of the prefix that each shares with the previous sequence; 0 for the first.
    """

    order: IntArray
    length: IntArray
    common: IntArray

    @classmethod
    def of(cls, rows: Sequence[Row], chosen: Sequence[int] | None = None) -> SortedRows:
        """Sort all rows, or the chosen ones."""
        chosen = range(len(rows)) if chosen is None else chosen
        order = sorted(chosen, key=lambda index: (rows[index].sequence.ids, index))
        ids = [np.asarray(rows[index].sequence.ids) for index in order]
        common = [0, *(_common(before, after) for before, after in pairwise(ids))][: len(ids)]
        return cls(np.array(order, dtype=np.int64), np.array([len(i) for i in ids]), np.array(common, dtype=np.int64))

    def part(self, low: int, high: int) -> SortedRows:
        """Return the sequences from ``low`` to ``high``, exclusive."""
        common = self.common[low:high].copy()
        common[:1] = 0
        return SortedRows(self.order[low:high], self.length[low:high], common)


def _common(before: IntArray, after: IntArray) -> int:
    size = min(len(before), len(after))
    differ = before[:size] != after[:size]
    return int(differ.argmax()) if differ.any() else size


def merge_prefix_trees(parts: Sequence[PrefixTrees]) -> PrefixTrees:
    """Concatenate prefix trees in one row."""
    joined = PrefixTrees()
    for part in parts:
        column, index = joined.length, len(joined.nodes)
        joined.nodes += [
            PrefixNode(
                node.start + column,
                node.stop + column,
                node.end + column,
                node.depth,
                node.sequence,
                node.parent if node.parent < 0 else node.parent + index,
            )
            for node in part.nodes
        ]
        joined.last |= {sequence: last + index for sequence, last in part.last.items()}
    return joined


def build_prefix_trees(rows: SortedRows, saves: Callable[[int], bool]) -> PrefixTrees:
    """Build the prefix trees of sorted sequences.

    Args:
        rows: The sequences.
        saves: Whether sharing this many columns is worth an additional node. Otherwise the tokens are repeated in
            each branch, so that a few tokens that are equal by chance do not fragment a sequence.
    """
    trees = PrefixTrees()
    # Stack of the work left: (first, end, depth already stored, parent); an int closes that node.
    todo: list[tuple[int, int, int, int] | int] = [(0, len(rows.order), 0, -1)] if len(rows.order) else []
    while todo:
        item = todo.pop()
        if isinstance(item, int):
            trees.nodes[item].end = trees.length
            continue
        low, high, depth, parent = item
        shared = int(rows.common[low + 1 : high].min()) if high - low > 1 else int(rows.length[low])
        # Sequences that end here come first, since they are a prefix of the others.
        ending = int((rows.length[low:high] == shared).sum())
        inner = low + ending
        edges = [inner, *(inner + 1 + np.flatnonzero(rows.common[inner + 1 : high] == shared)).tolist(), high]
        branches = [(first, last) for first, last in pairwise(edges) if last > first]
        if shared > depth and (not branches or saves((shared - depth) * (len(branches) - (ending == 0)))):
            start = trees.length
            trees.nodes.append(PrefixNode(start, start + shared - depth, 0, depth, int(rows.order[low]), parent))
            parent, depth = len(trees.nodes) - 1, shared
            todo.append(parent)
            for index in range(low, inner):
                trees.last[int(rows.order[index])] = parent
        elif ending:
            branches.insert(0, (low, inner))
        todo += [(first, last, depth, parent) for first, last in reversed(branches)]
    return trees
