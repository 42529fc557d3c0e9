"""The turns of a sample in the order they were taken, independent of the sequence that contains their tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainers.array_types import FloatArray, IntArray
from trainers.samples import Sample


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions of one agent in one episode, in order: its turns or its tokens.

    Attributes:
        sample: Index of the episode.
        tokens: Sampled tokens of each decision, as indices into the sampled tokens of the sample.
        reward_T: Reward after each decision, including shaping.
        agent: Index of the agent in the episode.
    """

    sample: int
    tokens: list[IntArray]
    reward_T: FloatArray
    agent: int = 0


def turns_of(sample: Sample, index: int = 0) -> list[Decisions]:
    """Return the turns of each agent in order, of the sample with this index in the batch.

    The reward of a turn without sampled tokens is added to the previous turn or, if there is none, to the next one.
    """
    tokens: dict[tuple[int, int], IntArray] = {}
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
        rewards_T = np.array([reward_of[turn] for turn in decided])
        turns.append(Decisions(index, [tokens[trajectory, turn] for turn in decided], rewards_T, trajectory))
    return turns
