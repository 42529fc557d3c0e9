"""The built-in programming problems: a recipe (a source, then steps) gives the statement, the tests and a solution."""

from rllm_gym.envs.code.families.algorithms import ALGORITHMS
from rllm_gym.envs.code.families.compose import FAMILIES, CodeTaskMixture, code_tasks, reference_solution

__all__ = ["ALGORITHMS", "FAMILIES", "CodeTaskMixture", "code_tasks", "reference_solution"]
