"""The rollout engine and vector environments accept and reject the same results of an environment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from rllm_gym.core import EnvironmentFault
from rllm_gym.runtime.env_checks import checked_reset, checked_step
from rllm_gym.vector import TextVectorEnv


class Result(NamedTuple):
    observation: Any
    reward: Any
    terminated: Any
    truncated: Any
    info: Any


class Returning(gymnasium.Env[Any, Any]):
    """``step`` returns what it was created with."""

    def __init__(self, space: spaces.Space[Any], first: Any, result: Any) -> None:
        self.observation_space, self.action_space = space, spaces.Text(10)
        self._first, self._result = first, result

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return self._first, {}

    def step(self, action: str) -> Any:
        return self._result


def in_engine(make: Callable[[], Returning]) -> str:
    from rllm_gym.engine.episode_env_worker import EpisodeEnvWorker
    from rllm_gym.engine.spec import Deadlines
    from rllm_gym.engine.stats import EngineStats
    from rllm_gym.runtime import WorkerPool

    async def run() -> str:
        with WorkerPool("thread", max_workers=1) as pool:
            worker = EpisodeEnvWorker(
                pool, make, {}, Deadlines(), reuse=False, env_made=threading.Event(), stats=EngineStats()
            )
            try:
                await worker.reset(0, None)
                await worker.step("x")
            except EnvironmentFault as fault:
                return fault.kind
            finally:
                await worker.aclose()
            return "accepted"

    return asyncio.run(run())


def in_vector_env(make: Callable[[], Returning]) -> str:
    envs = TextVectorEnv(1, env_id=make)
    try:
        envs.reset(seed=0)
        *_, infos = envs.step(["x"])
        return str(infos["fault_kind"][0]) if "fault_kind" in infos else "accepted"
    finally:
        envs.close()


TEXT, THREE = spaces.Text(10), spaces.Discrete(3)
BOX, PAIR = spaces.Box(0, 1, (2,), np.float32), spaces.Dict({"text": TEXT, "number": THREE})
CASES: list[tuple[str, spaces.Space[Any], Any, Any, bool]] = [
    ("named tuple", TEXT, "a", Result("b", 1.0, True, False, {}), True),
    ("list", TEXT, "a", ["b", 1.0, True, False, {}], False),
    ("number in its space", THREE, 0, (2, 0.0, True, False, {}), True),
    ("number outside its space", THREE, 0, (5, 0.0, True, False, {}), False),
    ("text for a number", THREE, 0, ("2", 0.0, True, False, {}), False),
    ("array", BOX, np.zeros(2, np.float32), (np.ones(2, np.float32), 0.0, True, False, {}), True),
    ("array of another shape", BOX, np.zeros(2, np.float32), (np.ones(3, np.float32), 0.0, True, False, {}), False),
    ("dict", PAIR, {"text": "a", "number": 0}, ({"text": "b", "number": 2}, 0.0, True, False, {}), True),
    (
        "dict with a wrong value",
        PAIR,
        {"text": "a", "number": 0},
        ({"text": "b", "number": 3}, 0, True, False, {}),
        False,
    ),
    ("numpy reward and flags", TEXT, "a", ("b", np.float32(1), np.True_, np.False_, {}), True),
    ("reward that is not finite", TEXT, "a", ("b", float("nan"), True, False, {}), False),
    ("reward too large for a float", TEXT, "a", ("b", 10**400, True, False, {}), False),
    ("info that is not a dict", TEXT, "a", ("b", 1.0, True, False, []), False),
]


@pytest.mark.parametrize("run", [in_engine, in_vector_env])
def test_engine_and_vector_environment_agree(run: Callable[[Callable[[], Returning]], str]) -> None:
    answers = {
        name: run(lambda space=space, first=first, result=result: Returning(space, first, result))
        for name, space, first, result, _ in CASES
    }
    assert answers == {name: "accepted" if valid else "invalid_result" for name, *_, valid in CASES}


def test_without_a_space_an_observation_is_a_string() -> None:
    assert checked_reset(("a", {}), None) == ("a", {})
    assert checked_step(("a", 1, False, False, {}), None) == ("a", 1.0, False, False, {})
    with pytest.raises(EnvironmentFault, match="which is not a str"):
        checked_reset((0, {}), None)
