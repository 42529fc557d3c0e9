"""Rewards to advantages: pure functions of numpy arrays, each a formula with its source.

B is the number of episodes, N the number of sampled tokens. ``group_B`` holds any labels; equal labels, one group.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
LabelArray = NDArray[np.generic]

_STD_EPSILON = 1e-6


def group_relative(reward_B: FloatArray, group_B: LabelArray, *, normalize_std: bool = False) -> FloatArray:
    """GRPO: reward minus the mean of its group, optionally over (standard deviation of the group + 1e-6).

    DeepSeekMath (Shao et al. 2024), equation 3; without the deviation: Dr. GRPO (Liu et al. 2025).

    >>> group_relative(np.array([1.0, 0.0, 5.0]), np.array([0, 0, 1])).tolist()
    [0.5, -0.5, 0.0]
    """
    adv_B = np.zeros(len(reward_B))
    for members in _groups(group_B):
        reward_G = reward_B[members]
        adv_G = reward_G - reward_G.mean()
        if normalize_std:
            adv_G = adv_G / (reward_G.std() + _STD_EPSILON)
        adv_B[members] = adv_G
    return adv_B


def leave_one_out(reward_B: FloatArray, group_B: LabelArray) -> FloatArray:
    """RLOO: reward minus the mean of the others of its group, which is n/(n-1) times (reward - group mean).

    Ahmadian et al. 2024. An episode alone in its group has nothing to be compared with: 0.
    """
    adv_B = np.zeros(len(reward_B))
    for members in _groups(group_B):
        reward_G = reward_B[members]
        if len(reward_G) > 1:
            adv_B[members] = len(reward_G) / (len(reward_G) - 1) * (reward_G - reward_G.mean())
    return adv_B


def greedy_baseline(reward_B: FloatArray, group_B: LabelArray, greedy_B: BoolArray) -> FloatArray:
    """ReMax: reward minus the reward of the greedy episode of the same group; 0 for the greedy ones themselves.

    Li et al. 2023. A group whose greedy episode was lost has no baseline: 0.
    """
    adv_B = np.zeros(len(reward_B))
    for members in _groups(group_B):
        greedy = members & greedy_B
        if greedy.any():
            others = members & ~greedy_B
            adv_B[others] = reward_B[others] - reward_B[greedy].mean()
    return adv_B


def batch_baseline(reward_B: FloatArray) -> FloatArray:
    """REINFORCE with the mean of the batch as its baseline (Williams 1992)."""
    return reward_B - reward_B.mean() if len(reward_B) else reward_B


def varied(reward_B: FloatArray, group_B: LabelArray) -> BoolArray:
    """Whether the rewards of the episode's group differ: where they do not, there is nothing to learn."""
    varied_B = np.zeros(len(reward_B), dtype=bool)
    for members in _groups(group_B):
        varied_B[members] = np.ptp(reward_B[members]) > 0
    return varied_B


def _groups(group_B: LabelArray) -> Iterator[BoolArray]:
    for label in dict.fromkeys(group_B.tolist()):
        yield group_B == label
