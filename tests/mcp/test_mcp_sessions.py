"""Sessions with MCP servers that behave: separate states, names, results, and nothing left when they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest

from rllm_gym.mcp import (
    HttpServer,
    InProcessServer,
    ServerFault,
    ServerPool,
    StdioServer,
    ToolSession,
    shared_pool,
    tools_json,
)
from tests.mcp.scenarios import COUNTING, counting, run_scenario
from tests.waiting import auntil, is_alive, until


async def call_where(session: ToolSession) -> dict:
    return json.loads((await session.call("where", {})).text)


def test_tools_can_be_listed_and_called(tmp_path: Path) -> None:
    async def scenario():
        session = await shared_pool().open([counting()], workspace=tmp_path)
        try:
            assert {"add", "total"} <= {tool.name for tool in session.tools}
            described = json.loads(tools_json(session.tools))[0]
            assert described["type"] == "function"
            assert described["function"]["parameters"]["type"] == "object"
            assert (await session.call("add", {"n": 2})).text == "2"
            assert (await session.call("add", {"n": 40})).text == "42"
        finally:
            await session.close()

    run_scenario(scenario)


def test_a_server_sees_its_workspace_but_not_the_trainers_environment(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    inherited = os.open(__file__, os.O_RDONLY)
    os.set_inheritable(inherited, True)
    server = counting(
        "{seed}", "{workspace}/x", "{unknown}", "$HOME;ls", env={"DATA": "{workspace}/data", "N": "{seed}"}
    )

    async def scenario():
        session = await shared_pool().open([server], workspace=tmp_path, seed=7)
        try:
            seen = await call_where(session)
            assert len(os.listdir(f"/proc/{seen['pid']}/fd")) == 3
            return seen
        finally:
            await session.close()

    try:
        seen = run_scenario(scenario)
    finally:
        os.close(inherited)
    assert seen["argv"][1:] == ["7", f"{tmp_path}/x", "{unknown}", "$HOME;ls"]
    assert seen["cwd"] == str(tmp_path)
    assert set(seen["env"]) - {"LC_CTYPE"} == {"PATH", "HOME", "LANG", "DATA", "N"}
    assert (seen["env"]["DATA"], seen["env"]["N"]) == (f"{tmp_path}/data", "7")


def test_the_home_of_a_server_is_outside_the_workspace_and_removed_with_it(tmp_path: Path) -> None:
    async def scenario():
        pool = shared_pool()
        for workspace in (tmp_path, await pool.workspace([counting()])):
            session = await pool.open([counting()], workspace=workspace)
            home = (await call_where(session))["env"]["HOME"]
            assert os.listdir(home) == []
            os.mkdir(f"{home}/.npm")
            assert os.listdir(workspace) == []
            await session.close()
            left = set(os.listdir(tmp_path.parent)) | set(os.listdir(os.path.dirname(home)))
            assert os.path.basename(home) not in left
            assert (workspace.name in left) == (workspace == tmp_path)

    run_scenario(scenario)


@pytest.mark.parametrize("episodes", [16, pytest.param(64, marks=pytest.mark.long)])
def test_episodes_do_not_share_state(tmp_path: Path, episodes: int) -> None:
    async def episode(number: int) -> tuple[str, int]:
        workspace = tmp_path / str(number)
        workspace.mkdir()
        session = await shared_pool().open([counting()], workspace=workspace, seed=number)
        try:
            for _ in range(5):
                await session.call("add", {"n": number})
            await barrier.wait()  # all of them are open at once
            seen = await call_where(session)
            assert seen["cwd"] == str(workspace)
            return (await session.call("total", {})).text, seen["pid"]
        finally:
            await session.close()

    async def scenario():
        return await asyncio.gather(*(episode(number) for number in range(episodes)))

    barrier = asyncio.Barrier(episodes)
    ended = run_scenario(scenario)
    assert [total for total, _ in ended] == [str(5 * number) for number in range(episodes)]
    assert len({pid for _, pid in ended}) == episodes
    assert until(lambda: not any(is_alive(pid) for _, pid in ended))


def test_calls_run_concurrently_and_from_any_event_loop(tmp_path: Path) -> None:
    def make(workspace: Path, seed: int):
        from mcp.server import MCPServer

        server = MCPServer("slow", log_level="ERROR")
        both = threading.Barrier(2, timeout=120)

        @server.tool()
        def meet() -> str:
            both.wait()
            return "met"

        return server

    async def opened():
        return await shared_pool().open([InProcessServer(make)], workspace=tmp_path)

    async def meet_concurrently(session):
        return await asyncio.gather(session.call("meet", {}), session.call("meet", {}))

    session = run_scenario(opened)
    assert [result.text for result in run_scenario(meet_concurrently, session)] == ["met", "met"]
    run_scenario(session.close)


def test_tools_of_one_name_are_distinguished(tmp_path: Path) -> None:
    async def scenario():
        servers = [counting(name="left"), counting(name="right"), counting()]
        session = await shared_pool().open(servers, workspace=tmp_path, reserved=["sleep"])
        try:
            names = [tool.name for tool in session.tools]
            assert len(set(names)) == len(names)
            assert {"left__add", "right__add", "server3__add"} <= set(names)
            await session.call("left__add", {"n": 5})
            await session.call("right__add", {"n": 6})
            return [(await session.call(f"{name}__total", {})).text for name in ("left", "right", "server3")]
        finally:
            await session.close()

    assert run_scenario(scenario) == ["5", "6", "0"]


def test_a_session_knows_the_instructions_of_its_servers(tmp_path: Path) -> None:
    def make(workspace: Path, seed: int):
        from mcp.server import MCPServer

        return MCPServer("told", instructions="Look \ud800 first.", log_level="ERROR")

    def silent(workspace: Path, seed: int):
        from mcp.server import MCPServer

        return MCPServer("silent", log_level="ERROR")

    async def scenario():
        servers = [counting(), InProcessServer(make, name="told"), InProcessServer(silent)]
        session = await shared_pool().open(servers, workspace=tmp_path)
        await session.close()
        return session.instructions

    assert run_scenario(scenario) == {"server1": "Count.", "told": "Look ? first."}


def test_a_server_in_this_process_has_its_own_thread(tmp_path: Path) -> None:
    """A tool that blocks delays only its own result, and the SDK does not log into the trainer's log."""
    import logging

    before = list(logging.getLogger().handlers), logging.getLogger().level
    blocks, released = threading.Event(), threading.Event()

    def make(workspace: Path, seed: int):
        from mcp.server import MCPServer

        server = MCPServer("clumsy")

        @server.tool()
        async def block() -> str:
            blocks.set()
            released.wait()
            return "late"

        @server.tool()
        def boom() -> str:
            raise RuntimeError("boom")

        @server.tool()
        def seeded() -> dict[str, int]:
            """The seed that the server was made with."""
            return {"seed": seed, "files": len(list(workspace.iterdir()))}

        return server

    async def scenario():
        (tmp_path / "one.txt").touch()
        blocking = InProcessServer(make, restartable=True)
        blocking_session = await shared_pool().open([blocking], workspace=tmp_path, seed=11)
        other = await shared_pool().open([InProcessServer(make)], workspace=tmp_path, seed=12)
        blocked = asyncio.create_task(blocking_session.call("block", {}, timeout=600))
        await auntil(blocks.is_set)
        result = await other.call("seeded", {})
        assert result.structured == {"seed": 12, "files": 1}
        assert json.loads(result.text) == result.structured
        assert (await other.call("boom", {})).is_error
        assert (await other.call("seeded", {"x": float("nan")})).is_error
        assert not blocked.done()
        late = await blocking_session.call("seeded", {}, timeout=0.2)  # its thread is still blocked
        assert (late.is_error, "timed out after 0.2 s" in late.text) == (True, True)
        blocked.cancel()
        assert (await blocking_session.call("seeded", {})).structured["seed"] == 11  # in a new thread
        await blocking_session.close()
        await other.close()

    try:
        run_scenario(scenario)
    finally:
        released.set()
    assert (list(logging.getLogger().handlers), logging.getLogger().level) == before


@pytest.mark.parametrize("in_thread", [True, False])
def test_servers_in_this_process_that_never_end_are_few(tmp_path: Path, monkeypatch, in_thread: bool) -> None:
    """Their threads cannot be killed. The next server starts when one of them has ended."""
    from rllm_gym.mcp import in_process

    monkeypatch.setattr(in_process, "_MAX_HANGING", 2)
    monkeypatch.setattr(in_process, "_hanging", set())
    started, released = threading.Event(), threading.Event()

    def make(workspace: Path, seed: int):
        from mcp.server import MCPServer

        server = MCPServer("hanging", log_level="ERROR")

        def hang() -> None:
            started.set()
            released.wait()

        async def hang_the_loop() -> None:
            hang()

        server.add_tool(hang if in_thread else hang_the_loop, name="hang")
        return server

    async def run_episode() -> None:
        started.clear()
        session = await shared_pool().open([InProcessServer(make)], workspace=tmp_path)
        try:
            call = asyncio.create_task(session.call("hang", {}, timeout=120))
            await auntil(started.is_set)
            if released.is_set():
                assert not (await call).is_error
            else:
                call.cancel()
                await asyncio.wait([call])
        finally:
            await session.close()

    async def scenario() -> None:
        for _ in range(2):
            await run_episode()
        with pytest.raises(ServerFault, match="2 servers in this process hang") as caught:
            await run_episode()
        assert caught.value.kind == "server_start"
        released.set()
        await auntil(lambda: not any(thread.is_alive() for thread in in_process._hanging))
        await run_episode()

    try:
        run_scenario(scenario)
    finally:
        released.set()


def test_a_server_in_this_process_may_use_threads_when_it_ends(tmp_path: Path) -> None:
    """A lifespan that closes a database, for example."""
    closed = []

    def make(workspace: Path, seed: int):
        import anyio.to_thread
        from mcp.server import MCPServer

        @contextlib.asynccontextmanager
        async def lifespan(server):
            yield
            await anyio.to_thread.run_sync(lambda: closed.append(seed))

        return MCPServer("database", lifespan=lifespan, log_level="ERROR")

    async def scenario() -> None:
        session = await shared_pool().open([InProcessServer(make)], workspace=tmp_path, seed=5)
        await session.close()
        await auntil(lambda: closed == [5])

    run_scenario(scenario)


def test_the_hanging_calls_of_a_server_in_this_process_take_few_threads(tmp_path: Path) -> None:
    released = threading.Event()

    def make(workspace: Path, seed: int):
        from mcp.server import MCPServer

        server = MCPServer("hanging", log_level="ERROR")
        server.add_tool(lambda: released.wait(), name="hang")
        server.add_tool(lambda: len(own_threads()), name="count_threads")
        return server

    async def scenario() -> None:
        before = len(own_threads())
        session = await shared_pool().open([InProcessServer(make)], workspace=tmp_path)
        try:
            for _ in range(3):
                results = await asyncio.gather(*(session.call("hang", {}, timeout=0.2) for _ in range(30)))
                assert all(result.is_error for result in results)
            assert len(own_threads()) - before <= 45
            released.set()
            assert not (await session.call("count_threads", {})).is_error  # a thread is free again
        finally:
            await session.close()

    try:
        run_scenario(scenario)
    finally:
        released.set()


def _exit_in_a_task() -> None:
    async def leave() -> None:
        sys.exit("usage: leave")

    asyncio.get_running_loop().create_task(leave())


ENDINGS = {
    "exit": sys.exit,
    "interrupt": lambda: (_ for _ in ()).throw(KeyboardInterrupt()),
    "cancel": lambda: (_ for _ in ()).throw(asyncio.CancelledError()),
    "close": lambda: (_ for _ in ()).throw(GeneratorExit()),
    "stop": lambda: asyncio.get_running_loop().stop(),
    "task": _exit_in_a_task,
}


def test_a_tool_in_this_process_cannot_end_the_session(tmp_path: Path) -> None:
    """Whatever it raises is an error of its call; if the server's event loop ends, the server starts again."""

    def make(workspace: Path, seed: int):
        from mcp.server import MCPServer

        server = MCPServer("leaving", log_level="ERROR")

        @server.tool()
        def leave() -> str:
            sys.exit("usage: leave")

        @server.tool()
        async def end(how: str) -> str:
            ENDINGS[how]()
            await asyncio.sleep(600)
            return "not ended"

        @server.tool()
        def seeded() -> int:
            return seed

        return server

    async def scenario() -> list[str]:
        session = await shared_pool().open([InProcessServer(make, restartable=True)], workspace=tmp_path, seed=12)
        wrong = []
        try:
            for name, arguments in (("leave", {}), *(("end", {"how": how}) for how in ENDINGS)):
                result = await session.call(name, arguments, timeout=600)
                after = await session.call("seeded", {})
                if not result.is_error or after.structured != {"result": 12}:
                    wrong.append(f"{name} {arguments}: {result}, then {after}")
        finally:
            await session.close()
        return wrong

    assert run_scenario(scenario) == []


def test_an_impossible_call_is_reported_and_the_server_stays_up(tmp_path: Path) -> None:
    deep: dict = {}
    for _ in range(500):
        deep = {"n": deep}

    async def scenario():
        session = await shared_pool().open([counting()], workspace=tmp_path)
        try:
            for name, arguments in (
                ("nothing", {}),
                ("add", {"m": 1}),
                ("add", {"n": float("inf")}),
                ("add", deep),
                ("add", {"n": {1, 2}}),
                ("add", [1]),
                ("fail", {}),
            ):
                result = await session.call(name, arguments)
                assert result.is_error
                assert result.text
            assert not (await session.call("parts", {"content": [{"type": "text", "text": "half \ud800"}]})).is_error
            assert (await session.call("add", {"n": 1})).text == "1"
        finally:
            await session.close()

    run_scenario(scenario)


def test_closing_ends_all_processes_of_a_server(tmp_path: Path) -> None:
    async def scenario():
        session = await shared_pool().open([counting()], workspace=tmp_path)
        pids = [(await call_where(session))["pid"], int((await session.call("spawn", {})).text)]
        assert all(is_alive(pid) for pid in pids)
        await session.close()
        await session.close()
        with pytest.raises(ServerFault):
            await session.call("total", {})
        return pids

    pids = run_scenario(scenario)
    assert until(lambda: not any(map(is_alive, pids)))


TRAINER = """
import asyncio, sys
from rllm_gym.mcp import StdioServer, shared_pool
async def main():
    servers = [StdioServer("{python}", ("-S", sys.argv[1]))]
    workspace = await shared_pool().workspace(servers)
    session = await shared_pool().open(servers, workspace=workspace)
    print(workspace, flush=True)
    print((await session.call("spawn", {})).text, flush=True)
    import json
    print(json.loads((await session.call("where", {})).text)["pid"], flush=True)
    await session.call("sleep", {"s": 600}, timeout=600)
asyncio.run(main())
"""


def test_servers_and_workspaces_end_with_the_trainer() -> None:
    trainers = {}
    for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):  # concurrently: starting them takes most of the time
        trainers[number] = subprocess.Popen(
            [sys.executable, "-c", TRAINER, str(COUNTING)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    for number, trainer in trainers.items():
        assert trainer.stdout is not None
        workspace = Path(trainer.stdout.readline().strip())
        assert workspace.is_dir()
        pids = [int(trainer.stdout.readline()) for _ in range(2)]
        trainer.send_signal(number)
        trainer.wait(120)
        trainer.stdout.close()
        assert until(lambda pids=pids: not any(is_alive(pid) for pid in pids))
        assert until(lambda folder=workspace.parent: not folder.exists())


KILLED = """
import asyncio, os, signal
from rllm_gym.mcp import InProcessServer, shared_pool
servers = [InProcessServer(lambda workspace, seed: None)]
workspace = asyncio.run(shared_pool().workspace(servers))
(workspace / "left.txt").write_text("words")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workspaces_of_a_killed_trainer_are_removed_by_the_next_one(tmp_path: Path) -> None:
    for left in (1, 1):  # no program of its own is left to remove them, so the next trainer does
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        trainer = subprocess.run([sys.executable, "-c", KILLED], env=environment, timeout=240)
        assert trainer.returncode == -signal.SIGKILL
        assert len(list(tmp_path.rglob("left.txt"))) == left


def _in_a_child(workspace: str, session: ToolSession, answers) -> None:
    async def scenario():
        with pytest.raises(ServerFault):
            await session.call("total", {})
        await session.close()  # the parent's: left alone
        own = await shared_pool().open([counting()], workspace=workspace)
        await own.call("add", {"n": 3})
        answers.put((await own.call("total", {})).text)
        await own.close()

    run_scenario(scenario)


def test_a_fork_opens_its_own_sessions_and_keeps_those_of_the_parent(tmp_path: Path) -> None:
    async def opened():
        session = await shared_pool().open([counting()], workspace=tmp_path)
        await session.call("add", {"n": 1})
        return session

    async def ended(session):
        total = (await session.call("total", {})).text
        pid = (await call_where(session))["pid"]
        await session.close()
        return total, is_alive(pid)

    session = run_scenario(opened)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_in_a_child, args=(str(tmp_path), session, answers))
    child.start()
    assert answers.get(timeout=240) == "3"
    child.join(240)
    assert child.exitcode == 0
    assert run_scenario(ended, session) == ("1", False)


def test_opening_and_closing_leaves_nothing(tmp_path: Path) -> None:
    def held() -> tuple[int, int, int]:
        # The loop's own threads for files are few and stay.
        threads = [thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")]
        children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
        return len(os.listdir("/proc/self/fd")), len(threads), len(children)

    async def rounds(pool: ServerPool, count: int) -> None:
        async def one() -> None:
            workspace = await pool.workspace([counting()])
            session = await pool.open([counting()], workspace=workspace)
            await session.call("add", {"n": 1})
            await session.close()
            assert not workspace.exists()

        for _ in range(count // 10):
            await asyncio.gather(*(one() for _ in range(10)))

    pool = ServerPool()
    try:
        run_scenario(rounds, pool, 10)
        before = held()
        run_scenario(rounds, pool, 60)
        # Fewer when resources of earlier tests end meanwhile.
        assert all(now <= then for now, then in zip(held(), before)), (held(), before)
    finally:
        pool.close()


def own_threads() -> set[threading.Thread]:
    """Count threads without those of the loop's executor, which grow with concurrency up to a bound."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}


@pytest.mark.long
def test_a_thousand_sessions_leave_nothing(tmp_path: Path) -> None:
    async def rounds(count: int) -> None:
        async def one() -> None:
            session = await shared_pool().open([counting()], workspace=tmp_path)
            await session.call("add", {"n": 1})
            await session.close()

        for _ in range(count // 20):
            await asyncio.gather(*(one() for _ in range(20)))

    asyncio.run(rounds(20))
    files, threads = len(os.listdir("/proc/self/fd")), own_threads()
    asyncio.run(rounds(1000))
    assert len(os.listdir("/proc/self/fd")) <= files  # fewer when resources of earlier tests end meanwhile
    assert own_threads() <= threads


def test_a_prestarted_server_waits_in_the_workspace_of_its_episode() -> None:
    server = counting(prestart=True)

    async def scenario(pool: ServerPool):
        pids = []
        for number in range(4):
            workspace = await pool.workspace([server])
            (workspace / "task.txt").write_text(str(number))
            session = await pool.open([server], workspace=workspace)
            seen = await call_where(session)
            assert seen["cwd"] == str(workspace)
            assert (await session.call("total", {})).text == "0"  # nobody has used it before
            pids.append(seen["pid"])
            await session.close()
            assert not workspace.exists()
        unused = await pool.workspace([server])
        await pool.discard(unused)
        assert not unused.exists()
        return pids, unused.parent

    pool = ServerPool()
    pids, folder = run_scenario(scenario, pool)
    assert len(set(pids)) == 4
    waiting = [path for path in folder.glob("workspace-*") if not path.name.endswith("-home")]
    assert len(waiting) == 2
    pool.close()
    assert not any(path.exists() for path in waiting)
    assert until(lambda: not any(map(is_alive, pids)))


def test_a_prestarted_server_that_has_ended_is_replaced() -> None:
    server = counting(prestart=True)

    async def scenario(pool: ServerPool) -> None:
        await pool.discard(await pool.workspace([server]))
        workspace = await pool.workspace([server])
        started = pool._workspaces[workspace].started[0]
        await auntil(started.done)
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if str(COUNTING) in process.cmdline() and process.cwd() == str(workspace):
                    process.kill()
        await auntil(lambda: started.result().broken)
        session = await pool.open([server], workspace=workspace)
        assert (await session.call("add", {"n": 3})).text == "3"
        assert not session.lost
        await session.close()

    pool = ServerPool()
    try:
        run_scenario(scenario, pool)
    finally:
        pool.close()


def test_a_shared_server_is_one_process_and_restarts_when_it_died(tmp_path: Path) -> None:
    server = counting(shared=True)

    async def scenario(pool: ServerPool):
        sessions = [await pool.open([server], workspace=tmp_path) for _ in range(3)]
        pids = {(await call_where(session))["pid"] for session in sessions}
        assert len(pids) == 1
        await sessions.pop().close()
        assert (await call_where(sessions[0]))["pid"] in pids
        assert (await sessions[0].call("die", {})).is_error
        after = await asyncio.gather(*map(call_where, sessions))  # for the other session too
        sessions.append(await pool.open([server], workspace=tmp_path))
        after.append(await call_where(sessions[-1]))
        for session in sessions:
            await session.close()
        return pids, {seen["pid"] for seen in after}

    pool = ServerPool()
    try:
        before, after = run_scenario(scenario, pool)
        assert len(after) == 1
        assert not before & after
    finally:
        pool.close()
    assert until(lambda: not any(map(is_alive, before | after)))


def test_a_pool_can_be_closed_with_sessions_open(tmp_path: Path) -> None:
    pool = ServerPool()

    async def scenario():
        session = await pool.open([counting()], workspace=tmp_path)
        return session, (await call_where(session))["pid"]

    session, pid = run_scenario(scenario)
    pool.close()
    pool.close()
    assert until(lambda: not is_alive(pid))
    run_scenario(session.close)


def test_an_invalid_server_is_refused() -> None:
    for arguments, message in (
        ({"command": ""}, "command"),
        ({"command": "x", "args": "a b"}, "args"),
        ({"command": "x\0"}, "NUL"),
        ({"command": "x", "timeout": 0}, "timeout"),
        ({"command": "x", "args": ("{workspace}",), "shared": True}, "shared"),
        ({"command": "x", "args": ("{seed}",), "prestart": True}, "prestart"),
        ({"command": "x", "samples": ["42"], "shared": True}, r"samples=.* shared=True"),
        ({"url": "http://x", "elicitations": [None], "shared": True}, r"elicitations=.* shared=True"),
        ({"url": "http://x", "restartable": False, "shared": True}, "restartable"),
    ):
        with pytest.raises(ValueError, match=message):
            (HttpServer if "url" in arguments else StdioServer)(**arguments)
