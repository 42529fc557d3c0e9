"""Apply new weights to a model that samples: full weights are copied in place, adapters merged into a kept base.

Merging always starts from the kept base, so that errors do not accumulate over weight syncs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rllm_gym.samplers.peft_format import PREFIX, config_of, low_rank_pair, module_and_part, scale_of
from rllm_gym.samplers.protocol import WeightUpdate
from rllm_gym.samplers.unmerged_adapters import UnmergedAdapters, checked_adapter, is_quantised


class MergedWeights:
    """Applies weight updates to a model, all or nothing.

    Args:
        model: The model whose parameters are overwritten.
        before_overwriting: Called with a parameter that other models share, and its kept copy (``None`` if there is
            none), before the parameter is first overwritten.
        merge_adapters: Whether adapters are merged into the weights; if not, they are added to the outputs of the
            adapted layers, as they always are over quantised weights.
    """

    def __init__(
        self,
        model: nn.Module,
        before_overwriting: Callable[[Tensor, Tensor | None], None] | None = None,
        *,
        merge_adapters: bool = True,
    ) -> None:
        self._model = model
        self.merge_adapters = merge_adapters
        self._base: dict[str, Tensor] = {}
        self._unmerged = UnmergedAdapters()
        self._before_overwriting = before_overwriting or (lambda parameter, kept: None)

    @property
    def layout(self) -> tuple[int, ...]:
        """Addresses of the weights and how often adapters were replaced: a recorded step depends on both."""
        return (self._unmerged.applied, *(parameter.data_ptr() for parameter in self._model.parameters()))

    def apply(self, update: WeightUpdate) -> None:
        """Apply an update.

        Raises:
            ValueError: A name, a shape or the kind does not fit; nothing was changed.
        """
        if update.kind == "full":
            self._apply_full(update)
        elif update.kind == "lora":
            self._apply_lora(update)
        elif update.kind == "shared":
            # The owner of the shared model has changed it in place.
            self._base.clear()
        else:
            raise ValueError(f"kind={update.kind!r} of a weight update must be 'full', 'lora' or 'shared'")

    def _apply_full(self, update: WeightUpdate) -> None:
        own = self._model.state_dict(keep_vars=True)
        tensors = {name.removeprefix("module."): tensor for name, tensor in update.tensors}
        names = set()
        for name, tensor in tensors.items():
            if name not in own:
                raise ValueError(
                    f"a full update has {name!r}, which the sampler's model does not have; give state_dict() of the "
                    "plain Hugging Face model (adapters merged or kind='lora')"
                )
            _check_shape(name, tensor, own[name])
            names.add(own[name].data_ptr())
        missing = sorted(name for name, tensor in own.items() if tensor.data_ptr() not in names)
        if missing:
            raise ValueError(
                f"a full update lacks {len(missing)} of {len(own)} tensors, such as {missing[0]!r}; give the whole "
                "state_dict()"
            )
        for name, tensor in tensors.items():
            if name not in self._base:
                self._before_overwriting(own[name], None)
            self._write(own[name], tensor)
        self._base.clear()

    def bases(self) -> dict[str, Tensor]:
        """Return every weight without the adapters that were merged into it. Do not write to the result."""
        own = self._model.state_dict(keep_vars=True)
        kept = {id(own[name]): base for name, base in self._base.items()}  # tied weights have several names
        return {name: kept.get(id(tensor), tensor.data) for name, tensor in own.items()}

    def _write(self, parameter: Tensor, value: Tensor) -> None:
        if parameter.data_ptr() != value.data_ptr():
            parameter.data.copy_(value)

    def _keep_base(self, names: Iterable[str], own: Mapping[str, Tensor]) -> None:
        """Keep a copy of the weights that adapters are merged into."""
        for name in names:
            if name not in self._base:
                self._base[name] = own[name].data.clone()
                self._before_overwriting(own[name], self._base[name])

    def _apply_lora(self, update: WeightUpdate) -> None:
        config = config_of(update)
        modules: dict[str, dict[str, Tensor]] = {}
        replaced: dict[str, Tensor] = {}
        for name, tensor in update.tensors:
            name = name.removeprefix(PREFIX)
            if found := module_and_part(name):
                modules.setdefault(found[0], {})[found[1]] = tensor
            else:
                plain = re.sub(r"\.(modules_to_save|original_module)\.[^.]+\.", ".", name).replace(".base_layer.", ".")
                replaced[plain] = tensor
        own = self._model.state_dict(keep_vars=True)
        adapted: dict[str, tuple[nn.Module, _Adapter]] = {}
        unmerged: list[tuple[nn.Module, Tensor, Tensor, float]] = []
        for name, tensor in replaced.items():
            if name not in own:
                raise ValueError(f"a lora update has {name!r}, which the sampler's model does not have")
            if not self.merge_adapters:
                raise ValueError(
                    f"a lora update replaces {name!r}, but without merging the sampler's weights stay as they are; "
                    "give the sampler merge_adapters=True and a model of its own"
                )
            _check_shape(name, tensor, own[name])
        for module_name, parts in modules.items():
            name = f"{module_name}.weight"
            if name not in own:
                raise ValueError(
                    f"a lora update adapts {module_name!r}, which the sampler's model does not have; it must come from "
                    "an adapter of the same base model"
                )
            layer = self._model.get_submodule(module_name)
            if is_quantised(layer) or not self.merge_adapters:
                pair = checked_adapter(module_name, layer, parts, dora=bool(config.get("use_dora")))
                unmerged.append((layer, *pair, scale_of(module_name, pair[0].shape[0], config)))
                continue
            adapted[name] = layer, _checked(module_name, layer, own[name].data, parts, config)
        # All checks passed.
        self._keep_base(sorted(replaced.keys() | adapted.keys()), own)
        self._unmerged.apply(unmerged)
        # One at a time: all sums at once, in float32, would take twice the memory of a model in half precision.
        for name in sorted(self._base, key=lambda name: name in replaced or name in adapted):
            base = self._base[name]
            if name in adapted:
                self._write(own[name], _merge(base, *adapted[name]).to(base.dtype))
            else:
                # A weight that only an earlier adapter changed returns to the base.
                self._write(own[name], replaced.get(name, base))


@dataclass(frozen=True, slots=True)
class _Adapter:
    """``lora_A`` ``[r, in]``, ``lora_B`` ``[out, r]``, the scale of their product, and the magnitudes of DoRA."""

    down: Tensor
    up: Tensor
    scale: float
    magnitude: Tensor | None


def _checked(
    name: str, layer: nn.Module, base: Tensor, parts: Mapping[str, Tensor], config: Mapping[str, Any]
) -> _Adapter:
    """Return the adapter of a weight.

    Raises:
        ValueError: It is incomplete, or does not fit.
    """
    if not base.is_floating_point() or not isinstance(layer, nn.Linear | nn.Embedding):
        raise ValueError(
            f"an adapter can be merged into nn.Linear and nn.Embedding with floating-point weights; {name!r} is "
            f"{type(layer).__name__} of {base.dtype}. Load the sampler's model unquantised"
        )
    embedding = isinstance(layer, nn.Embedding)
    down, up = low_rank_pair(name, parts, "lora_embedding_" if embedding else "lora_")
    rank = down.shape[0]
    shape = (up.shape[0], down.shape[-1])
    if up.shape[-1] != rank or (shape[::-1] if embedding else shape) != base.shape:
        raise ValueError(
            f"the adapter of {name!r} has shapes {tuple(down.shape)} and {tuple(up.shape)}; the weight has "
            f"{tuple(base.shape)}"
        )
    magnitude = parts.get("lora_magnitude_vector")
    if config.get("use_dora") and magnitude is None:
        raise ValueError(f"lora_config has use_dora, but the update has no magnitude vector for {name!r}")
    if magnitude is not None and magnitude.numel() != shape[0]:
        raise ValueError(f"the magnitude vector of {name!r} has {magnitude.numel()} numbers; it needs {shape[0]}")
    return _Adapter(down, up, scale_of(name, rank, config), magnitude)


def _merge(base: Tensor, layer: nn.Module, adapter: _Adapter) -> Tensor:
    """Return the base weight with the adapter merged, in float32 or wider.

    LoRA adds ``scale * B @ A``; DoRA sets the length of each column of the sum (Liu et al. 2024, eq. 5).
    """
    embedding = isinstance(layer, nn.Embedding)
    dtype = torch.promote_types(base.dtype, torch.float32)
    delta = adapter.scale * (adapter.up.to(base.device, dtype) @ adapter.down.to(base.device, dtype))
    merged = base.to(dtype) + (delta.T if embedding else delta)
    if adapter.magnitude is not None:
        length = torch.linalg.norm(merged, dim=0 if embedding else 1, keepdim=True)
        merged = merged * (adapter.magnitude.to(base.device, dtype).reshape(length.shape) / length)
    return merged


def _check_shape(name: str, tensor: Tensor, own: Tensor) -> None:
    if tuple(tensor.shape) != tuple(own.shape):
        raise ValueError(f"{name!r} has shape {tuple(tensor.shape)}; the sampler's model has {tuple(own.shape)}")
