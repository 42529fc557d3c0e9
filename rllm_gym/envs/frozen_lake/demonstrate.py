"""Weak demonstrations for supervised fine-tuning: the answer format, and a hint of where to go."""

from __future__ import annotations

import random

from rllm_gym.envs.frozen_lake.env import FrozenLakeEnv
from rllm_gym.parsing.moves import Move


def noisy_oracle(env: FrozenLakeEnv, rng: random.Random, optimal: float = 0.6) -> str:
    """The optimal move with probability ``optimal``, else any of the four, as the bare word.

    A demonstration policy of ``rllm-gym sft``: called before every turn with the unwrapped environment.

    Raises:
        ValueError: ``optimal`` is no probability.
    """
    if not 0 <= optimal <= 1:
        raise ValueError(f"optimal={optimal!r} must be between 0 and 1")
    if rng.random() < optimal:
        return env.oracle().action
    return rng.choice(list(Move)).word
