"""An asynchronous environment keeps the same contract, awaited or not, and the engine awaits it where possible."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import gymnasium
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from rllm_gym.core import AsyncTextEnv, EnvironmentFault, InvalidAction, Outcome, Task, TextEnv
from rllm_gym.data import Taskset
from rllm_gym.engine import AgentExecutionEngine, Deadlines
from rllm_gym.samplers import ScriptedSampler

NUMBERS = Taskset.from_rows([Task(str(index), f"guess {index}") for index in range(9)])


class Guess(TextEnv):
    """The synchronous counterpart."""

    def __init__(self, max_turns: int = 3, log: list[str] | None = None) -> None:
        super().__init__(tasks=NUMBERS, max_turns=max_turns, invalid_action_penalty=0.5)
        self.log = log if log is not None else []

    def _begin(self, task: Task) -> str:
        return f"{task.content} {self.np_random.integers(1000)}"

    def _act(self, action: str) -> Outcome:
        if not action.isdecimal():
            raise InvalidAction(f"{action[:20]!r} is no number")
        if action == "666":
            raise EnvironmentFault("the server went away")
        right = self.task.task_id == action
        return Outcome(f"{action}? {self.np_random.integers(1000)}", {"guess": float(right)}, right, right)


class AsyncGuess(AsyncTextEnv, Guess):
    async def _async_begin(self, task: Task) -> str:
        self.log.append(threading.current_thread().name)
        await asyncio.sleep(0)
        return Guess._begin(self, task)

    async def _async_act(self, action: str) -> Outcome:
        await asyncio.sleep(0)
        if action == "777":
            await asyncio.Event().wait()
        return Guess._act(self, action)

    async def _async_end(self) -> None:
        self.log.append("closed")


class SlowGuess(AsyncGuess):
    max_step_s = 3_600.0

    async def _async_act(self, action: str) -> Outcome:
        await asyncio.sleep(0.05)
        return await super()._async_act(action)


def play(env: Any, actions: list[str]) -> list[Any]:
    return [env.reset(seed=5, options={"task": 4}), *(env.step(action) for action in actions)]


def test_async_and_sync_environments_behave_the_same() -> None:
    async def awaited(actions: list[str]) -> list[Any]:
        env = AsyncGuess()
        results = [await env.async_reset(seed=5, options={"task": 4})]
        return results + [await env.async_step(action) for action in actions]

    for actions in (["1", "4"], ["x", "1", "2"], ["1" * 5, "", "3"]):
        expected = play(Guess(), actions)
        assert play(AsyncGuess(), actions) == expected, actions
        assert asyncio.run(awaited(actions)) == expected, actions


def test_an_async_environment_passes_gymnasiums_checker() -> None:
    check_env(AsyncGuess(), skip_render_check=True)


def test_after_the_end_or_a_fault_a_reset_is_required() -> None:
    env = AsyncGuess()
    with pytest.raises(ResetNeeded):
        env.step("1")
    env.reset(options={"task": 4})
    with pytest.raises(EnvironmentFault):
        env.step("666")
    with pytest.raises(ResetNeeded):
        env.step("1")
    env.reset()
    with pytest.raises(TypeError):
        env.step(3)  # type: ignore[arg-type]


def engine_of(env: Any, log: list[str], **arguments: Any) -> AgentExecutionEngine:
    return AgentExecutionEngine(
        env=env, env_kwargs={"log": log}, sampler=ScriptedSampler(lambda request: "1"), n_parallel=4, **arguments
    )


def wrapped(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TransformReward(AsyncGuess(**kwargs), lambda reward: 2 * float(reward))


def test_the_engine_awaits_an_async_environment_on_its_own_loop() -> None:
    log: list[str] = []
    episodes = engine_of(AsyncGuess, log).run_sync(range(9))
    assert [episode.reward for episode in episodes] == [0, 1, 0, 0, 0, 0, 0, 0, 0]
    assert log.count(threading.current_thread().name) == 9
    assert log.count("closed") == 9


def test_a_wrapper_that_changes_step_is_not_bypassed() -> None:
    log: list[str] = []
    episodes = engine_of(wrapped, log).run_sync(range(2))
    assert [episode.reward for episode in episodes] == [0, 2]
    assert threading.current_thread().name not in log


def test_coroutines_have_deadlines_too() -> None:
    engine = AgentExecutionEngine(
        env=AsyncGuess, sampler=ScriptedSampler(lambda request: "777"), retries=0, deadlines=Deadlines(step=0.2)
    )
    (episode,) = engine.run_sync([0])
    assert engine.stats.faults == {"step_deadline": 1}
    assert not episode.trainable
    assert engine.stats.abandoned_threads == 0
    engine = AgentExecutionEngine(
        env=SlowGuess, sampler=ScriptedSampler(lambda request: "0"), retries=0, deadlines=Deadlines(step=0.001)
    )
    (episode,) = engine.run_sync([0])
    assert not engine.stats.faults, "a model may make its steps last as long as the environment allows"
    assert episode.trainable


class AsksAnother(AsyncGuess):
    """Plays another asynchronous environment through its synchronous methods, in its own coroutine."""

    async def _async_act(self, action: str) -> Outcome:
        AsyncGuess().reset(seed=0)
        return await super()._async_act(action)


def test_synchronous_methods_inside_a_coroutine_are_an_error_and_no_endless_wait() -> None:
    """Both would run on the loop that synchronous callers share, which cannot wait for itself."""
    env = AsksAnother()
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match=r"async_reset would wait forever: .*await the coroutine instead"):
        env.step("1")
