"""SAPO (Gao et al. 2025, https://arxiv.org/abs/2511.20347): a sigmoid of the ratio instead of PPO's clip, so that the
gradient of a token fades with the distance of its ratio from 1."""

from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.algorithms import ALGORITHMS, Algorithm, Loss, LossOptions
from trainers.batching import MicroBatch


@dataclass(frozen=True)
class SapoOptions(LossOptions):
    tau_positive: float = 1.0
    """How fast the gradient fades where the advantage is positive."""
    tau_negative: float = 1.05
    """The same where it is negative."""


def sapo(logp_N: Tensor, batch: MicroBatch, options: SapoOptions) -> tuple[Tensor, Tensor]:
    adv_N = batch.targets["adv"]
    ratio_N = (logp_N - batch.old_logp_N).clamp(max=20.0).exp()  # the sigmoid is 1 long before; exp must stay finite
    tau_N = torch.where(adv_N > 0, options.tau_positive, options.tau_negative)
    return -torch.sigmoid(tau_N * (ratio_N - 1)) * 4 / tau_N * adv_N, torch.zeros_like(logp_N)


SAPO_LOSS = Loss("sapo", SapoOptions, sapo, aggregation="sequence-mean")
SAPO = Algorithm("sapo", ALGORITHMS["grpo"].options, ALGORITHMS["grpo"].advantages, loss=SAPO_LOSS)
