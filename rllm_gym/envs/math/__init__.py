"""Mathematics: the environments ``rllm/Math-v0`` and ``rllm/MathMultiTurn-v0``, and their built-in problems."""

from rllm_gym.envs.math.env import MathEnv, MathMultiTurnEnv, math_tasks
from rllm_gym.envs.math.families import FAMILIES

__all__ = ["FAMILIES", "MathEnv", "MathMultiTurnEnv", "math_tasks"]
