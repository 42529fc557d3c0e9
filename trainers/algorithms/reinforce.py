"""REINFORCE with the mean reward of the batch as the baseline (Williams 1992)."""

from __future__ import annotations

from trainers.algorithms.advantages import AdvantageBatch, PerToken, per_episode
from trainers.algorithms.algorithm import Algorithm
from trainers.algorithms.estimators import batch_baseline
from trainers.algorithms.options import AlgorithmOptions


def advantages(batch: AdvantageBatch, options: AlgorithmOptions) -> PerToken:
    return per_episode(batch, batch_baseline(batch.reward_B, batch.keep_B))


REINFORCE = Algorithm("reinforce", AlgorithmOptions, advantages)
