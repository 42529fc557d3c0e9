"""FrozenLake: cross a frozen lake without falling into a hole, one move per turn."""

from rllm_gym.envs.frozen_lake.env import Advice, FrozenLakeEnv
from rllm_gym.envs.frozen_lake.lake import Lake, OptimalValues, optimal_values, parse_map
from rllm_gym.envs.frozen_lake.map_generation import default_max_turns, difficulty_bounds
from rllm_gym.envs.frozen_lake.rendering import Symbols

__all__ = [
    "Advice",
    "FrozenLakeEnv",
    "Lake",
    "OptimalValues",
    "Symbols",
    "default_max_turns",
    "difficulty_bounds",
    "optimal_values",
    "parse_map",
]
