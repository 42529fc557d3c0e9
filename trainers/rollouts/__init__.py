"""Rollouts of a run: which tasks are next, the sampler, the opponents, and the collection of episodes."""
