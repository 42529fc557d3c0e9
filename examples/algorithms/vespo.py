"""VESPO (Shen et al. 2026, https://arxiv.org/abs/2602.10693): REINFORCE with a smooth weight of the whole sequence's
ratio w: w^k exp(lambda (1 - w)), which is 1 at w = 1 and falls on both sides."""

from dataclasses import dataclass

import torch
from torch import Tensor

from trainers.algorithms import ALGORITHMS, Algorithm, Loss, LossOptions, sequence_sum
from trainers.batching import MicroBatch


@dataclass(frozen=True)
class VespoOptions(LossOptions):
    k_positive: float = 2.0
    lambda_positive: float = 3.0
    k_negative: float = 3.0
    lambda_negative: float = 2.0


def vespo(logp_N: Tensor, batch: MicroBatch, options: VespoOptions) -> tuple[Tensor, Tensor]:
    adv_N = batch.targets["adv"]
    log_w_N = sequence_sum((logp_N - batch.old_logp_N).detach(), batch.sequence_N).clamp(-18.0, 20.0)
    k_N = torch.where(adv_N >= 0, options.k_positive, options.k_negative)
    lambda_N = torch.where(adv_N >= 0, options.lambda_positive, options.lambda_negative)
    weight_N = (lambda_N + k_N * log_w_N - lambda_N * log_w_N.exp()).exp()
    return -weight_N * adv_N * logp_N, torch.zeros_like(logp_N)


VESPO_LOSS = Loss("vespo", VespoOptions, vespo)
VESPO = Algorithm("vespo", ALGORITHMS["grpo"].options, ALGORITHMS["grpo"].advantages, loss=VESPO_LOSS)
