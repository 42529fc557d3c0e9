"""MaxRL, an algorithm that the package does not have: the advantage is (r - mean) / mean of the group's rewards."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainers.algorithms import AdvantageBatch, Algorithm, GroupRelativeOptions, PerToken, per_episode


@dataclass(frozen=True)
class MaxRLOptions(GroupRelativeOptions):
    least_mean: float = 1e-3
    """Groups with a smaller mean reward are divided by this value."""


def advantages(batch: AdvantageBatch, options: MaxRLOptions) -> PerToken:
    adv_B = np.zeros(len(batch.reward_B))
    for group in set(batch.group_B):
        members = batch.group_B == group
        mean = batch.reward_B[members].mean()
        adv_B[members] = (batch.reward_B[members] - mean) / max(mean, options.least_mean)
    return per_episode(batch, adv_B)


MAXRL = Algorithm("maxrl", MaxRLOptions, advantages)
