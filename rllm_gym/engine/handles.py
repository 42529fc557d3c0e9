"""Handles that a workflow uses to control an environment or a multi-agent game, each in its own worker."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

from rllm_gym.core import EnvironmentFault, StopReason, Task
from rllm_gym.engine.attempt_state import AttemptState
from rllm_gym.engine.episode_env_worker import EpisodeEnvWorker
from rllm_gym.engine.game_host import GameState
from rllm_gym.engine.rollout import ENVIRONMENT_REASONS, environment_stop_reason, succeeded
from rllm_gym.engine.task_env_host import ActionTypeError
from rllm_gym.runtime.env_host import StepResult

TaskLike = int | str | Task | Mapping[str, Any]


class WorkerHandle:
    """An environment or a game in a worker. A fault ends the attempt, also if the workflow catches the exception.

    Attributes:
        env_id: Its id or name.
        info: The latest info; for a game, the info of its first agent.
    """

    def __init__(self, state: AttemptState, worker: EpisodeEnvWorker, env_id: str) -> None:
        self.env_id = env_id
        self.info: dict[str, Any] = {}
        self._state = state
        self._worker = worker

    @asynccontextmanager
    async def _busy(self) -> AsyncIterator[None]:
        await self._state.check_running()
        began = time.perf_counter()
        with self._state.sampler_client.busy():
            try:
                yield
            except EnvironmentFault as fault:
                self._state.abort(fault)
                raise
            finally:
                self._state.seconds["env"] += time.perf_counter() - began

    def _options(self, task: TaskLike | None) -> dict[str, Any] | None:
        task = self._state.spec.task if task is None else task
        return None if task is None else {"task": task}


class EnvironmentHandle(WorkerHandle):
    """A handle of an environment, created by ``await context.env(…)``.

    Attributes:
        reward: Sum of the rewards since the reset.
        success: Whether the task was solved.
        stop_reason: Why the environment's episode ended; ``StopReason.NONE`` while it is running.
        tools: The tools it offers, a JSON list of OpenAI tool schemas.
    """

    def __init__(self, state: AttemptState, worker: EpisodeEnvWorker, env_id: str) -> None:
        super().__init__(state, worker, env_id)
        self._clear()

    def _clear(self) -> None:
        self.reward = 0.0
        self.success = False
        self.stop_reason = StopReason.NONE
        self.tools = "[]"

    @property
    def done(self) -> bool:
        """Whether the environment's episode has ended."""
        return self.stop_reason is not StopReason.NONE

    async def reset(self, task: TaskLike | None = None, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode of this environment. Can be called again.

        Args:
            task: Index, id or task. ``None``: the task of the spec, or the one that the seed selects if the spec has
                none.
            seed: Seed of the dynamics. ``None``: the seed of the episode, so that another reset gives the same
                environment again.

        Returns:
            Observation and info.

        Raises:
            EnvironmentFault: The environment failed. Do not catch it: the episode restarts with fresh environments.
            TaskError: There is no such task.
        """
        self._clear()
        async with self._busy():
            seed = self._state.seed if seed is None else seed
            observation, info, row = await self._worker.reset(seed, self._options(task))
        self.tools = str(info.get("tools", "[]"))
        self.info = info
        self._state.set_task(str(info.get("task_id", "")), row)
        return observation, info

    async def step(self, action: str) -> StepResult:
        """Execute one reply: return observation, reward, terminated, truncated, info.

        Raises:
            EnvironmentFault: The environment failed. Do not catch it: the episode restarts with fresh environments.
            TypeError: The action has a type that the environment does not accept.
        """
        async with self._busy():
            try:
                stepped: StepResult = await self._worker.step(action)
            except ActionTypeError as error:
                raise TypeError(f"{self.env_id}: {error}") from error
        _, reward, terminated, truncated, info = stepped
        self.reward += reward
        if terminated or truncated:
            self.success = terminated and succeeded(info, self.reward)
            self.stop_reason = environment_stop_reason(info.get("stop_reason"), terminated, self.success)
        self.info = info
        return stepped


class GameHandle(WorkerHandle):
    """A handle of a turn-based game of several agents, created by ``await context.game(…)``.

    Attributes:
        agent: The agent to move; ``""`` when the game is over.
        agents: All agents of the game.
        observation: The observation of the agent to move.
        rewards: Sum of the rewards since the reset, by agent.
        infos: The latest infos, by agent.
        stop_reason: Why the game ended; ``StopReason.NONE`` while it is running.
    """

    def __init__(self, state: AttemptState, worker: EpisodeEnvWorker, env_id: str) -> None:
        super().__init__(state, worker, env_id)
        self._update(GameState("", "", {}, {}))
        self.agents: tuple[str, ...] = ()
        self.rewards: dict[str, float] = {}

    def _update(self, state: GameState) -> None:
        self.agent = state.agent
        self.observation = state.observation
        self.infos = state.infos
        self.info = next(iter(state.infos.values()), {})
        self.stop_reason = StopReason.NONE
        if state.done and state.agents:
            reasons = {str(info.get("stop_reason", "")) for info in state.infos.values()} & ENVIRONMENT_REASONS
            won = any(info.get("success") for info in state.infos.values())
            reason = min(reasons, default="") if state.truncated else ""
            self.stop_reason = environment_stop_reason(reason, state.terminated, won)

    @property
    def done(self) -> bool:
        return not self.agent

    async def reset(self, task: TaskLike | None = None, seed: int | None = None) -> str:
        """Start a game and return the agent to move. Arguments and errors: see :meth:`EnvironmentHandle.reset`."""
        async with self._busy():
            seed = self._state.seed if seed is None else seed
            state = cast(GameState, await self._worker.reset(seed, self._options(task)))
        self._update(state)
        self.agents = state.agents
        self.rewards = dict.fromkeys(state.agents, 0.0)
        self._state.set_task(str(self.info.get("task_id", "")), state.task)
        return self.agent

    async def observe(self, agent: str) -> str:
        """Return the current observation of an agent.

        Raises:
            EnvironmentFault: The environment failed.
            ValueError: The game has no agent of that name.
        """
        if agent not in self.agents:
            raise ValueError(f"{self.env_id} has no agent {agent!r}; its agents are {list(self.agents)}")
        if agent == self.agent:
            return self.observation
        async with self._busy():
            text: str = await self._worker.call("observe", agent)
        return text

    async def step(self, action: str) -> dict[str, float]:
        """Make the move of :attr:`agent` and return the rewards of this move, by agent.

        Raises:
            EnvironmentFault: The environment failed. Do not catch it: the episode restarts with fresh environments.
            ValueError: The game is over or was never started.
        """
        if self.done:
            raise ValueError(f"{self.env_id} is over or was never reset: call reset() before step()")
        async with self._busy():
            state = cast(GameState, await self._worker.step(action))
        self._update(state)
        for agent, reward in state.rewards.items():
            self.rewards[agent] = self.rewards.get(agent, 0.0) + reward
        return state.rewards
