"""Dual-clip PPO (Ye et al. 2020, https://arxiv.org/abs/1912.09729, equation 5; TRL's ``delta``, verl's
``clip_ratio_c``): with a negative advantage, ratios above ``dual_clip`` get no gradient either."""

from dataclasses import dataclass

from torch import Tensor

from trainers.algorithms import ALGORITHMS, LOSSES, Algorithm, Loss, ratio_bound
from trainers.algorithms.losses import ClipOptions
from trainers.batching import MicroBatch


@dataclass(frozen=True)
class DualClipOptions(ClipOptions):
    dual_clip: float = ratio_bound(3.0)


def dual_clip(logp_N: Tensor, batch: MicroBatch, options: DualClipOptions) -> tuple[Tensor, Tensor]:
    loss_N, bound_N = LOSSES["clip"].function(logp_N, batch, options)
    most_N = -options.dual_clip * batch.targets["adv"]
    above_N = (most_N > 0) & (loss_N > most_N)
    return most_N.where(above_N, loss_N), bound_N.masked_fill(above_N, 1.0)


DUAL_CLIP_LOSS = Loss("dual-clip", DualClipOptions, dual_clip)
DUAL_CLIP = Algorithm("dual-clip", ALGORITHMS["grpo"].options, ALGORITHMS["grpo"].advantages, loss=DUAL_CLIP_LOSS)
