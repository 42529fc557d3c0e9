"""Third-party MCP servers from npm and PyPI, used through ``rllm/MCP-v0``; scripts/mcp_servers.sh installs them.

More of them are in tests/envs/test_mcp_third_party_servers.py: the filesystem, memory and time servers.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import psutil
import pytest

import rllm_gym  # noqa: F401 - registers the environments
from rllm_gym.mcp import (
    HttpServer,
    Server,
    StdioServer,
    shared_pool,
)

pytest.importorskip("mcp", reason="pip install 'rllm-gym[mcp]'")

PLACE = Path(__file__).resolve().parents[2] / ".mcp-servers"


def from_npm(package: str, *args: str, **options: Any) -> StdioServer:
    script = PLACE / f"node/node_modules/@modelcontextprotocol/server-{package}/dist/index.js"
    if shutil.which("node") is None or not (PLACE / "node/.installed").exists():
        pytest.skip("no node, or its servers are not installed: scripts/mcp_servers.sh")
    return StdioServer("node", (str(script), *args), name=package, **options)


def from_pypi(place: str, program: str, *args: str) -> StdioServer:
    if not (PLACE / place / ".installed").exists():
        pytest.skip(f"{program} is not installed: scripts/mcp_servers.sh")
    return StdioServer(str(PLACE / place / "bin" / program), args, name=program.removeprefix("mcp-server-"))


def reply(*calls: tuple[str, Mapping[str, Any]]) -> str:
    texts = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    return "\n".join(f"<tool_call>{text}</tool_call>" for text in texts)


def run_episode(row: Mapping[str, Any], *replies: str) -> tuple[float, str]:
    """Return the reward of the episode and all observations."""
    env = gym.make("rllm/MCP-v0", tasks=[row])
    try:
        seen, info = env.reset(seed=0)
        assert len(json.loads(info["tools"])) > 2
        reward = 0.0
        for text in replies:
            observation, reward, terminated, truncated, info = env.step(text)
            assert not info["invalid_action"], observation
            assert not truncated
            seen += observation
        assert terminated
        return float(reward), seen
    finally:
        env.close()


def test_a_server_of_an_older_protocol_changes_a_database() -> None:
    def filled(state) -> bool:
        import sqlite3

        with sqlite3.connect(state.workspace / "x.db") as database:
            return database.execute("select n from t order by n").fetchall() == [(1,), (2,)]

    row = {
        "prompt": "Make a table t with a column n that holds 1 and 2.",
        "servers": [from_pypi("python-mcp1", "mcp-server-sqlite", "--db-path", "{workspace}/x.db")],
        "check": filled,
    }
    make = reply(("create_table", {"query": "create table t (n integer)"}))
    reward, seen = run_episode(row, make, reply(("write_query", {"query": "insert into t values (1), (2)"})), "Done.")
    assert reward == 1
    wrong = reply(("read_query", {"query": "select * from nowhere"}))
    reward, seen = run_episode(row, wrong, make, "Done.")
    assert reward == 0
    assert "no such table" in seen


@pytest.mark.long
def test_no_query_voids_an_episode_with_the_sqlite_server() -> None:
    """An endless query stops the whole server, which answers nothing else either. This is no fault."""
    server = from_pypi("python-mcp1", "mcp-server-sqlite", "--db-path", "{workspace}/shop.db")
    numbers = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
    endless = f"SELECT count(*) FROM ({numbers})"
    row = {
        "prompt": "Add an order.",
        "servers": [replace(server, restartable=True)],
        "setup": create_shop,
        "check": lambda state: "kettle" in state.call("read_query", {"query": "SELECT * FROM orders"}).text,
    }
    env = gym.make("rllm/MCP-v0", tasks=[row]).unwrapped
    try:
        env.reset(seed=0)
        env.call_timeout = 0.5
        observation, reward, terminated, *_ = env.step(reply(("read_query", {"query": endless})))
        assert "timed out after 0.5 s" in observation
        assert "starts again" in observation
        assert (reward, terminated) == (0.0, False)
        env.call_timeout = None
        env.step(reply(("write_query", {"query": "INSERT INTO orders VALUES ('kettle')"})))
        assert env.step("Done.")[1:3] == (1.0, True)
    finally:
        env.close()


def create_shop(workspace: Path, seed: int, data: Any) -> None:
    with sqlite3.connect(workspace / "shop.db") as database:
        database.execute("CREATE TABLE orders (product)")


def test_the_git_server_makes_a_commit(tmp_path: Path) -> None:
    """Also, two servers share one workspace."""
    server = from_pypi("python", "mcp-server-git")

    def committed(state) -> bool:
        log = subprocess.run(
            ["git", "-C", str(state.workspace), "log", "--format=%s", "--name-only"],
            capture_output=True,
            text=True,
            check=False,
        )
        return log.stdout.split() == ["first", "a.txt"]

    identity = {"user.name": "A", "user.email": "a@b.c", "init.defaultBranch": "main"}
    names = {}
    for number, (key, value) in enumerate(identity.items()):
        names |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    git = StdioServer(server.command, server.args, env={"GIT_CONFIG_COUNT": "3", **names}, name="git")
    make = StdioServer("sh", ("-c", 'git init -q . && exec "$@"', "sh", server.command), name="repository", env=git.env)
    row = {
        "prompt": "Commit a.txt as 'first'.",
        "servers": [make, from_npm("filesystem", "{workspace}")],
        "workspace": {"a.txt": "x"},
        "check": committed,
    }
    reward, _ = run_episode(
        row,
        reply(("git_add", {"repo_path": "/workspace", "files": ["a.txt"]})),
        reply(("git_commit", {"repo_path": "/workspace", "message": "first"})),
        "Done.",
    )
    assert reward == 1


@pytest.fixture
def everything_over_http() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    server = from_npm("everything", "streamableHttp")
    process = subprocess.Popen(
        [server.command, *server.args],
        env={"PATH": str(Path(shutil.which("node") or "").parent), "PORT": "0"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "listening" in line:
            break
    (port,) = {item.laddr.port for item in psutil.Process(process.pid).net_connections() if item.status == "LISTEN"}
    yield f"http://127.0.0.1:{port}/mcp", process
    process.kill()
    process.wait(120)
    process.stderr.close()


@pytest.mark.parametrize("transport", ["http", pytest.param("stdio", marks=pytest.mark.long)])
def test_every_kind_of_result_of_the_everything_server(transport: str, request: pytest.FixtureRequest) -> None:
    server: Server
    if transport == "stdio":
        server = from_npm("everything", "stdio")
    else:
        server = HttpServer(request.getfixturevalue("everything_over_http")[0], name="everything")
    row = {"prompt": "What is 2 + 3?", "servers": [server], "answer": {"type": "number", "value": 5}}
    calls = [
        ("get-sum", {"a": 2, "b": 3}),
        ("get-tiny-image", {}),
        ("get-structured-content", {"location": "Chicago"}),
        ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
        ("trigger-long-running-operation", {"duration": 0.3, "steps": 3}),
    ]
    reward, seen = run_episode(row, reply(*calls), "5")
    assert reward == 1
    for words in ("is 5", "[image image/png, 4,033 bytes]", "humidity", "demo://resource", "completed"):
        assert words in seen


def test_a_server_at_a_url_that_ends_in_a_call_is_lost(everything_over_http, tmp_path: Path) -> None:
    """The model may have caused its end, so this is no fault."""
    url, process = everything_over_http

    async def scenario():
        session = await shared_pool().open([HttpServer(url)], workspace=tmp_path)
        operation = {"duration": 600, "steps": 3}
        call = asyncio.create_task(session.call("trigger-long-running-operation", operation, timeout=600))
        assert (await session.call("echo", {"message": "x"})).text == "Echo: x"  # the call before it has been sent
        process.kill()
        result = await call
        assert (result.is_error, result.text.partition(". ")[0]) == (True, ENDED)
        for _ in range(2):
            again = await session.call("echo", {"message": "x"})
            assert again.text == "The server of this tool has ended, and does not start again."
        assert list(session.lost) == ["server1"]
        await session.close()

    asyncio.run(scenario())


ENDED = "The server ended, or lost the connection, during this call"


def test_filesystem_servers_do_not_share_files(tmp_path: Path) -> None:
    async def episode(number: int) -> list[str]:
        workspace = tmp_path / str(number)
        workspace.mkdir()
        session = await shared_pool().open([from_npm("filesystem", "{workspace}", timeout=120)], workspace=workspace)
        try:
            path = str(workspace / f"{number}.txt")
            assert not (await session.call("write_file", {"path": path, "content": str(number)})).is_error
            other_path = str(tmp_path / str((number + 1) % 3) / "x.txt")
            assert (await session.call("write_file", {"path": other_path, "content": "x"})).is_error
            return (await session.call("list_directory", {"path": str(workspace)})).text.splitlines()
        finally:
            await session.close()

    async def scenario():
        return await asyncio.gather(*(episode(number) for number in range(3)))

    assert asyncio.run(scenario()) == [[f"[FILE] {number}.txt"] for number in range(3)]
