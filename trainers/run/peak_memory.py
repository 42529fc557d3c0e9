"""``PeakMemory``: the peak memory of a step."""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import torch

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


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
