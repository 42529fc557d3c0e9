"""Generalized advantage estimation, and the returns and values that it is made of: pure functions of numpy arrays.

T is the number of decisions (turns or tokens) of one agent in one episode, in order.
"""

from __future__ import annotations

import numpy as np

from trainers.array_types import FloatArray


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


def discounted_returns(reward_T: FloatArray, gamma: float) -> FloatArray:
    """Compute discounted returns: ``G_t = r_t + gamma * G_{t+1}``, with 0 after the last decision.

    Per turn: ReBN (GEM, Liu et al. 2025); per token: REINFORCE++ (Hu 2025).

    >>> discounted_returns(np.array([0.0, 0.0, 1.0]), 0.5).tolist()
    [0.25, 0.5, 1.0]
    """
    return gae(reward_T, np.zeros(len(reward_T)), 0.0, gamma=gamma, lam=1.0)


def explained_variance(value_N: FloatArray, return_N: FloatArray) -> float:
    """Compute ``1 - Var(return - value) / Var(return)``: 1 is a perfect prediction, 0 no better than a constant, < 0
    worse.
    """
    spread = float(np.var(return_N)) if len(return_N) else 0.0
    return 1.0 - float(np.var(return_N - value_N)) / spread if spread > 0 else 0.0
