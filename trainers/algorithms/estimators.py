"""Advantages from rewards: pure functions of numpy arrays, each a formula with its source.

B is the number of episodes, T the number of decisions (turns or tokens) of one agent in one episode, in order, N the
number of sampled tokens. ``group_B`` holds arbitrary labels; episodes with equal labels form a group.
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
    """Compute GRPO advantages: reward minus the group's mean, optionally divided by (standard deviation of the group
    + 1e-6).

    DeepSeekMath (Shao et al. 2024), equation 3; without the division: Dr. GRPO (Liu et al. 2025).

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
    """Compute RLOO advantages: reward minus the mean of the group's others, equal to n/(n-1) times (reward - group
    mean).

    Ahmadian et al. 2024. A single episode in a group has nothing to compare with and gets 0.
    """
    adv_B = np.zeros(len(reward_B))
    for members in _groups(group_B):
        reward_G = reward_B[members]
        if len(reward_G) > 1:
            adv_B[members] = len(reward_G) / (len(reward_G) - 1) * (reward_G - reward_G.mean())
    return adv_B


def greedy_baseline(reward_B: FloatArray, group_B: LabelArray, greedy_B: BoolArray) -> FloatArray:
    """Compute ReMax advantages: reward minus the reward of the group's greedy episode; 0 for greedy episodes.

    Li et al. 2023, equation 7. Groups without a greedy episode, for example because it failed, get 0.
    """
    adv_B = np.zeros(len(reward_B))
    for members in _groups(group_B):
        greedy = members & greedy_B
        if greedy.any():
            others = members & ~greedy_B
            adv_B[others] = reward_B[others] - reward_B[greedy].mean()
    return adv_B


def batch_baseline(reward_B: FloatArray, counted_B: BoolArray) -> FloatArray:
    """Compute REINFORCE advantages with the batch mean over ``counted_B`` as the baseline (Williams 1992)."""
    return reward_B - reward_B[counted_B].mean() if counted_B.any() else np.zeros(len(reward_B))


def discounted_returns(reward_T: FloatArray, gamma: float) -> FloatArray:
    """Compute discounted returns: ``G_t = r_t + gamma * G_{t+1}``, with 0 after the last decision.

    Per turn: ReBN (GEM, Liu et al. 2025); per token: REINFORCE++ (Hu 2025).

    >>> discounted_returns(np.array([0.0, 0.0, 1.0]), 0.5).tolist()
    [0.25, 0.5, 1.0]
    """
    return gae(reward_T, np.zeros(len(reward_T)), 0.0, gamma=gamma, lam=1.0)


def gae(reward_T: FloatArray, value_T: FloatArray, final_value: float, *, gamma: float, lam: float) -> FloatArray:
    """Compute GAE: ``A_t = delta_t + gamma * lam * A_{t+1}``, ``delta_t = r_t + gamma * V_{t+1} - V_t``.

    Schulman et al. 2015, equation 16; with turns as decisions: Turn-PPO (2025). Environment tokens between two
    decisions are not decisions: the last token of a turn bootstraps from the first token of the next turn.

    Args:
        reward_T: Reward after each decision.
        value_T: Value of the state of each decision.
        final_value: Value of the state after the last decision: 0 if the episode terminated.
        gamma: Discount factor.
        lam: Interpolation between returns (1) and values (0).
    """
    adv_T = np.zeros(len(reward_T))
    after, next_value = 0.0, final_value
    for t in reversed(range(len(reward_T))):
        after = reward_T[t] + gamma * next_value - value_T[t] + gamma * lam * after
        adv_T[t], next_value = after, value_T[t]
    return adv_T


def whitening_stats(value_N: FloatArray) -> tuple[float, float]:
    """Return shift and scale that normalize the values to mean 0 and standard deviation 1; constant values become 0."""
    return (float(value_N.mean()), 1.0 / (float(value_N.std()) + _STD_EPSILON)) if len(value_N) else (0.0, 1.0)


def has_variance(reward_B: FloatArray, group_B: LabelArray) -> BoolArray:
    """Return for each episode whether the rewards of its group differ; otherwise the group carries no learning
    signal.
    """
    varied_B = np.zeros(len(reward_B), dtype=bool)
    for members in _groups(group_B):
        varied_B[members] = np.ptp(reward_B[members]) > 0
    return varied_B


def explained_variance(value_N: FloatArray, return_N: FloatArray) -> float:
    """Compute ``1 - Var(return - value) / Var(return)``: 1 is a perfect prediction, 0 no better than a constant, < 0
    worse.
    """
    spread = float(np.var(return_N)) if len(return_N) else 0.0
    return 1.0 - float(np.var(return_N - value_N)) / spread if spread > 0 else 0.0


def _groups(group_B: LabelArray) -> Iterator[BoolArray]:
    for label in dict.fromkeys(group_B.tolist()):
        yield group_B == label
