"""IcePop (Ling Team 2025): tokens whose ratio of policy to sampler probability is outside two bounds are masked."""

from dataclasses import dataclass

from torch import Tensor

from trainers.algorithms import ALGORITHMS, Algorithm, Loss, LossOptions
from trainers.batching import MicroBatch


@dataclass(frozen=True)
class IcePopOptions(LossOptions):
    min_ratio: float = 0.5
    max_ratio: float = 5.0


def icepop(logp_N: Tensor, batch: MicroBatch, options: IcePopOptions) -> tuple[Tensor, Tensor]:
    log_ratio_N = logp_N - batch.sampler_logp_N
    ratio_N = log_ratio_N.detach().exp()
    bound_N = (ratio_N > options.max_ratio).float() - (ratio_N < options.min_ratio).float()
    masked_N = bound_N != 0  # before exp: the gradient of an infinite ratio would be 0 * inf
    loss_N = -log_ratio_N.masked_fill(masked_N, 0.0).exp() * batch.targets["adv"]
    return loss_N.masked_fill(masked_N, 0.0), bound_N


ICEPOP_LOSS = Loss("icepop", IcePopOptions, icepop)
ICEPOP = Algorithm("icepop", ALGORITHMS["grpo"].options, ALGORITHMS["grpo"].advantages, loss=ICEPOP_LOSS)
