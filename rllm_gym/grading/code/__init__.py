"""Is a program right? It is run behind walls; the judgement is made where it cannot reach."""

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
