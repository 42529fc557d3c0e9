"""A data set of prompts with reward functions as an environment. :mod:`.rewards` calls the functions."""

from rllm_gym.envs.dataset.env import DatasetEnv, load_prompts
from rllm_gym.envs.dataset.rewards import RewardFunctions

__all__ = ["DatasetEnv", "RewardFunctions", "load_prompts"]
