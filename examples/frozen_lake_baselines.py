"""Baselines for FrozenLake scores: optimal play, and the best policy that does not observe the map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from rllm_gym.core import Task
from rllm_gym.envs.frozen_lake import parse_map
from rllm_gym.parsing.moves import Move


def oracle_outcomes(env_id: str, env_kwargs: dict[str, Any], tasks: Sequence[Task]) -> list[tuple[bool, int]]:
    """Run optimal play in the environment, one episode per task, and return success and number of turns."""
    env = gymnasium.make(env_id, **env_kwargs)
    outcomes = []
    try:
        for seed, task in enumerate(tasks):
            env.reset(seed=seed, options={"task": task})
            done, turns, success = False, 0, False
            while not done:
                move = env.unwrapped.oracle().action  # type: ignore[attr-defined]
                _, _, terminated, truncated, info = env.step(f"```{move}```")
                done, success, turns = terminated or truncated, info["success"], turns + 1
            outcomes.append((success, turns))
    finally:
        env.close()
    return outcomes


def best_blind_outcomes(tasks: Sequence[Task], max_turns: int) -> tuple[list[Move], list[bool]]:
    """Find the fixed sequence of moves that solves most of these maps.

    Without slipping, every policy that does not observe the map is such a sequence. All ``4 ** max_turns`` sequences
    are tried on the scored maps themselves, so that no such policy can score higher.

    Returns:
        The moves, and whether they solve each map.
    """
    lakes = [parse_map(task.content) for task in tasks]
    cells = max(len(lake.cells) for lake in lakes)
    dead, solved = cells, cells + 1
    # next_MCA[map, cell, move]: the next cell; the goal and holes are absorbing.
    next_MCA = np.zeros((len(lakes), cells + 2, len(Move)), dtype=np.uint8)
    next_MCA[:, dead], next_MCA[:, solved] = dead, solved
    for index, lake in enumerate(lakes):
        ends = {"H": dead, "G": solved}
        next_MCA[index, : len(lake.cells)] = [[ends.get(lake.cells[to], to) for to in row] for row in lake.after]
    start_M = np.array([lake.start for lake in lakes], dtype=np.uint8)
    maps_M = np.arange(len(lakes))

    best: tuple[int, list[int]] = (-1, [])
    # Enumerate the first moves one sequence at a time and the others vectorized, for speed with bounded memory.
    split = max(0, max_turns - 6)
    for prefix in np.ndindex(*(len(Move),) * split):
        at_SM = start_M[None]
        for move in prefix:
            at_SM = next_MCA[maps_M, at_SM, move]
        for _ in range(max_turns - split):
            at_SM = next_MCA[maps_M, at_SM].transpose(0, 2, 1).reshape(-1, len(lakes))
        wins_S = (at_SM == solved).sum(axis=1)
        winner = int(wins_S.argmax())
        if wins_S[winner] > best[0]:
            suffix = np.unravel_index(winner, (len(Move),) * (max_turns - split))
            best = (int(wins_S[winner]), [*prefix, *(int(move) for move in suffix)])
    at_M = start_M
    for step in best[1]:
        at_M = next_MCA[maps_M, at_M, step]
    return [Move(step) for step in best[1]], [bool(won) for won in at_M == solved]
