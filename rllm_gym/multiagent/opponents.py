"""Players of board games for training and evaluation: random, optimal, and minimax of a given depth.

They see what a model sees, the text of the position in ``info["position"]``, and need no environment: so they run in
any process, with PettingZoo or within an engine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from rllm_gym.core import TaskError
from rllm_gym.multiagent.board import Board, best_moves
from rllm_gym.multiagent.connect_four import ConnectFourBoard
from rllm_gym.multiagent.tic_tac_toe import TicTacToeBoard

Opponent = Callable[[Mapping[str, Any], random.Random], str]
"""Called with the player's info and a random generator; returns an action."""


def board_in(info: Mapping[str, Any]) -> Board:
    """Return the position in a player's info.

    Raises:
        TaskError: There is none, or it cannot be parsed.
    """
    text = info.get("position")
    if not isinstance(text, str):
        raise TaskError(f"info has no 'position' (its keys are {sorted(info)}); opponents support only board games")
    return TicTacToeBoard.parse(text) if text.startswith("tic-tac-toe") else ConnectFourBoard.parse(text)


def random_player(info: Mapping[str, Any], rng: random.Random) -> str:
    """Return a random legal move."""
    return str(rng.choice(board_in(info).moves()))


def optimal_player(info: Mapping[str, Any], rng: random.Random) -> str:
    """Return a random move that keeps the value of the position: never loses a draw, nor draws a win."""
    return str(rng.choice(best_moves(board_in(info))))


def minimax_player(depth: int) -> Opponent:
    """Return a player that searches ``depth`` moves ahead, with undecided positions as draws and random ties.

    Raises:
        ValueError: ``depth`` is below 1.
    """
    if depth < 1:
        raise ValueError(f"depth={depth!r} must be at least 1; for depth 0 use random_player")

    def play(info: Mapping[str, Any], rng: random.Random) -> str:
        board = board_in(info)
        values = {move: -_negamax(board.after(move), depth - 1) for move in board.moves()}
        best = max(values.values())
        return str(rng.choice([move for move, value in values.items() if value == best]))

    return play


def _negamax(board: Board, depth: int, alpha: int = -1, beta: int = 1) -> int:
    """Return the value for the player to move by alpha-beta, 0 where it lies deeper than ``depth``."""
    if board.is_over:
        return 0 if board.winner is None else -1
    if depth == 0:
        return 0
    value = -1
    for move in board.moves():
        value = max(value, -_negamax(board.after(move), depth - 1, -beta, -max(alpha, value)))
        if value >= beta:
            break
    return value
