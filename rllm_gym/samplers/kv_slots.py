"""Keys and values of many conversations in fixed slots, as a cache that Hugging Face decoders write to.

This module holds the memory and runs forward passes over some of its rows. ``decode_batch`` decides what the rows mean.

Axes: L layers, S slots, T positions, H key-value heads, D head dimension, N rows of a pass, Q new tokens per row.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rllm_gym.samplers.plain_decoder import PlainDecoder

_CHECK_TOKENS = 12
_ATTENTION = "rllm_gym_one_query"


def one_query_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention of one new token per row: two batched products, without repeating the keys of a group of heads.

    Inputs of any other form, such as another caller's concurrent pass over the same model, go to fused attention.
    Queries ``[N, heads, 1, D]``, keys and values ``[N, H, T, D]``; the result is ``[N, 1, heads, D]``, as in Hugging
    Face models. A tenth faster than fused attention for short rows, more for large groups.
    """
    rows, heads, length, dim = query.shape
    plain = length == 1 and not dropout and kwargs.get("position_bias") is None
    if attention_mask is None or not attention_mask.is_floating_point() or not plain:
        fused: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, **kwargs
        )
        return fused
    grouped = query.reshape(rows, key.shape[1], heads // key.shape[1], dim)
    scores = torch.matmul(grouped, key.transpose(2, 3)).mul_(dim**-0.5 if scaling is None else scaling)
    scores.add_(attention_mask)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(value.dtype)
    return torch.matmul(weights, value).view(rows, 1, heads, value.shape[3]), None


AttentionInterface.register(_ATTENTION, one_query_attention)
AttentionMaskInterface.register(_ATTENTION, sdpa_mask)


class KVSlots(Cache):  # type: ignore[misc]
    """A key-value cache with one slot per running reply, and a forward pass that reads and writes it.

    The tensors grow on demand: slots up to ``max_slots``, positions up to the longest conversation. The slot after the
    last one is scratch memory: padding writes there.

    Args:
        model: A Hugging Face decoder.
        max_slots: Maximum number of slots.
        max_bytes: Maximum memory for the slots, which one long conversation may exceed; by default half of the free
            memory of a GPU, a quarter of the memory of a CPU machine.

    Raises:
        ValueError: The model does not keep plain keys and values, or computes something else with them than without
            them. The message says what to do.
    """

    def __init__(self, model: Any, max_slots: int, max_bytes: int | None = None) -> None:
        super().__init__(layers=[])
        self._model = model
        self.max_slots = max_slots
        self.device = next(model.parameters()).device
        self.max_bytes = max_bytes if max_bytes is not None else _usual_bytes(self.device)
        self._config = model.config.get_text_config()
        self._attention: str = self._config._attn_implementation
        self._windows = _windows(self._config)
        self._shapes: list[tuple[int, int, int, torch.dtype]] = []
        self._recording = True
        self._keys = self._values = torch.empty(0)
        self.slots = self.length = 0
        self.generation = 0
        """Increases whenever the slots move to other memory."""
        self._places = torch.empty(0)
        self._first = self._last = self._span = 0
        self._zero = torch.zeros((), device=self.device)
        self._plain: PlainDecoder | None = None
        self._check_model()

    # Memory

    @property
    def bytes_per_token(self) -> int:
        """Memory in bytes that one token of one conversation takes."""
        heads, key_dim, value_dim, dtype = self._shapes[0]
        return len(self._shapes) * heads * (key_dim + value_dim) * dtype.itemsize

    @property
    def is_plain(self) -> bool:
        """Whether passes are computed by :class:`~rllm_gym.samplers.plain_decoder.PlainDecoder` now."""
        return self._plain is not None and self._plain.matches_model

    def fits(self, slots: int, length: int) -> bool:
        """Return whether this many slots of this many positions fit ``max_bytes``."""
        return (slots + 1) * _aligned(length) * self.bytes_per_token <= self.max_bytes

    def reserve(self, slots: int, length: int) -> None:
        """Allocate this many slots of this many positions, which must cover all in use; stored values stay."""
        if slots <= self.slots and length <= self.length:
            return
        new_slots, new_length = max(self.slots, min(self.max_slots, 1 << (slots - 1).bit_length())), self.length
        if length > self.length:
            new_length = _aligned(max(length, self.length * 3 // 2, 128))
        if not self.fits(new_slots, new_length):
            # There is no memory for growing ahead, nor for unused slots.
            new_slots, new_length = slots, _aligned(length)
        heads, key_dim, value_dim, dtype = self._shapes[0]
        layers = len(self._shapes)
        # Zeros, because a masked value still takes part in a product with zero.
        keys = torch.zeros(layers, new_slots + 1, heads, new_length, key_dim, dtype=dtype, device=self.device)
        values = torch.zeros(layers, new_slots + 1, heads, new_length, value_dim, dtype=dtype, device=self.device)
        if self.slots:
            old = (slice(None), slice(min(self.slots, new_slots)), slice(None), slice(min(self.length, new_length)))
            keys[old], values[old] = self._keys[old], self._values[old]
        self._keys, self._values, self.slots, self.length = keys, values, new_slots, new_length
        self.generation += 1
        self._flat_keys = [layer.view(-1, key_dim) for layer in keys]
        self._flat_values = [layer.view(-1, value_dim) for layer in values]
        if self._plain is not None:
            self._plain.reserve(new_length)
        self._head_offsets_H1 = (torch.arange(heads, device=self.device) * new_length).unsqueeze(1)

    def free(self) -> None:
        """Free the memory and all stored values."""
        self._keys = self._values = torch.empty(0, device=self.device)
        self._flat_keys, self._flat_values = [], []
        self.slots = self.length = 0
        self.generation += 1

    def take(self, slot: int, length: int) -> tuple[Tensor, Tensor]:
        """Return a copy of the first ``length`` positions of a slot: keys and values ``[L, H, length, D]``."""
        return self._keys[:, slot, :, :length].clone(), self._values[:, slot, :, :length].clone()

    def view(self, slot: int, length: int) -> tuple[Tensor, Tensor]:
        """Return the first ``length`` positions of a slot, not copied."""
        return self._keys[:, slot, :, :length], self._values[:, slot, :, :length]

    def put(self, slot: int, keys: Tensor, values: Tensor) -> None:
        """Write keys and values at the beginning of a slot."""
        length = keys.shape[2]
        self._keys[:, slot, :, :length] = keys
        self._values[:, slot, :, :length] = values

    def move(self, sources: Tensor, targets: Tensor, length: int) -> None:
        """Copy the first ``length`` positions from some slots to others."""
        self._keys[:, targets, :, :length] = self._keys[:, sources, :, :length]
        self._values[:, targets, :, :length] = self._values[:, sources, :, :length]

    # The forward pass

    def forward(
        self,
        ids_NQ: Tensor,
        positions_NQ: Tensor,
        slots_NQ: Tensor,
        span: int,
        *,
        first: int = 0,
        keep: int | Tensor = 1,
    ) -> Tensor:
        """Compute logits ``[N, kept, V]`` of new tokens and write their keys and values.

        Args:
            ids_NQ: New tokens.
            positions_NQ: Their positions; a token attends to the positions up to its own.
            slots_NQ: Their slots; ``self.slots``, the scratch slot, for padding. ``[N, 1]`` is broadcast.
            span: Number of positions that take part: more than the greatest of ``positions_NQ``.
            first: The first slot; the rows are the slots ``first … first + N``.
            keep: As ``logits_to_keep`` of the model.
        """
        # Destination of each head of each token, in the order in which attention passes them.
        heads = self._shapes[0][0]
        base_N1Q = (slots_NQ * (heads * self.length) + positions_NQ).unsqueeze(1)
        self._places = (base_N1Q + self._head_offsets_H1).reshape(-1)
        self._span = span
        self._first, self._last = first, first + ids_NQ.shape[0]
        if self._plain is not None and self._plain.matches_model:
            self._plain_mask = self._mask(positions_NQ, span)
            return self._plain.logits(ids_NQ, positions_NQ, self._attend, keep)
        if ids_NQ.shape[1] == 1 and self._attention == "sdpa":
            self._config._attn_implementation = _ATTENTION
        try:
            logits: Tensor = self._model(
                input_ids=ids_NQ,
                attention_mask=self._mask(positions_NQ, span),
                position_ids=positions_NQ,
                past_key_values=self,
                use_cache=True,
                logits_to_keep=keep,
            ).logits
        finally:
            # Other code may use the model too.
            if self._config._attn_implementation != self._attention:
                self._config._attn_implementation = self._attention
        return logits

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Called by the model's attention; see ``transformers.Cache.update``."""
        if self._recording:
            if layer_idx != len(self._shapes):
                raise ValueError(f"layer {layer_idx} stores its keys and values out of order")
            self._shapes.append((key_states.shape[1], key_states.shape[3], value_states.shape[3], key_states.dtype))
            return key_states, value_states
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        self._flat_keys[layer_idx].index_copy_(0, self._places, key_states.reshape(-1, key_states.shape[3]))
        self._flat_values[layer_idx].index_copy_(0, self._places, value_states.reshape(-1, value_states.shape[3]))
        rows = slice(self._first, self._last)
        return keys[rows, :, : self._span], values[rows, :, : self._span]

    def _attend(self, number: int, module: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = self.update(key, value, number)
        attended, _ = one_query_attention(
            module, query, keys, values, self._plain_mask, scaling=module.scaling, is_causal=False
        )
        return attended

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def _mask(self, positions_NQ: Tensor, span: int) -> Any:
        """Return additive masks ``[N, 1, Q, T]``, by kind of layer where a model has several."""
        keys_T = torch.arange(span, device=self.device)
        seen = keys_T <= positions_NQ.unsqueeze(-1)
        masks = {}
        for kind, window in self._windows.items():
            allowed = seen if window is None else seen & (keys_T > positions_NQ.unsqueeze(-1) - window)
            masks[kind] = torch.where(allowed, self._zero, self._lowest).unsqueeze(1)
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _check_model(self) -> None:
        """Record the shapes, and check that a pass in slots gives the same result as the model alone."""
        model = self._model
        name = type(model).__name__
        if self._attention == _ATTENTION:
            self._attention = "sdpa"  # another sampler is in the middle of a pass over this model
        if self._attention not in ("sdpa", "eager"):
            raise ValueError(
                f"TorchSampler supports attn_implementation 'sdpa' and 'eager', but this {name} has "
                f"{self._attention!r}; load it with attn_implementation='sdpa'"
            )
        vocabulary = model.get_input_embeddings().weight.shape[0]
        ids = torch.arange(1, _CHECK_TOKENS + 1, device=self.device).remainder(vocabulary).unsqueeze(0)
        positions = torch.arange(_CHECK_TOKENS, device=self.device).unsqueeze(0)
        try:
            expected = model(input_ids=ids, past_key_values=self, use_cache=True).logits[0, -1].float()
        except Exception as error:
            raise ValueError(
                f"TorchSampler needs a decoder that keeps keys and values for every layer; {name} is not one ({error})"
            ) from error
        self._recording = False
        if self._windows.get("all") and not self._uses_window(ids):
            self._windows = {"all": None}
        if not bool(torch.isfinite(expected).all()):
            raise ValueError(f"{name} returns NaN or infinite logits: its weights are corrupt; load others")
        if len(set(self._shapes)) != 1:
            raise ValueError(
                f"TorchSampler needs layers of equal shape; {name} has {sorted(set(map(str, self._shapes)))}"
            )
        dtype = self._shapes[0][3]
        self._zero = torch.zeros((), device=self.device, dtype=dtype)
        self._lowest = torch.full((), torch.finfo(dtype).min, device=self.device, dtype=dtype)
        self.reserve(1, _CHECK_TOKENS)
        try:
            gap = self._gap(ids, positions, expected)
        except Exception as error:
            raise ValueError(f"{name} cannot compute with a cache in slots ({error}); use another sampler") from error
        tolerance = 1e-3 if dtype == torch.float32 else 0.1
        if not gap < tolerance:
            raise ValueError(
                f"{name} computes different logits with a cache in slots than without (relative error {gap:.2g}): "
                "TorchSampler does not support its attention; use another sampler"
            )
        if self._attention == "sdpa" and len(self._windows) == 1:
            self._plain = PlainDecoder.of(model)
            # In half precision two correct passes differ by as much as each differs from the model alone.
            least = tolerance / (100 if dtype == torch.float32 else 5)
            if self._plain is not None and not self._plain_agrees(ids, positions, expected, max(2 * gap, least)):
                self._plain = None  # use the model's own pass

    def _plain_agrees(self, ids: Tensor, positions: Tensor, expected: Tensor, tolerance: float) -> bool:
        assert self._plain is not None
        self._plain.reserve(self.length)
        try:
            return self._gap(ids, positions, expected) < tolerance
        except (AttributeError, RuntimeError, TypeError):
            return False  # a part of a known model was replaced

    def _uses_window(self, ids: Tensor) -> bool:
        """Return whether the model applies its configured window: Llama's code ignores it."""
        config, window = self._config, self._config.sliding_window
        if any(getattr(module, "sliding_window", None) for module in self._model.modules()):
            return True
        wide: Tensor = self._model(input_ids=ids, use_cache=False).logits
        config.sliding_window = 2
        try:
            narrow: Tensor = self._model(input_ids=ids, use_cache=False).logits
        finally:
            config.sliding_window = window
        return not torch.equal(wide, narrow)

    def _gap(self, ids: Tensor, positions: Tensor, expected: Tensor) -> float:
        """Return the error of the last logits, computed in two passes, relative to the largest expected one."""
        slot = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        got = torch.empty(0)
        for begin, end in ((0, _CHECK_TOKENS - 1), (_CHECK_TOKENS - 1, _CHECK_TOKENS)):
            got = self.forward(ids[:, begin:end], positions[:, begin:end], slot, 64)[0, -1].float()
        return float((got - expected).abs().max()) / max(1.0, float(expected.abs().max()))


def _aligned(length: int) -> int:
    # Multiples of 64 give every slot the same alignment, which bit-for-bit repeatability needs.
    return -(-length // 64) * 64


def _usual_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) // 2
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4 if hasattr(os, "sysconf") else 4 << 30


def _windows(config: Any) -> dict[str, int | None]:
    """Return the attention window by kind of layer; ``None`` means all earlier positions."""
    window = getattr(config, "sliding_window", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    unknown = kinds - {"full_attention", "sliding_attention"}
    if unknown:
        raise ValueError(
            f"TorchSampler needs a decoder with attention in every layer; {type(config).__name__} has {sorted(unknown)}"
        )
    if kinds == {"full_attention"}:
        return {"full_attention": None}
    if kinds == {"sliding_attention"}:
        return {"full_attention": None, "sliding_attention": window}
    if kinds:
        return {"full_attention": None, "sliding_attention": window}
    if getattr(config, "use_sliding_window", True) and window is not None:
        return {"all": window}
    return {"all": None}
