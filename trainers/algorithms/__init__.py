"""Algorithms of reinforcement learning: what to sample, rewards to per-token advantages, a loss."""

from trainers.algorithms.table import Algorithm, Draw, Signals, Targets, make_algorithm

__all__ = ["Algorithm", "Draw", "Signals", "Targets", "make_algorithm"]
