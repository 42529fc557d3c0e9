"""Losses per sampled token: pure functions of tensors, independent of how advantages are computed.

N is the number of sampled tokens, S of sequences. Token weights are determined during batching; tokens without
gradient (for example clipped ones) still count in the mean. The old log-probs are the sampler's.

Besides the loss, a function returns which bound limited each token: 1.0 the upper bound (the ratio is too large), -1.0
the lower bound, 0.0 none.
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(
    logp_N: Tensor,
    sampler_logp_N: Tensor,
    adv_N: Tensor,
    *,
    low: float,
    high: float,
    dual: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Compute PPO's clipped objective, negated, with the sampler's log-probs as the old ones.

    ``-min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)`` (Schulman et al. 2017, equation 7; separate bounds: DAPO,
    Yu et al. 2025); with ``dual``, for a negative A, at most ``-dual * A`` (Ye et al. 2020, equation 5).

    Returns:
        Loss per token, and the bound that removed its gradient: 1.0, -1.0 or 0.0.
    """
    return _clipped(torch.exp(logp_N - sampler_logp_N), adv_N, low, high, dual)


def sequence_surrogate(
    logp_N: Tensor, sampler_logp_N: Tensor, adv_N: Tensor, sequence_N: Tensor, *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Compute GSPO's loss: the clipped objective with the ratio of the whole sequence, to the power of one over its
    length.

    This is the per-token form (Zheng et al. 2025, equation 14, GSPO-token): the value of the sequence's ratio with
    the gradient of the token's log-prob. With one advantage per sequence and equally weighted sequences it is
    equation 5.

    Returns:
        Loss per token, and the bound that removed its gradient: 1.0, -1.0 or 0.0.
    """
    ratio_N = sequence_ratio(logp_N, sampler_logp_N, sequence_N) * torch.exp(logp_N - logp_N.detach())
    return _clipped(ratio_N, adv_N, low, high, None)


def clipped_weight(
    logp_N: Tensor, sampler_logp_N: Tensor, adv_N: Tensor, *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Compute CISPO's loss ``-clip(ratio, 1 - low, 1 + high) * A * logp``, without gradient through the weight.

    MiniMax-M1 2025, equation 4.

    Returns:
        Loss per token, and the bound that clipped its weight: 1.0, -1.0 or 0.0.
    """
    ratio_N = torch.exp(logp_N - sampler_logp_N).detach()
    weight_N = ratio_N.clamp(1 - low, 1 + high)
    return -weight_N * adv_N * logp_N, torch.sign(ratio_N - weight_N)


def divergence_masked(
    logp_N: Tensor, sampler_logp_N: Tensor, adv_N: Tensor, *, threshold: float
) -> tuple[Tensor, Tensor]:
    """Compute DPPO's loss ``-ratio * A`` without tokens whose probability has already moved too far.

    A token is dropped if its probability has changed by more than ``threshold`` in the direction of the advantage
    (total variation of the token alone).

    Returns:
        Loss per token, and 1.0 or -1.0 where the token was dropped: its probability rose or fell too far.
    """
    moved_N = (torch.exp(logp_N) - torch.exp(sampler_logp_N)).detach()
    dropped_N = ((adv_N > 0) & (moved_N > threshold)) | ((adv_N < 0) & (moved_N < -threshold))
    # Not multiplied by a mask: the ratio of a dropped token may be infinite, and so its gradient.
    log_ratio_N = torch.where(dropped_N, 0.0, logp_N - sampler_logp_N)
    loss_N = torch.where(dropped_N, 0.0, -torch.exp(log_ratio_N) * adv_N)
    return loss_N, torch.where(dropped_N, torch.sign(moved_N), 0.0)


def weighted_reinforce(logp_N: Tensor, sampler_logp_N: Tensor, adv_N: Tensor) -> tuple[Tensor, Tensor]:
    """Compute REINFORCE with importance weights: ``-ratio * A * logp``, without gradient through the weight.

    :func:`importance_factor` truncates the weight.

    Returns:
        Loss per token, and 0.0: nothing is clipped.
    """
    weight_N = torch.exp(logp_N - sampler_logp_N).detach()
    return -weight_N * adv_N * logp_N, torch.zeros_like(logp_N)


def importance_factor(ratio_N: Tensor, cap: float) -> Tensor:
    """Compute the factor of losses proportional to the ratio that limits the ratio to ``cap``.

    Truncated importance sampling: Ionides 2008; for numerical differences of sampler and trainer: Yao et al. 2025.
    """
    return (cap / ratio_N).clamp(max=1.0)


def token_ratio(logp_N: Tensor, sampler_logp_N: Tensor) -> Tensor:
    """Return the ratio of each token's probability to the sampler's, without gradient."""
    return torch.exp(logp_N - sampler_logp_N).detach()


@torch.no_grad()
def sequence_ratio(logp_N: Tensor, sampler_logp_N: Tensor, sequence_N: Tensor) -> Tensor:
    """Return for each token the ratio of its whole sequence, to the power of one over its length (GSPO, equation 7)."""
    _, index_N = torch.unique(sequence_N, return_inverse=True)
    count_S = torch.bincount(index_N).to(logp_N.dtype)
    total_S = torch.zeros_like(count_S).index_add_(0, index_N, logp_N - sampler_logp_N)
    return torch.exp(total_S / count_S)[index_N]


VALUE_CLIP = 0.2
"""How far a value may move from its value before the update until it gets no gradient."""


def clipped_value_loss(value_N: Tensor, old_value_N: Tensor, return_N: Tensor, *, clip: float) -> Tensor:
    """Compute half the squared error of the value, clipped around the old value.

    A value that has moved further than ``clip`` from the old one gets no gradient towards the return, unless it
    moved away from the return. 0 for no limit. ``max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2) / 2``:
    the PPO of OpenAI Baselines (2017).
    """
    error_N = (value_N - return_N).square()
    if clip > 0:
        near_N = old_value_N + (value_N - old_value_N).clamp(-clip, clip)
        error_N = torch.maximum(error_N, (near_N - return_N).square())
    return 0.5 * error_N


def kl_to_reference(logp_N: Tensor, ref_logp_N: Tensor) -> Tensor:
    """Estimate KL(policy || reference) per token from the policy's own samples: Schulman's k3, ``exp(-x) - 1 + x`` for
    the log-ratio x ("Approximating KL", 2020). It is never negative, and what GRPO uses.
    """
    log_ratio_N = logp_N - ref_logp_N
    return torch.exp(-log_ratio_N) - 1 + log_ratio_N


def _clipped(ratio_N: Tensor, adv_N: Tensor, low: float, high: float, dual: float | None) -> tuple[Tensor, Tensor]:
    loss_N = -torch.minimum(ratio_N * adv_N, ratio_N.clamp(1 - low, 1 + high) * adv_N)
    too_high_N, too_low_N = (ratio_N > 1 + high) & (adv_N > 0), (ratio_N < 1 - low) & (adv_N < 0)
    if dual is not None:
        loss_N = torch.where(adv_N < 0, torch.minimum(loss_N, -dual * adv_N), loss_N)
        too_high_N = too_high_N | ((adv_N < 0) & (ratio_N > dual))
    return loss_N, too_high_N.to(ratio_N.dtype) - too_low_N.to(ratio_N.dtype)
