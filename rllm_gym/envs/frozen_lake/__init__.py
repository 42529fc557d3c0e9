"""FrozenLake: cross a frozen lake without falling into a hole, one move per turn."""

from rllm_gym.envs.frozen_lake.env import Advice, FrozenLakeEnv
from rllm_gym.envs.frozen_lake.lake import Lake, Prospects, parse_map, prospects
from rllm_gym.envs.frozen_lake.tasks import default_max_turns, difficulty_bounds
from rllm_gym.envs.frozen_lake.view import Symbols

__all__ = [
    "Advice",
    "FrozenLakeEnv",
    "Lake",
    "Prospects",
    "Symbols",
    "default_max_turns",
    "difficulty_bounds",
    "parse_map",
    "prospects",
]
