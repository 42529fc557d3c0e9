"""A turn-based game behind PettingZoo's parallel interface: one turn per step, all other agents wait."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from gymnasium import spaces
from gymnasium.error import ResetNeeded
from pettingzoo import ParallelEnv

from rllm_gym.core import Text
from rllm_gym.multiagent.game import TextGame


class ParallelGame(ParallelEnv):  # type: ignore[misc]
    """A :class:`TextGame` as a ``ParallelEnv``: each step is the turn of one agent.

    ``infos[agent]["active"]`` marks that agent. Actions of the others are ignored and optional. Observations are as in
    the game: all that is new for an agent since *it* last acted, so that a caller that queries models only when they
    are active misses nothing; until then it is a growing preview. Rewards, and their components in ``info``, are those
    of this step alone.

    Args:
        game: The game; it must be stepped only through this object.
    """

    metadata: ClassVar[dict[str, Any]] = TextGame.metadata

    def __init__(self, game: TextGame) -> None:
        self.game = game
        self.metadata = {**game.metadata, "is_parallelizable": True}  # type: ignore[misc]
        self.possible_agents = list(game.possible_agents)
        self.agents: list[str] = []
        self.render_mode = game.render_mode

    def observation_space(self, agent: str) -> spaces.Dict:
        return self.game.observation_space(agent)

    def action_space(self, agent: str) -> Text:
        return self.game.action_space(agent)

    def reset(
        self, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, Any]]]:
        """Start an episode; return observations and infos of all agents. See :meth:`TextGame.reset`."""
        self.agents = []
        self.game.reset(seed=seed, options=options)
        self.agents = list(self.game.agents)
        return self._observations(), self._infos()

    def step(
        self, actions: Mapping[str, str | None]
    ) -> tuple[
        dict[str, dict[str, str]], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, Any]]
    ]:
        """Pass the active agent's reply to the game.

        Raises:
            ValueError: There is none.
            TypeError: It is not a string.
            gymnasium.error.ResetNeeded: The episode is over or was never started.
            EnvironmentFault: The environment failed; the episode is over.
        """
        game = self.game
        if not self.agents:
            raise ResetNeeded("the episode is over or was never started: call reset() before step()")
        active = game.agent_selection
        if active not in actions:
            raise ValueError(f"no action for {active!r}, whose turn it is; got actions for {sorted(actions)}")
        if not isinstance(actions[active], str):
            raise TypeError(f"an action must be a str (the model's raw reply); got {type(actions[active]).__name__}")
        try:
            game.step(actions[active])
        except BaseException:
            self.agents = list(game.agents)
            raise
        result = (
            self._observations(),
            dict(game.rewards),
            dict(game.terminations),
            dict(game.truncations),
            self._infos(),
        )
        while game.agents and (game.terminations[game.agent_selection] or game.truncations[game.agent_selection]):
            game.step(None)
        self.agents = list(game.agents)
        return result

    def render(self) -> str | None:
        return self.game.render()

    def close(self) -> None:
        self.game.close()

    def get_state(self) -> bytes:
        """See :meth:`TextGame.get_state`."""
        return self.game.get_state()

    def set_state(self, state: bytes) -> None:
        """See :meth:`TextGame.set_state`."""
        self.agents = []
        self.game.set_state(state)
        self.agents = list(self.game.agents)

    def fork(self) -> Self:
        """See :meth:`TextGame.fork`."""
        copy = type(self)(self.game.fork())
        copy.agents = list(self.agents)
        return copy

    def _observations(self) -> dict[str, dict[str, str]]:
        return {agent: self.game.observe(agent) for agent in self.game.agents}

    def _infos(self) -> dict[str, dict[str, Any]]:
        earned = self.game.rewards_by_component
        return {agent: {**info, "reward_components": dict(earned[agent])} for agent, info in self.game.infos.items()}
