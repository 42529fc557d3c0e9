"""Hidden states of sequences laid out side by side: who sees whom, and which models can be told."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def hidden_states(model: Any, ids_BT: Tensor, position_BT: Tensor | None, end_BT: Tensor | None) -> Tensor:
    """The last hidden states ``[B, T, D]``; see :class:`~trainers.batching.MicroBatch` for who sees whom."""
    layout: dict[str, Any] = {}
    if end_BT is not None:
        layout = {"attention_mask": tree_mask(end_BT)[:, None], "position_ids": position_BT}
    states: Tensor = model.base_model(input_ids=ids_BT, use_cache=False, **layout).last_hidden_state
    return states


def tree_mask(end_BT: Tensor) -> Tensor:
    """Which tokens (last axis) each token sees: those before it whose subtree has not ended, and itself."""
    column_T = torch.arange(end_BT.shape[1], device=end_BT.device)
    return (column_T[None, :, None] >= column_T[None, None, :]) & (column_T[None, :, None] < end_BT[:, None, :])


@torch.no_grad()
def can_share_prefixes(model: Any, device: torch.device) -> bool:
    """Try it: two continuations of a prompt, side by side and each alone. Some models look at positions in their own
    way, have windows or a recurrent state, or use attention that takes no mask: those compute something else."""
    if getattr(model.config, "_attn_implementation", None) != "sdpa":
        return False
    vocabulary = model.config.get_text_config().vocab_size
    window = getattr(model.config.get_text_config(), "sliding_window", None)
    if window is not None and getattr(model.config.get_text_config(), "use_sliding_window", True):
        return False
    prompt, ends = [3, 5, 7, 9, 11], ([13, 15], [17, 19, 21])
    ids_BT = torch.tensor([[*prompt, *ends[0], *ends[1]]], device=device) % vocabulary
    position_BT = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 5, 6, 7]], device=device)
    end_BT = torch.tensor([[10, 10, 10, 10, 10, 7, 7, 10, 10, 10]], device=device)
    try:
        together_TD = hidden_states(model, ids_BT, position_BT, end_BT)[0]
    except (TypeError, ValueError, RuntimeError):
        return False
    alone_TD = hidden_states(model, torch.tensor([[*prompt, *ends[1]]], device=device) % vocabulary, None, None)[0]
    gap = (together_TD[7:] - alone_TD[5:]).abs().max()
    return bool(gap <= 1e-2 * alone_TD.abs().max().clamp(min=1.0))
