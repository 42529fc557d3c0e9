"""Tic-tac-toe for a tiny model: its observations, its demonstrations, and games against fixed opponents."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllm_gym.agents import ChatAgent
from rllm_gym.core import Episode
from rllm_gym.engine import Workflow, WorkflowContext
from rllm_gym.engine.roles import hash_choice
from rllm_gym.multiagent.board import best_moves
from rllm_gym.multiagent.opponents import optimal_player, random_player
from rllm_gym.multiagent.tic_tac_toe import TicTacToeBoard

ROLES, AGENT_IDS = ("cross", "nought"), ("player_0", "player_1")
OPPONENTS = {"random": random_player, "optimal": optimal_player}


class BoardAgent(ChatAgent):
    """Shows the model only the position: a move depends on nothing else."""

    def __init__(self) -> None:
        super().__init__("", history="latest")

    def update_from_env(self, observation: Any, reward: float, done: bool, info: dict[str, Any], **kwargs: Any) -> None:
        shown = observation if done else cells(info)
        super().update_from_env(shown, reward, done, info, **kwargs)


class Game(Workflow):
    """Crosses against noughts, each a role with its own weights, or one of them against a scripted player.

    In training, the group's name decides which kind its episodes are: both roles against each other, or one of them
    against the opponent. Training only against each other converges to a narrow style of play.

    Args:
        role: The role that plays the opponent, for evaluation; ``""`` for training.
        opponent: ``random`` or ``optimal``.
    """

    roles = ROLES

    def __init__(self, role: str = "", opponent: str = "random") -> None:
        self.role, self.opponent = role, OPPONENTS[opponent]

    async def run(self, task: object, context: WorkflowContext) -> Episode:
        game = await context.game()
        await game.reset()
        rng = random.Random(context.seed)
        learning_roles = (
            [self.role]
            if self.role
            else ((*ROLES,), ROLES[:1], ROLES[1:])[hash_choice(3, context.group_id, "who plays")]
        )
        while not game.done:
            agent_id = game.agent
            info, role = game.infos[agent_id], ROLES[AGENT_IDS.index(agent_id)]
            if role not in learning_roles:
                action = self.opponent(info, rng)
            else:
                session = context.sessions.get(agent_id) or context.agent(agent_id, role, agent=BoardAgent())
                action = (await session.generate(game.observation, info)).action
            rewards = await game.step(action)
            for name, session in context.sessions.items():
                if session.steps:
                    session.add_reward(rewards.get(name, 0.0))
        reward = game.rewards[AGENT_IDS[ROLES.index(learning_roles[0])]]
        return context.finish(reward=reward, success=reward > 0)


def cells(info: Mapping[str, Any]) -> str:
    """Return the position in nine characters; a free square is its number, so that legal moves are visible."""
    marks = str(info["position"]).removeprefix("tic-tac-toe ").replace("/", "")
    return "".join(str(number) if mark == "." else mark for number, mark in enumerate(marks, 1))


def write_demonstrations(path: Path, number: int, *, optimal: float, seed: int) -> None:
    """Write moves in positions of random games: optimal with probability ``optimal``, else any legal move."""
    rng = random.Random(seed)
    with path.open("w") as file:
        for _ in range(number):
            board: Any = TicTacToeBoard()
            while not board.is_over:
                moves = best_moves(board) if rng.random() < optimal else board.moves()
                shown = cells({"position": board.text()})
                chat = [{"role": "user", "content": shown}, {"role": "assistant", "content": str(rng.choice(moves))}]
                file.write(json.dumps({"messages": chat}) + "\n")
                board = board.after(rng.choice(board.moves()))
