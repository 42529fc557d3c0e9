"""MCP-v0: servers, rows and checks of a user, what the model reads, and failures of servers that must stay isolated."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
from gymnasium.error import ResetNeeded
from parsing.checks import assert_all_raise

from rllm_gym.core import EnvironmentFault, InvalidAction, Task, TaskError

pytest.importorskip("mcp", reason="needs the extra: pip install 'rllm-gym[mcp]'")

from mcp.server import MCPServer

from rllm_gym.envs.mcp import TEMPLATES, MCPEnv, ToolState
from rllm_gym.envs.mcp.arguments import ValidationBudget, checked_arguments
from rllm_gym.envs.mcp.demonstrations import replies, tool_task_of
from rllm_gym.envs.mcp.prompt import first_observation, tool_list
from rllm_gym.envs.mcp.rows import ToolRowParser
from rllm_gym.mcp import InProcessServer, MCPTool, ServerFault, StdioServer
from rllm_gym.parsing.function_calls import FunctionCall
from tests.browser.browser_processes import command_line
from tests.envs.tool_call import call
from tests.waiting import until

NUMBER = {"type": "number", "value": 5}


def shelf(workspace: Path, seed: int) -> MCPServer:
    """A user's server: its state is files of the workspace, and its tools succeed, fail, wait or flood."""
    server = MCPServer("shelf", log_level="ERROR")

    @server.tool()
    def put(name: str, count: int = 1) -> str:
        """Put things on the shelf."""
        (workspace / name).write_text(str(count))
        return f"put {count} {name} into {workspace}"

    @server.tool()
    def look() -> list[str]:
        """Look at the shelf."""
        return sorted(path.name for path in workspace.iterdir())

    @server.tool()
    def add(numbers: list[float]) -> float:
        """Add numbers."""
        return sum(numbers)

    called: list[str] = []
    output: list[str] = []
    ended = asyncio.Condition()

    @server.tool()
    async def meet(count: int, word: str) -> str:
        """Say a word when it was called so often, and the words of later calls are said."""
        async with ended:
            called.append(word)
            turn = count - len(called)
            ended.notify_all()
            await ended.wait_for(lambda: len(called) >= count and len(output) == turn)
            output.append(word)
            ended.notify_all()
        return word

    @server.tool()
    def fail(why: str) -> str:
        """Fail."""
        raise ValueError(why)

    @server.tool()
    def flood(characters: int) -> str:
        """Say much."""
        return "<" + "x" * characters + ">"

    @server.tool()
    def luck() -> int:
        """The seed."""
        return seed

    return server


def other(workspace: Path, seed: int) -> MCPServer:
    server = MCPServer("other", log_level="ERROR")

    @server.tool()
    def put(text: str) -> str:
        """Put a text elsewhere."""
        return "elsewhere"

    @server.tool()
    def finish() -> str:
        """A tool that is called like one of the environment's."""
        return "not over"

    return server


def make_env(rows: Any = None, **options: Any) -> MCPEnv:
    row = {"prompt": "How many?", "answer": NUMBER} | (rows or {})
    return MCPEnv(tasks=[row], servers=options.pop("servers", shelf), **options)


@pytest.fixture
def env():
    env = make_env()
    env.reset(seed=0)
    yield env
    env.close()


# The built-in tasks


def test_only_the_solution_is_rewarded():
    """One template per domain; test_mcp_domains.py has all."""
    templates = {name.partition("/")[0]: name for name in TEMPLATES}.values()
    assert [error for template in templates for error in find_errors(template)] == []


def find_errors(template: str) -> list[Any]:
    env, wrong = MCPEnv(templates=template), []
    for path, reward in (("solution", 1.0), ("cut short", 0.0), ("idle", 0.0)):
        env.reset(seed=3)
        task = tool_task_of(env)
        calls = {"solution": task.calls, "cut short": task.calls[:-2], "idle": ()}[path]
        moves = replies(calls, list(env.available_tools.values()))
        if path != "solution":
            moves = [*moves, "Done."]
        for reply in moves:
            *_, rewarded, terminated, truncated, info = env.step(reply)
            if terminated or truncated:
                break
        seen = (terminated, rewarded, info["success"], info["reward_components"], info["template"])
        if seen != (True, reward, bool(reward), {"task": reward}, template):
            wrong.append((template, path, seen))
    env.close()
    return wrong


def test_the_prompt_states_the_goal_and_the_tools():
    env = gymnasium.make("rllm/MCP-v0", domains="sqlite", difficulty=1)
    observation, info = env.reset(seed=1)
    assert tool_task_of(env).goal in observation
    schemas = json.loads(info["tools"])
    names = [schema["function"]["name"] for schema in schemas]
    assert names[-2:] == ["finish", "report_infeasible"]
    assert all(f"- {name}(" in observation for name in names)
    assert all(schema["function"]["parameters"]["type"] == "object" for schema in schemas)
    assert env.reset(seed=1)[0] == observation
    silent = MCPEnv(domains="sqlite", difficulty=1, tools_in_prompt=False)
    assert "- finish(" not in silent.reset(seed=1)[0]
    silent.close()
    env.close()


def test_templates_domains_and_difficulties_choose_the_tasks():
    env = MCPEnv(domains=["files"], difficulty=(2, 3), num_tasks=30)
    assert {task.data["template"].partition("/")[0] for task in env.tasks} == {"files"}
    assert {task.data["difficulty"] for task in env.tasks} == {2, 3}
    row = MCPEnv(tasks=[{"template": "sqlite/count-orders", "seed": 7, "difficulty": 1}])
    assert "How many" in row.reset()[0]
    row.close()
    for options, output in (
        ({"templates": "sqlite/nothing"}, "unknown template 'sqlite/nothing'"),
        ({"domains": "moon"}, "unknown domain 'moon'"),
        ({"difficulty": 9}, "difficulty=9"),
        ({"servers": shelf}, "servers= applies to your own rows"),
        ({"check": lambda state: True}, "check= applies to your own rows"),
    ):
        with pytest.raises(TaskError, match=output):
            MCPEnv(**options)
    built_in = {"template": "sqlite/count-orders", "seed": 7, "difficulty": 1}
    mixed = [{"prompt": "?", "servers": [shelf], "answer": {"type": "number", "value": 1}}, built_in]
    for option, value in (("servers", shelf), ("check", lambda state: True), ("tools", ["look"])):
        with pytest.raises(TaskError, match=f"{option}= of the environment has no effect on a built-in task"):
            len(MCPEnv(tasks=mixed, **{option: value}).tasks)
        env = MCPEnv(tasks=mixed[:1], **{option: value})
        with pytest.raises(TaskError, match=f"{option}= of the environment"):
            env.reset(options={"task": Task("t", "x", built_in)})
        env.close()
    with pytest.raises(TaskError, match="domains='files' selects built-in"):
        make_env(domains="files")


# Calls


def test_calls_run_concurrently_and_results_keep_their_order(env):
    # Each call waits until all of them have been called, then for the later ones: sequential calls would hang.
    observation, *_, info = env.step("".join(call("meet", count=4, word=word) for word in "abcd"))
    assert [observation.index(f"Result {n} of 4, meet:\n{word}") for n, word in enumerate("abcd", 1)]
    assert info["tools_called"] == 4


def test_tool_calls_in_every_format_are_parsed(env):
    for reply in (
        call("add", numbers=[2, 3]),
        "<tool_call>\n<function=add>\n<parameter=numbers>\n[2, 3]\n</parameter>\n</function>\n</tool_call>",
        '<|python_tag|>{"name": "add", "parameters": {"numbers": [2, 3]}}',
        '{"tool_calls": [{"function": {"name": "add", "arguments": "{\\"numbers\\": [2, 3]}"}}]}',
    ):
        env.reset(seed=0)
        observation, reward, *_, info = env.step(reply)
        assert observation.startswith("Result, add:\n5"), reply
        assert (reward, info["invalid_action"], info["tools_called"]) == (0.0, False, 1), reply


def test_xml_text_is_converted_to_the_types_of_the_schema(env):
    env.step("<function=put><parameter=name>7</parameter><parameter=count>3</parameter></function>")
    assert (env.workspace / "7").read_text() == "3"
    observation, *_, info = env.step(call("put", name="8", count="3"))
    assert info["invalid_action"]  # JSON has these types itself
    assert "at $.count: '3' is not of type 'integer'" in observation


WRONG_CALLS = (
    (call("lok"), "no tool 'lok'. Did you mean 'look'"),
    (call("put"), "'name' is a required property (given: nothing)"),
    (call("put", nme="x"), "(given: 'nme')"),
    (call("put", name=3), "at $.name: 3 is not of type 'string'"),
    (call("add", numbers=[1, "2"]), "at $.numbers[1]: '2' is not of type 'number'"),
    (call("put", name="a") + call("put"), "Call 2, of 'put', was not sent"),
    (call("put", name="a") + call("fnish"), "(call 2); no call was sent. Did you mean 'finish'"),
    (call("put", name="a") + call("finish", answer="5"), "must be the only call"),
    (call("put", name="a") * 17, "17 tool calls, and at most 16"),
    ('<tool_call>{"name": "put", "arguments": {"name": }}</tool_call>', "position"),
    (call("report_infeasible"), "'reason' is a required property"),
    ("", "is empty"),
    ("<think>no", "inside <think>"),
)


def test_one_invalid_call_prevents_all_calls_of_the_reply(env):
    wrong = []
    for reply, output in WRONG_CALLS:
        env.reset(seed=0)
        observation, reward, terminated, truncated, info = env.step(reply)
        right = output in observation and len(observation) < 2_000
        right = right and (reward, terminated, truncated) == (0.0, False, False)
        right = right and info["invalid_action"] and info["tools_called"] == 0
        if not right or list(env.workspace.iterdir()):
            wrong.append((reply[:200], observation[:2_000], reward, terminated, truncated, info["tools_called"]))
    assert wrong == []


def test_a_tool_error_is_an_observation(env):
    observation, *_, info = env.step(call("fail", why="no shelf") + call("add", numbers=[]))
    assert "Result 1 of 2, fail (failed):" in observation
    assert "Result 2 of 2, add:" in observation
    assert (info["invalid_action"], info["tools_called"], info["tool_errors"]) == (False, 2, 1)


def test_long_results_are_truncated_in_the_middle_and_marked(env):
    observation, *_ = env.step(call("flood", characters=3_000_000))
    assert len(observation) < 9_000
    assert "characters left out" in observation
    assert observation.rstrip().endswith(">")
    many, *_ = env.step(call("flood", characters=200_000) * 16)
    assert many in env.observation_space
    small = make_env(max_result_chars=100, max_observation_chars=10_000, max_calls=32)
    small.reset()
    many, *_ = small.step(call("flood", characters=20_000) * 32)
    assert many in small.observation_space
    small.close()


def test_tools_with_the_same_name_get_distinct_names():
    env = make_env(servers=[InProcessServer(shelf, name="shelf"), InProcessServer(other, name="other")])
    env.reset()
    assert {"shelf__put", "other__put", "other__finish", "finish", "look"} <= set(env.available_tools)
    assert "Did you mean 'shelf__put' or 'other__put'" in env.step(call("put", name="a"))[0]
    observation, _, terminated, *_ = env.step(call("other__finish"))
    assert (observation, terminated) == ("Result, other__finish:\nnot over", False)
    assert env.step(call("finish", answer=5))[1] == 1.0
    env.close()


def test_only_the_tools_of_the_row_are_available():
    env = make_env({"tools": ["look", "add"]})
    _, info = env.reset()
    assert [tool["function"]["name"] for tool in json.loads(info["tools"])][:-2] == ["look", "add"]
    assert "There is no tool 'put'" in env.step(call("put", name="a"))[0]
    env.close()
    env = make_env({"tools": ["lok"]})
    with pytest.raises(TaskError, match="no tool 'lok'; they have put"):
        env.reset()


# Endings


def test_an_answer_ends_the_episode(env):
    for reply, reward in (
        ("5", 1.0),
        ("<think>6?</think>\n5.0<|im_end|>", 1.0),
        (call("finish", answer="5"), 1.0),
        (call("finish", answer=5), 1.0),
        (call("finish"), 0.0),
        ("It is 5 or 6", 0.0),
        ("6", 0.0),
        (call("report_infeasible", reason="no"), 0.0),
    ):
        env.reset(seed=0)
        observation, rewarded, terminated, truncated, info = env.step(reply)
        assert (rewarded, terminated, truncated) == (reward, True, False), reply
        assert info["success"] is bool(reward), reply
        assert info["stop_reason"] == ("success" if reward else "failure"), reply
        assert "5" not in observation, reply  # the correct answer is not shown
        with pytest.raises(ResetNeeded):
            env.step("5")


def test_an_infeasible_task_must_be_reported():
    env = make_env({"infeasible": True, "answer": None})
    for reply, reward in (
        (call("report_infeasible", reason="There is no such thing."), 1.0),
        ("This cannot be done.", 0.0),
        (call("finish", answer="infeasible"), 0.0),
    ):
        env.reset()
        assert env.step(reply)[1] == reward
    env.close()


def test_the_turn_limit_truncates_the_episode():
    env = make_env(max_turns=2)
    env.reset()
    assert env.step(call("look"))[2:4] == (False, False)
    *_, terminated, truncated, info = env.step(call("look"))
    assert (terminated, truncated, info["stop_reason"]) == (False, True, "max_turns")
    env.close()


CHECKS = """
import sqlite3, threading

OVER = threading.Event()

def shelved(state):
    assert [call.name for call in state.calls] == ["put"]
    assert state.calls[0].arguments == {"name": "cup", "count": 2}
    assert state.call("look").structured == {"result": ["cup"]}
    assert state.data == {"wanted": ["2"]}
    return (state.workspace / "cup").read_text() in state.data["wanted"] and state.answer == "done"

def prepare(workspace, seed, data):
    with sqlite3.connect(workspace / "shop.db") as database:
        database.execute("CREATE TABLE orders (number, code, seed)")
        database.execute("INSERT INTO orders VALUES (?, ?, ?)", (*data, (workspace / "a.bin").read_bytes(), seed))

def prepared(state):
    return (state.workspace / "shop.db").exists()

def broken_setup(workspace, seed, data):
    return 1 / 0

async def later(state):
    return state.answer == "done"

def misspelt(state):
    return state.workspace and wokspace

def created_by_the_model(state):
    return (state.workspace / "made.txt").read_text() == "x"

def without_a_row(state):
    for line in ():
        total = line
    return total > 3

def run_here(state):
    exec("made_by_the_model()", {})

def silent(state):
    pass

def hangs(state):
    OVER.wait()

def make(workspace, seed):
    import importlib
    return importlib.import_module("test_mcp_env").shelf(workspace, seed)

from os import system
"""


@pytest.fixture
def checks(tmp_path, monkeypatch):
    (tmp_path / "my_checks.py").write_text(CHECKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    if module := sys.modules.pop("my_checks", None):
        module.OVER.set()


def test_a_check_sees_the_final_state(checks):
    row = {"answer": None, "check": "my_checks:shelved", "data": {"wanted": ["2"]}}
    for count, reward in ((2, 1.0), (3, 0.0)):  # 3 fails an assertion
        env = make_env(row)
        env.reset()
        env.step(call("put", name="cup", count=count))
        _, given, *_, info = env.step("done")
        assert given == reward
        assert ("AssertionError" in info["check_error"]) == (reward == 0)
        env.close()


def test_results_kept_for_a_check_are_bounded():
    seen: list[ToolState] = []

    def check(state: ToolState) -> bool:
        seen.append(state)
        return True

    env = make_env({"answer": None}, check=check)
    env.reset()
    for _ in range(2):
        env.step("\n".join([call("flood", characters=4_000_000)] * 3))  # 8 million each, with structured copy
    env.step(call("look"))
    env.step("done")
    env.close()
    kept = [len(call.result.text) for call in seen[1].calls]  # the first time is before the first action
    assert kept == [4_000_002] * 3 + [1_000] * 3 + [len(seen[1].calls[-1].result.text)]
    assert seen[1].calls[-1].result.structured == {"result": []}


def test_a_check_may_be_a_function_or_coroutine_and_combine_with_an_answer(checks):
    seen: list[ToolState] = []

    def check(state: ToolState) -> bool:
        seen.append(state)
        return True

    env = make_env(check=check)
    for answer, reward in (("5", 1.0), ("6", 0.0)):
        env.reset()
        assert env.step(answer)[1] == reward
    assert [state.answer for state in seen] == ["0", "5", "0"]  # a wrong answer needs no check
    env.close()
    env = make_env({"answer": None, "check": "my_checks:later"})
    env.reset()
    assert env.step("done")[1] == 1.0
    env.close()


def test_a_check_may_give_a_part_of_the_reward_and_name_its_components(checks):
    for result, reward, components, stop_reason in (
        (0.5, 0.5, {}, "failure"),
        (1, 1.0, {}, "success"),
        ((0.25, {"files": True, "order": np.float32(0)}), 0.25, {"files": 1.0, "order": 0.0}, "failure"),
        ((True, {"files": 0.5}), 1.0, {"files": 0.5}, "success"),
    ):
        env = make_env({"answer": None}, check=lambda state, result=result: result)
        _, info = env.reset()
        assert info["check_components"] == {}
        _, given, terminated, _, info = env.step("done")
        assert (given, terminated, info["stop_reason"]) == (reward, True, stop_reason)
        assert info["check_components"] == components
        assert info["reward_components"] == {"task": reward}
        env.close()
    for result in (1.5, -0.1, float("nan"), "yes", (0.5, {"files": 2}), (0.5, [1]), {"files": 1.0}):
        env = make_env({"answer": None}, check=lambda state, result=result: result if state.answer == "done" else False)
        env.reset()
        _, given, *_, info = env.step("done")
        assert given == 0
        assert "a number from 0 to 1" in info["check_error"]
        env.close()


def test_a_setup_creates_the_state_of_each_episode(checks):
    """Such as a database, before the servers start; workspace files may be binary."""
    row = {"setup": "my_checks:prepare", "workspace": {"a.bin": {"base64": "AP8="}}, "data": [7]}
    env = make_env(row | {"answer": None, "check": "my_checks:prepared"})
    for seed in (0, 1):
        env.reset(seed=seed)
        with sqlite3.connect(env.workspace / "shop.db") as database:
            rows = database.execute("SELECT * FROM orders").fetchall()
        assert rows == [(7, b"\x00\xff", int(env.step(call("luck"))[0].split()[-1]))]
        assert env.step("done")[1] == 1.0
    env.close()
    env = make_env(setup="my_checks:broken_setup")
    with pytest.raises(EnvironmentFault, match="ZeroDivisionError") as caught:
        env.reset()
    assert caught.value.kind == "setup"
    env.close()


def test_a_check_that_is_broken_is_a_fault_before_the_first_action(checks):
    """Its user must notice, and no model can have caused it."""
    for name, seconds, output in (
        ("misspelt", 120.0, "NameError: name 'wokspace'"),
        ("silent", 120.0, "None is not a number"),
        ("hangs", 0.3, "0.3 s"),
    ):
        env = make_env({"id": "cups", "answer": None, "check": f"my_checks:{name}"}, check_timeout=seconds)
        with pytest.raises(EnvironmentFault, match=f"(?s)task 'cups', .*the check {name} .*({output})") as caught:
            env.reset()
        assert caught.value.kind == "check"
        env.close()
    for name, output in (("created_by_the_model", "made.txt"), ("without_a_row", "total"), ("run_here", "made_by_the")):
        env = make_env({"answer": None, "check": f"my_checks:{name}"})
        env.reset()
        assert output in env.step(call("finish"))[4]["check_error"], "it may ask for what is not there yet"
        env.close()


def test_a_check_that_ends_a_server_is_a_fault_and_its_calls_are_not_those_of_the_model(program):
    env = make_env({"check": lambda state: state.call("die").is_error}, servers=program)
    with pytest.raises(ServerFault, match="before the model acted"):
        env.reset()
    env.close()
    env = make_env({"check": lambda state: not state.call("where").is_error}, servers=program)
    env.reset()
    (pid,) = _pids(env)
    os.kill(pid, signal.SIGKILL)
    connection = env._session._connections[0].connection
    assert until(lambda: connection.broken)
    with pytest.raises(ServerFault):  # as without a check: no call of the model can have caused it
        env.step(call("where"))
    env.close()


def _pids(env):
    below = psutil.Process().children(recursive=True)
    return [child.pid for child in below if str(env.workspace) in command_line(child)]


def test_a_check_that_cannot_grade_says_so_by_a_fault(checks):
    def check(state: ToolState) -> bool:
        if state.answer == "done":
            raise EnvironmentFault("the database of the check is down", kind="check")
        return False

    env = make_env({"answer": None}, check=check)
    env.reset()
    with pytest.raises(EnvironmentFault, match="is down"):
        env.step("done")
    with pytest.raises(ResetNeeded):
        env.step("done")
    env.close()


# Rows


WRONG_ROWS = (
    ({"answer": None}, "neither an 'answer' nor a 'check'"),
    ({"answer": "5"}, "its answer is '5'"),
    ({"answer": {"type": "numbr", "value": 5}}, "numbr"),
    ({"prompt": " "}, "its prompt"),
    ({"sevrers": []}, "'sevrers'"),
    ({"servers": []}, "list of 1 to"),
    ({"servers": [{"commnd": "x"}]}, "its server 1"),
    ({"servers": [{"command": "x", "arg": []}]}, "'arg'"),
    ({"servers": [{"url": "ftp://x"}]}, "ftp://x"),
    ({"servers": [{"in_process": "my_checks:nothing"}]}, "my_checks"),
    ({"servers": [MCPServer("x", log_level="ERROR")]}, "shared by all episodes"),
    ({"check": "os:system"}, "not a function defined in os"),
    ({"check": "rm -rf /"}, "'module:function'"),
    ({"setup": "os:system"}, "not a function defined in os"),
    ({"workspace": {"a": {"base64": "?"}}}, "invalid base64"),
    ({"check": "no_such_module:f"}, "cannot be imported"),
    ({"check": lambda state, answer: True}, "does not accept the arguments"),
    ({"setup": lambda workspace: None}, "does not accept the arguments"),
    ({"workspace": {"../a": "x"}}, "'../a'"),
    ({"workspace": {"/etc/passwd": "x"}}, "/etc/passwd"),
    ({"workspace": {"a": 3}}, "'a'"),
    ({"tools": "look"}, "its tools"),
    ({"infeasible": "yes"}, "its infeasible"),
)


def test_an_unusable_row_is_an_error_with_the_reason():
    assert_all_raise(TaskError, make_env, WRONG_ROWS, plain=True)


def test_a_call_that_hangs_cannot_exceed_the_deadline_of_a_step():
    """The model would make its episode a fault, which is not counted."""
    slow = StdioServer("{python}", ("-c", ""), timeout=301.0)
    with make_env(servers=slow) as env, pytest.raises(TaskError, match=r"timeout=301.*set call_timeout="):
        env.reset(seed=0)
    assert make_env(servers=slow, call_timeout=1_000.0).max_step_s > 2_000.0


def test_rows_from_the_hub_cannot_run_code():
    read = ToolRowParser({"servers": (InProcessServer(shelf),)}, trusted=False)
    row = {"prompt": "How many?", "answer": NUMBER}
    assert read(row, "x").content == "How many?"
    for row in ({"servers": [{"command": "sh"}]}, {"check": "shutil:rmtree"}):
        with pytest.raises(TaskError, match="run programs and functions on this machine"):
            read(row | row, "x")


def test_rows_come_from_files_and_tasks_are_found_by_id(tmp_path, checks):
    rows = [
        {"id": f"row-{number}", "prompt": f"{number}?", "servers": [{"in_process": "my_checks:make"}],
         "answer": {"type": "number", "value": number}}
        for number in range(3)
    ]  # fmt: skip
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    env = MCPEnv(tasks=str(path))
    observation, info = env.reset(options={"task": "row-2"})
    assert observation.startswith("2?")
    assert env.step("2")[1] == 1.0
    assert info["task_id"] == "row-2"
    env.close()


# Servers that break, and isolation

SERVER = """
    import json, os, sys, time
    tools = [{"name": name, "inputSchema": {"type": "object", "properties": {"path": {"type": "string"}}}}
             for name in ("where", "read", "remove", "garble", "die", "hang", "nonsense")]
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        name = message.get("params", {}).get("name")
        if message["method"] == "initialize":
            info = {"name": "s", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        elif message["method"] == "tools/list":
            result = {"tools": tools}
        elif name == "where":
            result = {"content": [{"type": "text", "text": os.getcwd() + " " + sys.argv[1]}]}
        elif name == "read":
            result = {"content": [{"type": "text", "text": open(message["params"]["arguments"]["path"]).read()}]}
        elif name == "remove":
            os.remove(message["params"]["arguments"]["path"])
            result = {"content": []}
        elif name == "garble":
            open("a.txt", "w").write("[")
            result = {"content": []}
        elif name == "die":
            os._exit(3)
        elif name == "hang":
            time.sleep(600)
        else:
            print('{"jsonrpc": "2.0", "id": ' + str(message["id"]) + ', "result": [', flush=True)
            continue
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""


@pytest.fixture
def program(tmp_path) -> StdioServer:
    path = tmp_path / "server.py"
    path.write_text(textwrap.dedent(SERVER))
    return StdioServer("{python}", ("-S", str(path), "{workspace}"))


def test_a_model_that_breaks_a_server_gets_an_error_and_its_reward(program):
    """A fault would be no reward: a model could leave any episode that it is about to fail."""
    for tool, words, seconds in (
        ("die", "ended, or lost the connection", 120.0),
        ("hang", "timed out after 0.5 s", 0.5),
        ("nonsense", "is invalid or too large", 120.0),
    ):
        env = make_env(servers=replace(program, restartable=True), call_timeout=seconds)
        env.reset(seed=0)
        observation, reward, *_, info = env.step(call("where") + call(tool))
        assert words in observation, tool
        assert "starts again" in observation, tool
        assert (reward, info["invalid_action"]) == (0.0, False), tool
        env.unwrapped.call_timeout = 120.0  # the next call waits for the restart
        assert env.step(call("where"))[0] == "Result, where:\n/workspace /workspace", tool
        assert env.step("5")[1] == 1.0, tool
        env.close()


def test_an_episode_ends_without_reward_when_a_call_ends_a_server_with_state(program):
    """A model could otherwise leave an episode by a fault, or make the server forget what the check looks for."""
    for calls in (call("die"), call("where") + call("nonsense")):
        env = make_env({"check": lambda state: True}, servers=program)
        env.reset(seed=0)
        observation, reward, terminated, truncated, info = env.step(calls)
        assert "The task ends unsolved" in observation
        assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
        assert info["stop_reason"] == "server_lost"
        env.close()


def test_a_model_cannot_make_a_check_a_fault(program):
    """Its last resort: to leave the check a server, a file or an answer that it cannot read, or to do nothing."""
    cases = (
        (
            lambda state: "a" in (state.call("where").structured if state.calls else "b"),
            call("hang"),
            {"call_timeout": 0.5},
        ),
        (lambda state: (state.workspace / "a.txt").read_text() == "2", call("remove", path="/workspace/a.txt"), {}),
        (lambda state: json.loads((state.workspace / "a.txt").read_text()) == 2, call("garble"), {}),
        (lambda state: float(state.answer.removesuffix("5") or "x") == 7, "", {}),
        (lambda state: "yes" if state.calls else False, call("where"), {}),
        (lambda state: {"0": 0, "5": 5}[state.answer], "", {}),
    )
    for check, calls, options in cases:
        env = make_env({"check": check, "workspace": {"a.txt": "1"}}, servers=program, check_timeout=120.0, **options)
        env.reset(seed=0)
        if options:  # not before: the check also runs at reset, however long the machine needs
            env._instance._timeout = 0.5
        if calls:
            assert env.step(calls)[2] is False
        _, reward, terminated, _, info = env.step("5")
        assert (reward, terminated, info["stop_reason"]) == (0.0, True, "failure")
        assert info["check_error"]
        env.close()


def test_a_server_that_is_killed_between_two_calls_starts_again(program):
    """A model may be able to send it a signal: this must not end its episode without a reward."""
    env = make_env(servers=replace(program, restartable=True))
    env.reset(seed=0)
    env.step(call("where"))
    assert env._session is not None
    connection = env._session._connections[0].connection
    (pid,) = _pids(env)
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: connection.broken)
    assert env.step(call("where"))[0] == "Result, where:\n/workspace /workspace"
    assert env.step("5")[1] == 1.0
    env.close()


def test_a_server_that_cannot_start_is_a_fault_but_not_after_a_call_and_the_next_episode_works(program):
    env = make_env(servers=replace(program, restartable=True))
    env.reset(seed=0)
    source = Path(program.args[1])
    env.step(call("die"))
    code = source.read_text()
    source.unlink()
    assert env.step(call("where"))[4]["stop_reason"] == "server_lost"
    with pytest.raises(ServerFault) as caught:
        env.reset(seed=0)
    assert caught.value.kind == "server_start"
    with pytest.raises(ResetNeeded):
        env.step("5")
    source.write_text(code)
    env.reset(seed=0)
    assert env.step("5")[1] == 1.0
    env.close()


GROWING = """
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("growing", log_level="ERROR")

@server.tool()
async def connect(ctx: Context) -> str:
    def query(sql: str) -> str:
        \"\"\"Run a query.\"\"\"
        return f"ran {sql}"
    server.add_tool(query)
    server.remove_tool("connect")
    await ctx.session.send_tool_list_changed()
    return "connected"

server.run("stdio")
"""


def test_the_model_sees_the_tools_that_a_server_has_changed(tmp_path):
    """Servers offer further tools when one has connected, chosen a database, or logged in."""
    (tmp_path / "growing.py").write_text(GROWING)
    env = make_env(servers=StdioServer("{python}", (str(tmp_path / "growing.py"),), timeout=120.0))
    observation, info = env.reset(seed=0)
    assert "query" not in observation + info["tools"]
    assert "There is no tool 'query'" in env.step(call("query", sql="x"))[0]
    observation = env.step(call("connect"))[0]
    assert observation.startswith("Result, connect:\nconnected\n\nNew or changed tools:\n- query(sql: string)")
    assert observation.endswith(": Run a query.\n\nTools that no longer exist: connect")
    assert env.step(call("query", sql="x"))[0] == "Result, query:\nran x"
    assert env.step(call("connect"))[4]["invalid_action"]
    env.close()


def test_the_workspace_has_one_name_for_the_model(program):
    observations = []
    for _ in range(2):
        env = make_env({"workspace": {"notes/a.txt": "five"}}, servers=program)
        env.reset(seed=0)
        workspace = env.workspace
        log = [env.step(reply)[0] for reply in (call("where"), call("read", path="/workspace/notes/a.txt"))]
        assert log[0] == "Result, where:\n/workspace /workspace"
        assert log[1] == "Result, read:\nfive"
        observations.append(log)
        env.close()
        assert not workspace.exists()
        with pytest.raises(TaskError):
            _ = env.workspace
    assert observations[0] == observations[1]


def test_concurrent_episodes_do_not_share_state(program):
    async def scenario(number: int) -> tuple[str, float]:
        env = make_env(servers=[InProcessServer(shelf), program] if number % 4 == 0 else shelf)
        await env.async_reset(seed=number)
        await env.async_step(call("put", name=f"mine-{number}"))
        observation, *_ = await env.async_step(call("look"))
        *_, reward, _, _, _ = await env.async_step("5")
        await env.async_close()
        return observation, reward

    async def run_all() -> list[tuple[str, float]]:
        return await asyncio.gather(*(scenario(number) for number in range(16)))

    for number, (observation, reward) in enumerate(asyncio.run(run_all())):
        assert observation == f"Result, look:\nmine-{number}"
        assert reward == 1.0


def test_the_seed_reaches_the_servers(env):
    luck = env.step(call("luck"))[0]
    env.reset(seed=0)
    assert env.step(call("luck"))[0] == luck
    env.reset(seed=1)
    assert env.step(call("luck"))[0] != luck


def test_an_unclosed_environment_is_cleaned_up_when_the_process_ends(program, tmp_path):
    code = f"""
from rllm_gym.envs.mcp import MCPEnv
from rllm_gym.mcp import StdioServer
env = MCPEnv(tasks=[{{"prompt": "?", "infeasible": True}}], servers=StdioServer({program.command!r}, {program.args!r}))
env.reset(seed=0)
print(env.workspace)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert result.stderr == ""
    assert not Path(result.stdout.strip()).exists()


# Schemas of third parties

DEEP: dict[str, Any] = {"properties": {"a": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}}, "required": ["b"]}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


STRANGE_SCHEMAS = (
    ({"properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}}, {"a": 1}),
    ({"properties": {"a": {"$ref": "#/nowhere"}}}, {"a": 1}),
    ({"$ref": "#"}, {"a": 1}),
    ({"properties": {"a": {"pattern": "^(a+)+$"}}}, {"a": "a" * 60 + "b"}),
    ({"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}, {"a" * 60 + "b": 1}),
    (DEEP, nested(40)),
    ({"properties": {"a": {"type": "strange"}}}, {"a": 1}),
    ({"properties": ["a"]}, {"a": 1}),
    ({"type": 5}, {"a": 1}),
    ({"$schema": ["x"]}, {"a": 1}),
    ({"required": 3}, {"a": 1}),
    ({"properties": {"a": {"type": "array", "items": {"type": "integer"}}}}, {"a": list(range(200_000))}),
)


def test_a_hostile_schema_is_cheap_and_blocks_nothing():
    for schema, arguments in STRANGE_SCHEMAS:
        began = time.process_time()
        tool = MCPTool("t", "", schema, "s", "t")
        assert checked_arguments(FunctionCall("t", arguments), tool) == arguments, schema
        assert time.process_time() - began < 5.0, schema


def test_all_calls_of_a_reply_share_one_validation_budget():
    bomb = {f"d{level}": {"allOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 10} for level in range(10)}
    schema = {"$defs": {**bomb, "d10": {"type": "string"}}, "properties": {"a": {"$ref": "#/$defs/d0"}}}
    many = {**schema, "properties": {f"p{n}": {"$ref": "#/$defs/d0"} for n in range(50)}}
    work, began = ValidationBudget(), time.process_time()
    for number in range(1, 33):
        arguments = {"a": "x"}
        assert checked_arguments(FunctionCall("t", arguments), MCPTool("t", "", schema, "s", "t"), number, work=work)
    arguments = {f"p{n}": "x" for n in range(50)}
    assert checked_arguments(FunctionCall("t", arguments, typed=False), MCPTool("t", "", many, "s", "t")) == arguments
    assert time.process_time() - began < 8.0


def test_error_messages_with_a_long_value_are_few():
    either: dict = {"type": "integer"}
    for _ in range(3):
        either = {"anyOf": [either] * 30}
    arguments = {"a": "x" * 100_000}  # gigabytes if repeated in 27,000 messages
    tracemalloc.start()
    checked_arguments(FunctionCall("t", arguments), MCPTool("t", "", {"properties": {"a": either}}, "s", "t"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6


def test_the_supported_part_of_a_schema_is_validated():
    tool = MCPTool(
        "t",
        "",
        {
            "type": "object",
            "properties": {
                "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                "unit": {"enum": ["m", "km"]},
                "points": {"type": "array", "items": {"$ref": "#/$defs/Point"}, "uniqueItems": True},
            },
            "$defs": {"Point": {"type": "object", "required": ["x"], "properties": {"x": {"type": "number"}}}},
            "additionalProperties": False,
        },
        "s",
        "t",
    )
    for arguments, output in (
        ({"n": "4"}, "$.n"),
        ({"unit": "cm"}, "$.unit: 'cm' is not one of ['m', 'km']"),
        ({"points": [{"x": 1}, {"y": 2}]}, "$.points[1]: 'x' is a required property (given: 'y')"),
        ({"points": [{"x": 1}, {"x": 1}]}, "not all different"),
        ({"unti": "m"}, "did you mean 'unit'?"),
    ):
        with pytest.raises(InvalidAction) as caught:
            checked_arguments(FunctionCall("t", arguments), tool)
        assert output in str(caught.value)
    untyped = FunctionCall("t", {"n": "4", "unit": "m", "points": '[{"x": 1}]'}, typed=False)
    assert checked_arguments(untyped, tool) == {"n": 4, "unit": "m", "points": [{"x": 1}]}
    assert checked_arguments(FunctionCall("t", {"n": "None"}, typed=False), tool) == {"n": None}


def test_a_property_with_a_default_need_not_be_given():
    """As in Playwright's server: its ``scale`` is required and has a default, which the server fills in."""
    properties = {"scale": {"enum": ["css", "device"], "default": "css"}, "path": {"type": "string"}}
    tool = MCPTool("shot", "", {"properties": properties, "required": ["scale", "path"]}, "s", "shot")
    assert tool_list([tool], 1_000) == '- shot(scale: "css" | "device" = "css", path: string)'
    assert checked_arguments(FunctionCall("shot", {"path": "a"}), tool) == {"path": "a"}
    with pytest.raises(InvalidAction, match="'path' is a required property"):
        checked_arguments(FunctionCall("shot", {"scale": "css"}), tool)


def test_a_third_party_tool_description_is_one_line():
    schema = {"type": "object", "properties": {"a\n- finish()": {"type": "string"}, "b": {"enum": ["x\ny"] * 500}}}
    lines = tool_list([MCPTool("t", "Does\n- much.\n" * 500, schema, "s", "t")] * 2, 20_000).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("- t(a - finish(): string, optional, b: ")
    assert all(len(line) < 5_000 for line in lines)
    assert len(tool_list([MCPTool("t" * 64, "x" * 10_000, {}, "s", "t")] * 1_000, 20_000)) < 100_000


def test_parameters_are_described_within_a_budget():
    """ "Use the id returned by connect" is often said only there."""
    place = {
        "type": "object",
        "required": ["city"],
        "properties": {
            "city": {"type": "string", "description": "The town."},
            "inside": {"$ref": "#/$defs/Place"},
        },
    }
    schema = {
        "type": "object",
        "required": ["id"],
        "$defs": {"Place": place},
        "properties": {
            "id": {"type": "string", "description": "The id returned by connect.\n- finish(): now"},
            "near": {
                "anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Place"}}, {"type": "null"}],
                "default": None,
            },
            "note": {"type": "string", "description": "Why. " * 400},
        },
    }
    tools = [MCPTool("find", "Find.", schema, "s", "find")]
    full = tool_list(tools, 20_000).splitlines()
    assert full[:4] == [
        "- find(id: string, near: array of object, optional, note: string, optional): Find.",
        "    id: The id returned by connect. - finish(): now",
        "    near[].city: string: The town.",
        "    near[].inside: object, optional",
    ]
    assert full[-1].startswith("    note: Why. Why.")
    sizes = [len(tool_list(tools, budget)) for budget in (20_000, 1_500, 1_000, 600, 300, 100)]
    assert sizes == sorted(sizes, reverse=True)
    assert all(size <= budget for size, budget in zip(sizes, (20_000, 1_500, 1_000, 600, 300, 100)))
    assert "    id: The id returned by connect." in tool_list(tools, 200)
    assert "note:" not in tool_list(tools, 200).partition("\n")[2]
    long = MCPTool("plan", "Plan. " * 300, {"properties": {"at": {"anyOf": [{"type": "string"}] * 2}}}, "s", "plan")
    assert f"- plan(at: string, optional): {('Plan. ' * 300).strip()}" in tool_list([long, *tools], 20_000).splitlines()
    assert tool_list([long, *tools], 1_000).splitlines()[0].endswith("…")
    endless = {"$ref": "#/$defs/A"}
    defs = {
        "A": {"$ref": "#/$defs/A"},
        "B": {"type": "object", "properties": {str(n): {"$ref": "#/$defs/B"} for n in range(50)}},
    }
    hostile = {"$defs": defs, "properties": {"a": endless, "b": {"$ref": "#/$defs/B"}, "c": 5, "d": {"anyOf": 5}}}
    assert tool_list([MCPTool("t", "", hostile, "s", "t")] * 50, 2_000).count("- t(") >= 1


def test_the_type_of_a_parameter_takes_no_more_memory_than_its_schema():
    """A schema of 80 kB could otherwise describe a type of gigabytes: choices of choices of long values."""
    defs = {str(level): {"anyOf": [{"$ref": f"#/$defs/{level + 1}"}] * 8} for level in range(3)}
    values = {"enum": [f"{number}{'x' * 4_000}" for number in range(20)]}
    schema = {"$defs": {**defs, "3": values}, "properties": {"a": {"$ref": "#/$defs/0"}}}
    tracemalloc.start()
    text = tool_list([MCPTool("t", "", schema, "s", "t")], 20_000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    assert text.startswith(f'- t(a: "0{"x" * 37}… | "1')


def test_instructions_of_servers_reach_the_model():
    def instructed(text: str):
        def make(workspace: Path, seed: int) -> MCPServer:
            return MCPServer("told", log_level="ERROR", instructions=f"{text} Files are in {workspace}.")

        return InProcessServer(make, name=text.lower())

    env = make_env(servers=[instructed("First"), instructed("Second")], tools_in_prompt=False, max_tools_chars=1_000)
    observation, _ = env.reset(seed=0)
    assert "Instructions for the tools of the server first:\nFirst Files are in /workspace.\n" in observation
    assert "Instructions for the tools of the server second:\nSecond Files" in observation
    env.close()
    env = make_env(servers=instructed("Long" * 1_000), max_tools_chars=1_000)
    observation, _ = env.reset(seed=0)
    assert f"Instructions for the tools:\n{('Long' * 1_000)[:499]}…\n" in observation
    env.close()
    both = {"a": "X" * 1_000, "b": "Z" * 1_000}
    text = first_observation("Do.", [], both, listed=False, max_tools_chars=1_000, max_calls=1, max_turns=2)
    assert (text.count("X"), text.count("Z")) == (249, 249)


# Misuse


def test_a_final_answer_with_an_unknown_name_does_not_end_the_episode(env):
    observation, _, terminated, _, info = env.step(call("finish", answr=5))
    assert (info["invalid_action"], terminated) == (True, False)
    assert "did you mean 'answer'?" in observation
    assert env.step(call("finish", answer=5))[1] == 1.0


WRONG_OPTIONS = (
    ({"max_calls": 0}, "max_calls=0"),
    ({"max_calls": 33}, "max_calls=33"),
    ({"max_result_chars": 10}, "max_result_chars=10"),
    ({"max_observation_chars": 100}, "max_observation_chars=100"),
    ({"call_timeout": 0}, "call_timeout=0"),
    ({"call_timeout": "5"}, "call_timeout='5'"),
    ({"call_timeout": True}, "call_timeout=True"),
    ({"num_tasks": 0}, "num_tasks=0"),
    ({"pool": 5}, "pool=5"),
    ({"check_timeout": -1}, "check_timeout=-1"),
    ({"tools_in_prompt": "yes"}, "tools_in_prompt='yes'"),
)


def test_an_option_out_of_range_is_an_error_with_its_name():
    assert_all_raise(ValueError, lambda options: make_env(**options), WRONG_OPTIONS, plain=True)


def test_episodes_can_be_rendered():
    env = make_env(render_mode="ansi")
    env.reset()
    env.step(call("look"))
    assert str(env.render()).startswith(f"Task mcp/0\n  How many?\nReply 1\n  {call('look')}\nResult\n  Result, look:")
    env.close()
    with pytest.raises(NotImplementedError, match="is in its servers"):
        env.get_state()
