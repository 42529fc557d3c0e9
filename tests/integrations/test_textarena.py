"""TextArena games: seeds hold in every process, global state is unchanged, and invalid moves only cost turns."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from typing import Any

import pytest

pytest.importorskip("textarena", reason="not installed (tests/integrations/requirements/textarena.txt)")
import gymnasium
import pettingzoo
from pettingzoo.test import api_test, parallel_api_test

import rllm_gym  # noqa: F401 - registers the ids
from rllm_gym.core import EnvironmentFault, Task, TaskError
from rllm_gym.integrations import textarena as ours
from rllm_gym.testing import check_text_env
from tests.waiting import until

ID = "rllm/TextArena-v0"
SINGLE = [
    *("2048-v0", "Bandit-v0", "Blackjack-v0", "Countdown-v0", "Crosswords-v0", "Cryptarithm-v0", "FifteenPuzzle-v0"),
    *("FrozenLake-v0", "GuessTheNumber-v0", "LightsOut-v0", "LogicPuzzle-v0", "Mastermind-v0", "Minesweeper-v0"),
    *("PegJump-v0", "RushHour-v0", "Secretary-v0", "Set-v0", "Slitherlink-v0", "Sokoban-v0", "Sudoku-v0-very-easy"),
    *("ThreeCardMonte-v0", "TowerOfHanoi-v0"),
]
DUELS = ["TicTacToe-v0", "KuhnPoker-v0", "ConnectFour-v0", "SimpleNegotiation-v0-short", "IteratedPrisonersDilemma-v0"]
MOVES = ["hello", "[1]", "[up]", "[1 2 3 4]", "[0 0]", "[hit]", "[2]", "[Alice]", "[0]", "[3]"]


@pytest.mark.parametrize("game", ["Mastermind-v0", "Blackjack-v0"])
def test_check_text_env_passes(game: str) -> None:
    report = check_text_env(lambda: gymnasium.make(ID, env=game), fuzz=40)
    assert report.ok, str(report)


def transcript(game: str, seed: int, task: int | None = None) -> list[Any]:
    env = gymnasium.make(ID, env=game, max_turns=8)
    output: list[Any] = [env.reset(seed=seed, options=None if task is None else {"task": task})]
    for action in MOVES[:8]:
        output.append(env.step(action))
        if output[-1][2] or output[-1][3]:
            break
    env.close()
    return output


def test_the_same_seeds_give_the_same_games_in_every_process() -> None:
    """Also where a game iterates over sets, whose order differs between Python processes."""
    games = ["Mastermind-v0", "Blackjack-v0", "2048-v0", "Crosswords-v0", "Minesweeper-v0"]
    code = f"""
import sys; sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_textarena import transcript
for game in {games!r}: print(transcript(game, 5))
"""
    output = {
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(output) == 1
    assert transcript("Blackjack-v0", 5) != transcript("Blackjack-v0", 6)


def test_a_task_fixes_the_initial_state_and_the_seed_the_dynamics() -> None:
    first, same, other = (transcript("2048-v0", seed, task=3) for seed in (1, 1, 2))
    assert first == same
    assert first[0][0] == other[0][0]
    assert transcript("2048-v0", 1, task=4)[0][0] != first[0][0]


def test_invalid_moves_only_cost_a_turn() -> None:
    """TextArena itself ends the game at the second consecutive invalid move."""
    env = gymnasium.make(ID, env="Mastermind-v0", invalid_action_penalty=0.5)
    env.reset(seed=1)
    for _ in range(4):
        observation, reward, terminated, truncated, info = env.step("I do not know")
        assert "invalid move" in observation
        assert (reward, terminated, truncated, info["invalid_action"]) == (-0.5, False, False, True)
    _, reward, _, _, info = env.step("<think>maybe [6 6 6 6]</think> [1 2 3 4]")
    assert (reward, info["invalid_action"]) == (0.0, False)
    observation, _, _, _, info = env.step("<think>[1 2 3 5]")
    assert info["invalid_action"]
    assert "</think>" in observation
    env.close()


def test_a_solved_game_is_a_success() -> None:
    env = gymnasium.make(ID, env="GuessTheNumber-v0")
    for seed in range(3):
        env.reset(seed=seed)
        low, high = 1, 20
        while True:
            guess = (low + high) // 2
            observation, reward, terminated, truncated, info = env.step(f"[{guess}]")
            if terminated:
                break
            low, high = (guess + 1, high) if "higher" in observation else (low, guess - 1)
        assert (reward, info["success"], truncated) == (1.0, True, False)
        assert re.search("congratulations|guessed", observation, re.IGNORECASE)
    env.close()


class Breaks:
    """Replaces a game whose code fails, hangs or dies on some replies."""

    def __init__(self, *_: Any) -> None:
        self.moves: list[str] = []

    def begin(self, *_: Any) -> ours.GamePosition:
        self.moves = []
        return self.at("begin")

    def move(self, action: str) -> ours.GamePosition:
        if action == "fail":
            raise KeyError("in the game's code")
        if action == "hang":
            time.sleep(600)
        if action == "die":
            os._exit(3)
        self.moves.append(action)
        return self.at(action)

    def at(self, text: str) -> ours.GamePosition:
        return ours.GamePosition(0, {0: [(-1, f"{text} after {self.moves}")]}, False, False, {})


def test_a_reply_that_crashes_the_game_is_an_invalid_action(monkeypatch: pytest.MonkeyPatch) -> None:
    """The game continues from its previous state: the reply affects no other reply and no reward."""
    env = gymnasium.make(ID, max_turns=20)
    monkeypatch.setattr(ours, "GameSession", Breaks)
    monkeypatch.setattr(ours, "MOVE_SECONDS", 120.0)
    env.reset(seed=0)
    env.step("a")
    for broken, seconds in (("fail", 120.0), ("hang", 15.0), ("die", 120.0)):
        monkeypatch.setattr(ours, "MOVE_SECONDS", seconds)
        observation, reward, terminated, _, info = env.step(broken)
        assert "cannot read" in observation
        assert (reward, terminated, info["invalid_action"]) == (0.0, False, True)
    assert env.step("b")[0] == "b after ['a', 'b']"
    monkeypatch.setattr(ours, "GameSession", os.getpid)
    with pytest.raises(EnvironmentFault):
        env.step("die")
    env.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": "Mastermin-v0"}, "similar names: Mastermind-v0"),
        ({"env": "TicTacToe-v0"}, "cannot be played by 1"),
        ({"env": "TwentyQuestions-v0"}, "API key"),
        ({"config": {"no_such": 1}}, "no_such"),
        ({"config": {"a": object()}}, "JSON types"),
    ],
)
def test_invalid_arguments_are_errors_that_name_them(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gymnasium.make(ID, **arguments)


def test_tasks_of_another_environment_are_errors() -> None:
    env = gymnasium.make(ID)
    with pytest.raises(TaskError, match="not an initial state of"):
        env.reset(options={"task": Task("x", "y", {})})
    env.close()


def test_settings_are_passed_to_the_game() -> None:
    env = gymnasium.make(ID, env="Mastermind-v0", config={"code_length": 3, "max_turns": 7})
    assert "3 digits long" in env.reset(seed=0)[0]
    assert env.unwrapped.max_turns == 14
    env.close()


def test_workers_end_with_their_environments() -> None:
    env = gymnasium.make(ID)
    env.reset(seed=0)
    pid = env.unwrapped._game._actor.pid
    env.close()
    assert until(lambda: not os.path.exists(f"/proc/{pid}"))


# Two players


@pytest.mark.parametrize("game", ["TicTacToe-v0", "KuhnPoker-v0"])
def test_two_player_games_pass_pettingzoos_tests(game: str) -> None:
    env = pettingzoo.make("aec", ID, env=game)
    api_test(env, num_cycles=20)
    env.close()
    parallel = pettingzoo.make("parallel", ID, env=game)
    parallel_api_test(parallel, num_cycles=20)
    parallel.close()


def test_a_two_player_game() -> None:
    """Each player receives the game's text and the other's messages, quoted; the winner gets what the loser loses."""
    env = pettingzoo.make("aec", ID, env="TicTacToe-v0")
    env.reset(seed=1)
    for move in ("[4]", "<think>[8]</think>[0]", "[1]", "[3]", "[7]"):
        last = env.agent_selection
        assert env.observe(last)["text"]
        env.step(move)
    assert env.terminations == {"player_0": True, "player_1": True}
    assert env.rewards == {"player_0": 1.0, "player_1": -1.0}
    assert [env.infos[f"player_{i}"]["stop_reason"] for i in (0, 1)] == ["success", "failure"]
    assert "player_0 says:\n> [7]" in env.observe("player_1")["text"]
    env.close()


def test_a_player_that_never_moves_forfeits() -> None:
    env = pettingzoo.make("aec", ID, env="TicTacToe-v0", max_invalid=1)
    env.reset(seed=1)
    env.step("[4]")
    env.step("hm")
    assert env.agent_selection == "player_1"
    assert env.infos["player_1"]["invalid_action"]
    assert "Player 1 attempted an invalid move" in env.observe("player_1")["text"]
    env.step("hm")
    assert env.rewards == {"player_0": 1.0, "player_1": -1.0}
    assert env.infos["player_1"]["stop_reason"] == "invalid_action"
    env.close()


@pytest.mark.parametrize("game", DUELS)
def test_two_player_games_are_determined_by_their_seeds(game: str) -> None:
    def scenario(seed: int) -> list[Any]:
        env = pettingzoo.make("aec", ID, env=game, max_turns=12)
        env.reset(seed=seed)
        output = []
        for turn in range(12):
            if not env.agents or any(env.terminations.values()):
                break
            output.append((env.agent_selection, env.observe(env.agent_selection), dict(env.rewards)))
            env.step(MOVES[turn % len(MOVES)])
        copy = env.fork()
        assert copy.get_state() == env.get_state()
        copy.close()
        env.close()
        return output

    assert scenario(4) == scenario(4)


@pytest.mark.long
@pytest.mark.parametrize("game", SINGLE)
def test_every_single_player_game(game: str) -> None:
    """Each game starts, continues after ten replies of all kinds, and is determined by its seeds."""
    assert transcript(game, 2) == transcript(game, 2)
