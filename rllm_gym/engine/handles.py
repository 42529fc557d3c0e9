"""A workflow's hold on the worlds it plays in: an environment, or a game of several agents, each in its worker."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from rllm_gym.core import EnvironmentFault, StopReason, Task
from rllm_gym.engine.game_host import Position
from rllm_gym.engine.host import Stepped, WrongAction
from rllm_gym.engine.rollout import ENVIRONMENT_REASONS
from rllm_gym.engine.slot import Slot

if TYPE_CHECKING:
    from rllm_gym.engine.play import Play

TaskLike = int | str | Task | Mapping[str, Any]


class Handle:
    """A world in a worker. A fault of it ends the attempt, also where the workflow's code catches the exception.

    Attributes:
        env_id: Its id or name.
        info: The latest; of a game, the first agent's.
    """

    def __init__(self, play: Play, slot: Slot, env_id: str) -> None:
        self.env_id = env_id
        self.info: dict[str, Any] = {}
        self._play = play
        self._slot = slot
        play.worlds.append(self)

    @asynccontextmanager
    async def _at_work(self) -> AsyncIterator[None]:
        await self._play.enter()
        began = time.perf_counter()
        with self._play.seat.at_work():
            try:
                yield
            except EnvironmentFault as fault:
                self._play.break_off(fault)
                raise
            finally:
                self._play.seconds["env"] += time.perf_counter() - began

    def _options(self, task: TaskLike | None) -> dict[str, Any] | None:
        task = self._play.task if task is None else task
        return None if task is None else {"task": task}


class EnvironmentHandle(Handle):
    """An environment. Made by ``await play.env(…)``.

    Attributes:
        reward: Sum of the rewards since the reset.
        success: Whether the task was solved.
        stop_reason: Why the world's episode ended; ``StopReason.NONE`` while it goes on.
        tools: The tools it offers, a JSON list of OpenAI schemas.
    """

    def __init__(self, play: Play, slot: Slot, env_id: str) -> None:
        super().__init__(play, slot, env_id)
        self._forget()

    def _forget(self) -> None:
        self.reward = 0.0
        self.success = False
        self.stop_reason = StopReason.NONE
        self.tools = "[]"

    @property
    def over(self) -> bool:
        """The world's episode has ended."""
        return self.stop_reason is not StopReason.NONE

    async def reset(self, task: TaskLike | None = None, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of this world, again if one was begun before; observation and info.

        Args:
            task: Index, id or task; ``None``: the spec's, or where it names none the one the seed picks.
            seed: Seed of the dynamics; ``None``: the episode's, so that another reset shows the same world again.

        Raises:
            EnvironmentFault: The world broke. Do not catch it: the episode begins again on fresh worlds.
            TaskError: There is no such task.
        """
        self._forget()
        async with self._at_work():
            seed = self._play.seed if seed is None else seed
            observation, info, row = await self._slot.begin(seed, self._options(task))
        self.tools = str(info.get("tools", "[]"))
        self.info = info
        self._play.met(str(info.get("task_id", "")), row)
        return observation, info

    async def step(self, action: str) -> Stepped:
        """Give a reply to the world: observation, reward, terminated, truncated, info.

        Raises:
            EnvironmentFault: The world broke. Do not catch it: the episode begins again on fresh worlds.
            TypeError: The world cannot even read the action.
        """
        async with self._at_work():
            try:
                stepped = await self._slot.step(action)
            except WrongAction as error:
                raise TypeError(f"{self.env_id}: {error}") from error
        _, reward, terminated, truncated, info = stepped
        self.reward += reward
        if terminated or truncated:
            said = info.get("success")
            self.success = terminated and (bool(said) if said is not None else self.reward > 0)
            self.stop_reason = _reason(info.get("stop_reason"), terminated, self.success)
        self.info = info
        return stepped


class GameHandle(Handle):
    """A game of several agents in turns. Made by ``await play.game(…)``.

    Attributes:
        agent: Whose turn it is; ``""`` when the game is over.
        agents: Everybody who plays.
        observation: What the agent whose turn it is sees.
        rewards: For each agent, the sum since the reset.
        infos: For each agent, the latest.
        stop_reason: Why the game ended; ``StopReason.NONE`` while it goes on.
    """

    def __init__(self, play: Play, slot: Slot, env_id: str) -> None:
        super().__init__(play, slot, env_id)
        self._take(Position("", "", {}, {}))
        self.agents: tuple[str, ...] = ()
        self.rewards: dict[str, float] = {}

    def _take(self, position: Position) -> None:
        self.agent = position.agent
        self.observation = position.observation
        self.infos = position.infos
        self.info = next(iter(position.infos.values()), {})
        self.stop_reason = StopReason.NONE
        if position.over and position.agents:
            said = {str(info.get("stop_reason", "")) for info in position.infos.values()} & ENVIRONMENT_REASONS
            won = any(info.get("success") for info in position.infos.values())
            self.stop_reason = _reason(min(said, default="") if position.truncated else "", position.terminated, won)

    @property
    def over(self) -> bool:
        return not self.agent

    async def reset(self, task: TaskLike | None = None, seed: int | None = None) -> str:
        """Begin a game; whose turn it is. Arguments and errors as :meth:`EnvironmentHandle.reset`."""
        async with self._at_work():
            seed = self._play.seed if seed is None else seed
            position = cast(Position, await self._slot.begin(seed, self._options(task)))
        self._take(position)
        self.agents = position.agents
        self.rewards = dict.fromkeys(position.agents, 0.0)
        self._play.met(str(self.info.get("task_id", "")), position.task)
        return self.agent

    async def observe(self, agent: str) -> str:
        """What an agent sees now.

        Raises:
            EnvironmentFault: The world broke.
            ValueError: Nobody of that name plays.
        """
        if agent not in self.agents:
            raise ValueError(f"nobody called {agent!r} plays {self.env_id}; there are {list(self.agents)}")
        if agent == self.agent:
            return self.observation
        async with self._at_work():
            text: str = await self._slot.ask("observe", agent)
        return text

    async def step(self, action: str) -> dict[str, float]:
        """The move of :attr:`agent`; what it earned, for each agent.

        Raises:
            EnvironmentFault: The world broke. Do not catch it: the episode begins again on fresh worlds.
            ValueError: The game is over, or never began.
        """
        if self.over:
            raise ValueError(f"{self.env_id} is over (or never began): call reset() before step()")
        async with self._at_work():
            position = cast(Position, await self._slot.step(action))
        self._take(position)
        for agent, reward in position.rewards.items():
            self.rewards[agent] = self.rewards.get(agent, 0.0) + reward
        return position.rewards


def _reason(said: Any, terminated: bool, success: bool) -> StopReason:
    if isinstance(said, str) and said in ENVIRONMENT_REASONS:
        return StopReason(said)
    if terminated:
        return StopReason.SUCCESS if success else StopReason.FAILURE
    return StopReason.MAX_TURNS
