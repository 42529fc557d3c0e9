"""RLOO: the reward minus the mean reward of the other episodes of its group (Ahmadian et al. 2024)."""

from __future__ import annotations

from trainers.algorithms.advantages import AdvantageBatch, PerToken, per_episode
from trainers.algorithms.algorithm import Algorithm
from trainers.algorithms.estimators import leave_one_out
from trainers.algorithms.options import ComparingOptions


def advantages(batch: AdvantageBatch, options: ComparingOptions) -> PerToken:
    return per_episode(batch, leave_one_out(batch.reward_B, batch.group_B))


RLOO = Algorithm("rloo", ComparingOptions, advantages)
