"""reasoning-gym tasks: seeds, disjoint splits and the scores of its verifiers; no reply raises an error."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("reasoning_gym", reason="not installed (tests/integrations/requirements/reasoning_gym.txt)")
import gymnasium
import pettingzoo
import reasoning_gym
from pettingzoo.test import api_test
from reasoning_gym.factory import DATASETS

import rllm_gym  # noqa: F401 - registers the ids
from rllm_gym.core import Task, TaskError
from rllm_gym.integrations import reasoning_gym as ours
from rllm_gym.testing import check_text_env

ID = "rllm/ReasoningGym-v0"
EVALUATING = [
    *("binary_matrix", "spiral_matrix", "string_insertion", "n_queens", "countdown", "puzzle24"),
    *("simple_integration", "intermediate_integration", "polynomial_multiplication"),
]


def entry_of(task: Task) -> dict[str, Any]:
    """Return the task as reasoning-gym itself creates it."""
    return reasoning_gym.create_dataset(task.data["dataset"], seed=task.data["seed"], size=1)[0]


def answered(env: Any, answer: str) -> tuple[float, dict[str, Any]]:
    _, reward, terminated, truncated, info = env.step(f"I think <answer>0</answer>, no: <answer>{answer}</answer>.")
    assert terminated
    assert not truncated
    return reward, info


@pytest.mark.parametrize("dataset", ["chain_sum", "word_sorting", "pool_matrix"])
def test_check_text_env_passes(dataset: str) -> None:
    def oracle(env: Any) -> str:
        return f"<answer>{entry_of(env.task)['answer']}</answer>"

    # Asking reasoning-gym itself here would touch the global generators.
    known = None if dataset == "pool_matrix" else oracle
    report = check_text_env(lambda: gymnasium.make(ID, dataset=dataset), oracle=known, fuzz=60)
    assert report.ok, str(report)


def test_a_team_can_solve_a_task() -> None:
    game = pettingzoo.make("aec", ID, roles=("proposer", "finaliser"), dataset="chain_sum")
    api_test(game, num_cycles=20)
    game.reset(seed=3)
    game.step("I would say 5.")
    game.step(f"<answer>{entry_of(game.unwrapped._env.unwrapped.task)['answer']}</answer>")
    assert game.rewards == {"proposer_0": 1.0, "finaliser_0": 1.0}


def test_seeds_share_no_questions() -> None:
    """With reasoning-gym's own seeds, 42 and 43 have 49 of 50 questions in common."""
    theirs = [
        {reasoning_gym.create_dataset("chain_sum", seed=seed, size=50)[i]["question"] for i in range(50)}
        for seed in (42, 43)
    ]
    assert len(theirs[0] & theirs[1]) >= 45
    tasks = [gymnasium.make(ID, dataset="chain_sum", seed=seed).unwrapped.tasks for seed in (42, 43)]
    questions = [{found[index].content for index in range(50)} for found in tasks]
    assert len(questions[0]) == 50
    assert questions[0].isdisjoint(questions[1])
    again = gymnasium.make(ID, dataset="chain_sum", seed=42).unwrapped.tasks
    assert [again[index] for index in range(5)] == [tasks[0][index] for index in range(5)]
    assert again.find(tasks[0][3].task_id) == tasks[0][3]


@pytest.mark.parametrize(
    "dataset", ["chain_sum", "countdown", "n_queens", "simple_integration", "zebra_puzzles", "string_insertion"]
)
def test_the_score_equals_the_verifiers_score(dataset: str) -> None:
    env = gymnasium.make(ID, dataset=dataset)
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        entry = entry_of(env.unwrapped.task)
        assert observation.startswith(entry["question"])
        reward, info = answered(env, entry["answer"])
        assert (reward, info["success"], info["stop_reason"]) == (1.0, True, "success")
        env.reset(seed=seed)
        verifier = reasoning_gym.create_dataset(dataset, seed=0, size=1)
        reward, info = answered(env, "17")
        assert reward == verifier.score_answer("17", entry)
        assert not info["success"]


def test_a_partial_score_is_not_success() -> None:
    env = gymnasium.make(ID, dataset="n_queens")
    env.reset(seed=0)
    board = [row.split() for row in entry_of(env.unwrapped.task)["answer"].split("\n")]
    reward, info = answered(env, str(board))
    assert (reward, info["success"]) == (0.5, False)


def test_no_answer_is_an_invalid_action() -> None:
    env = gymnasium.make(ID)
    env.reset(seed=0)
    observation, reward, terminated, _, info = env.step("forty-two")
    assert "<answer>" in observation
    assert (reward, terminated, info["invalid_action"], info["stop_reason"]) == (0.0, True, True, "invalid_action")


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("<think>\n<answer>1</answer>\n</think>\n<answer> 2 </answer>", "2"),
        ("<answer>1</answer> or <answer>2</answer> <answer>", "2"),
        ("<answer>1</answer></answer>", "1"),
        ("<answer>1<answer>2</answer>", "2"),
        ("<answer></answer>", ""),
        ("</answer><answer>", None),
        ("<think><answer>1</answer>", None),
        ("<answer>1</answer><think>or", None),
        ("<answer>" * 200_000, None),
        ("</answer>" * 200_000, None),
        ("<answer>" * 100_000 + "</answer>" * 100_000, ""),
    ],
    ids=range(11),
)
def test_the_last_answer_after_the_thoughts_counts_and_is_found_at_once(reply: str, answer: str | None) -> None:
    begin = time.process_time()
    assert ours._last_answer(reply) == answer
    assert time.process_time() - begin < 1


HOSTILE = [
    "__import__('os').system('touch {file}')",
    "[__import__('os').system('touch {file}')]",
    "().__class__.__base__.__subclasses__()",
    "open('{file}', 'w')",
    "[c for c in [open('{file}', 'w')]]",
    "eval(chr(49))",
    "x.func",
    "(" * 5000,
    "[" * 5000,
    "9" * 15_000,
    "\x00\ud800",
    "exec",
    "lambda: 1",
]


@pytest.mark.parametrize("dataset", EVALUATING)
def test_answers_are_never_passed_to_eval(dataset: str, tmp_path: Path) -> None:
    """The verifiers of these data sets pass the answer to Python's eval; here it is only parsed."""
    file = tmp_path / "was_here"
    env = gymnasium.make(ID, dataset=dataset)
    for hostile in HOSTILE:
        env.reset(seed=1)
        reward, _ = answered(env, hostile.replace("{file}", str(file)))
        assert reward < 0.1
        assert not file.exists()


def test_every_verifier_that_uses_eval_is_known() -> None:
    """A newer reasoning-gym with more verifiers that evaluate must be reviewed before it is used."""
    folder = Path(reasoning_gym.__file__).parent
    evaluating = re.compile(
        r"(?<![\w.])(?:eval|exec|literal_eval|sympify|parse_expr)\(|\bs(?:ym)?py?\.(?:parse_expr|sympify|S)\("
    )
    found = {
        str(path.relative_to(folder).with_suffix("")).replace(os.sep, ".")
        for path in folder.rglob("*.py")
        if evaluating.search(path.read_text(encoding="utf-8"))
    }
    read_by_us = set(ours._PYTHON_READERS) | set(ours._FORMULA_READERS)
    by_sympys_name = {
        "algebra.simple_integration",
        "algebra.intermediate_integration",
        "algebra.polynomial_multiplication",
    }
    # These evaluate only text that they generated; the last has its own parser.
    own = {
        "code.codeio",
        "algorithmic.number_sorting",
        "arithmetic.bitwise_arithmetic",
        "arithmetic.basic_arithmetic",
        "logic.propositional_logic",
        "arithmetic.gsm_symbolic.generators_00_49",
        "arithmetic.gsm_symbolic.generators_50_99",
    }
    assert found == read_by_us | by_sympys_name | own


def test_an_answer_that_hangs_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    env = gymnasium.make(ID, dataset="countdown")
    env.reset(seed=0)
    with monkeypatch.context() as hurried:
        hurried.setattr(ours, "SCORE_SECONDS", 15.0)  # the reference answer is also scored within it
        reward, info = answered(env, "9**9**9**9**9")
    assert reward == 0.0
    assert info["stop_reason"] == "failure"
    env.reset(seed=0)
    assert answered(env, entry_of(env.unwrapped.task)["answer"])[0] == 1.0


def test_tasks_are_equal_in_another_process() -> None:
    """Some generators iterate over sets, whose order differs between Python processes."""
    code = """
import gymnasium, rllm_gym
tasks = gymnasium.make("rllm/ReasoningGym-v0", dataset="polynomial_multiplication").unwrapped.tasks
print([tasks[index].content for index in range(8)])
"""
    output = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(output) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dataset": "chain_sums"}, ValueError, "similar names: chain_sum"),
        ({"config": {"min_terms": -1}}, ValueError, "rejects config"),
        ({"config": {"no_such": 1}}, ValueError, "rejects config"),
        ({"config": {"seed": 1}}, ValueError, "sets itself"),
        ({"config": {"a": object()}}, ValueError, "JSON types"),
        ({"split": "all"}, TaskError, "split"),
    ],
)
def test_invalid_arguments_are_errors_that_name_them(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gymnasium.make(ID, **arguments)


def test_settings_are_passed_to_the_generator() -> None:
    env = gymnasium.make(
        ID, dataset="chain_sum", config={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}
    )
    observation, _ = env.reset(seed=0)
    assert re.search(r"problem: \d [+-] \d =", observation)


def test_tasks_of_another_environment_are_errors() -> None:
    env = gymnasium.make(ID)
    with pytest.raises(TaskError, match="is not of rllm/ReasoningGym-v0"):
        env.reset(options={"task": Task("x", "What?", {})})
    task = env.unwrapped.tasks[0]
    with pytest.raises(TaskError, match="another version"):
        env.reset(options={"task": Task("x", "What else?", task.data)})


@pytest.mark.long
@pytest.mark.parametrize("dataset", sorted(set(DATASETS) - {"composite"}))
def test_every_dataset(dataset: str) -> None:
    """Each of its generators creates and scores tasks here; if it has a gold answer, that is correct."""
    env = gymnasium.make(ID, dataset=dataset)
    env.reset(seed=0)
    gold = pickle.loads(env.unwrapped._entry)["answer"]  # noqa: S301 - with the hash seed of the worker
    reward, _ = answered(env, "no idea" if gold is None else str(gold))
    assert gold is None or reward == 1.0
