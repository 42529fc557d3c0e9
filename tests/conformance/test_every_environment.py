"""What every registered id has to keep, whatever family it belongs to: a row in the table is under test at once."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from rllm_gym import MessageHistory
from rllm_gym.core import SPLITS, split_of
from rllm_gym.envs import MINIWOB, TABLE
from rllm_gym.envs.code import reference_solution
from rllm_gym.envs.web import demonstrate
from rllm_gym.testing import check_text_env
from rllm_gym.testing.hostile import HOSTILE, unicode_text

# Of the 130 of MiniWoB++ one; tests/envs/test_miniwob.py visits all.
ROWS = TABLE | {env_id: row for env_id, row in MINIWOB.items() if "click-checkboxes-v" in env_id}
IDS = sorted(ROWS)
FUZZ = 2_000
# Enough of each split for 10,000 tasks together.
PER_SPLIT = {"train": 7_000, "validation": 1_600, "test": 1_600}

every_id = pytest.mark.parametrize("env_id", IDS)


def oracle_of(env_id: str) -> Any:
    """The environment's own oracle, where it has one."""
    if "FrozenLake" in env_id:
        return lambda env: env.oracle().action
    if "MCP" in env_id:
        return importlib.import_module("rllm_gym.envs.mcp.demonstrate").next_reply
    if "Math" in env_id:
        return lambda env: f"\\boxed{{{env.task.data['gold']}}}"
    if "Web" in env_id:
        return demonstrate.oracle
    if "Code" in env_id:
        return lambda env: f"```python\n{reference_solution(env.task)}\n```"
    return None


@pytest.fixture
def env(env_id) -> Iterator[gymnasium.Env]:
    env = gymnasium.make(env_id)
    yield env
    env.close()


@every_id
def test_gymnasiums_own_checker_has_nothing_to_say(env_id):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for mode in (None, *gymnasium.make(env_id).metadata["render_modes"]):
            env = gymnasium.make(env_id, render_mode=mode)
            check_env(env.unwrapped, skip_render_check=mode is None)
    assert [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)] == []


@every_id
def test_the_contract(env_id):
    # Few arbitrary replies here: two thousand have a test of their own below.
    report = check_text_env(env_id, oracle=oracle_of(env_id), fuzz=20)
    assert report.ok, report
    assert set(report.skipped) <= {"torch", "state", *(["oracle"] if oracle_of(env_id) is None else [])}


@every_id
def test_same_seed_same_trajectory_also_in_another_process(env_id, env):
    code = f"""
import json, gymnasium, rllm_gym
env = gymnasium.make({env_id!r})
log = []
for seed in range(4):
    log.append(env.reset(seed=seed))
    for action in ("up", "\\\\boxed{{3}}", "```down```", "x"):
        log.append(env.step(action))
        if log[-1][2] or log[-1][3]:
            break
env.close()
print(json.dumps(log))
"""
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True, env=environment(seed)
        ).stdout
        for seed in ("0", "1")  # string hashing differs: nothing may depend on the order of a set
    }
    assert len(runs) == 1
    log = json.loads(runs.pop())
    assert log[0][0] == env.reset(seed=0)[0]
    assert log[1][0] == env.step("up")[0]


def environment(hash_seed: str) -> dict[str, str]:
    return {**os.environ, "PYTHONHASHSEED": hash_seed}


@every_id
def test_two_thousand_arbitrary_replies_raise_nothing(env_id, env):
    source = random.Random(f"fuzz {env_id}")
    prompts = [
        "up",
        "```",
        "\\boxed{",
        "}",
        "<action>",
        "</action>",
        "<think>",
        "</think>",
        "1/2",
        "down ",
        '{"name": "',
        "9",
    ]
    over, valid = True, 0
    if env_id in MINIWOB or "Web" in env_id or "MCP" in env_id:
        # What is under test is replies; a page, or servers, for every few of them take long.
        env.unwrapped.max_turns = 200
    for number in range(FUZZ):
        if over:
            env.reset(seed=number)
        if number < len(HOSTILE):
            action = HOSTILE[number]
        elif number % 2:
            action = unicode_text(source)
        else:
            action = "".join(source.choice([*prompts, unicode_text(source)[:5]]) for _ in range(source.randrange(8)))
        if "MCP" in env_id and number % 5 and number >= len(HOSTILE):
            action = f"<tool_call>{action}"  # without it any text is an answer, and ends the episode
        observation, reward, terminated, truncated, info = env.step(action)
        assert observation in env.observation_space
        observation.encode()
        assert np.isfinite(reward)
        assert not (terminated and truncated)
        valid += not info["invalid_action"]
        over = terminated or truncated
    assert valid < FUZZ


@every_id
def test_ten_thousand_tasks_show_no_leak_between_the_splits(env_id):
    contents = {}
    for split in SPLITS:
        tasks = gymnasium.make(env_id, split=split).unwrapped.tasks
        found = [tasks[index] for index in range(min(PER_SPLIT[split], len(tasks)))]
        assert all(task.split == split == split_of(task.content) for task in found)
        assert len({task.task_id for task in found}) == len(found)
        contents[split] = {task.content_hash for task in found}
        assert len(found) == PER_SPLIT[split]
    assert not contents["train"] & contents["test"]
    assert not contents["train"] & contents["validation"]
    assert not contents["validation"] & contents["test"]


@every_id
def test_the_spec_survives_json(env_id, env):
    again = gymnasium.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.reset(seed=5) == env.reset(seed=5)
    again.close()


@every_id
def test_it_is_made_with_no_import_of_ours_and_without_torch(env_id):
    code = (
        f"import gymnasium, sys; env = gymnasium.make('rllm_gym:{env_id}'); print(env.reset(seed=0)[0]); env.step('x');"
        "env.close(); assert 'torch' not in sys.modules, 'torch was imported'"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


@every_id
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_gymnasiums_vector_environments_show_what_a_single_one_shows(env_id, kind):
    makers = [lambda: gymnasium.make(env_id)] * 2
    if kind == "sync":
        vector: gymnasium.vector.VectorEnv = gymnasium.vector.SyncVectorEnv(makers)
    else:
        vector = gymnasium.vector.AsyncVectorEnv(makers, shared_memory=False)
    try:
        singles = [make() for make in makers]
        observations, infos = vector.reset(seed=[3, 4])
        expected = [single.reset(seed=seed) for single, seed in zip(singles, (3, 4))]
        assert list(observations) == [observation for observation, _ in expected]
        assert list(infos["task_id"]) == [info["task_id"] for _, info in expected]
        for actions in (("up", "nonsense"), ("```left```", "")):
            observations, rewards, terminated, truncated, infos = vector.step(actions)
            stepped = [single.step(action) for single, action in zip(singles, actions)]
            assert list(observations) == [result[0] for result in stepped]
            assert list(rewards) == [result[1] for result in stepped]
            assert list(terminated | truncated) == [result[2] or result[3] for result in stepped]
            assert list(infos["invalid_action"]) == [result[4]["invalid_action"] for result in stepped]
            if (terminated | truncated).any():
                break
        for single in singles:
            single.close()
    finally:
        vector.close()


@every_id
def test_the_whole_conversation_can_be_had(env_id, env):
    wrapped = MessageHistory(env)
    wrapped.reset(seed=0)
    observation, *_ = wrapped.step("my reply \ud800")
    assert observation in wrapped.observation_space
    assert [message["role"] for message in json.loads(observation)] == ["user", "assistant", "user"]


@every_id
def test_misuse_is_an_error_that_says_what_to_do(env_id, env):
    raw = env.unwrapped
    with pytest.raises(ResetNeeded, match="reset"):
        raw.step("x")
    env.reset(seed=0)
    with pytest.raises(TypeError, match="str"):
        raw.step(0)
    with pytest.raises(TypeError, match="no_such_argument"):
        gymnasium.make(env_id, no_such_argument=1)
    with pytest.raises(ValueError):
        gymnasium.make(env_id, max_turns=0)


@every_id
def test_the_class_docstring_is_a_manual_in_gymnasiums_order(env_id):
    module, _, name = ROWS[env_id][0].partition(":")
    manual = inspect.getdoc(getattr(importlib.import_module(module), name))
    places = []
    for heading in (
        *("Description", "Action space", "Observation space", "Starting state", "Rewards"),
        *("Episode end", "Information", "Arguments", "Version history"),
    ):
        found = re.search(rf"^(?:#+ |\*\*){heading}", manual, re.MULTILINE)
        assert found, f"no heading {heading!r}"
        places.append(found.start())
    assert places == sorted(places)
    signature = inspect.signature(getattr(importlib.import_module(module), name).__init__)
    undocumented = [
        parameter for parameter in signature.parameters if parameter != "self" and f"{parameter}:" not in manual
    ]
    assert undocumented == []


@every_id
def test_entry_points_are_text_so_that_specs_can_travel(env_id):
    spec = gymnasium.spec(env_id)
    assert isinstance(spec.entry_point, str)
    assert spec.max_episode_steps is None  # the environment owns max_turns
    assert env_id.startswith("rllm/")
    assert env_id.endswith("-v0")
