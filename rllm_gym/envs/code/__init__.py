"""Programming: the environments ``rllm/Code-v0`` and ``rllm/CodeMultiTurn-v0``, and their built-in problems."""

from rllm_gym.envs.code.env import CodeEnv, CodeMultiTurnEnv
from rllm_gym.envs.code.families import ALGORITHMS, FAMILIES, code_tasks, reference_solution
from rllm_gym.envs.code.rows import row_to_code_task

__all__ = [
    "ALGORITHMS",
    "FAMILIES",
    "CodeEnv",
    "CodeMultiTurnEnv",
    "code_tasks",
    "reference_solution",
    "row_to_code_task",
]
