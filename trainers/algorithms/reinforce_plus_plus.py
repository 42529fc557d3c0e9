"""REINFORCE++ (Hu 2025)."""

from __future__ import annotations

from trainers.algorithms.advantages import AdvantageBatch, PerToken, token_decisions, whitened_returns
from trainers.algorithms.algorithm import Algorithm
from trainers.algorithms.options import DiscountOptions


def advantages(batch: AdvantageBatch, options: DiscountOptions) -> PerToken:
    """Discounted returns per token, whitened over the batch."""
    return whitened_returns(batch, token_decisions(batch), options.gamma)


REINFORCE_PLUS_PLUS = Algorithm("reinforce++", DiscountOptions, advantages)
