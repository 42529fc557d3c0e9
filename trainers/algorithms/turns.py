"""The turns of a sample in the order they were taken, independent of the sequence that contains their tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainers.samples import Sample


@dataclass(frozen=True, slots=True)
class SampledTurn:
    """One decision: the tokens sampled in it and their reward.

    Attributes:
        tokens: Indices of its tokens among the sampled tokens of the sample, in the order they were sampled.
        reward: The environment's reward for it, including shaping.
    """

    tokens: NDArray[np.int64]
    reward: float


def turns_of(sample: Sample) -> list[list[SampledTurn]]:
    """Return the turns of each agent in order. The reward of a turn without sampled tokens is added to the previous
    turn or, if there is none, to the next one."""
    tokens: dict[tuple[int, int], NDArray[np.int64]] = {}
    start = 0
    for sequence, trajectory in zip(sample.sequences, sample.trajectory_S, strict=True):
        turn_N = np.asarray(sequence.turns)[np.asarray(sequence.mask) == 1]
        for turn in dict.fromkeys(turn_N.tolist()):
            tokens[trajectory, turn] = start + np.flatnonzero(turn_N == turn)
        start += len(turn_N)
    turns = []
    for trajectory, rewards in enumerate(sample.turn_rewards):
        decided = sorted(turn for owner, turn in tokens if owner == trajectory)
        reward_of = dict.fromkeys(decided, 0.0)
        for turn, reward in enumerate(rewards):
            recipient = max((other for other in decided if other <= turn), default=decided[0] if decided else None)
            if recipient is not None:
                reward_of[recipient] += reward
        turns.append([SampledTurn(tokens[trajectory, turn], reward_of[turn]) for turn in decided])
    return turns
