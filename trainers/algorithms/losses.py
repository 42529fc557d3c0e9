"""Losses per sampled token: pure functions of tensors, blind to where the advantages come from.

N is the number of sampled tokens. How tokens are weighed against each other is decided where the batch is made.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor


def clipped_surrogate(
    logp_N: Tensor, sampler_logp_N: Tensor, adv_N: Tensor, *, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """PPO's clipped objective, negated, with the sampler's log-probs as the old ones.

    ``-min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)`` (Schulman et al. 2017, equation 7; separate bounds: DAPO,
    Yu et al. 2025).

    Returns:
        Loss per token, and 1.0 where the clip took the gradient away.
    """
    ratio_N = torch.exp(logp_N - sampler_logp_N)
    clipped_ratio_N = ratio_N.clamp(1 - low, 1 + high)
    loss_N = -torch.minimum(ratio_N * adv_N, clipped_ratio_N * adv_N)
    clipped_N = ((ratio_N > 1 + high) & (adv_N > 0)) | ((ratio_N < 1 - low) & (adv_N < 0))
    return loss_N, clipped_N.detach().to(logp_N.dtype)


def weighted_reinforce(logp_N: Tensor, sampler_logp_N: Tensor, adv_N: Tensor, *, cap: float) -> tuple[Tensor, Tensor]:
    """REINFORCE with truncated importance weights: ``-min(ratio, cap) * A * logp``, no gradient through the weight.

    Truncated importance sampling: Ionides 2008; for sampler mismatch: Yao et al. 2025.

    Returns:
        Loss per token, and 1.0 where the weight was truncated.
    """
    weight_N = torch.exp(logp_N - sampler_logp_N).detach()
    return -weight_N.clamp(max=cap) * adv_N * logp_N, (weight_N > cap).to(logp_N.dtype)


def kl_to_reference(logp_N: Tensor, ref_logp_N: Tensor, estimator: Literal["k1", "k2", "k3"]) -> Tensor:
    """Estimate per token of KL(policy || reference) from tokens the policy drew (Schulman, "Approximating KL", 2020).

    As a loss only k2 has the expected gradient of the KL; k3 is never negative and is what GRPO uses; k1 has the
    expected value of the KL and, as a loss, a gradient that is 0 on average.
    """
    log_ratio_N = logp_N - ref_logp_N
    if estimator == "k1":
        return log_ratio_N
    if estimator == "k2":
        return 0.5 * log_ratio_N.square()
    return torch.exp(-log_ratio_N) - 1 + log_ratio_N
