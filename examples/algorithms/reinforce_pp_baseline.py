"""REINFORCE++-baseline (Hu et al. 2025, https://arxiv.org/abs/2501.03262): the reward minus the mean of the group,
whitened over the tokens of the whole batch."""

import numpy as np

from trainers.algorithms import AdvantageBatch, Algorithm, GroupRelativeOptions, PerToken, per_episode
from trainers.algorithms.grpo import group_relative


def advantages(batch: AdvantageBatch, options: GroupRelativeOptions) -> PerToken:
    adv_B = group_relative(batch.reward_B, batch.group_B)
    tokens_B = np.array([sample.num_sampled for sample in batch.samples]) * batch.keep_B
    if not tokens_B.any():
        return per_episode(batch, adv_B)
    mean = np.average(adv_B, weights=tokens_B)
    std = np.sqrt(np.average((adv_B - mean) ** 2, weights=tokens_B))
    return per_episode(batch, (adv_B - mean) / (std + 1e-6))


REINFORCE_PP_BASELINE = Algorithm("reinforce++-baseline", GroupRelativeOptions, advantages)
