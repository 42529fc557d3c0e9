"""Cost model of a microbatch: predicts its time from tokens, attention pairs and kernel calls, to choose a layout.

The constants are fixed, not measured at run time: choices based on timing would change the last bits of a gradient
from run to run, and a resumed run could not reproduce an uninterrupted one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class CostModel:
    """Costs of forward and backward pass in seconds.

    Attributes:
        token: Per token, without attention.
        pair: Per query-key pair that attends, over all layers.
        call: Per attention call in every layer: one per microbatch of padded rows, one per node of a tree.
        batch: Per microbatch, independent of its size.
        block: Attention is computed in blocks of this many tokens.
    """

    token: float
    pair: float
    call: float
    batch: float
    block: int

    @classmethod
    def of(cls, config: Any, device: torch.device, *, full: bool) -> CostModel:
        """Return the costs of a Hugging Face model from its configuration; ``full`` if all weights are trained."""
        config = config.get_text_config()
        speed = _SPEED["cpu" if device.type == "cpu" else "gpu"]
        layers, width = config.num_hidden_layers, config.hidden_size
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None) or width // heads
        keys = getattr(config, "num_key_value_heads", None) or heads
        feed = getattr(config, "intermediate_size", None) or 4 * width
        weights = width * size * (2 * heads + 2 * keys) + 3 * width * feed
        # Forward, and backward to the activations; with trained weights also the gradient of the weights.
        products = 6 if full else 4
        return cls(
            token=layers * (products * weights / speed.products + width * speed.element),
            pair=layers * 14 * heads * size / speed.attention,
            call=layers * speed.call,
            batch=layers * speed.layer,
            block=speed.block,
        )

    def padded(self, rows: int, length: int) -> float:
        """Predict the seconds for rows padded to the same length."""
        return self.batch + self.call + rows * (length * self.token + float(self._pairs(length, length)) * self.pair)

    def tree(self, nodes: Any) -> float:
        """Predict the seconds for nodes ``(start, stop, end)``, depth first in one row."""
        start, stop, end = np.asarray(nodes).T
        pairs = self._pairs(stop - start, end - start).sum()
        return self.batch + len(nodes) * self.call + float(stop[-1] * self.token + pairs * self.pair)

    def is_worth_sharing(self, columns: int) -> bool:
        """Return whether sharing this many columns is worth an additional node."""
        return columns * self.token > self.call

    def _pairs(self, own: Any, below: Any) -> Any:
        """Count the pairs of ``own`` keys with their own queries, causally, and with all later ones of ``below``
        queries.
        """
        own, below = (-(-length // self.block) * self.block for length in (own, below))
        return own * (own + self.block) / 2 + (below - own) * own


@dataclass(frozen=True, slots=True)
class _DeviceSpeed:
    """Speed of a type of device.

    In this order: floating-point operations per second in matrix products and in attention; seconds for the
    remaining operations per element of a layer's width, per attention call in one layer, and per layer; block size
    in tokens."""

    products: float
    attention: float
    element: float
    call: float
    layer: float
    block: int


# CPU: one core of the development machines, float32, fitted to the figures in benchmarks/results/layouts.md. Only
# the ratios matter for the choice, and they hardly depend on the number of threads. GPU: the order of magnitude of
# an H100 in bfloat16 with FlexAttention, not fitted. On a GPU, attention over a tree is one call for any number of
# nodes.
_SPEED = {
    "cpu": _DeviceSpeed(products=5e10, attention=3.5e10, element=6e-8, call=1.3e-4, layer=3e-3, block=32),
    "gpu": _DeviceSpeed(products=3e14, attention=1.5e14, element=4e-11, call=1e-6, layer=3e-4, block=128),
}

GENERIC = CostModel(token=2.5e-5, pair=8e-8, call=2.6e-4, batch=6e-3, block=32)
"""Default without a model: the costs of a model with a few hundred thousand parameters on a CPU."""
