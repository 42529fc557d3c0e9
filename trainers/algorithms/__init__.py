"""Algorithms of reinforcement learning: what to sample, rewards to per-token advantages, a loss."""

from trainers.algorithms.table import Algorithm, Asked, Draw, Signals, Targets, make_algorithm

__all__ = ["Algorithm", "Asked", "Draw", "Signals", "Targets", "make_algorithm"]
