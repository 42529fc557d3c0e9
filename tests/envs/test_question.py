"""QuestionEnv as the base of a user's own environment, with a grader that is a function or a coroutine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rllm_gym.core import AsyncTextEnv, InvalidAction, Outcome, Task, TaskError
from rllm_gym.data import Taskset
from rllm_gym.envs.question import QuestionEnv
from rllm_gym.testing import check_text_env

ROWS = [{"question": f"What is {number} + {number}?", "answer": str(2 * number)} for number in range(100)]


def graded(task: Task, action: str) -> Outcome:
    if not action.strip().isdecimal():
        raise InvalidAction("Reply with a number.")
    correct = action.strip() == task.data["answer"]
    return Outcome("Yes." if correct else "No.", {"correct": float(correct)}, terminated=True, success=correct)


class SumEnv(QuestionEnv):
    """Double a number."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**{"tasks": Taskset.from_rows(ROWS, name="sums"), "max_turns": 1} | arguments)

    def _act(self, action: str) -> Outcome:
        return graded(self.task, action)


class AsyncSumEnv(QuestionEnv, AsyncTextEnv):
    """Double a number; a wrong answer may be revised."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**{"tasks": Taskset.from_rows(ROWS, name="sums"), "max_turns": 3} | arguments)

    def _question(self, task: Task) -> str:
        self._right = task.data["answer"]
        return f"{super()._question(task)} Reply with a number."

    async def _async_act(self, action: str) -> Outcome:
        await asyncio.sleep(0)
        outcome = graded(Task("", "", {"answer": self._right}), action)
        outcome.terminated = outcome.success
        return outcome


@pytest.mark.parametrize("env_class", [SumEnv, AsyncSumEnv])
def test_an_environment_that_only_grades_passes_the_checks(env_class: type[QuestionEnv]) -> None:
    check_text_env(env_class, oracle=lambda env: env.unwrapped.task.data["answer"]).raise_for_failures()


@pytest.mark.parametrize("env_class", [SumEnv, AsyncSumEnv])
def test_each_reply_is_rendered_once_with_its_result(env_class: type[QuestionEnv]) -> None:
    env = env_class(render_mode="ansi", max_turns=3)
    env.reset(seed=0, options={"task": 7})
    for reply in ("hm", "14"):
        env.step(reply)
    assert env.render() == (
        "Task sums/7\n  What is 7 + 7?\nReply 1\n  hm\nResult\n  Reply with a number.\nReply 2\n  14\nResult\n  Yes."
    )
    env.reset(seed=0)
    assert "Reply" not in str(env.render())
    env.close()


def test_a_question_that_does_not_fit_is_an_error_of_the_task() -> None:
    with pytest.raises(TaskError, match=r"'sums/7' needs an observation of 14 characters.*max_observation_chars=10"):
        SumEnv(max_observation_chars=10).reset(options={"task": 7})
