"""Lite PPO (Liu et al. 2025, https://arxiv.org/abs/2508.08221): the reward minus the mean of the group, divided by the
standard deviation of the rewards of the whole batch; in TRL ``scale_rewards="batch"``."""

from trainers.algorithms import AdvantageBatch, Algorithm, GroupRelativeOptions, PerToken, per_episode
from trainers.algorithms.grpo import group_relative


def advantages(batch: AdvantageBatch, options: GroupRelativeOptions) -> PerToken:
    reward_B = batch.reward_B
    std = reward_B[batch.keep_B].std() if batch.keep_B.any() else 1.0
    return per_episode(batch, group_relative(reward_B, batch.group_B) / (std + 1e-6))


LITE_PPO = Algorithm("lite-ppo", GroupRelativeOptions, advantages)
