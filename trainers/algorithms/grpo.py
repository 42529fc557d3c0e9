"""GRPO: the reward minus the mean of its group, optionally divided by the group's standard deviation.

DeepSeekMath (Shao et al. 2024), equation 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from trainers.algorithms.advantages import AdvantageBatch, PerToken, per_episode
from trainers.algorithms.algorithm import Algorithm
from trainers.algorithms.estimators import group_relative
from trainers.algorithms.options import ComparingOptions


@dataclass(frozen=True)
class GrpoOptions(ComparingOptions):
    """Options of GRPO."""

    normalize_std: bool = False
    """Divide GRPO's advantages by the standard deviation of the group, as in the original paper."""


def advantages(batch: AdvantageBatch, options: GrpoOptions) -> PerToken:
    return per_episode(batch, group_relative(batch.reward_B, batch.group_B, normalize_std=options.normalize_std))


GRPO = Algorithm("grpo", GrpoOptions, advantages)
