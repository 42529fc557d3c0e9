"""A demonstration policy for supervised fine-tuning: shows the answer format and is right more often than chance."""

from __future__ import annotations

import random

from rllm_gym.envs.frozen_lake.env import FrozenLakeEnv
from rllm_gym.parsing.moves import Move


def noisy_oracle(env: FrozenLakeEnv, rng: random.Random, optimal: float = 0.6) -> str:
    """Return the optimal move with probability ``optimal``, else one of the four moves at random, as a bare word.

    This is a demonstration policy for ``rllm-gym sft``. It is called before every turn with the unwrapped environment.

    Raises:
        ValueError: ``optimal`` is not a probability.
    """
    if not 0 <= optimal <= 1:
        raise ValueError(f"optimal={optimal!r} must be between 0 and 1")
    if rng.random() < optimal:
        return env.oracle().action
    return rng.choice(list(Move)).word
