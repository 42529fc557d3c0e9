"""GRPO: DeepSeekMath (Shao et al. 2024), equation 3."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainers.algorithms.advantages import STD_EPSILON, AdvantageBatch, PerToken, per_episode
from trainers.algorithms.algorithm import Algorithm
from trainers.algorithms.groups import groups
from trainers.algorithms.options import GroupRelativeOptions
from trainers.array_types import FloatArray, LabelArray


@dataclass(frozen=True)
class GrpoOptions(GroupRelativeOptions):
    """Options of GRPO."""

    normalize_std: bool = False
    """Divide GRPO's advantages by the standard deviation of the group, as in the original paper."""


def advantages(batch: AdvantageBatch, options: GrpoOptions) -> PerToken:
    """Reward minus the mean of the group, optionally divided by the group's standard deviation."""
    return per_episode(batch, group_relative(batch.reward_B, batch.group_B, normalize_std=options.normalize_std))


def group_relative(reward_B: FloatArray, group_B: LabelArray, *, normalize_std: bool = False) -> FloatArray:
    """Compute the reward minus the group's mean, optionally divided by (standard deviation of the group + 1e-6).

    >>> group_relative(np.array([1.0, 0.0, 5.0]), np.array([0, 0, 1])).tolist()
    [0.5, -0.5, 0.0]
    """
    adv_B = np.zeros(len(reward_B))
    for members in groups(group_B):
        reward_G = reward_B[members]
        adv_G = reward_G - reward_G.mean()
        if normalize_std:
            adv_G = adv_G / (reward_G.std() + STD_EPSILON)
        adv_B[members] = adv_G
    return adv_B


GRPO = Algorithm("grpo", GrpoOptions, advantages)
