"""ReMax: the reward minus the reward of the greedy episode of the same task with the same weights (Li et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence

from trainers.algorithms.advantages import AdvantageBatch, PerToken, per_episode
from trainers.algorithms.algorithm import Algorithm, RolloutRequest, stochastic_rollouts
from trainers.algorithms.estimators import greedy_baseline
from trainers.algorithms.options import GroupOptions


def advantages(batch: AdvantageBatch, options: GroupOptions) -> PerToken:
    return per_episode(batch, greedy_baseline(batch.reward_B, batch.group_B, batch.greedy_B))


def rollouts(options: GroupOptions) -> Sequence[RolloutRequest]:
    return [*stochastic_rollouts(options), RolloutRequest(greedy=True)]


REMAX = Algorithm("remax", GroupOptions, advantages, rollouts_per_prompt=rollouts)
