"""A wrong argument of a constructor is an error that names the argument, its value and what it must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import pytest

import rllm_gym  # noqa: F401 - registers the ids
from rllm_gym.engine import AgentExecutionEngine
from rllm_gym.envs import TABLE
from rllm_gym.runtime import WorkerPool
from rllm_gym.samplers import SamplingParams, ScriptedSampler
from rllm_gym.samplers.openai_compatible import OpenAISampler
from rllm_gym.sandbox import Program, SandboxPool
from rllm_gym.vector import TextVectorEnv

LAKE = "rllm/FrozenLake-v0"


def engine(**options: Any) -> AgentExecutionEngine:
    return AgentExecutionEngine(LAKE, **({"sampler": ScriptedSampler(["up"])} | options))


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: SandboxPool(max_workers="2"), "max_workers='2' must be a whole number of at least 1, or None"),  # type: ignore[arg-type]
    (lambda: SandboxPool(max_workers=0), "max_workers=0 must be a whole number"),
    (lambda: WorkerPool("thread", max_workers="2"), "max_workers='2' must be a whole number of at least 1"),  # type: ignore[arg-type]
    (lambda: WorkerPool("process", max_workers=1, memory_mb="2"), "memory_mb='2' must be a whole number"),  # type: ignore[arg-type]
    (lambda: OpenAISampler(model="m", parallel="3"), "parallel='3' must be a whole number of at least 1"),  # type: ignore[arg-type]
    (lambda: OpenAISampler(model="m", retries=-1), "retries=-1 must be a whole number of at least 0"),
    (lambda: OpenAISampler(model="m", timeout="3"), "timeout='3' must be a number above 0"),  # type: ignore[arg-type]
    (lambda: SamplingParams(max_tokens="3"), "max_tokens='3' must be a whole number of at least 1"),  # type: ignore[arg-type]
    (lambda: SamplingParams(temperature="3"), "temperature='3' must be a number of at least 0"),  # type: ignore[arg-type]
    (lambda: SamplingParams(temperature=float("nan")), "temperature=nan must be a number of at least 0"),
    (lambda: SamplingParams(top_p=None), "top_p=None must be a number"),  # type: ignore[arg-type]
    (lambda: engine(sampler=3), "sampler=3 must be a sampler, such as TorchSampler"),
    (lambda: engine(n_parallel="3"), "n_parallel='3' must be a whole number of at least 1"),
    (lambda: engine(retries=True), "retries=True must be a whole number of at least 0"),
    (lambda: TextVectorEnv(2.0, env_id=LAKE), "num_envs=2.0 must be a whole number of at least 1"),  # type: ignore[arg-type]
    (lambda: Program(3), "source=3 must be the text of a Python program, not a value of type int"),  # type: ignore[arg-type]
    (lambda: Program("", stdin="1"), "stdin='1' must be bytes, such as b'1 2', not a value of type str"),  # type: ignore[arg-type]
    (lambda: Program("", limits=3), "limits=3 must be a Limits, such as Limits"),  # type: ignore[arg-type]
]


def test_each_error_names_the_argument_its_value_and_what_it_must_be() -> None:
    other = []
    for create, message in WRONG:
        with pytest.raises((TypeError, ValueError)) as caught:
            create()
        if message not in str(caught.value):
            other.append((message, str(caught.value)))
    assert other == []


@pytest.mark.parametrize("env_id", [env_id for env_id in TABLE if "Web" not in env_id])
def test_reset_options_must_be_a_dictionary(env_id: str) -> None:
    with (
        gymnasium.make(env_id, disable_env_checker=True) as env,
        pytest.raises(TypeError, match=r"options=3 must be a dictionary such as \{'task': 0\}, or None, not a"),
    ):
        env.reset(options=3)  # type: ignore[arg-type]
