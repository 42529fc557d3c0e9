"""LoRA that is added to the outputs of projections instead of merged into their weights.

It is for weights that cannot hold the sum (in 4 bits; in bfloat16 the first updates would be rounded away) or that the
sampler shares with a trainer. It costs the memory of the adapter alone, and two small products per projection and
token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from rllm_gym.samplers.peft_format import low_rank_pair


def is_quantised(layer: nn.Module) -> bool:
    """Return whether a projection's weight holds codes instead of numbers (bitsandbytes in 4 or 8 bits, or similar)."""
    weight = getattr(layer, "weight", None)
    coded = isinstance(weight, Tensor) and (not weight.is_floating_point() or hasattr(weight, "quant_state"))
    return coded and hasattr(layer, "in_features") and hasattr(layer, "out_features")


class UnmergedAdapters:
    """The adapters that are currently added to outputs; :meth:`apply` replaces all of them."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._additions: dict[nn.Module, _Addition] = {}
        self.applied = 0
        """How often the adapters moved to other memory or modules."""

    def apply(self, adapters: list[tuple[nn.Module, Tensor, Tensor, float]]) -> None:
        """Replace all adapters.

        Args:
            adapters: For each projection, ``lora_A`` ``[r, in]``, ``lora_B`` ``[out, r]`` and the scale; copied.
        """
        new = {layer: _Addition(down, up, scale, _compute_dtype(layer, down)) for layer, down, up, scale in adapters}
        if new.keys() == self._additions.keys() and all(
            new[layer].fits(addition) for layer, addition in self._additions.items()
        ):
            for layer, addition in self._additions.items():  # in place: recorded steps stay valid
                addition.copy_(new[layer])
            return
        self.applied += 1
        for handle in self._handles:
            handle.remove()
        self._additions = new
        self._handles = [layer.register_forward_hook(addition) for layer, addition in new.items()]

    @staticmethod
    def strip(model: nn.Module) -> None:
        """Remove the adapters that were copied along with a model."""
        for layer in model.modules():
            for key, hook in list(layer._forward_hooks.items()):
                if isinstance(hook, _Addition):
                    del layer._forward_hooks[key]


def _compute_dtype(layer: Any, down_RI: Tensor) -> torch.dtype:
    """Return the precision in which a trainer under autocast computes the adapter: that of the projection."""
    if getattr(layer, "compute_dtype", None) is not None:
        return layer.compute_dtype  # type: ignore[no-any-return]
    return layer.weight.dtype if layer.weight.is_floating_point() else down_RI.dtype


class _Addition:
    """``scale * up @ down @ inputs``, added to a projection's output; the operations are PEFT's, in its order."""

    def __init__(self, down_RI: Tensor, up_OR: Tensor, scale: float, dtype: torch.dtype) -> None:
        self._down_RI, self._up_OR = down_RI.to(dtype, copy=True), up_OR.to(dtype, copy=True)
        self._scale = scale

    def fits(self, other: _Addition) -> bool:
        """Return whether it can take the other's place in memory."""
        return (self._down_RI.shape, self._up_OR.shape, self._scale) == (
            other._down_RI.shape,
            other._up_OR.shape,
            other._scale,
        )

    def copy_(self, other: _Addition) -> None:
        self._down_RI.copy_(other._down_RI)
        self._up_OR.copy_(other._up_OR)

    def __call__(self, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        states = inputs[0].to(self._down_RI.dtype)
        added = functional.linear(functional.linear(states, self._down_RI), self._up_OR) * self._scale
        return output + added.to(output.dtype)


def checked_adapter(name: str, layer: Any, parts: dict[str, Tensor], *, dora: bool) -> tuple[Tensor, Tensor]:
    """Return ``lora_A`` and ``lora_B`` for a projection, on its device.

    Raises:
        ValueError: They do not fit it, or need the weight itself.
    """
    if dora or "lora_magnitude_vector" in parts:
        raise ValueError(
            f"DoRA changes the weight of {name!r} itself, which is quantised or shared; give the sampler a model of "
            "its own (model.dequantize() if it is quantised) and merge_adapters=True, or train plain LoRA"
        )
    if not hasattr(layer, "in_features"):
        raise ValueError(
            f"{name!r} is a {type(layer).__name__}; without merging, adapters are possible on linear layers only. Give "
            "the sampler merge_adapters=True and a model of its own"
        )
    down, up = low_rank_pair(name, parts)
    if down.shape[1] != layer.in_features or up.shape != (layer.out_features, down.shape[0]):
        raise ValueError(
            f"the adapter of {name!r} has shapes {tuple(down.shape)} and {tuple(up.shape)}; the projection has "
            f"in_features={layer.in_features} and out_features={layer.out_features}"
        )
    device = layer.weight.device
    return down.to(device), up.to(device)
