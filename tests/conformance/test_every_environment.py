"""Requirements that every registered id must satisfy; an id added to the table is tested automatically."""

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
from rllm_gym.envs.web import demonstrations
from rllm_gym.testing import check_text_env
from rllm_gym.testing.hostile import HOSTILE, unicode_text

# Only one of the 130 of MiniWoB++; tests/envs/test_miniwob.py visits all.
ROWS = TABLE | {env_id: row for env_id, row in MINIWOB.items() if "click-checkboxes-v" in env_id}
IDS = sorted(ROWS)
BROWSER = [env_id for env_id in IDS if "Web" in env_id or env_id in MINIWOB]
# A reset of these starts programs or opens pages.
SLOW_EPISODES = [*BROWSER, *(env_id for env_id in IDS if "SWE" in env_id or "Code" in env_id)]
FUZZ = 2_000
# Enough of each split for 10,000 tasks together.
PER_SPLIT = {"train": 7_000, "validation": 1_600, "test": 1_600}

every_id = pytest.mark.parametrize("env_id", IDS)


def shares_of_every_id(*families: str) -> pytest.MarkDecorator:
    """Return every id with the fraction of a test that runs: a tenth for slow families, all in `make test-long`."""
    slow = [env_id for env_id in IDS if any(name in env_id for name in families)]
    params: list[Any] = [(env_id, 0.1 if env_id in slow else 1) for env_id in IDS]
    params += [pytest.param(env_id, 1, marks=pytest.mark.long) for env_id in slow]
    return pytest.mark.parametrize(("env_id", "share"), params)


def oracle_of(env_id: str) -> Any:
    """Return the environment's own oracle, if it has one."""
    if "FrozenLake" in env_id:
        return lambda env: env.oracle().action
    if "MCP" in env_id:
        return importlib.import_module("rllm_gym.envs.mcp.demonstrations").next_reply
    if "Search" in env_id:
        return importlib.import_module("rllm_gym.envs.search.demonstrations").next_reply
    if "Math" in env_id:
        return lambda env: f"\\boxed{{{env.task.data['gold']}}}"
    if "Web" in env_id:
        return demonstrations.oracle
    if "Code" in env_id:
        return lambda env: f"```python\n{reference_solution(env.task)}\n```"
    return None


@pytest.fixture
def env(env_id) -> Iterator[gymnasium.Env]:
    env = gymnasium.make(env_id)
    yield env
    env.close()


@every_id
def test_gymnasiums_env_checker_passes(env_id):
    with gymnasium.make(env_id) as created:
        modes = (None, *created.metadata["render_modes"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for mode in modes[-1:] if env_id in BROWSER else modes:
            env = gymnasium.make(env_id, render_mode=mode)
            check_env(env.unwrapped, skip_render_check=mode is None)
    assert [str(warning.message) for warning in caught if issubclass(warning.category, UserWarning)] == []


@pytest.mark.parametrize(
    "env_id", [pytest.param(env_id, marks=pytest.mark.long if env_id in SLOW_EPISODES else ()) for env_id in IDS]
)
def test_the_contract(env_id):
    # Few arbitrary replies here: another test below uses two thousand.
    report = check_text_env(env_id, oracle=oracle_of(env_id), fuzz=20)
    report.raise_for_failures()
    assert set(report.skipped) <= {"torch", "state", *(["oracle"] if oracle_of(env_id) is None else [])}


PROGRAM = """
import json, sys, gymnasium
logs = {}
for env_id in sys.argv[1:]:
    env = gymnasium.make(f"rllm_gym:{env_id}")
    log = logs[env_id] = []
    for seed in range(2):
        log.append(env.reset(seed=seed))
        for action in ("up", "\\\\boxed{3}", "```down```", "x"):
            log.append(env.step(action))
            if log[-1][2] or log[-1][3]:
                break
    env.close()
    if "torch" in sys.modules:
        sys.exit(f"{env_id} imported torch")
print(json.dumps(logs))
"""


def test_observations_of_a_seed_are_equal_in_processes_without_our_import_and_without_torch():
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *IDS],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        for seed in ("0", "1")  # string hashing differs: nothing may depend on the order of a set
    ]
    reported = [run.communicate(timeout=240) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], reported
    one, other = (json.loads(out) for out, _ in reported)
    assert [env_id for env_id in IDS if one[env_id] != other[env_id]] == []
    differs = []
    for env_id in IDS:
        env = gymnasium.make(env_id)
        shown = [env.reset(seed=0)[0], env.step("up")[0]]
        env.close()
        if shown != [one[env_id][0][0], one[env_id][1][0]]:
            differs.append((env_id, shown, one[env_id][:2]))
    assert differs == []


@shares_of_every_id("Code", "MCP", "SWE", "Web", "MiniWoB")
def test_two_thousand_arbitrary_replies_raise_nothing(env_id, env, share):
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
    over, valid, replies = True, 0, int(FUZZ * share)
    if env_id in MINIWOB or "Web" in env_id or "MCP" in env_id:
        # The test is about replies; opening a page or servers for every few of them would be slow.
        env.unwrapped.max_turns = 200
    for number in range(replies):
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
    assert valid < replies


@shares_of_every_id("Code", "Search", "SWE", "FrozenLake")
def test_ten_thousand_tasks_show_no_leak_between_the_splits(env_id, share):
    contents = {}
    for split in SPLITS:
        tasks = gymnasium.make(env_id, split=split).unwrapped.tasks
        found = [tasks[index] for index in range(min(int(PER_SPLIT[split] * share), len(tasks)))]
        assert all(task.split == split == split_of(task.content) for task in found)
        assert len({task.task_id for task in found}) == len(found)
        contents[split] = {task.content_hash for task in found}
        assert len(found) > 20
    assert not contents["train"] & contents["test"]
    assert not contents["train"] & contents["validation"]
    assert not contents["validation"] & contents["test"]


@every_id
def test_invalid_calls_raise_specs_survive_json_and_the_conversation_is_observable(env_id, env):
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
    again = gymnasium.make(EnvSpec.from_json(env.spec.to_json()))
    assert again.reset(seed=5) == env.reset(seed=5)
    again.close()
    wrapped = MessageHistory(env)
    wrapped.reset(seed=0)
    observation, *_ = wrapped.step("my reply \ud800")
    assert observation in wrapped.observation_space
    assert [message["role"] for message in json.loads(observation)] == ["user", "assistant", "user"]


@every_id
@pytest.mark.parametrize("kind", [pytest.param("sync", marks=pytest.mark.long), "async"])
def test_gymnasiums_vector_environments_return_what_a_single_environment_returns(env_id, kind):
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


def test_the_class_docstring_has_gymnasiums_sections_in_order():
    wrong = []
    for entry_point in sorted({row[0] for row in ROWS.values()}):
        module, _, name = entry_point.partition(":")
        created = getattr(importlib.import_module(module), name)
        manual = inspect.getdoc(created)
        places = []
        for heading in (
            *("Description", "Action space", "Observation space", "Starting state", "Rewards"),
            *("Episode end", "Information", "Arguments", "Version history"),
        ):
            found = re.search(rf"^(?:#+ |\*\*){heading}", manual, re.MULTILINE)
            if found:
                places.append(found.start())
            else:
                wrong.append((entry_point, f"no heading {heading!r}"))
        if places != sorted(places):
            wrong.append((entry_point, "the headings have another order"))
        parameters = [name for name in inspect.signature(created.__init__).parameters if name != "self"]
        wrong += [(entry_point, f"no {name}:") for name in parameters if f"{name}:" not in manual]
    assert wrong == []


def test_entry_points_are_strings_so_that_specs_can_be_serialized():
    specs = {env_id: gymnasium.spec(env_id) for env_id in IDS}
    assert [env_id for env_id in IDS if not env_id.startswith("rllm/") or not env_id.endswith("-v0")] == []
    assert [env_id for env_id, spec in specs.items() if not isinstance(spec.entry_point, str)] == []
    # the environment owns max_turns
    assert [env_id for env_id, spec in specs.items() if spec.max_episode_steps is not None] == []
