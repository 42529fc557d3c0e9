"""RLOO: Ahmadian et al. 2024."""

from __future__ import annotations

import numpy as np

from trainers.algorithms.advantages import AdvantageBatch, PerToken, per_episode
from trainers.algorithms.algorithm import Algorithm
from trainers.algorithms.groups import groups
from trainers.algorithms.options import GroupRelativeOptions


def advantages(batch: AdvantageBatch, options: GroupRelativeOptions) -> PerToken:
    """Reward minus the mean reward of the other episodes of the group."""
    reward_B = batch.reward_B
    adv_B = np.zeros(len(reward_B))
    for members in groups(batch.group_B):
        reward_G = reward_B[members]
        if len(reward_G) > 1:  # equal to the difference from the mean of the others
            adv_B[members] = len(reward_G) / (len(reward_G) - 1) * (reward_G - reward_G.mean())
    return per_episode(batch, adv_B)


RLOO = Algorithm("rloo", GroupRelativeOptions, advantages)
