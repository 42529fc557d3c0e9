"""The worker side of a turn-based PettingZoo game (AEC): runs the game and checks everything it returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pettingzoo

from rllm_gym.core import EnvironmentFault, Task
from rllm_gym.runtime.env_building import imported_id
from rllm_gym.runtime.env_checks import as_faults, invalid_result, short_repr


@dataclass(frozen=True, slots=True)
class GameState:
    """The state of a game between two moves.

    Attributes:
        agent: The agent to move; ``""`` when the game is over.
        observation: The observation of that agent.
        rewards: Rewards of the last move, by agent.
        infos: Infos, by agent.
        terminated: Whether the game was decided, for every agent.
        truncated: Whether the game ended undecided, for at least one agent.
        agents: All agents of the game.
        task: The task as JSON types, if the game provides it.
    """

    agent: str
    observation: str
    rewards: dict[str, float]
    infos: dict[str, dict[str, Any]]
    terminated: bool = False
    truncated: bool = False
    agents: tuple[str, ...] = ()
    task: dict[str, Any] | None = None

    @property
    def done(self) -> bool:
        return not self.agent


def resolve_game(game: str | Callable[..., Any]) -> str | Callable[..., Any]:
    """Return the id of a registered game (``"module:id"`` imports the module first), or the callable itself.

    Raises:
        PettingZooRegistryError: There is no such id; PettingZoo's message names the nearest one.
        TypeError: ``game`` is neither an id nor callable.
    """
    if isinstance(game, str):
        pettingzoo.spec("aec", imported_id(game))
        return game
    if callable(game):
        return game
    raise TypeError(f"game must be an id or a callable that returns a game; got {type(game).__name__}")


class GameHost:
    """Holds the game in a worker. Handles one call at a time."""

    def __init__(self, source: str | Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
        self._source = source
        self._kwargs = kwargs
        self._game: Any = None
        self._agents: tuple[str, ...] = ()

    def make(self) -> None:
        """Construct the game. Exceptions pass through unchanged, since most of them are mistakes of the caller."""
        if isinstance(self._source, str):
            self._game = pettingzoo.make("aec", imported_id(self._source), **self._kwargs)
        else:
            self._game = self._source(**self._kwargs)
        lacks = [name for name in ("reset", "step", "observe") if not callable(getattr(self._game, name, None))]
        if lacks:
            raise TypeError(
                f"{self._source!r} returned {type(self._game).__name__}, not an AEC environment: it has no {lacks}"
            )

    def reset(self, seed: int, options: dict[str, Any] | None) -> GameState:
        game = self._require_game()
        with as_faults("reset"):
            game.reset(seed=seed, options=options)
            self._agents = tuple(game.agents)
            task = getattr(game.unwrapped, "task", None)
        return self._state("reset", {}, task.to_json() if isinstance(task, Task) else None)

    def step(self, action: str) -> GameState:
        game = self._require_game()
        with as_faults("step"):
            game.step(action)
            rewards = dict(game.rewards)
        return self._state("step", rewards, None)

    def observe(self, agent: str) -> str:
        """Return the current observation of an agent, also if it is not that agent's turn."""
        with as_faults("observe"):
            return _text(self._require_game().observe(agent), agent)

    def close(self) -> None:
        """Close the game. The worker keeps running."""
        game, self._game = self._game, None
        if game is not None:
            with as_faults("close"):
                game.close()

    def async_env(self) -> Any:
        """Raise ``TypeError``: games have no coroutines."""
        raise TypeError("a PettingZoo game has no coroutines")

    def _require_game(self) -> Any:
        if self._game is None:
            raise EnvironmentFault("the game was closed", kind="closed")
        return self._game

    def _state(self, where: str, rewards: dict[str, Any], task: dict[str, Any] | None) -> GameState:
        game = self._require_game()
        with as_faults(where):
            active = [name for name in game.agents if not (game.terminations[name] or game.truncations[name])]
            # PettingZoo requires step(None) for agents that are done; the model is not called for that.
            for _ in self._agents:
                if not active or game.agent_selection in active:
                    break
                game.step(None)
            agent = game.agent_selection if active else ""
            observation = _text(game.observe(agent), agent) if agent else ""
            truncated = not active and any(game.truncations.values())
            infos = {name: dict(info) for name, info in game.infos.items()}
        if active and agent not in active:
            raise invalid_result(
                where, f"selected the agent {short_repr(agent)}, which is not active; the active agents are {active}"
            )
        for name, reward in rewards.items():
            if not isinstance(reward, int | float | np.number | np.bool_) or not math.isfinite(reward):
                raise invalid_result(where, f"returned the reward {short_repr(reward)} for {name}, not a finite number")
        return GameState(
            agent,
            observation,
            {name: float(reward) for name, reward in rewards.items()},
            infos,
            terminated=not active and not truncated,
            truncated=truncated,
            agents=self._agents,
            task=task,
        )


def _text(observation: Any, agent: str) -> str:
    if isinstance(observation, Mapping):
        observation = observation.get("text")
    if not isinstance(observation, str):
        raise invalid_result(
            "observe",
            f"returned the observation {short_repr(observation)} for {agent}, not a str or a dict with a 'text'",
        )
    return observation
