"""Deterministic conversion of token sequences to microbatches with limited tokens: padded, packed or as prefix trees.

Each token's weight is determined over the whole batch, so that gradient accumulation over microbatches gives the
gradient of the whole batch for any token budget and layout. Common prefixes can be computed once: the prompt of a
group, the turns shared by branches of a conversation, identical episodes.

B rows of sequences, T tokens with padding, N sampled tokens of all sequences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from trainers.array_types import FloatArray, IntArray
from trainers.batching.cost_model import GENERIC, CostModel
from trainers.batching.layout import Layout, Padded, plan_layouts
from trainers.batching.prefix_tree import PrefixTrees
from trainers.batching.rows import Row

TokenWeighting = Literal["token-mean", "sequence-mean"]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The tokens of one forward pass.

    Attributes:
        ids_BT: Token ids: one sequence per row, padded on the right, or one row with several packed sequences.
        row_N: Row of each sampled token.
        column_N: Column of each sampled token.
        source_N: Column whose logits predict the token: that of the preceding token in its sequence.
        sampler_logp_N: The sampler's log-prob.
        weight_N: Weight in the mean over the whole batch; the weights of all microbatches of an optimizer step sum
            to 1.
        position_BT: Position of each token in its own sequence; ``None`` if it always equals the column.
        end_BT: Packed sequences form a tree, stored depth first: token ``j`` is visible to itself and to the columns
            after it up to ``end_BT[b, j]``, exclusive. ``None`` if that is the end of the row for all tokens, which
            needs no mask in a causal model: no token attends to the padding.
        sequence_N: Index of the input row of each sampled token.
        last_S: Row and column ``(S, 2)`` of the last token of each sequence here, in the order of ``sequence_S``.
        sequence_S: Indices of the input rows in this microbatch.
        targets: By name, one value per sampled token.
    """

    ids_BT: Tensor
    row_N: Tensor
    column_N: Tensor
    source_N: Tensor
    sampler_logp_N: Tensor
    weight_N: Tensor
    sequence_N: Tensor
    last_S: Tensor
    sequence_S: Tensor
    targets: Mapping[str, Tensor]
    position_BT: Tensor | None = None
    end_BT: Tensor | None = None

    @property
    def old_logp_N(self) -> Tensor:
        """The log-prob under the old policy, to which a loss limits the ratio: the trainer's before the update if it
        was recomputed (``targets["old_logp"]``), else the sampler's.
        """
        return self.targets.get("old_logp", self.sampler_logp_N)

    def with_targets(self, **targets: Tensor) -> MicroBatch:
        """Return the microbatch with further targets."""
        return replace(self, targets={**self.targets, **targets})

    def to(self, device: torch.device) -> MicroBatch:
        """Copy the microbatch to another device."""
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=True)
            for name in self.__slots__
            if isinstance(value := getattr(self, name), Tensor)
        }
        moved["targets"] = {name: value.to(device, non_blocking=True) for name, value in self.targets.items()}
        return replace(self, **moved)


def make_micro_batches(
    rows: Sequence[Row],
    *,
    tokens_per_microbatch: int,
    weighting: TokenWeighting = "token-mean",
    share_prompts: bool = False,
    costs: CostModel = GENERIC,
) -> list[MicroBatch]:
    """Convert all rows of one optimizer step to microbatches of at most the given number of padded tokens, largest
    first.

    A longer sequence gets a microbatch of its own. Without rows there are no microbatches.

    Args:
        rows: The sequences to train on.
        tokens_per_microbatch: Maximum number of padded tokens.
        weighting: Equal weight per token, or per sample (:attr:`Row.sample`) with all its sequences.
        share_prompts: Whether to pack sequences where that saves time, and to compute common prefixes once. The
            gradient is the same. Only for models with tree attention.
        costs: Cost model for the choice of the layouts.

    Raises:
        ValueError: A sequence has no tokens, or its first token is marked as sampled.
    """
    layouts = plan_layouts(rows, tokens=tokens_per_microbatch, costs=costs, share=share_prompts) if rows else []
    return build_micro_batches(rows, layouts, weighting)


def build_micro_batches(
    rows: Sequence[Row], layouts: Sequence[Layout], weighting: TokenWeighting = "token-mean"
) -> list[MicroBatch]:
    """Build the microbatches of a plan.

    Raises:
        ValueError: A sequence has no tokens, or its first token is marked as sampled.
    """
    marked = [np.flatnonzero(np.asarray(row.sequence.mask)) for row in rows]
    for row, marked_M in zip(rows, marked, strict=True):
        if not len(row.sequence):
            raise ValueError("a sequence has no tokens")
        if len(marked_M) and marked_M[0] == 0:
            raise ValueError("the first token of a sequence is marked as sampled, but has no preceding token")
    count: Counter[int] = Counter()
    for row, marked_M in zip(rows, marked, strict=True):
        count[row.sample] += len(marked_M)
    total = max(1, count.total())
    weight = [
        1.0 / total if weighting == "token-mean" else 1.0 / (len(count) * max(1, count[row.sample])) for row in rows
    ]
    placed = (_padded(layout, rows) if isinstance(layout, Padded) else _packed(layout, rows) for layout in layouts)
    return [_make(tokens, rows, marked, weight) for tokens in placed]


@dataclass(frozen=True, slots=True)
class _PlacedTokens:
    """Token ids in their layout; for each sequence its index, its row, and the column of each of its tokens."""

    ids_BT: IntArray
    sequences: list[tuple[int, int, IntArray]]
    position_BT: IntArray | None = None
    end_BT: IntArray | None = None


def _padded(layout: Padded, rows: Sequence[Row]) -> _PlacedTokens:
    ids_BT = np.zeros((len(layout.sequences), layout.length), dtype=np.int64)
    column_T = np.arange(layout.length)
    sequences = []
    for row, index in enumerate(layout.sequences):
        ids = rows[index].sequence.ids
        ids_BT[row, : len(ids)] = ids
        sequences.append((index, row, column_T[: len(ids)]))
    return _PlacedTokens(ids_BT, sequences)


def _packed(trees: PrefixTrees, rows: Sequence[Row]) -> _PlacedTokens:
    ids_BT, position_BT, end_BT = (np.zeros((1, trees.length), dtype=np.int64) for _ in range(3))
    column_T = np.arange(trees.length)
    for node in trees.nodes:
        own, last = slice(node.start, node.stop), node.depth + node.stop - node.start
        ids_BT[0, own] = rows[node.sequence].sequence.ids[node.depth : last]
        position_BT[0, own] = column_T[own] - node.start + node.depth
        end_BT[0, own] = node.end
    sequences = [
        (index, 0, np.concatenate([column_T[node.start : node.stop] for node in trees.path(index)]))
        for index in trees.last
    ]
    if len(trees.nodes) == 1:
        return _PlacedTokens(ids_BT, sequences)
    return _PlacedTokens(ids_BT, sequences, position_BT, end_BT)


def _make(
    placed: _PlacedTokens, rows: Sequence[Row], marked: Sequence[IntArray], weight: Sequence[float]
) -> MicroBatch:
    laid_out = [index for index, _, _ in placed.sequences]
    count_S = [len(marked[index]) for index in laid_out]
    column_N = np.concatenate([column_T[marked[index]] for index, _, column_T in placed.sequences])
    source_N = np.concatenate([column_T[marked[index] - 1] for index, _, column_T in placed.sequences])
    return MicroBatch(
        ids_BT=torch.from_numpy(placed.ids_BT),
        row_N=torch.from_numpy(np.repeat([row for _, row, _ in placed.sequences], count_S)),
        column_N=torch.from_numpy(column_N),
        source_N=torch.from_numpy(source_N),
        sampler_logp_N=_sampled([np.asarray(rows[index].sequence.logprobs)[marked[index]] for index in laid_out]),
        weight_N=_sampled([np.repeat([weight[index] for index in laid_out], count_S)]),
        sequence_N=torch.from_numpy(np.repeat(laid_out, count_S)),
        last_S=torch.tensor([(row, int(column_T[-1])) for _, row, column_T in placed.sequences]),
        sequence_S=torch.tensor(laid_out),
        targets={name: _sampled([rows[index].targets[name] for index in laid_out]) for name in rows[0].targets},
        position_BT=None if placed.position_BT is None else torch.from_numpy(placed.position_BT),
        end_BT=None if placed.end_BT is None else torch.from_numpy(placed.end_BT),
    )


def _sampled(values: Sequence[FloatArray]) -> Tensor:
    return torch.from_numpy(np.concatenate(values)).float()
