"""Compare MCP sessions with the SDK's own client and with rLLM's: start-up, calls per second, processor time per call.

    python -m benchmarks.mcp            # prints the tables; --write also writes them to benchmarks/results

Peers, in the same run, alternating in every round: *SDK*, ``mcp.Client`` as in its documentation, one process per
session; *rLLM's way*, one connection for all episodes whose requests one thread serves one at a time (rebuilt here in a
few lines after its ``MCPConnectionManager``; its episodes share the server's state). Servers: one in Python's standard
library that answers at once, so that the client is measured; the npm package ``server-filesystem``
(scripts/mcp_servers.sh); the SDK's own over HTTP and in this process. Processor time is the client's, without children.

*Episodes* are whole episodes of ``rllm/MCP-v0`` with scripted replies, through the same pool with prestarted servers:
with our supervised processes, and with the SDK's stdio transport in their place.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import os
import platform
import queue
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rllm_gym.mcp import HttpServer, InProcessServer, Server, ServerPool, StdioServer
from rllm_gym.mcp.pool import launch_spec

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULT = HERE / "results" / "mcp.md"
COUNTING = ("-S", str(ROOT / "tests/mcp/counting_server.py"))
FILESYSTEM = ROOT / ".mcp-servers/node/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js"
ROUNDS, CALLS, SESSIONS = 3, 200, 16
EPISODES, EPISODE_CALLS, EPISODE_PAUSE_S = 15, 8, 1.0
DOMAIN_PROGRAM = """
from pathlib import Path
from rllm_gym.envs.mcp.domains.sqlite.state import DatabaseState, database_server
from rllm_gym.envs.mcp.domains.sqlite.database import Database
database = Database("create table t (n integer)", {"t": [{"n": 7}]})
database_server(database).make(Path("."), 0).run("stdio")
"""
HTTP_PROGRAM = """
import sys
from mcp.server import MCPServer
server = MCPServer("remote", log_level="ERROR")
@server.tool()
def total() -> int:
    return 7
import uvicorn
uvicorn.run(server.streamable_http_app(), port=int(sys.argv[1]), log_level="error")
"""

Call = Callable[[str, dict[str, Any]], Awaitable[Any]]


def make_in_process_server(workspace: Path, seed: int) -> Any:
    from mcp.server import MCPServer

    server = MCPServer("here", log_level="ERROR")

    @server.tool()
    def total() -> int:
        return 7

    return server


class Ours:
    """A session of a pool."""

    name = "**rllm-gym**"

    def __init__(self, prestart: bool = False) -> None:
        self._pool = ServerPool()
        self._prestart = prestart
        if prestart:
            self.name = "rllm-gym, prestarted"

    @contextlib.asynccontextmanager
    async def session(self, server: Server) -> AsyncIterator[Call]:
        if self._prestart and isinstance(server, StdioServer):
            server = StdioServer(server.command, server.args, prestart=True)
        workspace = await self._pool.workspace([server])
        session = await self._pool.open([server], workspace=workspace)
        try:
            yield session.call
        finally:
            await session.close()

    def close(self) -> None:
        self._pool.close()


class Sdk:
    """The SDK's client, with its stdio transport for a program."""

    name = "SDK"

    def __init__(self) -> None:
        self._devnull = open(os.devnull, "w")  # noqa: SIM115 - closed with this

    @contextlib.asynccontextmanager
    async def session(self, server: Server) -> AsyncIterator[Call]:
        from mcp import Client, StdioServerParameters
        from mcp.client.stdio import stdio_client

        with tempfile.TemporaryDirectory() as workspace:
            to: Any
            if isinstance(server, StdioServer):
                command, *args = (
                    part.replace("{python}", sys.executable).replace("{workspace}", workspace)
                    for part in (server.command, *server.args)
                )
                started = StdioServerParameters(command=command, args=args, cwd=workspace)
                to = stdio_client(started, errlog=self._devnull)
            else:
                to = server.url if isinstance(server, HttpServer) else server.make(Path(workspace), 0)
            # Over HTTP only the older protocol has sessions.
            async with Client(to, mode="legacy" if isinstance(server, HttpServer) else "auto") as client:
                await client.list_tools()
                yield client.call_tool

    def close(self) -> None:
        self._devnull.close()


class SdkPool(ServerPool):
    """A pool that starts and ends programs with the SDK's stdio transport instead of our supervisors."""

    def _connection(self, server: Server, workspace: Path, home: Path, seed: int) -> Any:
        from mcp import ClientSession, StdioServerParameters
        from mcp.client.stdio import stdio_client

        from rllm_gym.mcp.connection import ServerConnection, checked_session
        from rllm_gym.mcp.server_requests import RequestAnswers

        assert isinstance(server, StdioServer)
        home.mkdir(exist_ok=True)
        spec = launch_spec(server, workspace, home, seed)
        program = StdioServerParameters(command=spec.argv[0], args=[*spec.argv[1:]], env=dict(spec.env), cwd=spec.cwd)

        class SdkStdioConnection(ServerConnection):
            @contextlib.asynccontextmanager
            async def _client(self) -> AsyncIterator[ClientSession]:
                with open(os.devnull, "w") as devnull:  # noqa: ASYNC230 - a device
                    async with (
                        stdio_client(program, errlog=devnull) as streams,
                        checked_session(streams, RequestAnswers((), ())) as session,
                    ):
                        await self._handshake(session)
                        yield session

        return SdkStdioConnection(server.command)


class Episodes:
    """Whole episodes of one task with scripted replies, in an environment with its own pool."""

    def __init__(self, name: str, pool: ServerPool, row: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> None:
        import gymnasium as gym

        import rllm_gym  # noqa: F401 - registers the environments

        self.name = name
        self._pool = pool
        self._env = gym.make("rllm/MCP-v0", tasks=[row], pool=pool)
        self._replies = [*(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls), "7"]

    def play(self) -> None:
        self._env.reset(seed=0)
        for reply in self._replies:
            *_, reward, terminated, _, info = self._env.step(reply)
            assert not info["invalid_action"], info
        assert (reward, terminated) == (1.0, True)

    def close(self) -> None:
        self._env.close()
        self._pool.close()


class RLLM:
    """One connection for all, in a thread that serves one request at a time and blocks its own loop while it waits."""

    name = "rLLM's way"

    def __init__(self) -> None:
        self._requests: queue.Queue[Any] = queue.Queue()
        self._thread: threading.Thread | None = None

    @contextlib.asynccontextmanager
    async def session(self, server: Server) -> AsyncIterator[Call]:
        if self._thread is None:
            ready = threading.Event()
            self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(server, ready)), daemon=True)
            self._thread.start()
            await asyncio.to_thread(ready.wait)

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            answer: queue.Queue[Any] = queue.Queue()
            self._requests.put((name, arguments, answer))
            return await asyncio.to_thread(answer.get, timeout=30)

        yield call

    async def _serve(self, server: Server, ready: threading.Event) -> None:
        sdk = Sdk()
        async with sdk.session(server) as call:
            ready.set()
            while True:
                try:
                    request = self._requests.get(timeout=0.1)
                except queue.Empty:
                    await asyncio.sleep(0)
                    continue
                if request is None:
                    break
                name, arguments, answer = request
                answer.put(await call(name, arguments))
        sdk.close()

    def close(self) -> None:
        self._requests.put(None)
        if self._thread is not None:
            self._thread.join(10)


class Tally:
    """Wall and processor seconds of one kind of work, one entry per round."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall.append(time.perf_counter() - wall)
        self.cpu.append(time.process_time() - cpu)

    @property
    def medians(self) -> tuple[float, float]:
        return statistics.median(self.wall), statistics.median(self.cpu)


async def start(client: Any, server: Server, tool: tuple[str, dict[str, Any]], tally: Tally) -> None:
    with tally.timed():
        async with client.session(server) as call:
            await call(*tool)


async def in_sequence(client: Any, server: Server, tool: tuple[str, dict[str, Any]], tally: Tally) -> None:
    async with client.session(server) as call:
        await call(*tool)
        with tally.timed():
            for _ in range(CALLS):
                await call(*tool)


async def at_once(client: Any, server: Server, tool: tuple[str, dict[str, Any]], tally: Tally) -> None:
    """Make each session's calls one after the other; the time starts when all sessions are open."""
    opened, finished = asyncio.Barrier(SESSIONS + 1), asyncio.Barrier(SESSIONS + 1)

    async def episode() -> None:
        async with client.session(server) as call:
            await call(*tool)
            await opened.wait()
            for _ in range(CALLS // 4):
                await call(*tool)
            await finished.wait()

    episodes = [asyncio.create_task(episode()) for _ in range(SESSIONS)]
    await opened.wait()
    with tally.timed():
        await finished.wait()
    await asyncio.gather(*episodes)


def episode_rows() -> dict[str, tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Return a task and the calls of its episode for each kind of server."""
    answer = {"prompt": "Answer 7.", "answer": {"type": "number", "value": 7}}
    domain = StdioServer("{python}", ("-c", DOMAIN_PROGRAM), env={"PYTHONPATH": str(ROOT)}, prestart=True, timeout=120)
    counting = StdioServer("{python}", COUNTING, prestart=True)
    query = {"name": "read_query", "arguments": {"query": "select 7"}}
    rows = {
        "standard library": ({**answer, "servers": [counting]}, [{"name": "total", "arguments": {}}] * EPISODE_CALLS),
        "built-in domain": ({**answer, "servers": [domain]}, [{"name": "list_tables", "arguments": {}}, *[query] * 7]),
    }
    if FILESYSTEM.exists():
        files = StdioServer("node", (str(FILESYSTEM), "{workspace}"), prestart=True)
        write = {"name": "write_file", "arguments": {"path": "/workspace/a.txt", "content": "seven"}}
        read = {"name": "read_text_file", "arguments": {"path": "/workspace/a.txt"}}
        rows["npm filesystem"] = ({**answer, "servers": [files]}, [write, *[read] * 7])
    return rows


def measure_episodes() -> str:
    """Return the table of whole episodes, as Markdown."""
    lines = [
        "\n## Whole episodes over standard input and output\n",
        f"`rllm/MCP-v0` with scripted replies: reset, {EPISODE_CALLS} calls, the answer, and the end of the server, "
        "which was started ahead. The same pool and session, with our supervised processes and with the SDK's stdio "
        f"transport in their place. Medians of {EPISODES} episodes each, alternating; load {os.getloadavg()[0]:.1f}.\n",
        "| server | client | wall | processor | wall against rllm-gym | processor against rllm-gym |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for label, (row, calls) in episode_rows().items():
        peers = [Episodes("**rllm-gym**", ServerPool(), row, calls), Episodes("SDK", SdkPool(), row, calls)]
        tallies = {peer.name: Tally() for peer in peers}
        for number in range(EPISODES + 2):
            for peer in peers:
                time.sleep(EPISODE_PAUSE_S)  # the time of a model, in which the next servers start
                with (tallies[peer.name] if number >= 2 else Tally()).timed():
                    peer.play()
        for peer in peers:
            peer.close()
        base_wall, base_cpu = tallies["**rllm-gym**"].medians
        for name, tally in tallies.items():
            wall, cpu = tally.medians
            lines.append(
                f"| {label} | {name} | {1e3 * wall:.1f} ms | {1e3 * cpu:.1f} ms | {wall / base_wall:.2f} × "
                f"| {cpu / base_cpu:.2f} × |"
            )
    return "\n".join(lines) + "\n"


def measure() -> str:
    """Return the tables, as Markdown."""
    with _http_server() as url:
        total: tuple[str, dict[str, Any]] = ("total", {})
        servers: dict[str, tuple[Server, tuple[str, dict[str, Any]]]] = {
            "stdio, standard library": (StdioServer("{python}", COUNTING), total),
            "streamable HTTP": (HttpServer(url), total),
            "in this process": (InProcessServer(make_in_process_server), total),
        }
        if FILESYSTEM.exists():
            node = StdioServer("node", (str(FILESYSTEM), "{workspace}"))
            servers["stdio, npm filesystem"] = (node, ("list_allowed_directories", {}))
        tallies: dict[tuple[str, str, str], Tally] = {}
        for label, (server, tool) in servers.items():
            kinds: list[tuple[str, Any]] = [("start", start), ("calls", in_sequence)]
            if server.__class__ is StdioServer and tool is total:
                kinds.append((f"{SESSIONS} at once", at_once))
            for what, work in kinds:
                clients: list[Any] = [Ours(), Sdk()]
                if isinstance(server, StdioServer):
                    clients.append(Ours(prestart=True) if work is start else RLLM())
                for number in range(ROUNDS + 1):
                    for client in clients:
                        tally = tallies.setdefault((label, what, client.name), Tally())
                        if number or work is start:  # the first start is a warm-up
                            asyncio.run(work(client, server, tool, tally if number else Tally()))
                for client in clients:
                    client.close()
    return _report(tallies)


def _report(tallies: dict[tuple[str, str, str], Tally]) -> str:
    lines = [
        "# MCP sessions\n",
        "`python -m benchmarks.mcp --write`\n",
        f"Medians of {ROUNDS} rounds, peers alternating. {platform.system()} {platform.release()}, {os.cpu_count()} "
        f"processors, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}. *Start* is the "
        "time to open a session, list its tools, make a call and close it. Processor time is the client's (with the "
        "server's, where that is in "
        f"this process). {SESSIONS} at once: as many sessions, each its calls one after the other; with rLLM's way all "
        "of them share one server and its state. A server in this process has its own thread here, so that a blocking "
        "tool does not block anything else; the SDK's client runs it on the caller's loop.\n",
        "| server | work | client | wall | processor | wall against rllm-gym | processor against rllm-gym |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for (label, what, client), tally in tallies.items():
        wall, cpu = tally.medians
        base_wall, base_cpu = tallies[label, what, Ours.name].medians
        if what == "start":
            shown = f"{1e3 * wall:.0f} ms | {1e3 * cpu:.1f} ms"
        else:
            count = CALLS if what == "calls" else SESSIONS * (CALLS // 4)
            shown = f"{count / wall:,.0f} calls/s | {1e6 * cpu / count:.0f} µs per call"
        ratios = f"{wall / base_wall:.2f} × | {cpu / base_cpu:.2f} ×"
        lines.append(f"| {label} | {what} | {client} | {shown} | {ratios} |")
    return "\n".join(lines) + "\n"


@contextlib.contextmanager
def _http_server() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-c", HTTP_PROGRAM, str(port)])
    try:
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        server.kill()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"also write {RESULT.relative_to(ROOT)}")
    options = parser.parse_args()
    table = measure() + measure_episodes()
    print(table)
    if options.write:
        RESULT.write_text(table)


def _stand_aside() -> None:
    """Make ``import mcp`` load the SDK instead of this file, also when this file runs as a script."""
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != HERE]


if __name__ == "__main__":
    _stand_aside()
    main()
elif __name__ == "mcp":
    _stand_aside()
    del sys.modules["mcp"]
    importlib.import_module("mcp")  # replaces this module
