"""MaxRL (Tajwar et al. 2026, https://arxiv.org/abs/2602.02710): the advantage is (r - mean) / mean of the group's
rewards, so that tasks that are rarely solved weigh more."""

from dataclasses import dataclass

import numpy as np

from trainers.algorithms import AdvantageBatch, Algorithm, GroupRelativeOptions, PerToken, per_episode


@dataclass(frozen=True)
class MaxRLOptions(GroupRelativeOptions):
    min_mean: float = 1e-3
    """Groups whose mean reward is not above this value have zero advantage."""


def advantages(batch: AdvantageBatch, options: MaxRLOptions) -> PerToken:
    reward_B, adv_B = batch.reward_B, np.zeros(len(batch.samples))
    for group in set(batch.group_B):
        members = batch.group_B == group
        mean = reward_B[members].mean()
        if mean > options.min_mean:  # needs rewards >= 0: negative ones can bring the mean near 0
            adv_B[members] = (reward_B[members] - mean) / mean
    return per_episode(batch, adv_B)


MAXRL = Algorithm("maxrl", MaxRLOptions, advantages)
