"""The contract of TextEnv for every subclass."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from hypothesis import given
from hypothesis import strategies as st
from parsing.checks import assert_all_raise, outcome

from rllm_gym.core import EnvironmentFault, InvalidAction, Outcome, Task, TaskError, TextEnv
from rllm_gym.data import Taskset


def make_tasks(number: int = 5) -> Taskset:
    return Taskset.from_rows([Task(f"t/{i}", f"content {i}", {"n": i}) for i in range(number)])


class Guess(TextEnv):
    """Say the number of the task; "break" raises EnvironmentFault."""

    def __init__(self, max_turns: int = 3, number: int = 5, **kwargs) -> None:
        super().__init__(tasks=make_tasks(number), max_turns=max_turns, **kwargs)
        self.seen: list[int] = []

    def _begin(self, task: Task) -> str:
        self.seen = [int(self.np_random.integers(1000))]
        return f"Guess a number. Die: {self.seen[0]}"

    def _act(self, action: str) -> Outcome:
        if action == "break":
            raise EnvironmentFault("the environment failed", kind="test")
        if not action.isascii() or not action.isdigit() or len(action) > 4:
            raise InvalidAction(f"{action[:20]!r} is not a number")
        self.seen.append(int(self.np_random.integers(1000)))
        right = int(action) == self.task.data["n"]
        return Outcome(f"Die: {self.seen[-1]}", {"right": float(right), "effort": -0.25}, right, right)

    def _add_info(self, info) -> None:
        info["seen_count"] = len(self.seen)

    def _env_state(self):
        return {"seen": self.seen}

    def _restore_env_state(self, state) -> None:
        self.seen = [int(x) for x in state["seen"]]


def test_valid_invalid_and_final_turns_are_distinguished():
    env = Guess(invalid_action_penalty=0.5)
    _, info = env.reset(seed=1, options={"task": 2})
    assert info == {
        "task_id": "t/2",
        "turn": 0,
        "invalid_action": False,
        "success": False,
        "stop_reason": "",
        "reward_components": {},
        "seen_count": 1,
        "tools": "[]",
    }
    observation, reward, terminated, truncated, info = env.step("two")
    assert (reward, terminated, truncated) == (-0.5, False, False)
    assert "two" in observation
    assert info["invalid_action"] is True
    assert info["seen_count"] == 1  # an invalid action changes nothing, and the environment's own keys are still there
    _, reward, terminated, truncated, info = env.step("2")
    assert (reward, terminated, truncated) == (0.75, True, False)
    assert info["success"] is True
    assert info["stop_reason"] == "success"
    assert info["reward_components"] == {"right": 1.0, "effort": -0.25}
    with pytest.raises(ResetNeeded):
        env.step("2")


def test_reaching_max_turns_truncates_even_if_the_last_reply_is_invalid():
    for last in ("4", "nonsense"):
        env = Guess()
        env.reset(options={"task": 1})
        assert env.step("3")[2:4] == (False, False)
        assert env.step("3")[2:4] == (False, False)
        _, _, terminated, truncated, info = env.step(last)
        assert (terminated, truncated) == (False, True)
        assert info["stop_reason"] == "max_turns"
        assert info["success"] is False


def test_solving_on_the_last_turn_is_success_not_truncation():
    env = Guess(max_turns=2)
    env.reset(options={"task": 1})
    env.step("0")
    assert env.step("1")[2:4] == (True, False)


def test_a_single_turn_environment_terminates_whatever_the_reply():
    env = Guess(max_turns=1)
    ends = {}
    for reply in ("1", "2", "what?"):
        env.reset(options={"task": 1})
        _, _, terminated, truncated, info = env.step(reply)
        ends[reply] = (terminated, truncated, info["stop_reason"])
    assert ends == {
        "1": (True, False, "success"),
        "2": (True, False, "failure"),
        "what?": (True, False, "invalid_action"),
    }


def test_a_fault_is_raised_not_rewarded_and_ends_the_episode():
    env = Guess()
    env.reset(seed=0)
    with pytest.raises(EnvironmentFault):
        env.step("break")
    with pytest.raises(ResetNeeded):
        env.step("1")
    env.reset(seed=0)
    env.step("1")


def test_after_an_unexpected_error_the_episode_requires_a_reset(monkeypatch):
    env = Guess()
    env.reset(seed=0)
    monkeypatch.setattr(env, "_act", lambda action: {}[action])
    with pytest.raises(KeyError):
        env.step("1")
    monkeypatch.undo()
    with pytest.raises(ResetNeeded):
        env.step("1")


def test_an_invalid_max_turns_is_an_error():
    cases = [(value, f"max_turns={value!r}") for value in (0, -1, 2.5, True, "3")]
    assert_all_raise(ValueError, lambda value: Guess(max_turns=value), cases)


def test_a_reply_beyond_the_length_limit_is_an_invalid_action():
    env = Guess(max_action_chars=10)
    env.reset(seed=0)
    observation, _, terminated, truncated, info = env.step("1" * 11)
    assert info["invalid_action"]
    assert "11 characters" in observation
    assert not terminated
    assert not truncated


def test_with_a_task_option_the_seed_determines_only_the_dynamics():
    env = Guess()
    mine = Task("mine", "not of the set", {"n": 77})
    for choice, task_id in ((3, "t/3"), (np.int64(3), "t/3"), ("t/3", "t/3"), (mine, "mine")):
        texts = set()
        for seed in range(4):
            observation, info = env.reset(seed=seed, options={"task": choice})
            assert info["task_id"] == task_id
            texts.add(observation)
        assert len(texts) > 1
        again = env.reset(seed=3, options={"task": choice})[0]
        assert again == observation
    assert env.step("77")[4]["success"]


def test_without_options_the_seed_picks_the_task():
    env = Guess()
    picked = [env.reset(seed=seed)[1]["task_id"] for seed in range(30)]
    assert len(set(picked)) == 5
    assert picked == [env.reset(seed=seed)[1]["task_id"] for seed in range(30)]
    assert env.reset(seed=3, options={})[1] == env.reset(seed=3, options={"task": None})[1] == env.reset(seed=3)[1]


def test_a_task_that_does_not_exist_is_an_error_that_names_it():
    cases = ({"task": 5}, {"task": -1}, {"task": "none such"}, {"task": 1.0}, {"task": True}, {"tusk": 1})
    assert_all_raise(TaskError, lambda options: Guess().reset(options=options), [(case, "") for case in cases])


def test_a_saved_state_is_json_and_restores_everything():
    env = Guess(max_turns=4)
    env.reset(seed=5, options={"task": 4})
    env.step("1")
    state = env.get_state()
    json.loads(state)
    expected = [env.step("2"), env.step("nonsense"), env.step("0")]
    for other in (env, Guess(max_turns=4)):
        other.set_state(state)
        assert [other.step("2"), other.step("nonsense"), other.step("0")] == expected
    over = env.get_state()
    fresh = Guess(max_turns=4)
    fresh.set_state(over)
    with pytest.raises(ResetNeeded):
        fresh.step("1")


@given(st.binary(max_size=60))
def test_arbitrary_bytes_as_a_state_are_a_value_error(state):
    with pytest.raises(ValueError):
        Guess().set_state(state)


def test_a_damaged_state_is_a_value_error_and_changes_nothing():
    wrong = []
    for part in ("np_random", "task", "turn", "env_state", "done", "observation"):
        env = Guess()
        env.reset(seed=0)
        saved = json.loads(env.get_state())
        del saved[part]
        error = outcome(env.set_state, json.dumps(saved).encode())
        after = outcome(env.step, "1")
        if not (isinstance(error, ValueError) and re.search(f"corrupt.*{part}", str(error), re.DOTALL)):
            wrong.append((part, error))
        if not isinstance(after, ResetNeeded):
            wrong.append((part, after))
    assert wrong == []


def test_a_state_of_another_environment_is_an_error():
    class Other(Guess):
        pass

    env = Other()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="Other"):
        Guess().set_state(env.get_state())


def test_an_environment_that_cannot_be_copied_is_an_error():
    class Closed(TextEnv):
        def _begin(self, task):
            return "go"

        def _act(self, action):
            return Outcome("ok")

    env = Closed(tasks=make_tasks(), max_turns=2)
    env.reset(seed=0)
    for call in (env.get_state, env.fork):
        with pytest.raises(NotImplementedError, match="Closed"):
            call()


def test_arguments_out_of_range_are_errors_that_name_them():
    values = (
        {"max_turns": 0},
        {"invalid_action_penalty": -1.0},
        {"invalid_action_penalty": math.nan},
        {"render_mode": "hologram"},
    )
    assert_all_raise(ValueError, lambda arguments: Guess(**arguments), [(case, next(iter(case))) for case in values])


def test_the_reward_is_the_sum_of_its_components_and_a_float():
    class Odd(Guess):
        def _act(self, action):
            return Outcome("x", {"a": 1, "b": np.float32(0.5), "c": True})

    env = Odd()
    env.reset(seed=0)
    _, reward, _, _, info = env.step("1")
    assert type(reward) is float
    assert reward == 2.5
    assert all(type(value) is float for value in info["reward_components"].values())
