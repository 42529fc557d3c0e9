"""LUSPO (2026, https://arxiv.org/abs/2602.05261): GSPO with the loss of each sequence multiplied by its
length, without which long replies get less gradient per token."""

import torch
from torch import Tensor

from trainers.algorithms import ALGORITHMS, LOSSES, Algorithm, Loss, sequence_sum
from trainers.algorithms.losses import GspoOptions
from trainers.batching import MicroBatch


def luspo(logp_N: Tensor, batch: MicroBatch, options: GspoOptions) -> tuple[Tensor, Tensor]:
    loss_N, bound_N = LOSSES["gspo"].function(logp_N, batch, options)
    return loss_N * sequence_sum(torch.ones_like(loss_N), batch.sequence_N), bound_N


LUSPO_LOSS = Loss("luspo", GspoOptions, luspo, aggregation="sequence-mean")
LUSPO = Algorithm("luspo", ALGORITHMS["grpo"].options, ALGORITHMS["grpo"].advantages, loss=LUSPO_LOSS)
