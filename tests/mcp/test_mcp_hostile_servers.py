"""MCP servers that die, hang, flood or send nonsense: a prompt error with the reason, and no effect on others."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rllm_gym.mcp import (
    ServerFault,
    ServerPool,
    StdioServer,
    shared_pool,
)
from rllm_gym.mcp.results import read_result
from rllm_gym.mcp.tools import named_tools
from tests.mcp.scenarios import counting, fault_of, run_scenario, servers_in
from tests.waiting import auntil


def server_running(code: str, *, restartable: bool = False) -> StdioServer:
    """Return a server defined by what it does after it has read a line; ``reply`` answers the line."""
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
    return StdioServer("{python}", ("-S", "-c", head + body), restartable=restartable, timeout=120.0)


STARTS = """
if method == 'initialize': send(id=id, result=HELLO)
elif method == 'tools/list': send(id=id, result=tools('go'))
elif method == 'tools/call':
"""


ENDED = "The server ended, or lost the connection, during this call."
SLOW = "The tool timed out after 0.3 s. Whether the call has had an effect is unknown."
INVALID = "The server's answer to this call is invalid or too large."
RESTARTS = " The server starts again for the next call."

BREAKING = (
    # The limit of a call is short only where the call never ends: 30 s are the server's own.
    ("die", {}, None, ENDED, "exit status 3"),
    ("sleep", {"s": 600}, 0.3, SLOW, "within 0.3 s"),
    ("hang", {}, 0.3, SLOW, "within 0.3 s"),  # after a line that looks like the beginning of an answer
    ("flood", {}, None, INVALID, "instead of an answer"),
    ("ask", {}, None, INVALID, "1,001 requests"),
    ("endless_line", {}, None, INVALID, "16,777,216 bytes"),
    ("broken_json", {}, None, INVALID, '"jsonrpc": "2.0", "id": 2'),
)


def test_a_restartable_server_that_breaks_in_a_call_starts_again_for_the_next_call(tmp_path: Path, caplog) -> None:
    """A model can break a server at will: this must not end its episode without a reward. The reason is in the log."""

    async def results(tool: str, arguments: dict, limit: float | None) -> list[tuple[bool, str]]:
        session = await shared_pool().open([counting(restartable=True)], workspace=tmp_path)
        try:
            broken = await session.call(tool, arguments, timeout=limit)
            answers = [broken, await session.call("add", {"n": 5}), await session.call("total", {})]
            assert not session.lost
        finally:
            await session.close()
        return [(answer.is_error, answer.text) for answer in answers]

    async def scenario() -> list[list[tuple[bool, str]]]:
        neighbour = await shared_pool().open([counting()], workspace=tmp_path)
        try:
            breaking = asyncio.gather(*(results(*case[:3]) for case in BREAKING))
            while not breaking.done():
                assert not (await neighbour.call("add", {"n": 1})).is_error
            assert not (await neighbour.call("total", {})).is_error
            return await breaking
        finally:
            await neighbour.close()

    expected = [[(True, words + RESTARTS), (False, "5"), (False, "5")] for _, _, _, words, _ in BREAKING]
    assert run_scenario(scenario) == expected
    assert [reason for *_, reason in BREAKING if reason not in caplog.text] == []
    assert "the last words" in caplog.text
    assert all(len(record.getMessage()) < 10_000 for record in caplog.records)


def test_a_server_with_state_is_lost_if_a_call_ends_it_and_not_if_it_is_slow(tmp_path: Path) -> None:
    """A server that started again without its state would make the task another one."""

    async def results(tool: str, arguments: dict, limit: float | None) -> tuple[list[str], dict[str, str]]:
        session = await shared_pool().open([counting()], workspace=tmp_path)
        try:
            await session.call("add", {"n": 5})
            answers = [await session.call(tool, arguments, timeout=limit), await session.call("total", {})]
            return [answer.text for answer in answers], session.lost
        finally:
            await session.close()

    async def scenario() -> list[tuple[list[str], dict[str, str]]]:
        slow = ("sleep", {"s": 1}, 0.3)
        return await asyncio.gather(*(results(*case[:3]) for case in BREAKING if case[2] is None), results(*slow))

    *broken, slow = run_scenario(scenario)
    gone = "The server of this tool has ended, and what it kept in memory is lost."
    assert broken == [([words, gone], {"server1": words}) for _, _, limit, words, _ in BREAKING if limit is None]
    assert slow == ([SLOW, "5"], {})


def test_a_server_that_ends_before_the_model_has_acted_is_a_fault(tmp_path: Path) -> None:
    """No call can have caused it. After a call it may be an effect of what the model did, such as a late signal."""

    async def scenario(restartable: bool, *calls: str) -> str:
        session = await shared_pool().open([counting(restartable=restartable)], workspace=tmp_path)
        try:
            connection = session._connections[0].connection
            for name in calls:
                assert (await session.call(name, {})).text == "0"
            (process,) = servers_in(tmp_path)
            process.kill()
            await auntil(lambda: connection.broken)
            return (await session.call("total", {})).text
        finally:
            await session.close()

    for restartable in (False, True):
        fault = run_scenario(fault_of, scenario(restartable))
        assert (fault.kind, "killed by signal 9" in str(fault)) == ("server_died", True)
    gone = "The server of this tool has ended, and what it kept in memory is lost."
    assert [run_scenario(scenario, restartable, "total") for restartable in (False, True)] == [gone, "0"]


def test_calls_wait_for_one_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        session = await shared_pool().open([counting(restartable=True)], workspace=tmp_path)
        try:
            assert (await session.call("die", {})).is_error
            seen = await asyncio.gather(*(session.call("where", {}) for _ in "abc"))
            assert len({json.loads(result.text)["pid"] for result in seen}) == 1
        finally:
            await session.close()

    run_scenario(scenario)


def test_calls_beside_one_that_breaks_the_server_are_no_faults(tmp_path: Path) -> None:
    """A model may send them in one reply: some begin when the server has just ended."""

    async def scenario() -> list[str]:
        session = await shared_pool().open([counting()], workspace=tmp_path)
        try:
            calls = [session.call("die", {}), *(session.call("total", {}) for _ in range(31))]
            return [result.text for result in await asyncio.gather(*calls)]
        finally:
            await session.close()

    first, *others = run_scenario(scenario)
    assert first == ENDED
    assert set(others) <= {ENDED, "The server of this tool has ended, and what it kept in memory is lost.", "0"}


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("answers", [False, True])
def test_a_server_that_a_call_prevents_from_starting_again_is_lost(tmp_path: Path, shared: bool, answers: bool) -> None:
    """Its call may have broken the files that it reads at its start. It is not started for every further call."""
    stopped = tmp_path / "stopped"
    last_words = "send(id=id, result=OK); " if answers else ""
    code = f"{STARTS}    open('{stopped}', 'w').close(); {last_words}sys.exit()"
    server = server_running(f"import os\nif os.path.exists('{stopped}'): sys.exit()\n{code}", restartable=True)
    server = replace(server, shared=shared)

    async def scenario() -> None:
        session = await shared_pool().open([server], workspace=tmp_path)
        try:
            assert (await session.call("go", {})).text == ("ok" if answers else ENDED + RESTARTS)
            await auntil(lambda: session._connections[0].connection.broken)
            first = await session.call("go", {})
            stopped.unlink()
            second = await session.call("go", {})
        finally:
            await session.close()
        assert first.text == "The server of this tool has ended, and does not start again."
        assert second == first
        assert session.lost == {"server1": first.text}

    run_scenario(scenario)


def test_a_call_waits_for_a_restart_until_its_own_deadline(tmp_path: Path) -> None:
    code = STARTS + "    open('mute', 'w').close(); sys.exit()"
    server = server_running(f"import os\nwhile os.path.exists('mute'): time.sleep(0.01)\n{code}", restartable=True)

    async def scenario() -> list[str]:
        session = await shared_pool().open([server], workspace=tmp_path)
        try:
            answers = [await session.call("go", {}), await session.call("go", {}, timeout=0.3)]
            (tmp_path / "mute").unlink()
            answers.append(await session.call("go", {}))  # sent: the restart went on
        finally:
            await session.close()
        return [answer.text for answer in answers]

    starting = "The server of this tool is still starting again, and this call was not sent."
    assert run_scenario(scenario) == [ENDED + RESTARTS, starting, ENDED + RESTARTS]


def test_closing_ends_a_server_that_starts_again(tmp_path: Path) -> None:
    code = STARTS + "    open('mute', 'w').close(); sys.exit()"
    server = server_running(
        f"import os\nwhile os.path.exists('mute'): open('waiting', 'w').close(); time.sleep(0.01)\n{code}",
        restartable=True,
    )

    async def scenario() -> ServerFault:
        session = await shared_pool().open([server], workspace=tmp_path)
        assert (await session.call("go", {})).is_error
        call = asyncio.create_task(session.call("go", {}))
        await auntil((tmp_path / "waiting").exists)
        await session.close()
        (tmp_path / "waiting").unlink()
        return await fault_of(call)

    assert "closed" in str(run_scenario(scenario))
    assert not (tmp_path / "waiting").exists()


def test_no_server_starts_again_after_its_session_was_closed(tmp_path: Path, monkeypatch) -> None:
    """Although the call came before the close: the thread of the pool may take them in the other order."""
    pool = ServerPool()

    async def scenario() -> ServerFault:
        session = await pool.open([counting()], workspace=tmp_path)
        assert (await session.call("die", {})).is_error
        start_on_pool = pool._loop.start

        async def after_the_end(coroutine):
            await session.end()
            return await coroutine

        monkeypatch.setattr(pool._loop, "start", lambda coroutine: start_on_pool(after_the_end(coroutine)))
        return await fault_of(session.call("total", {}))

    try:
        assert "closed" in str(run_scenario(scenario))
        assert not servers_in(tmp_path)
    finally:
        pool.close()


@pytest.mark.parametrize("how", ["exit", "SIGKILL", "SIGTERM", "close"])
def test_a_server_that_ends_after_its_answer_is_lost_or_starts_again(tmp_path: Path, how: str) -> None:
    """A model may find a tool that does this to its server."""

    async def scenario(restartable: bool) -> list[tuple[bool, str]]:
        session = await shared_pool().open([counting(restartable=restartable)], workspace=tmp_path)
        try:
            await session.call("add", {"n": 3})
            answers = [await session.call("leave", {"how": how})]
            await auntil(lambda: session._connections[0].connection.broken)
            assert not session.lost
            answers.append(await session.call("total", {}))
            assert set(session.lost) == (set() if restartable else {"server1"})
        finally:
            await session.close()
        return [(answer.is_error, answer.text) for answer in answers]

    gone = "The server of this tool has ended, and what it kept in memory is lost."
    assert run_scenario(scenario, False) == [(False, "3"), (True, gone)]
    assert run_scenario(scenario, True) == [(False, "3"), (False, "0")]


def test_a_server_that_hangs_blocks_no_other(tmp_path: Path) -> None:
    async def scenario() -> None:
        hanging, neighbour = [await shared_pool().open([counting()], workspace=tmp_path) for _ in range(2)]
        try:
            started = tmp_path / "begun"
            held = {"begun": str(started), "until": str(tmp_path / "never")}
            call = asyncio.create_task(hanging.call("hold", held, timeout=600))
            await auntil(started.exists)
            assert (await neighbour.call("add", {"n": 1})).text == "1"
            assert not call.done()
        finally:
            await hanging.close()
            await neighbour.close()
        assert (await fault_of(call)).kind == "server_died"

    run_scenario(scenario)


def test_a_server_killed_in_a_call_is_reported_at_once(tmp_path: Path) -> None:
    """At once, and not after the limit of the call: that would be another message."""

    async def episode(number: int) -> str:
        session = await shared_pool().open([counting()], workspace=tmp_path)
        started, end = tmp_path / f"begun-{number}", tmp_path / f"end-{number}"
        try:
            pid = json.loads((await session.call("where", {})).text)["pid"]
            held = {"begun": str(started), "until": str(end)}
            call = asyncio.create_task(session.call("hold", held, timeout=600))
            await auntil(started.exists)
            if number % 2:
                end.touch()
            else:
                os.kill(pid, signal.SIGKILL)
            return (await call).text
        finally:
            await session.close()

    async def scenario():
        return await asyncio.gather(*(episode(number) for number in range(6)))

    assert run_scenario(scenario) == [ENDED, "held"] * 3


START_FAILURES = (
    (StdioServer("no-such-program-anywhere"), "server_start", "No such file"),
    (StdioServer("{python}", cwd="/no/such/folder"), "server_start", "/no/such/folder"),
    (StdioServer("/etc/passwd"), "server_start", "Permission denied"),
    (counting("exit"), "server_start", "no configuration"),
    (counting("mute", timeout=0.5), "server_start", "did not start within 0.5 s"),
    (StdioServer("cat"), "server_protocol", "rejects the MCP handshake"),
    (StdioServer("yes"), "server_protocol", "is not an MCP server"),
    (StdioServer("sh", ("-c", "exec >&-; sleep 600")), "server_start", "closed its output"),
    (server_running("send(id=id, error={'code': -32600, 'message': 'go away'})"), "server_protocol", "go away"),
    (server_running("send(id=id, result={})"), "server_protocol", "protocolVersion"),
    (server_running("send(id=id, result=[1])"), "server_protocol", "neither a result nor an error"),
    (
        server_running(
            "send(id=id, result=HELLO if method == 'initialize' else {**tools('a'), 'nextCursor': 'again'})"
        ),
        "server_protocol",
        "at least 100 tools",
    ),
    (
        server_running("send(id=id, result=HELLO if method == 'initialize' else tools(*map(str, range(2000))))"),
        "server_protocol",
        "2000 tools",
    ),
    (
        server_running("send(id=id, result=HELLO if method == 'initialize' else {'tools': 'none'})"),
        "server_protocol",
        "answers 'tools/list' without a list",
    ),
)


def test_a_server_that_does_not_start_is_reported_with_the_reason(tmp_path: Path) -> None:
    async def start_fault_problems(server: StdioServer, kind: str, expected: str) -> list[str]:
        # A working server next to it is ended too.
        fault = await fault_of(shared_pool().open([counting(), server], workspace=tmp_path))
        right = fault.kind == kind and expected in str(fault)
        return [] if right else [f"{server.command} {server.args}: {fault.kind}: {fault}"]

    async def scenario() -> list[list[str]]:
        return await asyncio.gather(*(start_fault_problems(*case) for case in START_FAILURES))

    assert [wrong for item in run_scenario(scenario) for wrong in item] == []


ODDITIES = (
    "print('Loading…\\n\\n{not json', flush=True); send(id=id, result=OK)",
    "sys.stdout.buffer.write(b'\\xff\\xfe noise\\n'); send(id=str(id), result=OK)",
    "send(id=999, result={}); send(result={}); send(id=id, result=OK)",
    "print(json.dumps([{'jsonrpc': '2.0', 'id': id, 'result': OK}]), flush=True)",
    "send(method='notifications/progress', params=None); send(method='notifications/tools/list_changed'); "
    "send(id=id, result=OK)",
    "sys.stdout.write(json.dumps({'id': id, 'result': OK}) + '\\r\\n'); sys.stdout.flush()",
)


def test_every_page_of_the_tools_is_listed(tmp_path: Path) -> None:
    pages = "{None: {**tools('a'), 'nextCursor': '1'}, '1': {**tools('b', 'a'), 'nextCursor': ''}}"
    server = server_running(
        f"if id is not None: "
        f"send(id=id, result=HELLO if method == 'initialize' else {pages}[m.get('params', {{}}).get('cursor')])"
    )

    async def scenario() -> list[str]:
        session = await shared_pool().open([server], workspace=tmp_path)
        await session.close()
        return [tool.name for tool in session.tools]

    assert run_scenario(scenario) == ["a", "b"]


def test_harmless_oddities_are_ignored(tmp_path: Path) -> None:
    async def answered(reply: str) -> str:
        session = await shared_pool().open([server_running(STARTS + "    " + reply)], workspace=tmp_path)
        try:
            return (await session.call("go", {})).text
        finally:
            await session.close()

    async def scenario() -> list[str]:
        return await asyncio.gather(*map(answered, ODDITIES))

    answers = run_scenario(scenario)
    assert [(reply, answer) for reply, answer in zip(ODDITIES, answers) if answer != "ok"] == []


ERRORS = (
    ({"code": -32000, "message": "busy"}, "busy"),
    ({"code": "E7", "message": ["odd"]}, "odd"),
    ({"code": -32700, "message": "what?"}, "what?"),
    ({}, "Error"),
)


def test_any_error_of_a_server_is_a_result(tmp_path: Path) -> None:
    """It answers, so it is no fault, also with codes that the SDK uses for lost connections and invalid messages."""
    code = STARTS + "    send(id=id, error=m['params']['arguments'])"

    async def scenario():
        session = await shared_pool().open([server_running(code)], workspace=tmp_path)
        try:
            return [await session.call("go", error) for error, _ in ERRORS]
        finally:
            await session.close()

    for (_, words), result in zip(ERRORS, run_scenario(scenario)):
        assert result.is_error
        assert words in result.text


def test_requests_of_a_server_are_refused_with_a_message(tmp_path: Path) -> None:
    code = STARTS + (
        "    send(id='mine', method=m['params']['arguments']['method'], params={})\n"
        "    answer = json.loads(sys.stdin.readline())\n"
        "    send(id=id, result={'content': [{'type': 'text', 'text': json.dumps(answer)}]})"
    )

    async def scenario():
        session = await shared_pool().open([server_running(code)], workspace=tmp_path)
        try:
            for asked in ("sampling/createMessage", "elicitation/create", "roots/list", "ping"):
                answer = json.loads((await session.call("go", {"method": asked})).text)
                assert answer["id"] == "mine", asked
                expected = {"ping": {}, "elicitation/create": {"action": "decline"}}
                if asked in expected:
                    assert answer["result"] == expected[asked]
                else:
                    declined = asked == "sampling/createMessage"
                    assert ("the user declines" if declined else asked) in answer["error"]["message"]
        finally:
            await session.close()

    run_scenario(scenario)


def test_a_server_without_a_handshake_is_supported(tmp_path: Path) -> None:
    """The 2026 protocol has none; each request names its client."""
    code = """
if method == 'initialize': send(id=id, error={'code': -32022, 'message': 'unsupported'})
elif method == 'server/discover': send(id=id, result={'supportedVersions': ['2026-07-28'], 'capabilities': {}})
elif method == 'tools/list': send(id=id, result=tools('go'))
elif method == 'tools/call':
    OK['content'][0]['text'] = json.dumps(m['params']['_meta'])
    send(id=id, result=OK)
"""

    async def scenario():
        session = await shared_pool().open([server_running(code)], workspace=tmp_path)
        try:
            return json.loads((await session.call("go", {})).text)
        finally:
            await session.close()

    assert run_scenario(scenario)["io.modelcontextprotocol/protocolVersion"] == "2026-07-28"


def test_the_answer_of_a_cancelled_call_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    async def scenario():
        session = await shared_pool().open([counting()], workspace=tmp_path)
        held = {"begun": str(tmp_path / "begun"), "until": str(tmp_path / "until")}
        try:
            call = asyncio.create_task(session.call("hold", held, timeout=600))
            await auntil((tmp_path / "begun").exists)
            call.cancel()
            (tmp_path / "until").touch()  # it answers now
            assert (await session.call("add", {"n": 9})).text == "9"
        finally:
            await session.close()

    run_scenario(scenario)


def test_a_flood_between_calls_stays_in_the_pipe(tmp_path: Path) -> None:
    code = """
if method == 'initialize': send(id=id, result=HELLO)
elif method == 'tools/list':
    send(id=id, result=tools('go'))
    for _ in range(300): send(method='notifications/message', params={'data': 'x' * 10000})
elif method == 'tools/call': send(id=id, result=OK)
"""

    async def scenario():
        session = await shared_pool().open([server_running(code)], workspace=tmp_path)
        connection = session._connections[0].connection
        try:
            await auntil(lambda: connection._paused)
            return (await session.call("go", {})).text
        finally:
            await session.close()

    assert run_scenario(scenario) == "ok"


def test_a_cancelled_open_leaves_nothing(tmp_path: Path) -> None:
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
        task = asyncio.create_task(shared_pool().open([counting("mute", mark)], workspace=tmp_path))
        await auntil(running)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await auntil(lambda: not running())

    run_scenario(scenario)


# Results of tools


RESULTS = (
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
)


def test_every_kind_of_result_becomes_text() -> None:
    assert [(raw, got) for raw, text in RESULTS if (got := read_result(raw).text) != text] == []


def test_images_are_kept_and_a_request_for_input_is_refused() -> None:
    result = read_result({"content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}], "isError": True})
    assert (result.images, result.is_error) == ((b"hi",), True)
    assert read_result({"resultType": "input_required", "inputRequests": {}}).is_error


def test_deeply_nested_data_is_handled() -> None:
    nested: list = []
    for _ in range(5_000):
        nested = [nested]
    result = read_result({"content": [nested], "structuredContent": {"a": nested}})
    assert result.structured is None
    assert "nested too deeply" in result.text
    assert [tool.input_schema for tool in named_tools([("s", [{"name": "a", "inputSchema": {"b": nested}}])])] == [
        {"type": "object"}
    ]


def test_a_long_result_is_truncated_in_the_middle() -> None:
    result = read_result({"content": [{"type": "text", "text": "a" * 5000 + "z" * 5000}]})
    short = result.shortened(1000)
    assert len(short) <= 1000
    assert short.startswith("aaa")
    assert short.endswith("zzz")
    assert "of 10,000 characters left out" in short


def test_any_listed_tool_becomes_callable_by_a_model() -> None:
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
