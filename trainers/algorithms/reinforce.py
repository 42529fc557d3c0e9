"""REINFORCE: Williams 1992."""

from __future__ import annotations

import numpy as np

from trainers.algorithms.advantages import AdvantageBatch, PerToken, per_episode
from trainers.algorithms.algorithm import Algorithm
from trainers.algorithms.options import RewardOptions


def advantages(batch: AdvantageBatch, options: RewardOptions) -> PerToken:
    """Reward minus the mean reward of the batch."""
    reward_B, keep_B = batch.reward_B, batch.keep_B
    return per_episode(batch, reward_B - reward_B[keep_B].mean() if keep_B.any() else np.zeros(len(reward_B)))


REINFORCE = Algorithm("reinforce", RewardOptions, advantages)
