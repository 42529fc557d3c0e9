"""Reinforcement learning algorithms: what to sample, per-token advantages from rewards, and the loss."""

from trainers.algorithms.registry import (
    Algorithm,
    ModelSignals,
    RolloutRequest,
    SignalName,
    TokenTargets,
    make_algorithm,
)

__all__ = ["Algorithm", "ModelSignals", "RolloutRequest", "SignalName", "TokenTargets", "make_algorithm"]
