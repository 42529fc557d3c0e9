"""Token sequences to micro-batches: sorted by length, right-padded, bounded by tokens, the same every time.

The weight of each token is fixed here, over the whole batch, so that accumulating gradients over micro-batches gives
the gradient of the whole batch whatever the token budget. Sequences that begin with the same prompt can share it: the
episodes of a group, or the turns of an agent that shows the model only its latest observation.

B bundles of sequences, T tokens with padding, N sampled tokens of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
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
        ids_BT: Token ids, padded on the right: a sequence, or a prompt and what follows it in several sequences.
        row_N: Row of each sampled token.
        column_N: Its column.
        source_N: The column whose logits predict it: the one before, or the prompt's last.
        sampler_logp_N: The sampler's log-prob.
        adv_N: Advantage.
        weight_N: Share in the mean over the whole batch; they sum to 1 over all micro-batches of an optimizer step.
        position_BT: Position of each token in its own sequence; ``None`` where that is its column everywhere.
        seen_BTT: Which tokens (last axis) each token sees; ``None`` for all before it, which needs no mask in a causal
            model: nothing looks at the padding.
    """

    ids_BT: Tensor
    row_N: Tensor
    column_N: Tensor
    source_N: Tensor
    sampler_logp_N: Tensor
    adv_N: Tensor
    weight_N: Tensor
    position_BT: Tensor | None = None
    seen_BTT: Tensor | None = None

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device."""
        moved = {}
        for entry in fields(self):
            tensor: Tensor | None = getattr(self, entry.name)
            moved[entry.name] = None if tensor is None else tensor.to(device, non_blocking=True)
        return MicroBatch(**moved)  # type: ignore[arg-type]


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
    rows: Sequence[Row],
    *,
    tokens_per_microbatch: int,
    aggregation: Aggregation = "token-mean",
    share_prompts: bool = False,
) -> list[MicroBatch]:
    """All rows of one optimizer step, longest first; each micro-batch has at most the given number of padded tokens.

    A bundle longer than that gets a micro-batch of its own.

    Args:
        rows: What to learn from.
        tokens_per_microbatch: Padded tokens at most.
        aggregation: Every token alike, or every sequence.
        share_prompts: Compute a prompt once for the sequences that begin with it. The gradient is the same.
    """
    if not rows:
        return []
    total = sum(len(row.adv_N) for row in rows)
    weigh = {"token-mean": lambda row: 1.0 / total, "sequence-mean": lambda row: 1.0 / (len(rows) * len(row.adv_N))}
    bundles = _bundle(rows) if share_prompts else [_Bundle(0, [row]) for row in rows]
    # Longest first: memory peaks at once, not after an hour. Ties keep their order, so the result is one and the same.
    bundles.sort(key=lambda bundle: -bundle.length)
    batches: list[list[_Bundle]] = [[]]
    for bundle in bundles:
        current = batches[-1]
        if current and (len(current) + 1) * current[0].length > tokens_per_microbatch:
            batches.append([bundle])
        else:
            current.append(bundle)
    return [_pad(batch, weigh[aggregation]) for batch in batches]


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


@dataclass(slots=True)
class _Bundle:
    """Sequences whose first ``shared`` ids are the same; those are laid out once, the rest one after the other."""

    shared: int
    rows: list[Row]

    @property
    def length(self) -> int:
        return self.shared + sum(len(row.sequence) - self.shared for row in self.rows)


def _bundle(rows: Sequence[Row]) -> list[_Bundle]:
    """Rows with the same prompt together, as long as what follows the prompt is no longer than the prompt.

    Beyond that the mask costs more than the sharing saves: attention is computed between sequences that may not see
    each other.
    """
    open_bundles: dict[tuple[int, ...], _Bundle] = {}
    bundles = []
    for row in rows:
        sequence = row.sequence
        prompt = sequence.ids[: sequence.mask.index(1)]
        bundle = open_bundles.get(prompt)
        if bundle is None or bundle.length + len(sequence) - 2 * len(prompt) > len(prompt):
            bundle = open_bundles[prompt] = _Bundle(len(prompt), [])
            bundles.append(bundle)
        bundle.rows.append(row)
    return bundles


def _pad(bundles: Sequence[_Bundle], weigh: Callable[[Row], float]) -> MicroBatch:
    size, length = len(bundles), max(bundle.length for bundle in bundles)
    ids_BT = np.zeros((size, length), dtype=np.int64)
    position_BT = np.tile(np.arange(length), (size, 1))
    # Which sequence of its bundle a token belongs to; -1 for the prompt they share, which all of them see.
    part_BT = np.full((size, length), -1)
    row_N, column_N, source_N, logp_N, adv_N, weight_N = [], [], [], [], [], []
    for index, bundle in enumerate(bundles):
        shared, offset = bundle.shared, bundle.shared
        for part, row in enumerate(bundle.rows):
            sequence = row.sequence
            marked = np.flatnonzero(np.asarray(sequence.mask))
            if len(marked) and marked[0] == 0:
                raise ValueError("the first token of a sequence is marked as sampled, and nothing comes before it")
            end = offset + len(sequence) - shared
            ids_BT[index, :shared] = sequence.ids[:shared]
            ids_BT[index, offset:end] = sequence.ids[shared:]
            position_BT[index, offset:end] = np.arange(shared, len(sequence))
            part_BT[index, offset:end] = part
            columns = marked - shared + offset
            row_N.append(np.full(len(marked), index))
            column_N.append(columns)
            source_N.append(np.where(marked == shared, max(shared, 1) - 1, columns - 1))
            logp_N.append(np.asarray(sequence.logprobs)[marked])
            adv_N.append(row.adv_N)
            weight_N.append(np.full(len(marked), weigh(row)))
            offset = end
    position = seen = None
    if any(len(bundle.rows) > 1 for bundle in bundles):
        mine_BT = torch.from_numpy(part_BT)
        together_BTT = (mine_BT[:, :, None] == mine_BT[:, None, :]) | (mine_BT[:, None, :] == -1)
        seen = together_BTT & torch.ones(length, length, dtype=torch.bool).tril()
        position = torch.from_numpy(position_BT)
    return MicroBatch(
        torch.from_numpy(ids_BT),
        torch.from_numpy(np.concatenate(row_N)),
        torch.from_numpy(np.concatenate(column_N)),
        torch.from_numpy(np.concatenate(source_N)),
        torch.from_numpy(np.concatenate(logp_N)).float(),
        torch.from_numpy(np.concatenate(adv_N)).float(),
        torch.from_numpy(np.concatenate(weight_N)).float(),
        position,
        seen,
    )
