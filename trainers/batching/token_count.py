"""``TokenCount``: the tokens of the forward passes of a step, in three counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trainers.batching.microbatch import MicroBatch


@dataclass(slots=True)
class TokenCount:
    """Token counts of microbatches.

    Attributes:
        sequences: Tokens of all sequences, including prompts: the cost without sharing and padding. Throughput is
            measured in these, since they do not depend on the layout.
        computed: Tokens that were computed: shared prefixes count once.
        padded: Positions in the tensors of the forward passes.
    """

    sequences: int = 0
    computed: int = 0
    padded: int = 0

    def add(self, batch: MicroBatch) -> None:
        """Add a microbatch."""
        row_S, column_S = batch.last_S.unbind(1)
        last_S = column_S if batch.position_BT is None else batch.position_BT[row_S, column_S]
        self.sequences += int((last_S + 1).sum())
        # Rows are filled from the left, and the last token of a row is the end of some sequence.
        length_B = torch.zeros(len(batch.ids_BT), dtype=column_S.dtype, device=column_S.device)
        self.computed += int(length_B.scatter_reduce(0, row_S, column_S + 1, "amax").sum())
        self.padded += batch.ids_BT.numel()

    def __add__(self, other: TokenCount) -> TokenCount:
        return TokenCount(self.sequences + other.sequences, self.computed + other.computed, self.padded + other.padded)

    def metrics(self) -> dict[str, float]:
        """Return the metrics ``batch/*``, which ``docs/metrics.md`` defines."""
        return {
            "batch/sequence_tokens": self.sequences,
            "batch/padded_tokens": self.padded,
            "batch/padding_fraction": 1.0 - self.computed / self.padded if self.padded else 0.0,
            "batch/shared_prefix_fraction": 1.0 - self.computed / self.sequences if self.sequences else 0.0,
        }
