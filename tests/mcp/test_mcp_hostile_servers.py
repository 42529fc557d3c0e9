"""MCP servers that die, hang, flood or send nonsense: a fault that says why, soon, and no neighbour minds."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from rllm_gym.mcp import ServerFault, StdioServer, ToolSession, open_session
from rllm_gym.mcp.results import read_result
from rllm_gym.mcp.tools import named_tools

COUNTING = Path(__file__).parent / "counting_server.py"


def counting(*args: str, **options) -> StdioServer:
    return StdioServer("{python}", ("-S", str(COUNTING), *args), **options)


def written(code: str, **options) -> StdioServer:
    """A server given by what it does after it has read a line; ``reply`` answers it."""
    head = (
        "import json, sys, time\n"
        "def send(**m): print(json.dumps({'jsonrpc': '2.0', **m}), flush=True)\n"
        "def tools(*names): return {'tools': [{'name': n, 'inputSchema': {'type': 'object'}} for n in names]}\n"
        "HELLO = {'protocolVersion': '2025-06-18', 'capabilities': {'tools': {}}, 'serverInfo': {'name': 'x'}}\n"
        "OK = {'content': [{'type': 'text', 'text': 'ok'}]}\n"
        "for line in sys.stdin:\n"
        "    m = json.loads(line)\n"
        "    method, id = m.get('method'), m.get('id')\n"
    )
    body = "".join(f"    {line}\n" for line in code.strip().splitlines())
    return StdioServer("{python}", ("-S", "-c", head + body), **options)


STARTS = """
if method == 'initialize': send(id=id, result=HELLO)
elif method == 'tools/list': send(id=id, result=tools('go'))
elif method == 'tools/call':
"""


def play(scenario, *args):
    async def within_time():
        async with asyncio.timeout(60):
            return await scenario(*args)

    return asyncio.run(within_time())


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - nobody announces the state of other processes
            await asyncio.sleep(0.01)


async def fault_of(awaitable) -> ServerFault:
    with pytest.raises(ServerFault) as caught:
        await awaitable
    return caught.value


@pytest.mark.parametrize(
    ("tool", "arguments", "kind", "words"),
    [
        ("die", {}, "server_died", "exit status 3"),
        ("sleep", {"s": 60}, "server_deadline", "within 0.5 s"),
        ("flood", {}, "server_protocol", "instead of an answer"),
        ("endless_line", {}, "server_protocol", "16,777,216 bytes"),
        ("broken_json", {}, "server_protocol", '"jsonrpc": "2.0", "id": 2'),
    ],
)
def test_what_breaks_in_a_call_is_a_fault(tmp_path: Path, tool: str, arguments: dict, kind: str, words: str) -> None:
    async def scenario():
        broken = await open_session([counting()], workspace=tmp_path)
        neighbour = await open_session([counting()], workspace=tmp_path)
        try:
            limit = 0.5 if kind == "server_deadline" else 30
            failing = asyncio.create_task(fault_of(broken.call(tool, arguments, timeout_s=limit)))
            slowest = 0.0
            while not failing.done():
                started = time.monotonic()
                await neighbour.call("add", {"n": 1})
                slowest = max(slowest, time.monotonic() - started)
            fault = await failing
            assert (fault.kind, words in str(fault)) == (kind, True), fault
            assert len(str(fault)) < 10_000
            assert slowest < 5
            if kind == "server_died":
                assert "the last words" in str(fault)
            if kind != "server_deadline":
                assert (await fault_of(broken.call("total", {}))).kind == kind
            assert not (await neighbour.call("total", {})).is_error
        finally:
            await broken.close()
            await neighbour.close()

    play(scenario)


def test_a_server_that_is_killed_in_a_call_is_known_at_once(tmp_path: Path) -> None:
    async def episode(kill: bool) -> tuple[float, ServerFault | None]:
        session = await open_session([counting()], workspace=tmp_path)
        try:
            pid = json.loads((await session.call("where", {})).text)["pid"]
            call = asyncio.create_task(session.call("sleep", {"s": 60 if kill else 0.5}))
            await asyncio.sleep(0.2)
            if not kill:
                assert (await call).text == "slept"
                return 0.0, None
            started = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            fault = await fault_of(call)
            return time.monotonic() - started, fault
        finally:
            await session.close()

    async def scenario():
        return await asyncio.gather(*(episode(number % 2 == 0) for number in range(8)))

    for took, fault in play(scenario):
        if fault is not None:
            assert fault.kind == "server_died"
            assert "signal 9" in str(fault)
            assert took < 20


@pytest.mark.parametrize(
    ("server", "kind", "words"),
    [
        (StdioServer("no-such-program-anywhere"), "server_start", "No such file"),
        (StdioServer("{python}", cwd="/no/such/folder"), "server_start", "/no/such/folder"),
        (StdioServer("/etc/passwd"), "server_start", "Permission denied"),
        (counting("exit"), "server_start", "no configuration"),
        (counting("mute", timeout_s=0.5), "server_start", "did not start within 0.5 s"),
        (StdioServer("cat"), "server_protocol", "refuses to begin"),
        (StdioServer("yes"), "server_protocol", "speaks no MCP"),
        (StdioServer("sh", ("-c", "exec >&-; sleep 60")), "server_start", "closed its output"),
        (written("send(id=id, error={'code': -32600, 'message': 'go away'})"), "server_protocol", "go away"),
        (written("send(id=id, result={})"), "server_protocol", "protocolVersion"),
        (written("send(id=id, result=[1])"), "server_protocol", "neither a result nor an error"),
        (
            written("send(id=id, result=HELLO if method == 'initialize' else {**tools('a'), 'nextCursor': 'again'})"),
            "server_protocol",
            "goes on",
        ),
        (
            written("send(id=id, result=HELLO if method == 'initialize' else tools(*map(str, range(2000))))"),
            "server_protocol",
            "2000 tools",
        ),
        (
            written("send(id=id, result=HELLO if method == 'initialize' else {'tools': 'none'})"),
            "server_protocol",
            "lists its tools as",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 30 else "",
)
def test_what_does_not_come_up_says_why(tmp_path: Path, server: StdioServer, kind: str, words: str) -> None:
    async def scenario():
        # A good one beside it is ended too.
        return await fault_of(open_session([counting(), server], workspace=tmp_path))

    fault = play(scenario)
    assert fault.kind == kind
    assert words in str(fault)


@pytest.mark.parametrize(
    "reply",
    [
        "print('Loading…\\n\\n{not json', flush=True); send(id=id, result=OK)",
        "sys.stdout.buffer.write(b'\\xff\\xfe noise\\n'); send(id=str(id), result=OK)",
        "send(id=999, result={}); send(result={}); send(id=id, result=OK)",
        "print(json.dumps([{'jsonrpc': '2.0', 'id': id, 'result': OK}]), flush=True)",
        "send(method='notifications/progress', params=None); send(method='notifications/tools/list_changed'); "
        "send(id=id, result=OK)",
        "sys.stdout.write(json.dumps({'id': id, 'result': OK}) + '\\r\\n'); sys.stdout.flush()",
    ],
    ids=["banner", "bytes", "strays", "batch", "notifications", "crlf"],
)
def test_harmless_oddities_are_passed_over(tmp_path: Path, reply: str) -> None:
    async def scenario():
        session = await open_session([written(STARTS + "    " + reply)], workspace=tmp_path)
        try:
            assert (await session.call("go", {}, timeout_s=10)).text == "ok"
        finally:
            await session.close()

    play(scenario)


@pytest.mark.parametrize("asked", ["sampling/createMessage", "elicitation/create", "roots/list", "ping"])
def test_what_a_server_asks_for_is_refused_in_words(tmp_path: Path, asked: str) -> None:
    code = STARTS + (
        f"    send(id='mine', method={asked!r}, params={{}})\n"
        "    answer = json.loads(sys.stdin.readline())\n"
        "    send(id=id, result={'content': [{'type': 'text', 'text': json.dumps(answer)}]})"
    )

    async def scenario():
        session = await open_session([written(code)], workspace=tmp_path)
        try:
            return json.loads((await session.call("go", {}, timeout_s=10)).text)
        finally:
            await session.close()

    answer = play(scenario)
    assert answer["id"] == "mine"
    if asked == "ping":
        assert answer["result"] == {}
    else:
        assert asked in answer["error"]["message"]


def test_a_server_without_a_handshake_is_understood(tmp_path: Path) -> None:
    """The protocol of 2026 has none; each request says who asks."""
    code = """
if method == 'initialize': send(id=id, error={'code': -32022, 'message': 'unsupported'})
elif method == 'server/discover': send(id=id, result={'supportedVersions': ['2026-07-28'], 'capabilities': {}})
elif method == 'tools/list': send(id=id, result=tools('go'))
elif method == 'tools/call':
    OK['content'][0]['text'] = json.dumps(m['params']['_meta'])
    send(id=id, result=OK)
"""

    async def scenario():
        session = await open_session([written(code)], workspace=tmp_path)
        try:
            return json.loads((await session.call("go", {})).text)
        finally:
            await session.close()

    assert play(scenario)["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"


def test_a_late_answer_is_not_taken_for_the_next(tmp_path: Path) -> None:
    async def scenario():
        session = await open_session([counting()], workspace=tmp_path)
        try:
            assert (await fault_of(session.call("sleep", {"s": 0.6}, timeout_s=0.2))).kind == "server_deadline"
            assert (await session.call("add", {"n": 9})).text == "9"
        finally:
            await session.close()

    play(scenario)


def test_a_flood_while_nobody_asks_waits_in_the_pipe(tmp_path: Path) -> None:
    code = """
if method == 'initialize': send(id=id, result=HELLO)
elif method == 'tools/list':
    send(id=id, result=tools('go'))
    for _ in range(300): send(method='notifications/message', params={'data': 'x' * 10000})
elif method == 'tools/call': send(id=id, result=OK)
"""

    async def scenario():
        session = await open_session([written(code)], workspace=tmp_path)
        connection = session._attached[0].connection
        try:
            await until(lambda: connection._paused)
            return (await session.call("go", {}, timeout_s=20)).text
        finally:
            await session.close()

    assert play(scenario) == "ok"


def test_a_call_that_is_given_up_leaves_the_session_usable(tmp_path: Path) -> None:
    async def scenario(session: ToolSession):
        call = asyncio.create_task(session.call("sleep", {"s": 0.3}))
        await asyncio.sleep(0.1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await session.call("add", {"n": 1})).text == "1"

    async def opened():
        session = await open_session([counting()], workspace=tmp_path)
        try:
            await scenario(session)
        finally:
            await session.close()

    play(opened)


def test_opening_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"

    def running() -> bool:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if mark.encode() in path.read_bytes():
                    return True
            except OSError:
                continue
        return False

    async def scenario():
        task = asyncio.create_task(open_session([counting("mute", mark)], workspace=tmp_path))
        await until(running)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: not running())

    play(scenario)


# What tools return ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({}, "(no output)"),
        ({"content": []}, "(no output)"),
        ({"content": None, "structuredContent": {"a": 1}}, '{"a": 1}'),
        ({"content": [{"type": "text", "text": "1"}], "structuredContent": {"a": 1}}, "1"),
        ({"content": [{"type": "text", "text": ""}], "structuredContent": [1]}, "[1]"),
        ({"content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}]}, "[image image/png, 2 bytes]"),
        ({"content": [{"type": "image", "data": "?!", "mimeType": "image/png"}]}, "[image that cannot be decoded]"),
        ({"content": [{"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}]}, "[audio audio/wav, 2 bytes]"),
        (
            {"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": "words"}}]},
            "[resource file:///a]\nwords",
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "x:y", "blob": "aGk=", "mimeType": "a/b"}}]},
            "[resource x:y, a/b, 2 bytes]",
        ),
        ({"content": [{"type": "resource_link", "uri": "x:y", "title": "T"}]}, "[resource x:y, T]"),
        ({"content": [{"type": "future", "n": 1}]}, '{"type": "future", "n": 1}'),
        ({"content": "plain"}, '"plain"'),
        ({"content": [17, None]}, "17\nnull"),
        ({"content": [{"type": "text", "text": "half \ud800"}]}, "half ?"),
    ],
)
def test_every_kind_of_result_becomes_text(raw: dict, text: str) -> None:
    assert read_result(raw).text == text


def test_images_are_kept_and_a_demand_for_input_is_refused() -> None:
    result = read_result({"content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}], "isError": True})
    assert (result.images, result.is_error) == ((b"hi",), True)
    assert read_result({"resultType": "input_required", "inputRequests": {}}).is_error


def test_data_that_is_nested_too_deeply_does_no_harm() -> None:
    nested: list = []
    for _ in range(5_000):
        nested = [nested]
    result = read_result({"content": [nested], "structuredContent": {"a": nested}})
    assert result.structured is None
    assert "nested too deeply" in result.text
    assert [tool.input_schema for tool in named_tools([("s", [{"name": "a", "inputSchema": {"b": nested}}])])] == [
        {"type": "object"}
    ]


def test_a_long_result_is_cut_in_the_middle() -> None:
    result = read_result({"content": [{"type": "text", "text": "a" * 5000 + "z" * 5000}]})
    short = result.shortened(1000)
    assert len(short) <= 1000
    assert short.startswith("aaa")
    assert short.endswith("zzz")
    assert "of 10,000 characters left out" in short


def test_whatever_a_server_lists_gives_tools_a_model_can_call() -> None:
    nested: dict = {}
    for _ in range(200):
        nested = {"items": nested}
    raw = [
        {"name": "get.user name/é", "inputSchema": {"properties": {"x": {"$ref": "#"}}}},
        {"name": "x" * 500},
        {"name": "x" * 501},
        {"name": "huge", "inputSchema": {"description": "x" * 200_000}},
        {"name": "deep", "inputSchema": nested},
        {"name": "listed", "inputSchema": ["no"]},
        {"name": 7},
        {"name": ""},
        "nothing",
        None,
        {"name": "twice"},
        {"name": "twice"},
    ]
    tools = named_tools([("s", raw), ("s2", [{"name": "twice"}, {"name": "s__twice"}])])
    names = [tool.name for tool in tools]
    assert len(set(names)) == len(names) == 9
    assert all(0 < len(name) <= 64 and name.replace("_", "").replace("-", "").isascii() for name in names)
    assert all(tool.input_schema["type"] == "object" for tool in tools)
    assert len(json.dumps([tool.input_schema for tool in tools])) < 10_000
    assert names == [tool.name for tool in named_tools([("s", raw), ("s2", [{"name": "twice"}, {"name": "s__twice"}])])]


def test_the_package_is_light() -> None:
    import subprocess

    code = "import sys, rllm_gym.mcp; sys.exit(any(name in sys.modules for name in ('mcp', 'httpx2', 'jsonschema')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
