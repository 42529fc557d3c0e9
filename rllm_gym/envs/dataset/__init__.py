"""Prompts of a data set with reward functions as an environment; :mod:`~rllm_gym.envs.dataset.rewards` calls them."""

from rllm_gym.envs.dataset.env import DatasetEnv, load_prompts
from rllm_gym.envs.dataset.rewards import RewardFunctions

__all__ = ["DatasetEnv", "RewardFunctions", "load_prompts"]
