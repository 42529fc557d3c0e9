"""A data set and a reward function as an environment: rows and signature are those of TRL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import own_rewards
import pytest
from commands.command_line import only_result, rllm_gym

import rllm_gym as package  # noqa: F401 - registers the ids
from rllm_gym.core import EnvironmentFault, TaskError
from rllm_gym.engine import AgentExecutionEngine, EpisodeSpec
from rllm_gym.samplers import ScriptedSampler
from rllm_gym.testing import check_text_env

ROWS = [{"prompt": f"What is {n} + {n}?", "answer": str(2 * n), "id": n} for n in range(100, 160)]
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 1 + 1?"}]


def make(reward: Any = own_rewards.correct, dataset: Any = ROWS, **kwargs: Any) -> gymnasium.Env[str, str]:
    return gymnasium.make("rllm/Dataset-v0", dataset=dataset, reward=reward, disable_env_checker=True, **kwargs)


def test_it_is_an_ordinary_environment() -> None:
    check_text_env(make, oracle=lambda env: env.unwrapped.task.data["answer"]).raise_for_failures()
    envs = gymnasium.make_vec("rllm/Dataset-v0", num_envs=2, dataset=ROWS, reward="own_rewards:correct")
    envs.reset(seed=0, options={"task": [3, 4]})
    assert envs.step(["206", "206"])[1].tolist() == [1.0, 0.0]
    envs.close()


@pytest.mark.parametrize("chat", [False, True])
def test_a_function_receives_what_trl_passes(chat: bool) -> None:
    received: dict[str, Any] = {}

    def reward(prompts: Any, completions: Any, *, tags: Any, **columns: Any) -> list[Any]:
        received.update(columns, prompts=prompts, completions=completions, tags=tags)
        tags[0].append("changed")  # a copy
        return [np.float32(0.5)]

    prompt = CHAT if chat else "What is 1 + 1?"
    env = make(reward, [{"prompt": prompt, "solution": "2", "tags": ["a"]}])
    observation, _ = env.reset(seed=0)
    assert observation == ("system: Be brief.\n\nuser: What is 1 + 1?" if chat else prompt)
    for _ in range(2):
        env.reset(seed=0)
        assert env.step("two")[1] == 0.5
    assert received == {
        "prompts": [prompt],
        "completions": [[{"role": "assistant", "content": "two"}]] if chat else ["two"],
        "solution": ["2"],
        "tags": [["a", "changed"]],
    }


def test_a_reply_that_is_too_long_is_not_better_than_a_function_says() -> None:
    """A limit that gives 0 would pay a model that is punished by a reward function for its length, or for nonsense."""

    def length(completions: Any, **columns: Any) -> list[float]:
        return [-len(text) / 10 for text in completions]

    def praise(completions: Any, **columns: Any) -> list[float]:
        return [1.0 for _ in completions]

    rows = [{"prompt": "Be brief."}]
    env = gymnasium.make("rllm/Dataset-v0", dataset=rows, reward=[length, praise], max_action_chars=10, success_at=-5)
    rewards = {}
    for reply in ("x" * 10, "x" * 20):
        env.reset(seed=0)
        observation, _, terminated, _, info = env.step(reply)
        assert terminated
        rewards[len(reply)] = info["reward_components"], info["invalid_action"], info["success"]
    assert rewards == {
        10: ({"length": -1.0, "praise": 1.0}, False, True),
        20: ({"length": -2.0, "praise": 0.0}, True, False),
    }
    assert "20 characters; at most 10" in observation


def test_several_functions_are_weighted_components_and_may_be_coroutines() -> None:
    def never(completions: list[str]) -> list[None]:
        return [None]

    env = make([own_rewards.correct, "own_rewards:short", never], reward_weights=[1.0, 0.5, 3.0])
    env.reset(options={"task": 0})
    _, reward, terminated, _, info = env.step("200")
    assert info["reward_components"] == {"correct": 1.0, "short": 0.125}
    assert (reward, terminated, info["success"]) == (1.125, True, True)


def test_coroutines_of_a_reply_run_at_the_same_time() -> None:
    started = [asyncio.Event(), asyncio.Event()]

    def waits_for(other: int) -> Callable[..., Any]:
        async def reward(completions: list[str], **columns: Any) -> list[float]:
            started[1 - other].set()
            await started[other].wait()  # forever if one is awaited before the other starts
            return [1.0]

        return reward

    env = make([waits_for(0), waits_for(1)])
    env.reset(seed=0)
    assert env.step("x")[4]["reward_components"] == {"reward": 1.0, "reward_2": 1.0}


def _raises(completions: list[str], **columns: Any) -> list[float]:
    raise KeyError("no such key")


async def _raises_later(completions: list[str], **columns: Any) -> list[float]:
    raise SystemExit(3)


def _returns(value: Any) -> Callable[..., Any]:
    def graded(completions: list[str], **columns: Any) -> Any:
        return value

    return graded


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_raises, "'_raises' raised KeyError: 'no such key'"),
        (_raises_later, "'_raises_later' raised SystemExit"),
        (_returns([float("nan")]), r"'graded' returned \[nan\]"),
        (_returns([1.0, 1.0]), "'graded' returned 2 results"),
        (_returns(1.0), "'graded' returned 1.0 for row '100'; it must return a list"),
        (_returns(["good"]), r"'graded' returned \['good'\]"),
        (_returns(1 / 0 for _ in "x"), "'graded' raised ZeroDivisionError"),
        (_returns([1e400]), "'graded' returned"),
        (_returns([None]), "every reward function .graded. returned None"),
    ],
)
def test_what_cannot_be_graded_is_a_fault_that_names_the_function_and_the_row(function: Any, message: str) -> None:
    env = make(function)
    env.reset(options={"task": 0})
    with pytest.raises(EnvironmentFault, match=message) as raised:
        env.step("reply")
    assert "row '100'" in str(raised.value)
    assert raised.value.kind == "reward_function"


def test_a_weight_that_makes_a_reward_infinite_is_a_fault() -> None:
    env = make(_returns([1e308]), reward_weights=[10.0])
    env.reset(seed=0)
    with pytest.raises(EnvironmentFault, match="'graded' returned"):
        env.step("reply")


def _needs(completions: list[str], gold: list[str]) -> list[float]:
    return [0.0]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"reward": _needs}, "'_needs' has the parameter 'gold', which is no column of row '100'.*completions, answer"),
        ({"reward": lambda completions, /: [0.0]}, "'completions'.*can only be given by position"),
        ({"reward": "own_rewards.correct"}, "write module:name"),
        ({"reward": "own_rewards:nothing"}, "cannot be imported"),
        ({"reward": 3}, "reward=3 is not a function"),
        ({"reward": []}, "no function"),
        ({"reward_weights": [1.0, 2.0]}, "one finite number for each of 1"),
        ({"success_at": "high"}, "success_at='high' must be a number"),
    ],
)
def test_wrong_arguments_are_reported_before_an_episode(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        make(**{"reward": own_rewards.correct} | kwargs)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"conversations": [{"from": "human", "value": "Hi"}]}, "ShareGPT.*role/content"),
        ({"instruction": "Add.", "input": "1 1", "output": "2"}, 'Alpaca: join instruction and input to "prompt"'),
        ({"messages": CHAT}, 'name the messages up to the last user message "prompt"'),
        ({"chosen": "a", "rejected": "b"}, "rllm-gym dpo"),
        ({"query": "Hi"}, r'its columns: query.*each row needs "prompt"'),
        ({"prompt": [{"from": "human", "value": "Hi"}]}, "rename them"),
        ({"prompt": [*CHAT, {"role": "assistant", "content": "2"}]}, "ends with a message of 'assistant'"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "the content of a message is a text"),
        ({"prompt": "Hi", "completions": "x"}, "'completions' has the name of an argument"),
    ],
)
def test_a_row_of_another_format_is_an_error_with_the_fix(row: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=f"row 1.*{message}"):
        make(dataset=[ROWS[0], row])


def test_the_model_receives_the_messages_of_a_row() -> None:
    sampler = ScriptedSampler(["2"], cycle=True)
    engine = AgentExecutionEngine(
        env="rllm/Dataset-v0",
        sampler=sampler,
        env_kwargs={"dataset": [{"prompt": CHAT, "answer": "2"}], "reward": own_rewards.correct},
    )

    async def run() -> Any:
        async with engine:
            return [episode async for episode in engine.stream([EpisodeSpec(task=0, seed=0)])]

    (episode,) = asyncio.run(run())
    assert episode.success
    assert episode.trajectories[0].steps[0].chat_completions == CHAT


def test_eval_takes_a_file_and_the_name_of_a_function(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, ROWS)))
    (tmp_path / "replies.txt").write_text("200\n")
    arguments = ["-k", f"dataset={file}", "-k", "reward=own_rewards:correct", "--split", "train", "--json"]
    shown = rllm_gym("eval", "rllm/Dataset-v0", *arguments, "--model.path", f"scripted:{tmp_path}/replies.txt")
    assert shown.returncode == 0, shown.stderr
    result = only_result(shown.stdout)
    assert result["faults"] == {}
    assert result["split"] == "train"
