"""GDPO (Liu et al. 2026, https://arxiv.org/abs/2601.05242): each component of the reward is normalized within the group
before they are added, so that none disappears behind another with a larger spread; then whitened over the batch."""

import numpy as np

from trainers.algorithms import AdvantageBatch, Algorithm, PerToken, RewardOptions, per_episode
from trainers.algorithms.grpo import group_relative


def advantages(batch: AdvantageBatch, options: RewardOptions) -> PerToken:
    components = [sample.components for sample in batch.samples]
    columns = [
        np.array([own.get(name, 0.0) for own in components])
        for name in sorted({name for own in components for name in own})
    ]
    columns.append(batch.reward_B - sum(columns))  # what is in no component, such as penalties
    adv_B = sum(group_relative(column_B, batch.group_B, normalize_std=True) for column_B in columns)
    kept_B = adv_B[batch.keep_B] if batch.keep_B.any() else np.ones(1)
    return per_episode(batch, (adv_B - kept_B.mean()) / (kept_B.std() + 1e-6))


GDPO = Algorithm("gdpo", RewardOptions, advantages)
