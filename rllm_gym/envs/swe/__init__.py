"""Repository tasks: the environment ``rllm/SWE-v0``, its rows, and its built-in tasks."""

from rllm_gym.envs.swe.env import SWEEnv
from rllm_gym.envs.swe.repositories import swe_tasks

__all__ = ["SWEEnv", "swe_tasks"]
