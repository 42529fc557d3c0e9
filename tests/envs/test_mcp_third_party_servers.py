"""MCP-v0 with third-party servers from npm and PyPI: their tools solve tasks, and episodes share nothing."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from rllm_gym.envs.mcp import MCPEnv, ToolState
from rllm_gym.mcp import HttpServer, StdioServer
from tests.envs.tool_call import call
from tests.waiting import until

SERVERS = Path(__file__).resolve().parents[2] / ".mcp-servers"
NODE = SERVERS / "node" / "node_modules" / "@modelcontextprotocol"
SKIP_REASON = "is not installed: make test installs it where npm and PyPI can be reached"


def node(package: str, *args: str, **options: Any) -> StdioServer:
    program = NODE / package / "dist" / "index.js"
    if not program.is_file() or shutil.which("node") is None:
        pytest.skip(f"{package} {SKIP_REASON}")
    return StdioServer("node", (str(program), *args), **options)


def python(module: str, *args: str) -> StdioServer:
    program = SERVERS / "python" / "bin" / module
    if not program.is_file():
        pytest.skip(f"{module} {SKIP_REASON}")
    return StdioServer(str(program), args)


def run_episode(env: MCPEnv, *replies: str) -> tuple[list[str], float]:
    env.reset(seed=0)
    output, reward = [], 0.0
    for reply in replies:
        observation, reward, *_ = env.step(reply)
        output.append(observation)
    return output, reward


def test_the_filesystem_server_solves_a_task():
    def files_sorted(state: ToolState) -> bool:
        return sorted(str(path.relative_to(state.workspace)) for path in state.workspace.rglob("*.txt")) == ["in/a.txt"]

    files = {"a.txt": "keep", "in/.keep": ""}
    env = MCPEnv(
        tasks=[{"prompt": "Move a.txt into the directory in.", "workspace": files}],
        servers=node("server-filesystem", "{workspace}"),
        check=files_sorted,
    )
    outside, inside = call("read_text_file", path="/etc/hostname"), call("list_directory", path="/workspace")
    output, reward = run_episode(
        env, outside + inside, call("move_file", source="a.txt", destination="in/a.txt"), "Done."
    )
    assert "read_text_file (failed)" in output[0]
    assert "[FILE] a.txt" in output[0]
    assert reward == 1.0
    assert run_episode(env, "Done.")[1] == 0.0
    env.close()


def test_the_memory_server_solves_a_task():
    def remembers(state: ToolState) -> bool:
        graph = json.loads(state.call("read_graph").text)
        return [entity["name"] for entity in graph["entities"]] == ["Ada"]

    server = node("server-memory", env={"MEMORY_FILE_PATH": "{workspace}/graph.jsonl"})
    env = MCPEnv(tasks=[{"prompt": "Remember the person Ada."}], servers=server, check=remembers)
    ada = {"name": "Ada", "entityType": "person", "observations": []}
    assert run_episode(env, call("create_entities", entities=[ada]), "Done.")[1] == 1.0
    assert (
        run_episode(env, call("create_entities", entities=[{**ada, "name": "Bob"}]), "Done.")[1] == 0.0
    )  # nothing was left
    output, _ = run_episode(env, call("create_entities", entities=[{"name": "Ada"}]))
    assert "'entityType' is a required property" in output[0]
    env.close()


def test_two_servers_solve_one_task():
    env = MCPEnv(
        tasks=[{"prompt": "What is 13:30 in Berlin, in Tokyo?", "answer": {"type": "time", "value": "20:30"}}],
        servers=[python("mcp-server-time", "--local-timezone", "UTC"), node("server-everything")],
    )
    convert = call("convert_time", source_timezone="Europe/Berlin", time="13:30", target_timezone="Asia/Tokyo")
    output, reward = run_episode(env, convert + call("get-sum", a=20, b=1) + call("get-tiny-image"), "20:30")
    assert "21:30" in output[0] or "20:30" in output[0]  # depends on the season
    assert "Result 2 of 3, get-sum:\nThe sum of 20 and 1 is 21" in output[0]
    assert "[image image/png" in output[0]
    assert reward == 1.0
    env.close()


def test_a_server_over_http_serves_separate_episodes():
    server = node("server-everything")

    async def episodes() -> list[float]:
        with_port = await asyncio.create_subprocess_exec(
            server.command, *server.args, "streamableHttp", env={**os.environ, "PORT": "0"},
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert with_port.stderr is not None
        try:
            while b"listening" not in await with_port.stderr.readline():
                assert not with_port.stderr.at_eof()
            open_ports = psutil.Process(with_port.pid).net_connections()
            (port,) = {item.laddr.port for item in open_ports if item.status == "LISTEN"}
            return await asyncio.gather(*(episode(port) for _ in range(4)))
        finally:
            with_port.kill()
            await with_port.wait()

    async def episode(port: int) -> float:
        row = {"prompt": "20 + 1?", "answer": {"type": "number", "value": 21}}
        env = MCPEnv(tasks=[row], servers=HttpServer(f"http://127.0.0.1:{port}/mcp"))
        await env.async_reset(seed=0)
        observation, *_ = await env.async_step(call("get-sum", a=20, b=1))
        assert "21" in observation
        *_, reward, _, _, _ = await env.async_step("21")
        await env.async_close()
        return reward

    assert asyncio.run(episodes()) == [1.0] * 4


def test_a_killed_server_starts_again_and_others_go_on():
    server = replace(node("server-filesystem", "{workspace}"), restartable=True)  # its state is files
    envs = [MCPEnv(tasks=[{"prompt": "?", "infeasible": True}], servers=server) for _ in range(2)]
    for env in envs:
        env.reset(seed=0)
        env.step(call("list_directory", path="."))
    (pid,) = _servers_of(envs[0].workspace)
    os.kill(pid, signal.SIGKILL)
    assert envs[0]._session is not None
    connection = envs[0]._session._connections[0].connection
    assert until(lambda: connection.broken)
    for env in envs:
        assert "Result, list_directory:" in env.step(call("list_directory", path="."))[0]
    assert envs[0].step(call("report_infeasible", reason="no"))[1] == 1.0
    for env in envs:
        env.close()


def _servers_of(workspace: Path) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if str(workspace).encode() in words:
                found.append(int(folder.name))
    return found


@pytest.mark.long
def test_sixty_four_episodes_with_a_server_process_each_do_not_share_state():
    server = node("server-filesystem", "{workspace}", timeout=120)

    async def episode(number: int) -> bool:
        def only_own_file(state: ToolState) -> bool:
            return [path.read_text() for path in state.workspace.iterdir()] == [str(number)]

        env = MCPEnv(tasks=[{"prompt": "Write your number."}], servers=server, check=only_own_file)
        await env.async_reset(seed=number)
        started.append(number)
        if len(started) == 64:
            together.set()
        await together.wait()
        await env.async_step(call("write_file", path="number.txt", content=str(number)))
        *_, info = await env.async_step("Done.")
        await env.async_close()
        return bool(info["success"])

    async def run_all() -> list[bool]:
        return await asyncio.gather(*(episode(number) for number in range(64)))

    started: list[int] = []
    together = asyncio.Event()
    assert asyncio.run(run_all()) == [True] * 64
