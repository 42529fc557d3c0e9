"""Token sequences to micro-batches: sorted by length, right-padded, bounded by tokens, the same every time.

The weight of each token is fixed here, over the whole batch, so that accumulating gradients over micro-batches gives
the gradient of the whole batch whatever the token budget.

B sequences, T tokens with padding, N sampled tokens of all B sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rllm_gym.core import TokenSequence
from trainers.advantages import FloatArray
from trainers.samples import Sample

Aggregation = Literal["token-mean", "sequence-mean"]


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence with what its sampled tokens are to learn; arrays have one entry per sampled token."""

    sequence: TokenSequence
    adv_N: FloatArray


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What goes through the model at once.

    Attributes:
        ids_BT: Token ids, padded on the right. A causal model needs no mask: nothing looks at what follows it.
        row_N: Row of each sampled token.
        column_N: Its column, at least 1: the logits that predict it are one column before.
        sampler_logp_N: The sampler's log-prob.
        adv_N: Advantage.
        weight_N: Share in the mean over the whole batch; they sum to 1 over all micro-batches of an optimizer step.
    """

    ids_BT: Tensor
    row_N: Tensor
    column_N: Tensor
    sampler_logp_N: Tensor
    adv_N: Tensor
    weight_N: Tensor

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device."""
        return MicroBatch(
            *(
                tensor.to(device, non_blocking=True)
                for tensor in (
                    self.ids_BT,
                    self.row_N,
                    self.column_N,
                    self.sampler_logp_N,
                    self.adv_N,
                    self.weight_N,
                )
            )
        )


def rows_of(samples: Sequence[Sample], adv: Sequence[FloatArray]) -> list[Row]:
    """One row per sequence that has sampled tokens; ``adv`` holds each sample's values, its sequences in order.

    Raises:
        ValueError: The advantages do not match the sampled tokens one to one.
    """
    rows = []
    for sample, adv_N in zip(samples, adv, strict=True):
        if len(adv_N) != sample.num_sampled:
            raise ValueError(
                f"episode {sample.episode_id!r} has {sample.num_sampled} sampled tokens but {len(adv_N)} advantages"
            )
        start = 0
        for sequence in sample.sequences:
            sampled = sum(sequence.mask)
            if sampled:
                rows.append(Row(sequence, adv_N[start : start + sampled]))
            start += sampled
    return rows


def make_micro_batches(
    rows: Sequence[Row], *, tokens_per_microbatch: int, aggregation: Aggregation = "token-mean"
) -> list[MicroBatch]:
    """All rows of one optimizer step, longest first; each micro-batch has at most the given number of padded tokens.

    A sequence longer than that gets a micro-batch of its own.
    """
    if not rows:
        return []
    # Longest first: memory peaks at once, not after an hour. Ties keep their order, so the result is one and the same.
    ordered = sorted(rows, key=lambda row: -len(row.sequence))
    total = sum(len(row.adv_N) for row in ordered)
    batches: list[list[Row]] = [[]]
    for row in ordered:
        current = batches[-1]
        if current and (len(current) + 1) * len(current[0].sequence) > tokens_per_microbatch:
            batches.append([row])
        else:
            current.append(row)

    def weight(row: Row) -> float:
        return 1.0 / total if aggregation == "token-mean" else 1.0 / (len(ordered) * len(row.adv_N))

    return [_pad(batch, [weight(row) for row in batch]) for batch in batches]


def split_for_minibatches(samples: Sequence[Sample], adv: Sequence[FloatArray], parts: int) -> list[list[Row]]:
    """The rows of each optimizer step of one pass: whole groups, in order, as even as they divide."""
    groups = list(dict.fromkeys(sample.group_id for sample in samples))
    part_of = {group: index * parts // len(groups) for index, group in enumerate(groups)}
    split: list[list[Row]] = []
    for part in range(parts):
        chosen = [index for index, sample in enumerate(samples) if part_of[sample.group_id] == part]
        rows = rows_of([samples[index] for index in chosen], [adv[index] for index in chosen])
        if rows:
            split.append(rows)
    return split


def _pad(rows: Sequence[Row], weights: Sequence[float]) -> MicroBatch:
    length = max(len(row.sequence) for row in rows)
    ids_BT = np.zeros((len(rows), length), dtype=np.int64)
    row_N, column_N, logp_N, adv_N, weight_N = [], [], [], [], []
    for index, (row, weight) in enumerate(zip(rows, weights, strict=True)):
        sequence = row.sequence
        ids_BT[index, : len(sequence)] = sequence.ids
        columns = np.flatnonzero(np.asarray(sequence.mask))
        if len(columns) and columns[0] == 0:
            raise ValueError("the first token of a sequence is marked as sampled, and nothing comes before it")
        row_N.append(np.full(len(columns), index, dtype=np.int64))
        column_N.append(columns)
        logp_N.append(np.asarray(sequence.logprobs)[columns])
        adv_N.append(row.adv_N)
        weight_N.append(np.full(len(columns), weight))
    return MicroBatch(
        torch.from_numpy(ids_BT),
        torch.from_numpy(np.concatenate(row_N)),
        torch.from_numpy(np.concatenate(column_N)),
        torch.from_numpy(np.concatenate(logp_N)).float(),
        torch.from_numpy(np.concatenate(adv_N)).float(),
        torch.from_numpy(np.concatenate(weight_N)).float(),
    )
