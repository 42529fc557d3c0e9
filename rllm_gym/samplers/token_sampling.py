"""Sample tokens from logits for many requests at once. Pure functions of tensors.

Axes: N rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LEAST = torch.finfo(torch.float64).tiny  # a smaller product may have underflowed to 0


def draw_tokens(
    logits_NV: Tensor,
    temperature_N: Tensor,
    uniform_N: Tensor,
    top_p_N: Tensor | None = None,
    top_k_N: Tensor | None = None,
    *,
    greedy: bool = True,
) -> tuple[Tensor, Tensor]:
    """Sample one token per row, by inverting the cumulative distribution at a uniform number.

    The result for a row depends on that row alone, so that a request with its own stream of uniform numbers gets the
    same tokens in every batch.

    Args:
        logits_NV: Logits, in any floating type; computed in float32.
        temperature_N: 0 is greedy.
        uniform_N: Numbers in (0, 1], float64.
        top_p_N: Nucleus mass, 1 keeps all; ``None`` where no row uses top-p.
        top_k_N: Number of most likely tokens kept, 0 keeps all; ``None`` where no row uses top-k.
        greedy: Whether a temperature may be 0.

    Returns:
        Token ids ``[N]`` and their log-probs ``[N]`` at the temperature (at 0: at temperature 1), before top-p and
        top-k.
    """
    logits_NV = logits_NV.float()
    greedy_N = temperature_N == 0
    scale_N = torch.where(greedy_N, 1.0, temperature_N)
    logp_NV = torch.log_softmax(logits_NV / scale_N.unsqueeze(1), dim=-1)
    prob_NV = logp_NV.exp()
    if top_p_N is not None and top_k_N is not None:
        prob_NV = _top_k_top_p(prob_NV, top_p_N, top_k_N)
    cumulative_NV = prob_NV.double().cumsum(-1)
    # The target is never 0, so a token of probability 0 is never the first to reach it.
    target_N1 = (uniform_N.unsqueeze(1) * cumulative_NV[:, -1:]).clamp_min(_LEAST)
    token_N = (cumulative_NV < target_N1).sum(-1)
    if greedy:
        token_N = torch.where(greedy_N, logp_NV.argmax(-1), token_N)
    return token_N, logp_NV.gather(1, token_N.unsqueeze(1)).squeeze(1)


def _top_k_top_p(prob_NV: Tensor, top_p_N: Tensor, top_k_N: Tensor) -> Tensor:
    """Zero all tokens outside the ``top_k`` most likely and outside the smallest set whose mass reaches ``top_p``.

    As in other libraries, top-k is applied first, and top-p to the renormalised rest.
    """
    ordered_NV, order_NV = prob_NV.sort(dim=-1, descending=True, stable=True)
    rank_V = torch.arange(prob_NV.shape[1], device=prob_NV.device)
    k_N1 = torch.where(top_k_N == 0, prob_NV.shape[1], top_k_N).unsqueeze(1)
    kept_NV = ordered_NV * (rank_V < k_N1)
    mass_NV = kept_NV.double().cumsum(-1)
    before_NV = mass_NV - kept_NV
    # A token stays if the tokens before it do not yet reach the mass; the first always stays.
    stays_NV = (rank_V < k_N1) & ((before_NV < top_p_N.unsqueeze(1) * mass_NV[:, -1:]) | (top_p_N >= 1).unsqueeze(1))
    stays_NV[:, 0] = True
    return torch.where(torch.zeros_like(stays_NV).scatter(1, order_NV, stays_NV), prob_NV, 0.0)
