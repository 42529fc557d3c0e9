"""LoRA on quantised projections: added to their outputs, since a 4-bit base cannot hold the sum.

It costs the memory of the adapter alone, which is the purpose of quantising, and two small products per projection and
token. If there is enough memory, call ``model.dequantize()`` before the sampler is made: adapters are then merged, and
decoding is faster.
"""

from __future__ import annotations

from typing import Any

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
        self.applied = 0
        """How often the adapters were replaced."""

    def apply(self, adapters: list[tuple[nn.Module, Tensor, Tensor, float]]) -> None:
        """Replace all adapters.

        Args:
            adapters: For each projection, ``lora_A`` ``[r, in]``, ``lora_B`` ``[out, r]`` and the scale; copied.
        """
        self.applied += bool(self._handles or adapters)
        for handle in self._handles:
            handle.remove()
        self._handles = [
            layer.register_forward_hook(_Addition(down.clone(), (scale * up).clone()))
            for layer, down, up, scale in adapters
        ]

    @staticmethod
    def strip(model: nn.Module) -> None:
        """Remove the adapters that were copied along with a model."""
        for layer in model.modules():
            for key, hook in list(layer._forward_hooks.items()):
                if isinstance(hook, _Addition):
                    del layer._forward_hooks[key]


class _Addition:
    def __init__(self, down_RI: Tensor, up_OR: Tensor) -> None:
        self._down_RI, self._up_OR = down_RI, up_OR

    def __call__(self, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        # In the adapter's own precision, as PEFT computes it.
        states = inputs[0].to(self._down_RI.dtype)
        added = functional.linear(functional.linear(states, self._down_RI), self._up_OR)
        return output + added.to(output.dtype)


def checked_adapter(name: str, layer: Any, parts: dict[str, Tensor], *, dora: bool) -> tuple[Tensor, Tensor]:
    """Return ``lora_A`` and ``lora_B`` for a quantised projection, on its device.

    Raises:
        ValueError: They do not fit it, or need the weight itself.
    """
    if dora or "lora_magnitude_vector" in parts:
        raise ValueError(
            f"DoRA needs the weight of {name!r} itself, which is quantised; give the sampler model.dequantize(), or "
            "train plain LoRA"
        )
    down, up = low_rank_pair(name, parts)
    if down.shape[1] != layer.in_features or up.shape != (layer.out_features, down.shape[0]):
        raise ValueError(
            f"the adapter of {name!r} has shapes {tuple(down.shape)} and {tuple(up.shape)}; the projection has "
            f"in_features={layer.in_features} and out_features={layer.out_features}"
        )
    device = layer.weight.device
    return down.to(device), up.to(device)
