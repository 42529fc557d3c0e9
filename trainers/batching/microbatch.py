"""Token sequences to micro-batches: sorted by length, right-padded, bounded by tokens, the same every time.

The weight of each token is fixed here, over the whole batch, so that accumulating gradients over micro-batches gives
the gradient of the whole batch whatever the token budget. Sequences that begin with the same prompt can share it: the
episodes of a group, or the turns of an agent that shows the model only its latest observation.

B bundles of sequences, T tokens with padding, N sampled tokens of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from trainers.algorithms.advantages import FloatArray
from trainers.batching.rows import Row

Aggregation = Literal["token-mean", "sequence-mean"]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What goes through the model at once.

    Attributes:
        ids_BT: Token ids, padded on the right: a sequence, or a prompt and what follows it in several sequences.
        row_N: Row of each sampled token.
        column_N: Its column.
        source_N: The column whose logits predict it: the one before, or the prompt's last.
        sampler_logp_N: The sampler's log-prob.
        weight_N: Share in the mean over the whole batch; they sum to 1 over all micro-batches of an optimizer step.
        position_BT: Position of each token in its own sequence; ``None`` where that is its column everywhere.
        end_BT: Sequences laid out side by side form a tree, written down depth first: token ``j`` is seen by itself and
            by the columns after it up to ``end_BT[b, j]``, excluded. ``None`` where that is the end of the row, which
            needs no mask in a causal model: nothing looks at the padding.
        sequence_N: Which of the rows given each sampled token belongs to, as an index into them.
        last_S: Row and column ``(S, 2)`` of the last token of each sequence here, in the order of ``sequence_S``.
        sequence_S: The rows given that are laid out here.
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

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device."""
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
    total = sum(row.num_sampled for row in rows)
    weigh = {"token-mean": lambda row: 1.0 / total, "sequence-mean": lambda row: 1.0 / (len(rows) * row.num_sampled)}
    bundles = _bundle(rows) if share_prompts else [_Bundle(0, [index], rows) for index in range(len(rows))]
    # Longest first: memory peaks at once, not after an hour. Ties keep their order, so the result is one and the same.
    bundles.sort(key=lambda bundle: -bundle.length)
    batches: list[list[_Bundle]] = [[]]
    for bundle in bundles:
        current = batches[-1]
        if current and (len(current) + 1) * current[0].length > tokens_per_microbatch:
            batches.append([bundle])
        else:
            current.append(bundle)
    return [_pad(batch, rows, weigh[aggregation]) for batch in batches]


@dataclass(slots=True)
class _Bundle:
    """Sequences whose first ``shared`` ids are the same; those are laid out once, the rest one after the other."""

    shared: int
    members: list[int]
    rows: Sequence[Row]

    @property
    def length(self) -> int:
        return self.shared + sum(len(self.rows[member].sequence) - self.shared for member in self.members)


def _bundle(rows: Sequence[Row]) -> list[_Bundle]:
    """Rows with the same prompt together, as long as what follows the prompt is no longer than the prompt.

    Beyond that the mask costs more than the sharing saves: attention is computed between sequences that may not see
    each other.
    """
    open_bundles: dict[tuple[int, ...], _Bundle] = {}
    bundles = []
    for index, row in enumerate(rows):
        sequence = row.sequence
        prompt = sequence.ids[: sequence.mask.index(1)]
        bundle = open_bundles.get(prompt)
        if bundle is None or bundle.length + len(sequence) - 2 * len(prompt) > len(prompt):
            bundle = open_bundles[prompt] = _Bundle(len(prompt), [], rows)
            bundles.append(bundle)
        bundle.members.append(index)
    return bundles


def _pad(bundles: Sequence[_Bundle], rows: Sequence[Row], weigh: Callable[[Row], float]) -> MicroBatch:
    size, length = len(bundles), max(bundle.length for bundle in bundles)
    ids_BT = np.zeros((size, length), dtype=np.int64)
    position_BT = np.tile(np.arange(length), (size, 1))
    end_BT = np.full((size, length), length)
    row_N, column_N, source_N, weight_N, last_S = [], [], [], [], []
    members = [member for bundle in bundles for member in bundle.members]
    for index, bundle in enumerate(bundles):
        shared, offset = bundle.shared, bundle.shared
        for member in bundle.members:
            row = rows[member]
            sequence = row.sequence
            marked = np.flatnonzero(np.asarray(sequence.mask))
            if len(marked) and marked[0] == 0:
                raise ValueError("the first token of a sequence is marked as sampled, and nothing comes before it")
            end = offset + len(sequence) - shared
            ids_BT[index, :shared] = sequence.ids[:shared]
            ids_BT[index, offset:end] = sequence.ids[shared:]
            position_BT[index, offset:end] = np.arange(shared, len(sequence))
            end_BT[index, offset:end] = end
            columns = marked - shared + offset
            row_N.append(np.full(len(marked), index))
            column_N.append(columns)
            source_N.append(np.where(marked == shared, max(shared, 1) - 1, columns - 1))
            weight_N.append(np.full(len(marked), weigh(row)))
            last_S.append((index, end - 1))
            offset = end
    laid_out = [rows[member] for member in members]
    side_by_side = any(len(bundle.members) > 1 for bundle in bundles)
    return MicroBatch(
        ids_BT=torch.from_numpy(ids_BT),
        row_N=torch.from_numpy(np.concatenate(row_N)),
        column_N=torch.from_numpy(np.concatenate(column_N)),
        source_N=torch.from_numpy(np.concatenate(source_N)),
        sampler_logp_N=_sampled(
            [np.asarray(row.sequence.logprobs)[np.asarray(row.sequence.mask) == 1] for row in laid_out]
        ),
        weight_N=_sampled(weight_N),
        sequence_N=torch.from_numpy(np.repeat(members, [row.num_sampled for row in laid_out])),
        last_S=torch.tensor(last_S),
        sequence_S=torch.tensor(members),
        targets={name: _sampled([row.targets[name] for row in laid_out]) for name in rows[0].targets},
        position_BT=torch.from_numpy(position_BT) if side_by_side else None,
        end_BT=torch.from_numpy(end_BT) if side_by_side else None,
    )


def _sampled(values: Sequence[FloatArray]) -> Tensor:
    return torch.from_numpy(np.concatenate(values)).float()
