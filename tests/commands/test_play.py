"""`rllm-gym play`: a person or a script on standard input plays; no input ends in a traceback."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import gymnasium
from commands.command_line import assert_brief_error, rllm_gym, rllm_gym_process

import rllm_gym as package

LAKE = ("play", "rllm/FrozenLake-v0")
assert package


def optimal_moves(seed: int) -> list[str]:
    env = gymnasium.make("rllm/FrozenLake-v0")
    env.reset(seed=seed)
    moves, done = [], False
    while not done:
        moves.append(env.unwrapped.oracle().action)  # type: ignore[attr-defined]
        _, _, terminated, truncated, _ = env.step(moves[-1])
        done = terminated or truncated
    env.close()
    return moves


def test_a_scripted_game_is_won() -> None:
    result = rllm_gym_process(*LAKE, "--seed", "3", stdin="".join(f"{move}\n" for move in optimal_moves(3)))
    assert result.returncode == 0, result.stderr
    assert "solved" in result.stdout
    assert "total reward +1" in result.stdout
    assert "1 of 1 episodes solved" in result.stdout


def test_the_same_seed_shows_the_same_task_and_a_task_can_be_chosen() -> None:
    assert rllm_gym(*LAKE, "--seed", "5").stdout == rllm_gym_process(*LAKE, "--seed", "5").stdout
    assert "frozen_lake/train/0/7" in rllm_gym(*LAKE, "--task", "7").stdout
    assert "frozen_lake/test/0/2" in rllm_gym(*LAKE, "--task", "frozen_lake/test/0/2", "-k", "split=test").stdout


def test_a_game_is_played_against_an_opponent() -> None:
    command = ("play", "rllm/TicTacToe-v0", "-k", "player=player_0", "-k", "opponent=oracle", "--seed", "0")
    shown = rllm_gym(*command, stdin="1\n" + "9\n8\n7\n6\n5\n4\n3\n2\n" * 3)
    assert shown.returncode == 0, shown.stderr
    assert "You are player_0" in shown.stdout
    assert "player_1 played 5." in shown.stdout, "the only move that does not lose"
    assert "0 of 1 episodes solved" in shown.stdout


def test_keyword_arguments_are_passed_to_the_environment() -> None:
    wide = rllm_gym(*LAKE, "--kwarg", "size=7", "--kwarg", "view=neighbours", "--seed", "0").stdout
    assert "up:" in wide


def test_an_invalid_action_costs_a_turn_and_explains_why() -> None:
    result = rllm_gym(*LAKE, "--seed", "0", stdin="dance\n")
    assert "turn 1" in result.stdout
    assert result.returncode == 0


def test_replies_of_several_lines_are_sent_whole() -> None:
    result = rllm_gym(*LAKE, "--seed", "0", "-k", "max_turns=9", stdin="one \\\ntwo\n```\nup\n```\n/state\n")
    assert "turn 2" in result.stdout
    assert "turn 3" not in result.stdout
    assert "'turn': 2" in result.stdout


def test_slash_commands() -> None:
    result = rllm_gym(*LAKE, "--seed", "0", stdin="/help\n/new\n/quit\nup\n")
    assert "Each reply is passed to env.step()" in result.stdout
    assert result.stdout.count("task frozen_lake") == 2
    assert "turn 1" not in result.stdout


def test_hostile_replies_do_not_reach_the_terminal() -> None:
    for reply in ("\x1b[2J\x1b]0;owned\x07", "\x00", "🙂" * 2000, "\\"):
        result = rllm_gym(*LAKE, "--seed", "0", stdin=f"{reply}\n")
        assert result.returncode == 0, result.stderr
        assert "\x1b" not in result.stdout
        assert "\x07" not in result.stdout


def test_ctrl_c_at_the_prompt_exits_without_a_traceback() -> None:
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "rllm_gym", *LAKE, "--seed", "0"],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "dumb", "COLUMNS": "80"},
        start_new_session=True,
    )
    os.close(terminal)
    seen = b""
    while b"> " not in seen:
        seen += os.read(controller, 4096)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=120) == 0
    try:
        while chunk := os.read(controller, 4096):
            seen += chunk
    except OSError:
        pass  # Linux: the terminal's other end is closed
    os.close(controller)
    assert b"Traceback" not in seen


def test_invalid_arguments_are_one_line_errors() -> None:
    assert_brief_error(rllm_gym("play", "rllm/FrozenLak-v0"), "did you mean 'rllm/FrozenLake-v0'")
    assert_brief_error(rllm_gym("play", "frozenlake"), "did you mean 'rllm/FrozenLake-v0'")
    assert_brief_error(rllm_gym("play", "no_such_module:Game-v0"), "no_such_module", "directory that contains it")
    assert_brief_error(rllm_gym("play", "classic/tictactoe-v3"), "game of several agents", "rllm-gym eval")
    assert_brief_error(rllm_gym(*LAKE, "-k", "size=99"), "size", "99")
    assert_brief_error(rllm_gym(*LAKE, "-k", "colour=red"), "colour")
    assert_brief_error(rllm_gym(*LAKE, "-k", "size"), "NAME=VALUE")
    assert_brief_error(rllm_gym(*LAKE, "--task", "99999999"), "99999999")
    assert_brief_error(rllm_gym(*LAKE, "--task", "nonsense"), "nonsense")
