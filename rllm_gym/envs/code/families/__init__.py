"""The built-in problems: a source, then steps drawn from a vocabulary, told, tested and solved by the same description."""

from rllm_gym.envs.code.families.compose import DIFFICULTIES, FAMILIES, Mixture, code_tasks, reference_solution

__all__ = ["DIFFICULTIES", "FAMILIES", "Mixture", "code_tasks", "reference_solution"]
