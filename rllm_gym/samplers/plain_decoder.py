"""The forward pass of common decoders, written out: the same operations in the same order, without module overhead.

For a small model most of a decoding step is Python: modules, hooks, configuration look-ups. This pass reads weights and
projections from the model's own modules each time, so that changes to them (new weights, adapters) take effect.

Axes: N rows, Q new tokens per row, H heads, D head dimension, E hidden size, T positions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# Exactly these classes: a subclass may compute something else.
_KNOWN = {
    ("transformers.models.llama.modeling_llama", "LlamaForCausalLM"),
    ("transformers.models.mistral.modeling_mistral", "MistralForCausalLM"),
    ("transformers.models.qwen2.modeling_qwen2", "Qwen2ForCausalLM"),
    ("transformers.models.qwen3.modeling_qwen3", "Qwen3ForCausalLM"),
}
# Kinds whose angles depend only on the position.
_FIXED_ROPE = ("default", "linear", "llama3", "yarn")

Attend = Callable[[int, Any, Tensor, Tensor, Tensor], Tensor]
"""Function of a layer's number, its attention module, and queries, keys and values ``[N, H, Q, D]``; returns outputs
``[N, Q, H, D]``.
"""


class PlainDecoder:
    """Computes the same logits as the model. Made by :meth:`of`, for known models.

    Args:
        model: A model of a known class.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._passed_by = _passed_by(model)
        self._cos_TD = self._sin_TD = torch.empty(0)

    @classmethod
    def of(cls, model: Any) -> PlainDecoder | None:
        """Return an instance if every part of the model is known, else ``None``; the caller must compare logits."""
        kind = type(model)
        if (kind.__module__, kind.__name__) not in _KNOWN:
            return None
        rotary = getattr(model.model, "rotary_emb", None)
        if getattr(rotary, "rope_type", None) not in _FIXED_ROPE:
            return None
        plain = cls(model)
        return plain if plain.matches_model else None

    @property
    def matches_model(self) -> bool:
        """Whether the bypassed modules are unchanged, and have no new hooks.

        Wrappers around modules (offloading, measuring, steering) must be called.
        """
        now = _passed_by(self._model)
        return now == self._passed_by and not any(map(_is_hooked, now))

    def reserve(self, length: int) -> None:
        """Extend the table of rotary angles to this length."""
        if length > self._cos_TD.shape[0]:
            weight = self._model.get_input_embeddings().weight
            dtype = weight.dtype if weight.is_floating_point() else torch.float32
            like = torch.empty(1, 1, 1, dtype=dtype, device=weight.device)
            positions = torch.arange(length, device=weight.device).unsqueeze(0)
            cos, sin = self._model.model.rotary_emb(like, positions)
            self._cos_TD, self._sin_TD = cos[0], sin[0]

    def logits(self, ids_NQ: Tensor, positions_NQ: Tensor, attend: Attend, keep: int | Tensor) -> Tensor:
        """Compute logits ``[N, kept, V]``; ``attend`` stores keys and values and reads the earlier ones.

        Args:
            ids_NQ: New tokens.
            positions_NQ: Their positions, below the reserved length.
            attend: Attention over the cache.
            keep: As ``logits_to_keep`` of the model.
        """
        decoder = self._model.model
        hidden_NQE = decoder.embed_tokens(ids_NQ)
        rows, new = ids_NQ.shape
        cos_N1QD, sin_N1QD = self._cos_TD[positions_NQ].unsqueeze(1), self._sin_TD[positions_NQ].unsqueeze(1)
        for number, layer in enumerate(decoder.layers):
            attention, mlp = layer.self_attn, layer.mlp
            normed_NQE = _rms_norm(layer.input_layernorm, hidden_NQE)
            shape = (rows, new, -1, attention.head_dim)
            query = _project(attention.q_proj, normed_NQE).view(shape)
            key = _project(attention.k_proj, normed_NQE).view(shape)
            value = _project(attention.v_proj, normed_NQE).view(shape)
            if norms := _head_norms(attention):
                query, key = _rms_norm(norms[0], query), _rms_norm(norms[1], key)
            query = _rotate(query.transpose(1, 2), cos_N1QD, sin_N1QD)
            key = _rotate(key.transpose(1, 2), cos_N1QD, sin_N1QD)
            seen = attend(number, attention, query, key, value.transpose(1, 2))
            hidden_NQE = hidden_NQE + _project(attention.o_proj, seen.reshape(rows, new, -1))
            normed_NQE = _rms_norm(layer.post_attention_layernorm, hidden_NQE)
            gated = mlp.act_fn(_project(mlp.gate_proj, normed_NQE)) * _project(mlp.up_proj, normed_NQE)
            hidden_NQE = hidden_NQE + _project(mlp.down_proj, gated)
        kept_NQE = hidden_NQE[:, slice(-keep, None) if isinstance(keep, int) else keep]
        return _head_logits(self._model.lm_head, _rms_norm(decoder.norm, kept_NQE))


def _project(module: Any, states: Tensor) -> Tensor:
    if type(module) is nn.Linear and not _is_hooked(module):
        return functional.linear(states, module.weight, module.bias)
    projected: Tensor = module(states)  # quantised, or with an adapter
    return projected


def _head_logits(module: Any, states_NQE: Tensor) -> Tensor:
    """Compute logits; on a GPU in float32 from half precision, since rounding large logits to it would change log-probs
    by several percent. The products are exact in float32, and the trainer computes the same.
    """
    plain = type(module) is nn.Linear and module.bias is None and not _is_hooked(module)
    if not (
        plain and states_NQE.is_cuda and states_NQE.dtype == module.weight.dtype and states_NQE.dtype.itemsize == 2
    ):
        return _project(module, states_NQE)
    logits_MV = torch.mm(states_NQE.flatten(0, 1), module.weight.t(), out_dtype=torch.float32)
    return logits_MV.view(*states_NQE.shape[:2], -1)


def _rms_norm(module: Any, states: Tensor) -> Tensor:
    if states.dtype == torch.float32:
        return functional.rms_norm(states, module.weight.shape, module.weight, module.variance_epsilon)
    # In half precision the order of rounding matters: use the model's own.
    normed: Tensor = module(states)
    return normed


def _rotate(states_NHQD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embedding (Su et al. 2021), with halves as in GPT-NeoX."""
    half = states_NHQD.shape[-1] // 2
    turned = torch.cat((-states_NHQD[..., half:], states_NHQD[..., :half]), dim=-1)
    return states_NHQD * cos + turned * sin


def _passed_by(model: Any) -> list[Any]:
    """Return the modules whose own forward is not called."""
    decoder = model.model
    modules = [model, decoder, decoder.norm]
    for layer in decoder.layers:
        modules += (layer, *layer._modules.values(), *_head_norms(layer.self_attn))
    return modules


def _head_norms(attention: Any) -> list[Any]:
    """Return the norms of queries and keys, which Qwen3 has."""
    return [attention.q_norm, attention.k_norm] if "q_norm" in attention._modules else []


def _is_hooked(module: Any) -> bool:
    # accelerate sets a forward on the object itself.
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__)
