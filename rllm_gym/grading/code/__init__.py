"""Grading of programs. They run in a sandbox; correctness is decided in a process that they cannot access."""

from rllm_gym.grading.code.grade import grade_program, grade_program_sync, validate
from rllm_gym.grading.code.verdict import CodeVerdict, FunctionTests, StdioTest, StdioTests, TestOutcome, TestStyle

__all__ = [
    "CodeVerdict",
    "FunctionTests",
    "StdioTest",
    "StdioTests",
    "TestOutcome",
    "TestStyle",
    "grade_program",
    "grade_program_sync",
    "validate",
]
