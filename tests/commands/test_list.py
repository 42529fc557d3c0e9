"""`rllm-gym list`: the list of environments, their manuals, and the documentation page made from them."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import gymnasium
from commands.command_line import assert_brief_error, rllm_gym, rllm_gym_process

from rllm_gym.commands.env_docs import all_env_docs
from rllm_gym.envs import INTEGRATIONS, OWN_TASKS, TABLE
from rllm_gym.multiagent import GAMES

ROOT = Path(__file__).resolve().parents[2]


def test_every_id_is_listed_with_a_summary_and_its_arguments() -> None:
    rows = json.loads(rllm_gym("list", "--json").stdout)
    assert [row["id"] for row in rows] == [*TABLE, *OWN_TASKS, *GAMES]
    for row in rows:
        assert row["missing"] == ""
        assert len(row["summary"].split()) >= 4
        assert "max_turns" in row["arguments"] or row["id"] in OWN_TASKS
    table = rllm_gym_process("list").stdout
    assert all(env_id in table for env_id in [*TABLE, *OWN_TASKS, *GAMES, *INTEGRATIONS])


def test_the_arguments_listed_are_those_that_gym_make_takes() -> None:
    for manual in all_env_docs():
        own = {"dataset": [{"prompt": "Hello"}], "reward": "builtins:print"} if manual.env_id in OWN_TASKS else {}
        env = gymnasium.make(manual.env_id, **own)
        parameters = inspect.signature(type(env.unwrapped).__init__).parameters.values()
        env.close()
        listed = {argument.name for argument in manual.arguments}
        assert {one.name for one in parameters if one.kind is one.KEYWORD_ONLY} <= listed
        if manual.env_id in GAMES:
            assert {"opponent", "player", "split"} <= listed
            continue
        for name, value in (TABLE | OWN_TASKS)[manual.env_id][1].items():
            assert next(a.default for a in manual.arguments if a.name == name) == repr(value)


def test_one_manual_is_shown_in_full() -> None:
    shown = rllm_gym("list", "rllm/FrozenLake-v0").stdout
    for word in ("slip_probability", "Version history", "Rewards"):
        assert word in shown


def test_an_unknown_id_is_a_one_line_error() -> None:
    assert_brief_error(rllm_gym("list", "rllm/Nothing-v0"), "rllm/Nothing-v0")
    for command in (["list"], ["play"], ["eval", "--model.path", "x"], ["train", "--model.path", "x", "--env.id"]):
        for wrong, right in (("rllm/Conect4-v0", "rllm/ConnectFour-v0"), ("tictactoe", "rllm/TicTacToe-v0")):
            assert_brief_error(rllm_gym(*command, wrong), wrong, f"did you mean {right!r}")


def test_the_page_of_environments_is_up_to_date() -> None:
    created = rllm_gym("list", "--markdown").stdout
    assert (ROOT / "docs" / "environments.md").read_text() == created, "run `make docs`"
