"""Reinforcement learning algorithms: what to sample, per-token advantages from rewards, and the loss."""

from trainers.algorithms.table import Algorithm, Asked, Draw, Signals, Targets, make_algorithm

__all__ = ["Algorithm", "Asked", "Draw", "Signals", "Targets", "make_algorithm"]
