"""The built-in problems: a source, then steps out of a vocabulary; one recipe tells, tests and solves a problem."""

from rllm_gym.envs.code.families.compose import DIFFICULTIES, FAMILIES, Mixture, code_tasks, reference_solution

__all__ = ["DIFFICULTIES", "FAMILIES", "Mixture", "code_tasks", "reference_solution"]
