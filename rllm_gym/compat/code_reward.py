"""rLLM's reward function for programs: its data sets' forms of tests, graded in the sandbox."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from rllm_gym.compat.rewards import RewardConfig, RewardOutput, text_of
from rllm_gym.core import EnvironmentFault, InvalidAction, TaskError

_TIME_LIMIT_S = 6.0  # rLLM's for a test
_MEMORY_MB = 512
_CHECKED = re.compile(r"^check\((.+)\)\s*$", re.MULTILINE)
_PACKED = ("taco", "apps", "code_contests")
_LISTED = ("livecodebench", "codeforces", "primeintellect")
_SOURCES = (*_PACKED, *_LISTED, "kodcode", "humanevalplus", "leetcode")
# Programs for these data sets rely on the imports of their graders.
_IMPORTS = """\
from typing import *
from collections import *
from functools import *
from itertools import *
import bisect, collections, copy, functools, heapq, itertools, json, math, operator, random, re, string, sys
from bisect import *
from heapq import *
from math import *
"""


class RewardCodeFn:
    """Runs the program in the last fenced block of a reply against the tests in ``task_info["ground_truth"]``, in the
    form of the data set ``task_info["data_source"]``.

    Args:
        config: The rewards. Of the rest of :class:`RewardConfig` nothing applies.
    """

    def __init__(self, config: RewardConfig | None = None) -> None:
        self.config = config or RewardConfig()

    def __call__(self, task_info: Mapping[str, Any], action: Any) -> RewardOutput:
        """Return the reward: the correct one if all tests pass. ``metadata`` has ``all_passed``, ``passed_tests``,
        ``total_tests``, and ``test_results``, which ends with the first test that failed.

        Raises:
            TaskError: The row has no tests that can be run.
            EnvironmentFault: The tests cannot be graded, or the sandbox failed.
        """
        from rllm_gym.envs.code.env import tests_of
        from rllm_gym.envs.code.prompt import assemble_source
        from rllm_gym.grading.code import StdioTests, grade_program_sync, ungradable_reason
        from rllm_gym.parsing.program import program_of
        from rllm_gym.sandbox import shared_pool

        data = _data_of(task_info)
        tests = tests_of(data, _TIME_LIMIT_S, _MEMORY_MB)
        reason = "" if isinstance(tests, StdioTests) else ungradable_reason(tests)
        try:
            program = program_of(text_of(action))
        except InvalidAction as error:
            missing = {"error": f"No code found in model response: {error}"}
            return RewardOutput(reward=self.config.format_error_reward, metadata=missing, is_correct=False)
        if not reason:
            source = assemble_source(program, data)
            if "__future__" not in source:  # which has to come first
                source = _IMPORTS + source
            verdict = grade_program_sync(shared_pool(), source, tests, stop_at_first_failure=True, show_expected=True)
            reason = "" if verdict.correct else verdict.ungradable
        if reason:
            raise EnvironmentFault(f"the tests of this row cannot be graded: {reason}", kind="ungradable_task")
        results = []
        for number, outcome in enumerate(verdict.outcomes):
            case = tests.tests[number] if isinstance(tests, StdioTests) else None
            results.append(
                {
                    "input": outcome.name if case is None else case.stdin,
                    "expected": "" if case is None else case.stdout,
                    "passed": outcome.passed,
                    "error_message": outcome.message or None,
                }
            )
        metadata = {
            "all_passed": verdict.correct,
            "passed_tests": sum(outcome.passed for outcome in verdict.outcomes),
            "total_tests": verdict.total,
            "test_results": results,
            "error": verdict.error or None,
        }
        reward = self.config.correct_reward if verdict.correct else self.config.incorrect_reward
        return RewardOutput(reward=reward, metadata=metadata, is_correct=verdict.correct)


def code_reward_fn(task_info: Mapping[str, Any], action: Any) -> RewardOutput:
    """Return reward 1 if the program passes all tests, else 0; see :class:`RewardCodeFn`."""
    return RewardCodeFn()(task_info, action)


def _data_of(row: Mapping[str, Any]) -> Mapping[str, Any]:
    from rllm_gym.envs.code.rows import row_to_code_task

    source, tests = row.get("data_source", ""), row.get("ground_truth")
    if source not in _SOURCES:
        raise TaskError(f"data_source={source!r} of a code row is not one of {', '.join(_SOURCES)}")
    if not tests:
        raise TaskError(f"this code row has no tests in 'ground_truth'; its keys are {sorted(map(str, row))}")
    prompt = {"prompt": row.get("question") or row.get("problem") or "(no problem)"}
    if source in _PACKED:
        return row_to_code_task({**prompt, "input_output": tests}, "row").data
    if source in _LISTED:
        tests = _json(tests)
        first = tests[0] if isinstance(tests, list) and isinstance(tests[0], Mapping) else {}
        return row_to_code_task({**prompt, "tests": tests, "metadata": first.get("metadata") or {}}, "row").data
    if source == "leetcode":
        tests = tests.get("functional") if isinstance(tests, Mapping) else tests
    if not isinstance(tests, str):
        raise TaskError(f"the 'ground_truth' of a {source} row is {type(tests).__name__}; it must be test code")
    if source == "kodcode":
        return row_to_code_task({**prompt, "test": tests}, "row").data
    called = _CHECKED.findall(tests)
    entry_point = called[-1].strip() if called else row.get("entry_point")
    if not entry_point:
        raise TaskError(f"the tests of a {source} row must end with check(NAME), or the row must have 'entry_point'")
    # The grader calls check() itself.
    return row_to_code_task({**prompt, "test": _CHECKED.sub("", tests), "entry_point": entry_point}, "row").data


def _json(tests: Any) -> Any:
    if not isinstance(tests, str):
        return tests
    try:
        return json.loads(tests)
    except (ValueError, RecursionError) as error:
        raise TaskError(f"the 'ground_truth' of a code row is not JSON ({error})") from error
