"""Grading of mathematics, programs, repositories and short answers. Tasks and rewards are in ``rllm_gym.envs``."""

from rllm_gym.grading.code import CodeVerdict, FunctionTests, StdioTest, StdioTests, grade_program, grade_program_sync
from rllm_gym.grading.math.grade import MathVerdict, agrade_math, grade_math
from rllm_gym.grading.swe import RepositoryTests, RepositoryVerdict, grade_repository, grade_repository_sync

__all__ = [
    "CodeVerdict",
    "FunctionTests",
    "MathVerdict",
    "RepositoryTests",
    "RepositoryVerdict",
    "StdioTest",
    "StdioTests",
    "agrade_math",
    "grade_math",
    "grade_program",
    "grade_program_sync",
    "grade_repository",
    "grade_repository_sync",
]
