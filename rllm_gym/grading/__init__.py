"""Is an answer right? Mathematics and programs; what is asked and how it is rewarded lives with the environments."""

from rllm_gym.grading.code import CodeVerdict, FunctionTests, StdioTest, StdioTests, grade_program, grade_program_sync
from rllm_gym.grading.math.grade import MathVerdict, agrade_math, grade_math

__all__ = [
    "CodeVerdict",
    "FunctionTests",
    "MathVerdict",
    "StdioTest",
    "StdioTests",
    "agrade_math",
    "grade_math",
    "grade_program",
    "grade_program_sync",
]
