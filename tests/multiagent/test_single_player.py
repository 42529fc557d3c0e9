"""A game against scripted players is an environment like any other, for `gym.make`, evaluation and training."""

from __future__ import annotations

import random
from typing import Any

import gymnasium
import pytest

from rllm_gym.multiagent import GAMES
from rllm_gym.multiagent.connect_four_solver import TooManyPositions
from rllm_gym.multiagent.opponents import optimal_player, random_player
from rllm_gym.testing import check_text_env


def played(env: Any, move: Any, seed: int) -> tuple[float, dict[str, Any]]:
    """Play one episode with ``move(info, rng)``; return the total reward and the last info."""
    rng, total, over = random.Random(seed), 0.0, False
    _, info = env.reset(seed=seed)
    while not over:
        _, reward, terminated, truncated, info = env.step(move(info, rng))
        total, over = total + reward, terminated or truncated
    return total, info


@pytest.mark.parametrize("game", GAMES)
def test_every_game_fulfils_the_contract_of_environments(game: str) -> None:
    report = check_text_env(lambda **options: gymnasium.make(game, **options), seed=3)
    report.raise_for_failures()


def test_the_oracle_never_loses_and_is_never_beaten() -> None:
    for player in ("player_0", "player_1"):
        easy = gymnasium.make("rllm/TicTacToe-v0", player=player)
        hard = gymnasium.make("rllm/TicTacToe-v0", player=player, opponent="oracle")
        won = [played(easy, optimal_player, seed)[1]["success"] for seed in range(20)]
        lost = [played(hard, random_player, seed)[0] for seed in range(20)]
        drawn = [played(hard, optimal_player, seed)[0] for seed in range(5)]
        assert sum(won) > 10
        assert not any(reward > 0 for reward in lost)
        assert sum(reward < 0 for reward in lost) > 10
        assert drawn == [0] * 5


def test_a_task_decides_on_the_part_and_leaves_it_a_move() -> None:
    env = gymnasium.make("rllm/TicTacToe-v0", split="test", opponent="oracle", opening_moves=(4, 4))
    parts = set()
    for index in range(60):
        _, info = env.reset(seed=index, options={"task": index})
        assert info["legal_moves"], "the opponent has ended the game before the first move"
        first = info["player"]
        assert env.reset(seed=index + 1, options={"task": index})[1]["player"] == first
        parts.add(first)
    assert parts == {"player_0", "player_1"}
    # With a fixed part the game may be over: any reply ends the episode with its result.
    env = gymnasium.make("rllm/TicTacToe-v0", tasks=["tic-tac-toe XX./OO./..."], player="player_1", opponent="oracle")
    observation, _ = env.reset(seed=0)
    assert "player_0 wins" in observation
    assert env.step("5")[1:4] == (-1.0, True, False)


def test_a_board_that_is_too_large_for_the_oracle_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_many(info: Any, rng: Any) -> str:
        raise TooManyPositions("too many")

    monkeypatch.setattr("rllm_gym.multiagent.single_player.optimal_player", too_many)
    env = gymnasium.make("rllm/TicTacToe-v0", opponent="oracle")
    assert played(env, random_player, 0)[1]["stop_reason"] in ("success", "failure")


def test_replies_without_content_earn_nothing_beside_an_oracle() -> None:
    for game in GAMES:
        env = gymnasium.make(game, opponent="oracle")
        for seed in range(4):
            total, info = played(env, lambda info, rng: "well", seed)
            assert total <= 0, f"{game}: {info['player']} got {total} for saying nothing"
            assert not info["success"]


def test_wrong_arguments_are_named() -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("rllm/TicTacToe-v0", {"opponent": "alpha-zero"}, "opponents random, oracle"),
        ("rllm/LakeDuo-v0", {"opponent": "random"}, "opponents oracle"),
        ("rllm/Debate-v0", {"player": "nobody"}, "an agent alone can be judge_0 in rllm/Debate-v0"),
        ("rllm/LakeDuo-v0", {"view": "halves"}, "its partner wins alone"),
    ]
    for game, arguments, words in cases:
        with pytest.raises(ValueError, match=words):
            gymnasium.make(game, **arguments)
