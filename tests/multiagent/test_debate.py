"""Debate: one of two answers is correct, no agent knows which, and the judge is rewarded for choosing it."""

import random
from fractions import Fraction

import pettingzoo
import pytest

from rllm_gym.core import SPLITS, TaskError
from rllm_gym.grading import grade_math
from rllm_gym.multiagent.debate import FAMILIES, near_miss


def make(**kwargs):
    return pettingzoo.make("aec", "rllm/Debate-v0", **kwargs)


def argue(game, verdict, rounds=2):
    for _ in range(2 * rounds):
        game.step("I am right.")
    game.step(verdict)


def test_the_judge_is_rewarded_for_the_correct_answer_and_debaters_for_convincing_it():
    game = make()
    sides = set()
    for seed in range(30):
        game.reset(seed=seed)
        right = game._right
        sides.add(right)
        for verdict in (0, 1):
            copy = game.fork()
            argue(copy, "AB"[verdict])
            assert copy.rewards["judge_0"] == float(verdict == right)
            assert copy.rewards[f"debater_{verdict}"] == 1.0
            assert copy.rewards[f"debater_{1 - verdict}"] == -1.0
            assert copy.infos["judge_0"]["right"] == "AB"[right]
            assert copy.infos["judge_0"]["success"] == (verdict == right)
            assert copy.infos[f"debater_{verdict}"]["success"]
    assert sides == {0, 1}


def test_the_correct_answer_is_graded_as_correct_and_the_wrong_one_is_not():
    game = make()
    for seed in range(40):
        game.reset(seed=seed)
        gold = game.task.data["gold"]
        for index, answer in enumerate(game._answers):
            assert grade_math(f"\\boxed{{{answer}}}", gold).correct == (index == game._right), (answer, gold)


def test_a_wrong_answer_is_a_different_number():
    answers = ("7", "0", "-1", "8/5", "277.058", "3.10", "1/2", "-38/39", "10", "100")
    same = [
        (answer, seed)
        for answer in answers
        for seed in range(60)
        if Fraction(near_miss(answer, random.Random(seed))) == Fraction(answer)
    ]
    assert same == []


def test_a_wrong_answer_is_formatted_like_an_answer():
    """Otherwise a judge would not need the question: a number with a leading zero, or one that can be canceled, would
    be wrong.
    """
    odd = []
    for answer in ("1", "-1", "10", "20", "100", "-10", "6/5", "3/4", "74/3", "1/2", "14.1", "0.5"):
        for seed in range(200):
            wrong = near_miss(answer, random.Random(seed))
            over, _, under = wrong.partition("/")
            if str(Fraction(wrong) if under else float(wrong) if "." in over else int(wrong)) != wrong:
                odd.append((answer, seed, wrong))
    assert odd == []


def test_a_correct_answer_of_zero_is_not_recognizable():
    assert "0" in {near_miss("1", random.Random(seed)) for seed in range(50)}


def test_no_observation_before_the_verdict_reveals_the_correct_answer():
    # Two tasks that differ only in the correct answer look the same to every agent.
    question = "Is this the question?"
    seen = []
    for gold, wrong in (("1", "2"), ("2", "1")):
        for attempt in range(40):  # the side depends on the question, so find two questions with the same answers
            game = make(tasks=[{"content": f"{question}{' ' * attempt}", "data": {"gold": gold, "wrong": wrong}}])
            game.reset(seed=0)
            if game._answers == ("1", "2"):
                break
        log = []
        for _ in range(4):
            log += [(game.observe(agent)["text"].replace(" ", ""), game.infos[agent]) for agent in game.agents]
            game.step("So it is.")
        seen.append(log)
    assert seen[0] == seen[1]
    assert all(info["right"] == info["verdict"] == "" for _, info in seen[0])


def test_the_question_can_be_hidden_from_the_judge():
    game = make(judge_sees_question=False)
    game.reset(seed=1)
    assert game.task.content not in game.observe("judge_0")["text"]
    assert game.task.content in game.observe("debater_1")["text"]


def test_the_judge_receives_all_arguments_and_without_a_verdict_nobody_is_rewarded():
    game = make(rounds=3)
    game.reset(seed=2)
    for number in range(6):
        assert game.agent_selection == f"debater_{number % 2}"
        game.step(f"argument {number}")
    received = game.observe("judge_0")["text"]
    assert all(f"debater_{n % 2} says:\n> argument {n}" in received for n in range(6))
    for _ in range(3):
        assert game.agent_selection == "judge_0"
        game.step("both")
    assert all(game.terminations.values())
    assert set(game.rewards.values()) == {0.0}
    assert game.infos["judge_0"]["stop_reason"] == "invalid_action"


def test_splits_are_those_of_the_questions():
    for split in SPLITS:
        tasks = make(split=split).tasks
        assert {tasks[i].split for i in range(30)} == {split}


def test_answers_without_numbers_require_an_explicit_wrong_answer():
    with pytest.raises(TaskError, match="wrong"):
        make(tasks=[{"question": "Who?", "answer": "Ada"}]).reset(seed=0)
    with pytest.raises(ValueError, match="rounds=0"):
        make(rounds=0)
    assert "algebra" not in FAMILIES
