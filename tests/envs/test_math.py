"""``rllm/Math-v0`` and ``rllm/MathMultiTurn-v0``: real data is graded correctly and the gold answer is never shown."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.error import ResetNeeded
from parsing.checks import assert_all_raise

import rllm_gym  # noqa: F401 - registers the ids
from rllm_gym.core import SPLITS, EnvironmentFault, Task, TaskError
from rllm_gym.data import Taskset
from rllm_gym.envs.math import FAMILIES, MathEnv, MathMultiTurnEnv, math_tasks
from rllm_gym.envs.math import env as math_env_module
from rllm_gym.envs.math.answer_form import repeats_problem

IDS = ("rllm/Math-v0", "rllm/MathMultiTurn-v0")
ROWS = [{"question": "What is 2 + 3?", "answer": "5"}]


def make(env_id: str = IDS[0], **arguments: Any) -> gym.Env[str, str]:
    """Make the environment with a time limit that a correct answer meets even on a machine that stalls."""
    return gym.make(env_id, **({"grading_timeout": 120.0} | arguments))


def single(**arguments: Any) -> gym.Env[str, str]:
    env = make(**({"tasks": ROWS} | arguments))
    env.reset(seed=0)
    return env


def multi(**arguments: Any) -> gym.Env[str, str]:
    env = make(IDS[1], **({"tasks": ROWS} | arguments))
    env.reset(seed=0)
    return env


# Real data


def test_gsm8k_and_math_500_are_task_sets(shared_data: Path) -> None:
    """Some rows of each; tests/grading/math grades all of them."""
    for name, number, field in (("gsm8k_test", 1319, "answer"), ("math500", 500, "solution")):
        path = shared_data / f"{name}.jsonl"
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        parts = [{task.content for task in make(tasks=path, split=split).unwrapped.tasks} for split in SPLITS]  # type: ignore[attr-defined]
        assert sum(map(len, parts)) == len(set.union(*parts)) == number
        env = make(tasks=str(path))
        for index in range(0, number, 20):
            row = rows[index]
            solution, hashes, gold = row[field].rpartition("#### ")
            right = f"{solution} \\boxed{{{gold}}}" if hashes else row[field]
            for reply, reward in ((right, 1.0), ("\\boxed{31415926}", 0.0)):
                observation, _ = env.reset(options={"task": row.get("unique_id", index)})
                assert row.get("question", row.get("problem")) in observation
                assert env.step(reply)[1] == reward, row


FORMS: list[tuple[Any, str]] = [
    ({"question": "?", "answer": "so 2 + 3 = 5\n#### 1,005"}, "1005"),
    ({"problem": "?", "solution": r"thus \boxed{\frac{1}{2}}", "answer": r"\frac{1}{2}"}, "1/2"),
    ({"problem": "?", "solution": r"thus \boxed{\frac{1}{2}}"}, "0.5"),
    ({"prompt": "?", "gold": 5}, "5"),
    ({"question": "?", "ground_truth": 2.5}, "2.5"),
    ({"question": "?", "answer": "long story, \\boxed{7}"}, "7"),
    ({"question": None, "problem": "?", "answer": "7"}, "7"),
    ({"question": "How long?", "answer": "3.14", "tolerance": 0.01}, "3.15"),
    (Task("mine", "How long?", {"gold": "3.14", "tolerance": 0.01}), r"\pi"),
    ({"question": "Which angle?", "answer": r"\frac{\pi}{3}"}, r"60^\circ"),
    ({"question": "Which points?", "answer": "(2,2), (6,2)"}, r"(2,2)} and \boxed{(6,2)"),
    (Task("mine", "?", {"gold": "7"}), "7"),
    (Task("mine", "?", {"answer": "#### 7"}), "7"),
    ({"task_id": "mine", "content": "?", "data": {"gold": "7"}}, "7"),
]
UNUSABLE: list[tuple[Any, str]] = [
    ({"text": "?", "label": "5"}, r"no problem: .*\['label', 'text'\]"),
    ({"question": "?", "label": "5"}, r"no answer: .*\['label', 'question'\]"),
    ({"question": "", "answer": "5"}, "'question' is ''"),
    ({"question": [{"role": "user"}], "answer": "5"}, "'question' is"),
    ({"question": "?", "answer": ""}, "empty answer"),
    ({"question": "?", "answer": "#### "}, "empty answer"),
    ({"question": "?", "answer": ["5"]}, "type list"),
    ({"question": "?", "answer": True}, "type bool"),
    ({"question": "?", "answer": "5", "tolerance": -1}, "'tolerance' is -1"),
    (Task("mine", "?", {"gold": "5", "tolerance": "much"}), "'tolerance' is 'much'"),
    ({"question": "?", "answer": float("nan")}, "nan"),
    ({"question": "?", "solution": "no box"}, "no '####"),
    ({"question": "x" * 100_000, "answer": "5"}, "100000 characters"),
    (Task("mine", "?", {"hint": "5"}), "no answer"),
]


def test_rows_in_common_formats_are_accepted() -> None:
    wrong = [case for case in FORMS if single(tasks=[case[0]]).step(f"\\boxed{{{case[1]}}}")[1] != 1.0]
    assert wrong == []


def test_a_problem_that_names_radians_or_degrees_is_answered_in_them() -> None:
    for unit, gold, answer in (("radians", r"\frac{\pi}{3}", r"60^\circ"), ("degrees", "60", r"\frac{\pi}{3}")):
        row = {"question": f"Which angle, in {unit}?", "answer": gold}
        assert single(tasks=[row]).step(f"\\boxed{{{answer}}}")[1] == 0.0, unit


def test_an_unusable_row_is_an_error_when_the_environment_is_made() -> None:
    cases = [(row, rf"row 1 of 'math': .*{output}") for row, output in UNUSABLE]
    assert_all_raise(TaskError, lambda row: MathEnv(tasks=[ROWS[0], row]), cases)


def test_other_task_sets_are_accepted() -> None:
    generic = Taskset.from_rows([{"question": "2 + 3?", "answer": "#### 5"}])
    assert single(tasks=generic).step("\\boxed{5}")[1] == 1.0
    env = single()
    env.reset(options={"task": Task("ad hoc", "6 * 7?", {"gold": "42"})})
    assert env.step("\\boxed{42}")[1] == 1.0
    with pytest.raises(TaskError, match="'ad hoc'"):
        env.reset(options={"task": Task("ad hoc", "6 * 7?")})
    with pytest.raises(ResetNeeded):
        env.step("\\boxed{42}")
    assert len(MathEnv(tasks=ROWS * 5, num_tasks=2).tasks) == 2


# Built-in problems


@pytest.mark.parametrize("count", [20, pytest.param(60, marks=pytest.mark.long)])
def test_the_gold_answer_of_every_family_is_correct(count: int) -> None:
    for family in FAMILIES:
        env = make(families=family)
        for index in range(count):
            env.reset(options={"task": index})
            gold = env.unwrapped.task.data["gold"]  # type: ignore[attr-defined]
            _, reward, terminated, _, info = env.step(f"Thus \\boxed{{{gold}}}.")
            assert (reward, terminated, info["success"], info["extracted"]) == (1.0, True, True, gold), family


def test_repeating_the_question_is_never_correct() -> None:
    """Equality alone would reward a model that copies the question."""
    env = make()
    for index in range(300):
        observation, _ = env.reset(options={"task": index})
        question = observation.rpartition("\n\n")[0]
        pieces = re.findall(r"\$([^$]*)\$", question) or [re.sub(r"^(What is|Compute)|[?.]( Give.*)?$", "", question)]
        # Equations are left out: a boxed equation is graded by its right-hand side, which may happen to be correct.
        for piece in {part for text in pieces for part in text.split(" = ")}:
            if piece == env.unwrapped.task.data["gold"]:  # type: ignore[attr-defined]
                continue
            env.reset(options={"task": index})
            assert env.step(f"\\boxed{{{piece}}}")[1] == 0.0, (question, piece)


def test_problems_rarely_repeat() -> None:
    assert all(len({task.content for task in math_tasks(split=split, size=2_000)}) > 1_940 for split in SPLITS)


def test_the_released_problems_never_change() -> None:
    """``-v0`` keeps its meaning: papers and logs refer to what these ids contain."""
    tasks = math_tasks()
    assert [(tasks[index].content, tasks[index].data["gold"]) for index in (0, 1, 999_999)] == RELEASED


RELEASED = [
    ("What is 7/32 - 1/2 - 5/6? Give an integer or a fraction.", "-107/96"),
    ("Write the digits 7 9 7 1 7 8 from smallest to largest, without spaces.", "177789"),
    ("How many times does k occur in this row: j a h j c f f e e h j j c b", "0"),
]


def test_making_a_task_is_cheap() -> None:
    tasks = math_tasks()
    started = time.thread_time()
    for index in range(2_000):
        tasks[index]
    assert (time.thread_time() - started) / 2_000 < 1e-3  # 25 µs on an idle machine


def test_families_difficulty_and_size_are_chosen_and_checked() -> None:
    env = make(families=["linear", "counting"], difficulty=(2, 3), num_tasks=50, split="test", task_seed=9)
    tasks = list(env.unwrapped.tasks)  # type: ignore[attr-defined]
    assert len(tasks) == 50
    assert {task.data["family"] for task in tasks} == {"linear", "counting"}
    assert {task.data["difficulty"] for task in tasks} == {2, 3}
    assert all(task.split == "test" for task in tasks)
    assert tasks[3].task_id == "math.linear+counting.d2-3/test/9/3"
    assert env.reset(options={"task": tasks[3].task_id})[1]["task_id"] == tasks[3].task_id
    for arguments, fault in (
        ({"families": ["poetry"]}, "arithmetic"),
        ({"families": []}, "choose from"),
        ({"difficulty": 9}, "difficulty=9"),
        ({"difficulty": (3, 1)}, "difficulty"),
        ({"difficulty": "hard"}, "difficulty"),
        ({"difficulty": True}, "difficulty"),
        ({"split": "dev"}, "'train', 'validation', 'test'"),
        ({"num_tasks": 0}, "num_tasks"),
        ({"num_tasks": "50"}, "num_tasks"),
        ({"num_tasks": 2.5}, "num_tasks"),
        ({"max_turns": 3}, "MathMultiTurn"),
        ({"grading_timeout": 0}, "grading_timeout"),
        ({"tasks": ROWS, "families": "linear"}, "built-in"),
        ({"tasks": ROWS, "difficulty": 1}, "built-in"),
        ({"tasks": []}, "empty"),
        ({"tasks": "nowhere.jsonl"}, "nowhere"),
        ({"render_mode": "human"}, "render_mode"),
    ):
        with pytest.raises(ValueError, match=fault):
            MathEnv(**arguments)


# The contract


def test_a_reply_without_an_answer_ends_the_episode_with_feedback() -> None:
    for reply, message in (
        ("The answer is 5.", r"no \boxed{}"),
        ("", r"no \boxed{}"),
        ("<think> \\boxed{5}", "never closes"),
        ("\\boxed{}", "empty"),
        ("\\boxed{5", "never closed"),
    ):
        observation, reward, terminated, truncated, info = single().step(reply)
        assert message in observation
        assert (reward, terminated, truncated) == (0.0, True, False)
        assert info["invalid_action"]
        assert (info["stop_reason"], info["success"], info["extracted"]) == ("invalid_action", False, "")
    assert single(invalid_action_penalty=0.25).step("5")[1] == -0.25


def test_no_observation_contains_the_gold_answer() -> None:
    rows = [{"question": "What is six times seven?", "answer": "424242"}]
    replies = ["\\boxed{1}", "nothing", "<think>", "\\boxed{", "\\boxed{}", "<tool_call>{}</tool_call>", "\\boxed{1+1}"]
    for env_id, reply in itertools.product(IDS, replies):
        env = make(env_id, tasks=rows, render_mode="ansi")
        observation, info = env.reset(seed=0)
        output = [observation, str(info)]
        for _ in range(env.unwrapped.max_turns):  # type: ignore[attr-defined]
            step = env.step(reply)
            output += [step[0], str(step[4])]
        assert "424242" not in " ".join(output) + str(env.render())


def test_a_grader_that_breaks_is_a_fault_and_no_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no worker could be started")

    env = single()
    monkeypatch.setattr(math_env_module, "grade_math", broken)
    with pytest.raises(EnvironmentFault, match=r"math/0.*no worker could be started") as raised:
        env.step("\\boxed{5}")
    assert raised.value.kind == "grader"


def test_built_in_problems_require_a_fully_evaluated_answer() -> None:
    task = Task("t", "What is 29 - 48?", {"gold": "-19", "form": "number"})
    for reply, reward in (("29 - 48", 0.0), ("-19", 1.0), ("29 - 48 = -19", 1.0)):
        env = single()
        assert "as one number" in env.reset(options={"task": task})[0]
        observation, got, _, _, info = env.step(f"\\boxed{{{reply}}}")
        assert got == reward
        assert info["extracted"] == reply
        assert ("not a finished answer" in observation) is (reward == 0.0)


# Several turns


def test_a_formula_of_the_problem_is_no_answer_to_it() -> None:
    def reward(problem: str, gold: str, answer: str) -> float:
        env = MathEnv(tasks=[{"problem": problem, "answer": gold}])
        env.reset()
        return float(env.step(f"\\boxed{{{answer}}}")[1])

    problems = [
        (
            r"Simplify $\sqrt{242}$.",
            r"11\sqrt2",
            [r"\sqrt{242}", r"\sqrt{242}+0", r"1\cdot\sqrt{242}", r"x = \sqrt{242}"],
        ),
        (r"Compute $99^2+99+1$.", "9901", ["99^2 + 99 + 1", "1+99+99^2", r"\left(99^2+99+1\right)"]),
        ("What is 17 * 23 - 4?", "387", ["17*23-4", r"17 \times 23 - 4"]),
        (r"Express $\frac{3}{20}$ as a decimal.", "0.15", [r"\frac{3}{20}", r"\dfrac{3}{20}"]),
        (r"Expand $(x+1)(x-1)$.", "x^2-1", ["(x+1)(x-1)", "(x-1)(x+1)"]),
    ]
    for problem, gold, copies in problems:
        assert reward(problem, gold, gold) == 1
        assert [copy for copy in copies if reward(problem, gold, copy)] == [], problem
    for problem, gold, answer in [
        (r"Simplify $\sqrt{242}$.", r"11\sqrt2", r"\sqrt{242} = 11\sqrt{2}"),
        (r"Rationalize $\frac{1}{\sqrt{2}}$.", r"\frac{\sqrt{2}}{2}", r"\frac{1}{2}\sqrt{2}"),
        (r"Half of the $\frac{1}{2}$ liter is lost twice over: what share?", "0.5", r"\frac{1}{2}"),
        (r"The rate of $10\%$ was kept. What is the rate?", "10", r"10\%"),
        (r"Each of them drinks $2\frac{1}{2}$ liters. How much is that?", "2.5", r"2\frac{1}{2}"),
        (r"For which $x$ is $x-1 < 0$?", r"(-\infty, 1)", "x < 1"),
        (r"Which of $a+b$ and $ab$ is larger for $a=b=1$?", "a+b", "b+a"),
    ]:
        assert reward(problem, gold, answer) == 1, (problem, answer)


def test_a_wrong_answer_may_be_revised() -> None:
    env = multi()
    observation, info = env.reset(seed=0)
    assert "3 turns" in observation
    assert "\\boxed{}" in observation
    assert info["tools"] == "[]"
    observation, reward, terminated, truncated, info = env.step("\\boxed{6}")
    assert "not correct" in observation
    assert "2 turns left" in observation
    assert (reward, terminated, truncated, info["invalid_action"], info["stop_reason"]) == (
        0.0,
        False,
        False,
        False,
        "",
    )
    observation, reward, terminated, truncated, info = env.step("hm")
    assert "1 turn left" in observation
    assert (reward, terminated, truncated, info["invalid_action"], info["turn"]) == (0.0, False, False, True, 2)
    observation, reward, terminated, truncated, info = env.step("\\boxed{5}")
    assert (reward, terminated, truncated, info["stop_reason"]) == (1.0, True, False, "success")


def test_the_turn_limit_is_truncation() -> None:
    env = multi(max_turns=2)
    env.step("\\boxed{6}")
    observation, reward, terminated, truncated, info = env.step("\\boxed{7}")
    assert "No turns are left" in observation
    assert (reward, terminated, truncated, info["stop_reason"], info["success"]) == (
        0.0,
        False,
        True,
        "max_turns",
        False,
    )


def ask(expression: str) -> str:
    return "<tool_call>" + json.dumps({"name": "calculator", "arguments": {"expression": expression}}) + "</tool_call>"


def test_the_calculator_answers_and_costs_a_turn() -> None:
    env = multi(calculator=True)
    observation, info = env.reset(seed=0)
    (tool,) = json.loads(info["tools"])
    assert tool["function"]["name"] == "calculator"
    assert "<tool_call>" in observation
    observation, reward, terminated, truncated, info = env.step(ask("2 + 3") + ask("1/0"))
    assert observation == "2 + 3 = 5\n1/0 has no value: division by zero at position 2"
    assert (reward, terminated, truncated, info["invalid_action"], info["turn"]) == (0.0, False, False, False, 1)
    assert env.step("\\boxed{5}")[1] == 1.0


def test_malformed_calls_are_reported_with_their_position() -> None:
    env = multi(calculator=True, max_turns=9)
    for call, message in (
        (ask("2 + * 3"), "position 5 of its expression"),
        ("<tool_call>{]</tool_call>", "position 13 of the reply"),
        ("<tool_call>{}", "never closed"),
    ):
        observation, _, _, _, info = env.step(call)
        assert message in observation
        assert info["invalid_action"]
    assert env.step(f"<think>{ask('1')}</think> \\boxed{{5}}")[1] == 1.0


def test_the_last_of_a_call_and_an_answer_counts() -> None:
    assert multi(calculator=True).step(ask("2 + 3") + " so \\boxed{5}")[1] == 1.0
    observation, _, terminated, _, _ = multi(calculator=True).step("\\boxed{5}? " + ask("2 + 3"))
    assert observation == "2 + 3 = 5"
    assert not terminated
    observation, _, _, _, info = multi().step(ask("2 + 3"))  # no calculator was offered
    assert "no \\boxed{}" in observation
    assert info["invalid_action"]


# State and rendering


@pytest.fixture
def halfway() -> Iterator[MathMultiTurnEnv]:
    env = MathMultiTurnEnv(tasks=ROWS, render_mode="ansi")
    env.reset(seed=3)
    env.step("I say \\boxed{6}")
    yield env
    env.close()


def test_rendering_shows_problem_replies_and_verdicts(halfway: MathMultiTurnEnv) -> None:
    shown = halfway.render()
    assert isinstance(shown, str)
    for text in ("What is 2 + 3?", "I say \\boxed{6}", "not correct"):
        assert text in shown
    halfway.step("x" * 100_000)
    assert len(str(halfway.render())) < 10_000
    with pytest.raises(ResetNeeded):
        MathEnv(render_mode="ansi").render()


def test_looking_for_the_formulas_of_a_problem_takes_bounded_time() -> None:
    """A row from a file with 100,000 brackets took 50 s."""
    before = time.process_time()
    for text in ("(", "1", "1+", "1 ", "(1", "$ ", "\\("):
        assert not repeats_problem("x+1", "2", text * 50_000)
    assert time.process_time() - before < 20
    assert repeats_problem("29 - 48", "-19", "What is 29 - 48?")
