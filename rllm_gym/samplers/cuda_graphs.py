"""Decoding steps of a few fixed shapes over fixed buffers, so that a GPU can replay them as CUDA graphs.

A step of a small batch is a hundred kernels of a few microseconds, and launching them costs more than running them. A
CUDA graph launches them all at once, but only with the same shapes at the same addresses: rows and positions are
rounded up to buckets, and unused rows write to the scratch slot.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from rllm_gym.samplers.kv_slots import KVSlots

_log = logging.getLogger(__name__)

_MAX_SHAPES = 64


class CudaGraphSteps:
    """Computes steps by shape: the first step of a shape runs normally, which warms it up; later ones replay its graph.

    Args:
        kv: Slots and model.
        max_batch: Maximum number of rows.
        capture: Record graphs; else every step runs normally, over the same buffers.
    """

    def __init__(self, kv: KVSlots, max_batch: int, *, capture: bool) -> None:
        self._kv = kv
        self._max_batch = max_batch
        self._captures = capture
        self._pool: Any = None
        self._shapes: OrderedDict[tuple[int, int], _CapturedStep] = OrderedDict()
        self._kv_generation: Hashable = None
        self.forget()

    @classmethod
    def of(cls, kv: KVSlots, max_batch: int) -> CudaGraphSteps | None:
        """Return an instance on a CUDA GPU for models with a plain pass, which reads no value back from the GPU."""
        return cls(kv, max_batch, capture=True) if kv.device.type == "cuda" and kv.is_plain else None

    def forget(self) -> None:
        """Clear the graphs: the model's weights may have moved, or further modules may take part."""
        self._shapes.clear()
        # One pool: a step's logits are consumed before another step runs. It is freed with its last graph, and its
        # handle cannot be used again.
        self._pool = torch.cuda.graph_pool_handle() if self._captures else None

    def logits(self, tokens_N: Tensor, positions_N: Tensor, longest: int) -> Tensor:
        """Return logits ``[N, V]`` of one new token in each of the first N slots; valid until the next step.

        Args:
            tokens_N: The tokens.
            positions_N: Their positions, all below ``longest``.
            longest: Number of positions in use.
        """
        count = tokens_N.shape[0]
        rows = min(rows_bucket(count), self._max_batch)
        self._kv.reserve(rows, longest)
        if self._kv_generation != self._kv.generation:
            self.forget()  # the slots have moved
            self._kv_generation = self._kv.generation
        shape = (rows, min(span_bucket(longest), self._kv.length))
        step = self._shapes.pop(shape, None)
        known = step is not None
        if step is None:
            step = _CapturedStep(self._kv, *shape)
            if len(self._shapes) == _MAX_SHAPES:
                self._shapes.popitem(last=False)
        self._shapes[shape] = step
        step.fill(tokens_N, positions_N)
        if known and self._pool is not None and step.graph is None:
            try:
                step.record(self._pool)
            except RuntimeError as error:
                self._captures, self._pool = False, None
                _log.warning("decoding steps cannot be recorded as CUDA graphs and run one kernel at a time: %s", error)
        return step.run()[:count]


class _CapturedStep:
    """One shape: its buffers, and its graph once it is recorded."""

    def __init__(self, kv: KVSlots, rows: int, span: int) -> None:
        self._kv, self._span = kv, span
        self._numbers = torch.arange(rows, device=kv.device)
        self._ids_N1, self._positions_N1, self._slots_N1 = torch.zeros(
            3, rows, 1, dtype=torch.long, device=kv.device
        ).unbind()
        self._logits_NV = torch.empty(0)
        self.graph: Any = None

    def fill(self, tokens_N: Tensor, positions_N: Tensor) -> None:
        count = tokens_N.shape[0]
        self._ids_N1[:count, 0] = tokens_N
        self._positions_N1[:count, 0] = positions_N
        self._positions_N1[count:] = 0
        self._slots_N1[:count, 0] = self._numbers[:count]
        self._slots_N1[count:] = self._kv.slots

    def run(self) -> Tensor:
        if self.graph is None:
            self._compute()
        else:
            self.graph.replay()
        return self._logits_NV

    def record(self, pool: Any) -> None:
        # Capture errors are limited to this thread: a trainer may allocate on the same GPU meanwhile.
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self._compute()
        self.graph = graph

    def _compute(self) -> None:
        self._logits_NV = self._kv.forward(self._ids_N1, self._positions_N1, self._slots_N1, self._span)[:, -1]


def rows_bucket(count: int) -> int:
    """Round up to 1, 2, 4, 8, 16, 32, 48, 64, …: at most twice as many rows as are in use."""
    return 1 << (count - 1).bit_length() if count <= 16 else -(-count // 16) * 16


def span_bucket(longest: int) -> int:
    """Round up to 64, 128, …, 512, 768, 1024, 1280, …: few shapes, and few positions read without need."""
    width = 64 if longest <= 512 else 256
    return -(-longest // width) * width
