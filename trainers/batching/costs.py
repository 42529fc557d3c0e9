"""What a micro-batch will cost: time predicted from tokens, pairs that attend and calls, to choose how to lay it out.

The constants are fixed, not measured in the run: a choice that followed the machine's mood would change the last bits
of a gradient from run to run, and a resumed run could not be the same as an uninterrupted one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of forward and backward pass.

    Attributes:
        token: Of a token in everything but attention.
        pair: Of a query and a key it attends to, over all layers.
        call: Of calling attention once in every layer: once a micro-batch of padded rows, once a node of a tree.
        batch: Of a micro-batch, whatever its size.
        block: Attention is computed for blocks of so many tokens.
    """

    token: float
    pair: float
    call: float
    batch: float
    block: int

    @classmethod
    def of(cls, config: Any, device: torch.device, *, full: bool) -> Costs:
        """Of a Hugging Face model, from its configuration; ``full`` where all its weights are trained."""
        config = config.get_text_config()
        speed = _SPEED["cpu" if device.type == "cpu" else "gpu"]
        layers, width = config.num_hidden_layers, config.hidden_size
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or width // heads
        keys = getattr(config, "num_key_value_heads", None) or heads
        feed = getattr(config, "intermediate_size", None) or 4 * width
        weights = width * size * (2 * heads + 2 * keys) + 3 * width * feed
        # Forward, and backward to the activations; the gradient of the weights themselves where they are trained.
        products = 6 if full else 4
        return cls(
            token=layers * (products * weights / speed.products + width * speed.element),
            pair=layers * 14 * heads * size / speed.attention,
            call=layers * speed.call,
            batch=layers * speed.layer,
            block=speed.block,
        )

    def padded(self, rows: int, length: int) -> float:
        """Of so many rows, padded to the same length."""
        return self.batch + self.call + rows * (length * self.token + float(self._pairs(length, length)) * self.pair)

    def tree(self, nodes: Any) -> float:
        """Of nodes ``(start, stop, end)``, depth first in one row."""
        start, stop, end = np.asarray(nodes).T
        pairs = self._pairs(stop - start, end - start).sum()
        return self.batch + len(nodes) * self.call + float(stop[-1] * self.token + pairs * self.pair)

    def saves(self, columns: int) -> bool:
        """Whether to write so many columns once less is worth another node."""
        return columns * self.token > self.call

    def _pairs(self, own: Any, below: Any) -> Any:
        """Pairs of ``own`` keys with themselves, causally, and with all later ones of ``below`` queries."""
        own, below = (-(-length // self.block) * self.block for length in (own, below))
        return own * (own + self.block) / 2 + (below - own) * own


@dataclass(frozen=True, slots=True)
class _Speed:
    """Of a kind of device: floating-point operations a second in matrix products and in attention, seconds for what
    else is done with one element of a layer's width, for a call of attention in one layer, for a layer; block size."""

    products: float
    attention: float
    element: float
    call: float
    layer: float
    block: int


# CPU: one core of the machines this was written on, float32, fitted to the figures in benchmarks/results/layouts.md.
# What decides is their ratios, which hardly change with the number of threads. GPU: of the order an H100 has in
# bfloat16 with FlexAttention, not fitted. There attention over a tree is one call however many nodes it has.
_SPEED = {
    "cpu": _Speed(products=5e10, attention=3.5e10, element=6e-8, call=1.3e-4, layer=3e-3, block=32),
    "gpu": _Speed(products=3e14, attention=1.5e14, element=4e-11, call=1e-6, layer=3e-4, block=128),
}

GENERIC = Costs(token=2.5e-5, pair=8e-8, call=2.6e-4, batch=6e-3, block=32)
"""Where no model is given: those of a model of some hundred thousand parameters on a CPU."""
