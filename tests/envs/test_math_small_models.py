"""Math for models of 100 million parameters: problems of one step, answer formats they can write, solved examples."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import pytest

import rllm_gym  # noqa: F401 - registers the ids
from rllm_gym.core import SPLITS, TaskError
from rllm_gym.envs.math import math_tasks
from rllm_gym.envs.math.families import ONE_STEP_FAMILIES
from rllm_gym.grading import grade_math


def graded(reply: str, gold: str, answer_format: Any) -> float:
    env = gym.make(
        "rllm/Math-v0", tasks=[{"question": "?", "answer": gold}], answer_format=answer_format, grading_timeout=120.0
    )
    env.reset(seed=0)
    return float(env.step(reply)[1])


def recomputed(problem: str) -> int:
    """Solve a problem of difficulty 0 from its text."""
    numbers = [int(number) for number in re.findall(r"\d+", problem)]
    if "next number" in problem:
        return 2 * numbers[-1] - numbers[-2]
    first, second = numbers
    return first * second if "*" in problem else first - second if re.search(" - |away", problem) else first + second


def test_problems_of_one_step_are_right_and_their_splits_share_none() -> None:
    seen: dict[str, set[str]] = {}
    for split in SPLITS:
        tasks = list(math_tasks(difficulty=0, split=split, size=300))
        assert {task.data["family"] for task in tasks} == set(ONE_STEP_FAMILIES)
        assert all(int(task.data["gold"]) == recomputed(task.content) for task in tasks)
        seen[split] = {task.content for task in tasks}
    assert not seen["train"] & seen["test"]
    assert not (seen["train"] | seen["test"]) & seen["validation"]
    assert math_tasks(difficulty=0)[0].task_id == "math.d0-0/train/0/0"
    assert {task.data["difficulty"] for task in math_tasks(difficulty=(0, 2), size=100)} == {0, 1, 2}
    with pytest.raises(TaskError, match="no problems of difficulty 0; those that do are arithmetic"):
        math_tasks(families="geometry", difficulty=0)


def test_an_answer_line_is_read_as_models_write_it() -> None:
    for reply in ("Answer: 21", "12 + 9 = 21.\n\n**Answer:** 21.", "answer: $21$", "Answer: 20\nNo.\nFinal answer: 21",
                  "**Final Answer**: \\boxed{21}", "> Answer: 21 ", "<think>Answer: 3</think>Answer: 21"):  # fmt: skip
        assert graded(reply, "21", "answer_line") == 1, reply
    for reply in (
        "21",
        "The answer is 21",
        "Answer: 21\nAnswer: 20",
        "Answer: 21 or 20",
        "<think>Answer: 21",
        "Answer:",
    ):
        assert graded(reply, "21", "answer_line") == 0, reply
    assert graded("Answer: \\frac{1}{2}", "0.5", "answer_line") == 1


def test_the_last_number_is_read_as_models_write_it() -> None:
    for reply in ("21", "To add 12 and 9, you add them: 12 + 9 = 21.", "**21** apples", "20, no: 21", "\\boxed{21}"):
        assert graded(reply, "21", "last_number") == 1, reply
    wrong = ("21 is 12 + 9", "twenty-one", "<think>21", "-21", "2 1", "21.5", "\u221221", "-$21", "x21", "21^2")
    for reply in wrong:
        assert graded(reply, "21", "last_number") == 0, reply
    for reply, gold in (
        ("x = -3", "-3"),
        ("12-9", "9"),
        ("1,234 dollars", "1234"),
        ("so 3/4", "0.75"),
        ("2.50", "2.5"),
        ("It is \u22125.", "-5"),
        ("2.5e3", "2500"),
        ("12 000", "12000"),
        ("3 1/2", "3.5"),
        ("10^3", "1000"),
        ("$1,234.50", "1234.5"),
        ("-$29", "-29"),
    ):
        assert graded(reply, gold, "last_number") == 1, reply


def test_reading_a_long_reply_takes_bounded_time() -> None:
    """Quadratic reading of these would take hours."""
    for text in (
        "1," * 400_000,
        "1" * 800_000,
        "Answer: " * 100_000,
        "answer " * 100_000,
        "- " * 400_000,
        "1 / " * 200_000,
    ):
        for extract in ("answer_line", "last_number"):
            assert not grade_math(text, "7", extract=extract, timeout=60.0).correct  # type: ignore[arg-type]


def test_the_prompt_names_the_format_and_shows_solved_examples_of_other_problems() -> None:
    for answer_format, rule, reply in (
        ("boxed", "\\boxed{}", r"Reply: \\boxed\{(\d+)\}"),
        ("answer_line", "'Answer: ...'", r"Reply: Answer: (\d+)"),
        ("last_number", "End your reply with the answer", r"Reply: (\d+)"),
    ):
        env = gym.make("rllm/Math-v0", difficulty=0, split="test", examples=3, answer_format=answer_format)
        for seed in range(20):
            observation, _ = env.reset(seed=seed)
            task = env.unwrapped.task  # type: ignore[attr-defined]
            shown = re.findall(rf"Problem: (.*)\n{reply}\n", observation)
            assert len(shown) == len(dict(shown)) == 3
            assert all(recomputed(problem) == int(answer) for problem, answer in shown)
            assert task.content not in dict(shown)
            assert rule in observation.rpartition("Your problem:\n\n" + task.content)[2]
            # The same task has the same prompt: a group's rollouts share it.
            assert env.reset(options={"task": task.task_id})[0] == observation


def test_options_that_do_not_fit_are_refused_with_a_solution() -> None:
    with pytest.raises(ValueError, match="answer_format='box' must be one of 'boxed', 'answer_line', 'last_number'"):
        gym.make("rllm/Math-v0", answer_format="box")
    with pytest.raises(TaskError, match="put examples into the rows"):
        gym.make("rllm/Math-v0", tasks=[{"question": "?", "answer": "1"}], examples=1)
    for gold in ("x", "11\\sqrt{2}", "x^2 + 1", "(3, 4)", "3\\pi"):
        env = gym.make("rllm/Math-v0", tasks=[{"question": "?", "answer": gold}], answer_format="last_number")
        with pytest.raises(TaskError, match="which is no number"):
            env.reset()
    with pytest.raises(ValueError, match="the calculator needs 'boxed'"):
        gym.make("rllm/MathMultiTurn-v0", calculator=True, answer_format="answer_line")


def test_a_second_turn_keeps_the_format() -> None:
    env = gym.make("rllm/MathMultiTurn-v0", difficulty=0, answer_format="last_number")
    env.reset(seed=0)
    gold = int(env.unwrapped.task.data["gold"])  # type: ignore[attr-defined]
    observation, reward, terminated, _, _ = env.step("no idea")
    assert "the reply has no number" in observation
    observation, reward, terminated, _, _ = env.step(f"{gold + 1}")
    assert (reward, terminated) == (0, False)
    assert "boxed" not in observation
    assert env.step(f"It is {gold}.")[1] == 1
