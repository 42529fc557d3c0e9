"""ReBN (GEM, Liu et al. 2025)."""

from __future__ import annotations

from trainers.algorithms.advantages import AdvantageBatch, PerToken, turn_decisions, whitened_returns
from trainers.algorithms.algorithm import Algorithm
from trainers.algorithms.options import DiscountOptions


def advantages(batch: AdvantageBatch, options: DiscountOptions) -> PerToken:
    """Discounted returns per turn, whitened over the batch."""
    return whitened_returns(batch, turn_decisions(batch), options.gamma)


REBN = Algorithm("rebn", DiscountOptions, advantages)
