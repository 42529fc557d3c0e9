"""GMPO (Zhao et al. 2025, https://arxiv.org/abs/2507.20673): the geometric instead of the arithmetic mean of a
sequence's ratios, each of them clipped, so that single outliers count little."""

from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.algorithms import ALGORITHMS, Algorithm, Loss, LossOptions, sequence_mean
from trainers.batching import MicroBatch


@dataclass(frozen=True)
class GmpoOptions(LossOptions):
    log_clip: float = 0.4
    """Bound of the logarithm of each token's ratio, in both directions."""


def gmpo(logp_N: Tensor, batch: MicroBatch, options: GmpoOptions) -> tuple[Tensor, Tensor]:
    adv_N = batch.targets["adv"]
    log_ratio_N = logp_N - batch.old_logp_N
    clipped_N = log_ratio_N.clamp(-options.log_clip, options.log_clip)
    too_far_N = torch.where(adv_N > 0, log_ratio_N > clipped_N, log_ratio_N < clipped_N)
    ratio_N = sequence_mean(torch.where(too_far_N, clipped_N, log_ratio_N), batch.sequence_N).exp()
    return -ratio_N * adv_N, too_far_N.float() * adv_N.sign()


GMPO_LOSS = Loss("gmpo", GmpoOptions, gmpo, aggregation="sequence-mean")
GMPO = Algorithm("gmpo", ALGORITHMS["grpo"].options, ALGORITHMS["grpo"].advantages, loss=GMPO_LOSS)
