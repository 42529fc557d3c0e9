"""Grading of repository changes with hidden tests. The environment provides the changed tree."""

from rllm_gym.grading.swe.change_filter import AllowedChanges, allowed_changes, is_test_infrastructure, is_test_path
from rllm_gym.grading.swe.grade import (
    check_repository_task,
    check_repository_task_sync,
    grade_repository,
    grade_repository_sync,
    record_trace_sync,
)
from rllm_gym.grading.swe.log_parsers import LOG_PARSERS
from rllm_gym.grading.swe.observed_grading import record_trace
from rllm_gym.grading.swe.verdict import RepositoryTests, RepositoryVerdict

__all__ = [
    "LOG_PARSERS",
    "AllowedChanges",
    "RepositoryTests",
    "RepositoryVerdict",
    "allowed_changes",
    "check_repository_task",
    "check_repository_task_sync",
    "grade_repository",
    "grade_repository_sync",
    "is_test_infrastructure",
    "is_test_path",
    "record_trace",
    "record_trace_sync",
]
