"""Dr. GRPO (Liu et al. 2025)."""

from __future__ import annotations

from trainers.algorithms.advantages import AdvantageBatch, PerToken, per_episode
from trainers.algorithms.algorithm import Algorithm
from trainers.algorithms.grpo import group_relative
from trainers.algorithms.options import GroupRelativeOptions


def advantages(batch: AdvantageBatch, options: GroupRelativeOptions) -> PerToken:
    """Reward minus the mean of the group, with the same constant weight for every token."""
    return per_episode(batch, group_relative(batch.reward_B, batch.group_B))


DR_GRPO = Algorithm("dr-grpo", GroupRelativeOptions, advantages, aggregation="constant")
