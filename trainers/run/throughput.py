"""Costs of a step: tokens of the forward passes in three counts, and peak memory."""

from __future__ import annotations

import contextlib
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from trainers.batching import MicroBatch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


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


class PeakMemory:
    """Peak memory in bytes since the last :meth:`lap`.

    ``memory/process_peak`` is the peak of the process: on Linux since the last lap, if the kernel allows resetting it,
    otherwise since the start. ``memory/gpu_peak`` is the peak of tensors on the GPU, if the model is on one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.lap()

    def lap(self) -> dict[str, float]:
        """Return the peaks and reset them."""
        row: dict[str, float] = {"memory/process_peak": _process_peak()}
        with contextlib.suppress(OSError):
            _CLEAR.write_text("5")  # resets the high-water mark: proc(5)
        if self._device.type == "cuda":
            row["memory/gpu_peak"] = torch.cuda.max_memory_allocated(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
        return row


def _process_peak() -> int:
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
