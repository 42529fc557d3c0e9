"""ReMax: Li et al. 2023, equation 7."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainers.algorithms.advantages import AdvantageBatch, PerToken, per_episode
from trainers.algorithms.algorithm import Algorithm, RolloutRequest, stochastic_rollouts
from trainers.algorithms.groups import groups
from trainers.algorithms.options import GroupOptions


def advantages(batch: AdvantageBatch, options: GroupOptions) -> PerToken:
    """Reward minus the reward of the greedy episode of the same task with the same weights."""
    reward_B, greedy_B = batch.reward_B, batch.greedy_B
    adv_B = np.zeros(len(reward_B))  # also in groups without a greedy episode, for example because it failed
    for members in groups(batch.group_B):
        greedy = members & greedy_B
        if greedy.any():
            others = members & ~greedy_B
            adv_B[others] = reward_B[others] - reward_B[greedy].mean()
    return per_episode(batch, adv_B)


def rollouts(options: GroupOptions) -> Sequence[RolloutRequest]:
    return [*stochastic_rollouts(options), RolloutRequest(greedy=True)]


REMAX = Algorithm("remax", GroupOptions, advantages, rollouts_per_prompt=rollouts)
