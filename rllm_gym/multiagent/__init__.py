"""Many agents in one environment: PettingZoo's turn-taking and simultaneous interfaces over text.

``import rllm_gym`` registers every id of the tables with PettingZoo, as ``pettingzoo.make("aec" | "parallel", id)``:
games, whose agents differ in what they know or want, and every single-agent environment, played by a team.
"""

from __future__ import annotations

import importlib
from typing import Any

import pettingzoo

from rllm_gym.multiagent.game import TextGame, Turn
from rllm_gym.multiagent.parallel import ParallelGame

__all__ = ["GAMES", "ParallelGame", "TextGame", "Turn", "parallel_game", "register_all"]

# id -> entry point. An id, once released, never changes its meaning.
GAMES: dict[str, str] = {
    "rllm/LakeDuo-v0": "rllm_gym.multiagent.lake_duo:LakeDuo",
    "rllm/TicTacToe-v0": "rllm_gym.multiagent.tic_tac_toe:TicTacToe",
}


def parallel_game(game_id: str, *, max_cycles: int | None = None, **arguments: Any) -> ParallelGame:
    """A game of the table behind PettingZoo's simultaneous interface.

    Args:
        game_id: Its id.
        max_cycles: Steps before truncation; a step is one agent's turn.
        **arguments: Those of the game.

    Raises:
        KeyError: There is no such game.
    """
    module, _, name = GAMES[game_id].partition(":")
    if max_cycles is not None:
        if arguments.get("max_turns") is not None:
            raise ValueError(f"max_cycles={max_cycles} and max_turns={arguments['max_turns']} say the same; give one")
        arguments["max_turns"] = max_cycles
    return ParallelGame(getattr(importlib.import_module(module), name)(**arguments))


def register_all() -> None:
    """Register every id with PettingZoo; ids already there are left as they are."""
    for game_id, entry_point in GAMES.items():
        if game_id not in pettingzoo.aec_registry:
            pettingzoo.register("aec", game_id, entry_point)
        if game_id not in pettingzoo.parallel_registry:
            pettingzoo.register("parallel", game_id, "rllm_gym.multiagent:parallel_game", kwargs={"game_id": game_id})


register_all()
