"""Multi-agent environments: PettingZoo's AEC and parallel interfaces over text.

``import rllm_gym`` registers every id of the tables with PettingZoo, as ``pettingzoo.make("aec" | "parallel", id)``:
games, whose agents differ in knowledge or goals, and every single-agent environment, played by a team. The games are
registered with Gymnasium, too: as environments of one player, against scripted ones.
"""

from __future__ import annotations

import importlib
from typing import Any, Literal

import gymnasium
import pettingzoo

from rllm_gym import envs
from rllm_gym.multiagent.game import TextGame, TurnResult
from rllm_gym.multiagent.parallel import ParallelGame
from rllm_gym.multiagent.teams import Team, team, team_parallel

__all__ = [
    "GAMES",
    "ParallelGame",
    "Team",
    "TextGame",
    "TurnResult",
    "parallel_game",
    "register_all",
    "team",
    "team_parallel",
]

# id -> entry point. The meaning of a released id never changes.
GAMES: dict[str, str] = {
    "rllm/ConnectFour-v0": "rllm_gym.multiagent.connect_four:ConnectFour",
    "rllm/Debate-v0": "rllm_gym.multiagent.debate:DebateGame",
    "rllm/LakeDuo-v0": "rllm_gym.multiagent.lake_duo:LakeDuo",
    "rllm/Negotiation-v0": "rllm_gym.multiagent.negotiation:Negotiation",
    "rllm/TicTacToe-v0": "rllm_gym.multiagent.tic_tac_toe:TicTacToe",
}

# Games of other libraries; creating one without its library says what to install. docs/integrations.md.
INTEGRATIONS: dict[str, str] = {"rllm/TextArena-v0": "rllm_gym.integrations.textarena:TextArenaGame"}


def parallel_game(game_id: str, **arguments: Any) -> ParallelGame:
    """Create a game of the table behind PettingZoo's parallel interface.

    Args:
        game_id: Its id.
        **arguments: Arguments of the game.

    Raises:
        KeyError: There is no such game.
    """
    module, _, name = (GAMES | INTEGRATIONS)[game_id].partition(":")
    return ParallelGame(getattr(importlib.import_module(module), name)(**arguments))


def register_all() -> None:
    """Register every id with PettingZoo; ids that are already registered are kept."""
    games = GAMES | INTEGRATIONS
    for game_id, entry_point in games.items():
        _register("aec", game_id, entry_point)
        _register("parallel", game_id, "rllm_gym.multiagent:parallel_game", game_id=game_id)
        if game_id not in gymnasium.registry:
            gymnasium.register(
                id=game_id,
                entry_point="rllm_gym.multiagent.single_player:SinglePlayerGame",
                vector_entry_point=f"rllm_gym.vector.entry_points:{game_id}",
                kwargs={"game": game_id},
            )
    for env_id in envs.ALL:
        if env_id not in games:
            _register("aec", env_id, "rllm_gym.multiagent:team", env_id=env_id)
            _register("parallel", env_id, "rllm_gym.multiagent:team_parallel", env_id=env_id)


def _register(kind: Literal["aec", "parallel"], name: str, entry_point: str, **arguments: str) -> None:
    if name not in (pettingzoo.aec_registry if kind == "aec" else pettingzoo.parallel_registry):
        pettingzoo.register(kind, name, entry_point, kwargs=arguments)


register_all()
