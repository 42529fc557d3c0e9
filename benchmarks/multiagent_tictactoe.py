"""Tic-tac-toe for a tiny model: what it is shown, what it imitates first, and how it does against fixed opponents."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllm_gym.agents import ChatAgent
from rllm_gym.core import Episode
from rllm_gym.engine import Play, Workflow
from rllm_gym.engine.workflows import SelfPlay
from rllm_gym.multiagent.opponents import best_moves, optimal_player, random_player
from rllm_gym.multiagent.tic_tac_toe import TicTacToeBoard

ROLES = ("cross", "nought")
OPPONENTS = {"random": random_player, "optimal": optimal_player}


class BoardAgent(ChatAgent):
    """Shows the model the position alone: all that a move depends on."""

    def __init__(self) -> None:
        super().__init__("", history="latest")

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        shown = observation if done else cells(info)
        super().update_from_env(shown, reward, done, info, **kwargs)


class Game(SelfPlay):
    """Crosses against noughts, each a role of its own."""

    def __init__(self) -> None:
        super().__init__(roles=ROLES, rotate=False, agents=dict.fromkeys(ROLES, BoardAgent))


class AgainstFixed(Workflow):
    """One role's weights against a player that learns nothing.

    Args:
        role: Who is measured.
        opponent: ``random`` or ``optimal``.
    """

    roles = ROLES

    def __init__(self, role: str, opponent: str) -> None:
        self.role, self.opponent = role, OPPONENTS[opponent]

    async def run(self, task: object, play: Play) -> Episode:
        game = await play.game()
        await game.reset()
        mine = f"player_{ROLES.index(self.role)}"
        rng = random.Random(play.seed)
        while not game.over:
            info = game.infos[game.agent]
            if game.agent != mine:
                await game.step(self.opponent(info, rng))
                continue
            speaker = play.speakers.get(mine) or play.agent(mine, self.role, agent=BoardAgent())
            reply = await speaker.say(game.observation, info)
            await game.step(reply.action)
        reward = game.rewards[mine]
        return play.finish(reward=reward, success=reward > 0)


def cells(info: Mapping[str, Any]) -> str:
    """The position in nine characters; a free square is its number, so that a legal move is one that can be seen."""
    marks = str(info["position"]).removeprefix("tic-tac-toe ").replace("/", "")
    return "".join(str(number) if mark == "." else mark for number, mark in enumerate(marks, 1))


def write_demonstrations(path: Path, number: int, *, optimal: float, seed: int) -> None:
    """Moves in positions of random games: optimal with some probability, else any legal one."""
    rng = random.Random(seed)
    with path.open("w") as file:
        for _ in range(number):
            board: Any = TicTacToeBoard()
            while not board.over:
                moves = best_moves(board) if rng.random() < optimal else board.moves()
                shown = cells({"position": board.text()})
                chat = [{"role": "user", "content": shown}, {"role": "assistant", "content": str(rng.choice(moves))}]
                file.write(json.dumps({"messages": chat}) + "\n")
                board = board.after(rng.choice(board.moves()))


