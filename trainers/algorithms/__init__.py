"""Reinforcement learning algorithms: what to sample, per-token advantages from rewards, and the loss."""

from trainers.algorithms.advantages import AdvantageBatch, PerToken, per_episode
from trainers.algorithms.algorithm import Algorithm, AlgorithmRun, RolloutRequest
from trainers.algorithms.losses import CorrectionOptions, Loss, sequence_mean, sequence_sum
from trainers.algorithms.options import (
    AlgorithmOptions,
    DiscountOptions,
    GroupOptions,
    GroupRelativeOptions,
    LossOptions,
    RatioOptions,
    RewardOptions,
    ValueOptions,
    ratio_bound,
)
from trainers.algorithms.registry import ALGORITHMS, LOSSES, algorithm_options, make_algorithm

__all__ = [
    "ALGORITHMS",
    "LOSSES",
    "AdvantageBatch",
    "Algorithm",
    "AlgorithmOptions",
    "AlgorithmRun",
    "CorrectionOptions",
    "DiscountOptions",
    "GroupOptions",
    "GroupRelativeOptions",
    "Loss",
    "LossOptions",
    "PerToken",
    "RatioOptions",
    "RewardOptions",
    "RolloutRequest",
    "ValueOptions",
    "algorithm_options",
    "make_algorithm",
    "per_episode",
    "ratio_bound",
    "sequence_mean",
    "sequence_sum",
]
