"""Attention over sequences packed as a prefix tree, and a test of which models support it.

A tree is encoded by one number per token: ``end_BT`` of :class:`~trainers.batching.MicroBatch`. Adjacent tokens with
the same number form a node. Each of its tokens is attended to by the later tokens of the node and by the following
columns up to that number.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

_log = logging.getLogger(__name__)

TREE_ATTENTION = "rllm_gym_tree"
"""Name under which this attention is registered: SDPA without a tree, tree attention with one."""


@dataclass(frozen=True, slots=True)
class TreeSpan:
    """Columns ``start`` to ``stop`` of a row: causal among themselves, fully visible to the columns up to ``end``."""

    row: int
    start: int
    stop: int
    end: int


@dataclass(frozen=True, slots=True)
class AttentionTree:
    """A tree in the form of a device's kernel: nodes on a CPU, a block mask on a GPU."""

    nodes: tuple[TreeSpan, ...] = ()
    block_mask: Any = None


def hidden_states(model: Any, ids_BT: Tensor, position_BT: Tensor | None, end_BT: Tensor | None) -> Tensor:
    """Compute the last hidden states ``[B, T, D]``; :class:`~trainers.batching.MicroBatch` documents the visibility.

    Raises:
        ValueError: There is a tree, but the model does not have tree attention (:func:`enable_tree_attention`).
    """
    layout: dict[str, Any] = {}
    if end_BT is not None:
        if model.config._attn_implementation != TREE_ATTENTION:
            raise ValueError(
                "sequences are laid out as a tree, but with the model's attention "
                f"({model.config._attn_implementation!r}) each would attend to all previous ones; use "
                "share_prompts=False"
            )
        # Any 4-D mask keeps transformers from creating its own.
        nothing = torch.empty(1, 1, 1, 1, device=ids_BT.device)
        layout = {"attention_mask": nothing, "position_ids": position_BT, "tree": tree_of(end_BT)}
    states: Tensor = model.base_model(input_ids=ids_BT, use_cache=False, **layout).last_hidden_state
    return states


def tree_of(end_BT: Tensor) -> AttentionTree:
    """Build the tree for the tensor's device."""
    if end_BT.device.type == "cpu":
        return AttentionTree(nodes=nodes_of(end_BT))
    return AttentionTree(block_mask=block_mask_of(end_BT))


def nodes_of(end_BT: Tensor) -> tuple[TreeSpan, ...]:
    """Return the nodes of each row, depth first."""
    nodes = []
    for row, end_T in enumerate(end_BT):
        starts = [0, *((end_T[1:] != end_T[:-1]).nonzero().flatten() + 1).tolist()]
        ends = end_T[starts].tolist()
        stops = [*starts[1:], len(end_T)]
        nodes += [TreeSpan(row, *span) for span in zip(starts, stops, ends, strict=True)]
    return tuple(nodes)


def tree_attention(query: Tensor, key: Tensor, value: Tensor, nodes: tuple[TreeSpan, ...], scale: float) -> Tensor:
    """Compute attention ``[B, H, T, d]`` of each token over its path to the root. CPU only.

    Exactly the visible query-key pairs are computed, and no mask is materialized: one call of the flash kernel per
    node, with the keys of the node and the queries of its whole subtree. The causal mask, aligned at the upper left,
    is correct for both kinds of queries: those of the node see the preceding tokens, all later ones see every key.
    The results of a query at the nodes of its path are merged by their log-sum-exp. The backward kernel, given the
    merged result and log-sum-exp, yields the gradient of each part (Dao et al. 2022, section 3.1 and appendix B.2).
    """
    result: Tensor = _TreeAttention.apply(query, key, value, nodes, scale)  # type: ignore[no-untyped-call]
    return result


class _TreeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, nodes: tuple[TreeSpan, ...], scale: float
    ) -> Tensor:
        forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
        batch, heads, length, _ = query.shape
        exact = torch.float64 if query.dtype == torch.float64 else torch.float32
        # Use the memory layout that the model needs next.
        out = query.new_empty((batch, length, heads, value.shape[-1]), dtype=exact).transpose(1, 2)
        total = query.new_empty((batch, heads, length), dtype=exact)
        for node, first in _with_first(nodes):
            b, seen_by, own = node.row, slice(node.start, node.end), slice(node.start, node.stop)
            part, part_total = forward(
                query[b : b + 1, :, seen_by], key[b : b + 1, :, own], value[b : b + 1, :, own], 0.0, True, scale=scale
            )
            so_far, so_far_total = out[b, :, seen_by], total[b, :, seen_by]
            if first:
                so_far.copy_(part[0])
                so_far_total.copy_(part_total[0])
                continue
            merged = torch.logaddexp(so_far_total, part_total[0])
            so_far.mul_(torch.exp(so_far_total - merged)[..., None])
            so_far.addcmul_(part[0].to(exact), torch.exp(part_total[0] - merged)[..., None])
            so_far_total.copy_(merged)
        out = out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, total)
        ctx.nodes, ctx.scale = nodes, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        query, key, value, out, total = ctx.saved_tensors
        grad_query, grad_key, grad_value = (torch.empty_like(tensor) for tensor in (query, key, value))
        for node, first in _with_first(ctx.nodes):
            b, seen_by, own = slice(node.row, node.row + 1), slice(node.start, node.end), slice(node.start, node.stop)
            part_query, part_key, part_value = backward(
                grad[b, :, seen_by],
                query[b, :, seen_by],
                key[b, :, own],
                value[b, :, own],
                out[b, :, seen_by],
                total[b, :, seen_by],
                0.0,
                True,
                scale=ctx.scale,
            )
            if first:
                grad_query[b, :, seen_by] = part_query
            else:
                grad_query[b, :, seen_by] += part_query
            grad_key[b, :, own] = part_key
            grad_value[b, :, own] = part_value
        return grad_query, grad_key, grad_value, None, None


def _with_first(nodes: tuple[TreeSpan, ...]) -> list[tuple[TreeSpan, bool]]:
    """Return each node and whether it is a root, that is, the first node of its queries."""
    result, row, covered = [], -1, 0
    for node in nodes:
        if node.row != row:
            row, covered = node.row, 0
        result.append((node, node.start >= covered))
        covered = max(covered, node.end)
    return result


def block_mask_of(end_BT: Tensor, block: int = 128) -> Any:
    """Build FlexAttention's block mask of a tree from the ends alone, without a ``[T, T]`` tensor."""
    from torch.nn.attention.flex_attention import BlockMask

    size, length = end_BT.shape
    count = -(-length // block)
    column_T = torch.arange(length, device=end_BT.device)
    key_T = (column_T // block).expand(size, length)

    def covered_by(first_BT: Tensor, last_BT: Tensor) -> Tensor:
        """Count the keys of each key block visible to the query blocks from ``first`` up to, not including,
        ``last``.
        """
        steps = torch.zeros(size, count * (count + 1), dtype=torch.int32, device=end_BT.device)
        one = torch.ones_like(end_BT, dtype=torch.int32)
        steps.scatter_add_(1, key_T * (count + 1) + first_BT, one)
        steps.scatter_add_(1, key_T * (count + 1) + torch.maximum(first_BT, last_BT), -one)
        return steps.view(size, count, count + 1).cumsum(-1)[..., :-1].transpose(1, 2)

    any_BQK = covered_by(key_T, (end_BT + block - 1) // block) > 0
    # A key is visible to a whole query block from the first block that begins at the key or later, as long as the
    # block ends before the key's end.
    full_BQK = covered_by((column_T + block - 1).expand(size, length) // block, end_BT // block) == block
    partial_BQK = any_BQK & ~full_BQK

    def listed(chosen_BQK: Tensor) -> tuple[Tensor, Tensor]:
        order = torch.argsort(chosen_BQK.to(torch.int8), dim=-1, descending=True, stable=True)
        return chosen_BQK.sum(-1, dtype=torch.int32)[:, None].contiguous(), order.to(torch.int32)[:, None].contiguous()

    def seen(batch: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q < end_BT[batch, k])

    return BlockMask.from_kv_blocks(
        *listed(partial_BQK), *listed(full_BQK), BLOCK_SIZE=block, mask_mod=seen, seq_lengths=(length, length)
    )


@functools.cache
def _flex_attention(device: str) -> Callable[..., Tensor]:
    """Return FlexAttention, compiled except on a CPU. Dynamic shapes avoid a recompilation for each length."""
    from torch.nn.attention.flex_attention import flex_attention

    if device == "cpu":
        return flex_attention
    compiled: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=True)
    return compiled


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Compute a model's attention: SDPA without a tree, tree attention with one."""
    tree: AttentionTree | None = options.pop("tree", None)
    if tree is None:
        usual: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return usual
    for name in ("sliding_window", "softcap", "s_aux", "position_bias", "dropout"):
        if options.get(name) not in (None, 0, 0.0):
            raise NotImplementedError(f"tree attention does not support {name}")
    scale = query.shape[-1] ** -0.5 if options.get("scaling") is None else options["scaling"]
    query, key = query.to(value.dtype), key.to(value.dtype)
    groups = query.shape[1] // key.shape[1]
    if tree.block_mask is not None:
        # FlexAttention's GQA kernels require a power of two of query heads per key head.
        shared = groups & (groups - 1) == 0
        if not shared:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        out = _flex_attention(query.device.type)(
            query, key, value, block_mask=tree.block_mask, scale=scale, enable_gqa=shared and groups > 1
        )
    else:
        if groups > 1:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        out = tree_attention(query, key, value, tree.nodes, scale)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(TREE_ATTENTION, _attention)
AttentionMaskInterface.register(TREE_ATTENTION, sdpa_mask)


@torch.no_grad()
def enable_tree_attention(model: Any, device: torch.device, dtype: torch.dtype = torch.float32) -> bool:
    """Install tree attention in a model and test it: packed continuations of a prompt against each one alone.

    Models with sliding windows, recurrent states, attention sinks, soft caps or custom positions would compute
    different results; they keep their original attention, as does a GPU that cannot run the kernels.

    Args:
        model: The model.
        device: Its device.
        dtype: Data type that attention is computed in.

    Returns:
        Whether sequences may be packed as a tree.
    """
    if getattr(model.config, "_attn_implementation", None) != "sdpa":
        return False
    model.set_attn_implementation(TREE_ATTENTION)
    vocabulary = model.config.get_text_config().vocab_size
    prompt, ends = [3, 5, 7, 9, 11], ([13, 15], [17, 19, 21])
    ids_BT = torch.tensor([[*prompt, *ends[0], *ends[1]]], device=device) % vocabulary
    position_BT = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 5, 6, 7]], device=device)
    end_BT = torch.tensor([[10, 10, 10, 10, 10, 7, 7, 10, 10, 10]], device=device)
    alone_TD = hidden_states(model, torch.tensor([[*prompt, *ends[1]]], device=device) % vocabulary, None, None)[0]
    try:
        together_TD = hidden_states(model, ids_BT, position_BT, end_BT)[0]
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        _log.info("%s does not support tree attention: %s", type(model).__name__, error)
        together_TD = alone_TD.new_full((10, 1), float("nan"))
    # Results in bfloat16 differ by its rounding error.
    half = any(parameter.dtype in (torch.bfloat16, torch.float16) for parameter in model.parameters())
    tolerance = 3e-2 if half else 1e-4
    gap = (together_TD[7:] - alone_TD[5:]).abs().max()
    if not gap <= tolerance * alone_TD.abs().max():
        model.set_attn_implementation("sdpa")
        return False
    if device.type == "cuda" and (failure := _backward_error(model.config.get_text_config(), device, dtype)):
        _log.warning("sequences are padded instead of packed, since FlexAttention fails on this GPU: %s", failure)
        model.set_attn_implementation("sdpa")
        return False
    return True


@torch.enable_grad()
def _backward_error(config: Any, device: torch.device, dtype: torch.dtype) -> Exception | None:
    """Return the error of a forward and backward pass of FlexAttention with a model's heads, or ``None``. Its backward
    kernel needs more shared memory than some GPUs have.
    """
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    keys = getattr(config, "num_key_value_heads", None) or heads
    query, key, value = (
        torch.zeros(1, count, 256, size, device=device, dtype=dtype, requires_grad=True)
        for count in (heads, keys, keys)
    )
    tree = tree_of(torch.full((1, 256), 256, device=device))
    try:
        out, _ = _attention(None, query, key, value, None, tree=tree)
        torch.autograd.backward(out.sum())
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    except Exception as error:  # the compiler's errors have no common base
        return error
    return None
