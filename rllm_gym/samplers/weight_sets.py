"""Several sets of weights in one process: the sampler's model, and named models.

A named model is a copy of the code that has parameters of its own only where they differ: an adapter costs the weights
it adapts, a full update a whole model, and one of several PEFT adapters of the model itself costs nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rllm_gym.samplers.merged_weights import MergedWeights
from rllm_gym.samplers.protocol import WeightUpdate
from rllm_gym.samplers.unmerged_adapters import UnmergedAdapters, is_quantised


class WeightSets:
    """The models of a sampler, by the name of their weights; ``""`` is the sampler's own model.

    Args:
        model: The sampler's own model.
        merge_adapters: See :class:`~rllm_gym.samplers.merged_weights.MergedWeights`.
    """

    def __init__(self, model: nn.Module, *, merge_adapters: bool = True) -> None:
        self._model = model
        self._main = MergedWeights(model, self._detach_shared, merge_adapters=merge_adapters)
        self._named: dict[str, _NamedModel | _ActiveAdapter] = {}

    def model(self, name: str) -> nn.Module:
        """Return the model that serves these weights."""
        return self._named[name].model if name else self._model

    def layout(self, name: str) -> tuple[int, ...]:
        """Return what a recorded step of these weights depends on; see :attr:`MergedWeights.layout`."""
        return self._named[name].layout if name else self._main.layout

    def apply(self, update: WeightUpdate) -> bool:
        """Apply an update; return whether there is a new model for its name.

        Raises:
            ValueError: It does not fit; nothing was changed.
        """
        # Leave inference mode: parameters made in it could not share memory with others.
        with torch.inference_mode(False), torch.no_grad():
            if not update.name:
                self._check_base_may_change(update)
                self._main.apply(update)
                return False
            before = self._named.get(update.name)
            kind = _ActiveAdapter if update.kind == "shared" else _NamedModel
            if isinstance(before, kind):
                before.apply(update)
                return False
            added = kind(self._model, self._main)
            added.apply(update)
            self._named[update.name] = added
            return True

    def drop(self, name: str) -> None:
        """Remove a named model."""
        del self._named[name]

    def _check_base_may_change(self, update: WeightUpdate) -> None:
        adapters = [name for name, item in self._named.items() if isinstance(item, _NamedModel) and item.shares]
        if update.kind == "shared" and adapters:
            raise ValueError(
                "kind='shared': the model was changed in place, but named adapters were merged into its earlier "
                f"weights ({', '.join(adapters)}); load those with kind='full', or drop them first"
            )

    def _detach_shared(self, parameter: Tensor, kept: Tensor | None) -> None:
        """Before a parameter of the model is overwritten, let the models that share it keep the old value."""
        for item in self._named.values():
            if isinstance(item, _NamedModel) and item.has(parameter):
                kept = parameter.data.clone() if kept is None else kept
                item.move(parameter, kept)


class _NamedModel(MergedWeights):
    """A copy of a model's code that shares the model's parameters until other weights are loaded.

    Adapters are merged into the model's weights as of the weight sync, without the model's own adapters.
    """

    def __init__(self, model: nn.Module, main: MergedWeights) -> None:
        quantised = {id(layer.weight) for layer in model.modules() if is_quantised(layer)}
        memo: dict[int, Any] = {}
        for parameter in model.parameters():
            shared = id(parameter) in quantised  # adapters are added to its outputs; it is never overwritten
            memo[id(parameter)] = parameter if shared else nn.Parameter(parameter.data, requires_grad=False)
        self._shared_with = {id(parameter): memo[id(parameter)] for parameter in model.parameters()}
        self._copies = {id(other_copy) for other_copy in self._shared_with.values()} - quantised
        self._shared = set(self._copies)
        self.model = copy.deepcopy(model, memo).eval()
        UnmergedAdapters.strip(self.model)
        super().__init__(self.model, merge_adapters=main.merge_adapters)
        self._main = main

    @property
    def shares(self) -> bool:
        """Whether some of its parameters are the model's own."""
        return bool(self._shared)

    def has(self, parameter: Tensor) -> bool:
        """Return whether it shares this parameter of the model."""
        copy = self._shared_with.get(id(parameter))
        return copy is not None and id(copy) in self._shared and copy.data_ptr() == parameter.data_ptr()

    def move(self, parameter: Tensor, kept: Tensor) -> None:
        """Share this tensor, which is never overwritten, in place of a parameter of the model."""
        self._shared_with[id(parameter)].data = kept

    def _write(self, parameter: Tensor, value: Tensor) -> None:
        if id(parameter) in self._shared:
            # A value may be a tensor that its owner overwrites later.
            parameter.data = value.detach().to(parameter.device, parameter.dtype, copy=True)
            self._shared.discard(id(parameter))
        else:
            parameter.data.copy_(value)

    def _keep_base(self, names: Iterable[str], own: Mapping[str, Tensor]) -> None:
        """Reset all parameters to the model's weights, without adapters; nothing is stored twice."""
        bases = self._main.bases()
        self._base = {name: bases[name] for name in names}
        written = {id(own[name]) for name in self._base}
        for name, parameter in own.items():
            if id(parameter) in self._copies and id(parameter) not in written:
                parameter.data = bases[name]
                self._shared.add(id(parameter))


class _ActiveAdapter:
    """A copy of a PEFT model's code over the same parameters, with one of its adapters active.

    The active adapter of the model itself, which its trainer uses, does not change.
    """

    def __init__(self, model: nn.Module, main: MergedWeights) -> None:
        memo: dict[int, Any] = {id(parameter): parameter for parameter in model.parameters()}
        self.model = copy.deepcopy(model, memo).eval()

    @property
    def layout(self) -> tuple[int, ...]:
        return tuple(parameter.data_ptr() for parameter in self.model.parameters())

    def apply(self, update: WeightUpdate) -> None:
        """Activate the adapter of the update's name.

        Raises:
            ValueError: The model has no such adapter.
        """
        layers: list[Any] = [module for module in self.model.modules() if hasattr(module, "lora_A")]
        known = sorted({name for layer in layers for name in (*layer.lora_A, *layer.lora_embedding_A)})
        if update.name not in known:
            raise ValueError(
                f"kind='shared' with name={update.name!r}: the sampler's model has no adapter of this name (it has: "
                f"{', '.join(known) or 'none'}); give its tensors, with kind='lora' or 'full'"
            )
        for layer in layers:
            layer._disable_adapters = False
            layer._active_adapter = [update.name]
