"""MCP servers at a URL: separate sessions over streamable HTTP, with the SDK's server and with hostile ones."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import queue
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rllm_gym.mcp import (
    HttpServer,
    Server,
    ServerFault,
    StdioServer,
    ToolResult,
    ToolSession,
    shared_pool,
)
from tests.mcp.running_application import refusing_the_handshake, running
from tests.mcp.scenarios import fault_of, run_scenario, servers_in
from tests.waiting import auntil

Context = pytest.importorskip("mcp.server.mcpserver", reason="pip install 'rllm-gym[mcp]'").Context


# The SDK's server


def _application(json_response: bool):
    from mcp.server import MCPServer

    server = MCPServer("remote", instructions="Adds.", log_level="ERROR")

    @server.tool()
    def add(a: int, b: int) -> int:
        return a + b

    @server.tool()
    async def report(ctx: Context) -> str:
        for step in range(3):
            await ctx.report_progress(step, 3)
        return "done"

    @server.tool()
    def grow() -> str:
        server.add_tool(lambda: "new", name="extra")
        return "grown"

    return server.streamable_http_app(json_response=json_response)


@pytest.mark.parametrize("json_response", [False, True], ids=["events", "json"])
@pytest.mark.parametrize("wrap", [lambda app: app, refusing_the_handshake], ids=["handshake", "stateless"])
def test_tools_of_a_server_at_a_url_can_be_called(tmp_path: Path, json_response: bool, wrap) -> None:
    async def episode(url: str, number: int):
        session = await shared_pool().open([HttpServer(url)], workspace=tmp_path)
        try:
            assert [tool.name for tool in session.tools] == ["add", "report", "grow"]
            assert session.instructions == {"server1": "Adds."}
            calls = [session.call("add", {"a": number, "b": n}) for n in range(3)]
            assert [r.text for r in await asyncio.gather(*calls)] == [str(number + n) for n in range(3)]
            assert (await session.call("report", {})).text == "done"
            assert (await session.call("add", {"a": "x", "b": 1})).is_error
        finally:
            await session.close()

    async def scenario(url: str):
        await asyncio.gather(*(episode(url, number) for number in range(4)))

    with running(wrap(_application(json_response))) as url:
        run_scenario(scenario, url)


def test_tools_that_a_call_has_changed_are_listed_again(tmp_path: Path) -> None:
    async def scenario(url: str) -> None:
        session = await shared_pool().open([HttpServer(url)], workspace=tmp_path)
        try:
            await session.call("add", {"a": 1, "b": 2})
            assert not await session.refresh()
            await session.call("grow", {})
            assert await session.refresh()
            assert [tool.name for tool in session.tools] == ["add", "report", "grow", "extra"]
            assert (await session.call("extra", {})).text == "new"
        finally:
            await session.close()

    with running(refusing_the_handshake(_application(json_response=True))) as url:
        run_scenario(scenario, url)


OFFERING = str(Path(__file__).with_name("offering_server.py"))
OFFERED = (
    ("list_resources", {}, '{"uri": "notes://today", "name": "today"'),
    ("list_resource_templates", {}, '{"uriTemplate": "notes://day/{day}"'),
    ("read_resource", {"uri": "notes://today"}, "[resource notes://today]\nWater the plants."),
    ("read_resource", {"uri": "notes://day/Monday"}, "[resource notes://day/Monday]\nNothing on Monday."),
    ("read_resource", {"uri": "pictures://dot"}, "[resource pictures://dot, image/png, 4 bytes]"),
    ("read_resource", {"uri": "notes://unknown"}, "Error: "),
    ("list_prompts", {}, '{"name": "greet", "description": "Greet someone.", "arguments": [{"name": "name"'),
    ("get_prompt", {"name": "greet", "arguments": {"name": "Ada"}}, "user:\nSay hello to Ada."),
    ("book", {}, "accept: Graz"),
    ("book", {}, "decline: "),
    ("book", {}, "decline: "),
    ("think", {}, "scripted: 42"),
)


@pytest.mark.parametrize("transport", ["http", "sse", "stdio"])
def test_resources_and_prompts_are_tools_and_requests_are_answered_by_a_script(tmp_path: Path, transport: str) -> None:
    from tests.mcp.offering_server import make_server

    script = {"elicitations": [{"city": "Graz"}, None], "samples": ["42"], "offers": ["resources", "prompts"]}

    async def scenario(server: Server) -> None:
        session = await shared_pool().open([server], workspace=tmp_path, reserved=["list_prompts"])
        try:
            own = {"list_prompts": "server1__list_prompts"}
            results = [await session.call(own.get(name, name), arguments) for name, arguments, _ in OFFERED]
            wrong = [
                (name, result) for (name, _, text), result in zip(OFFERED, results) if not result.text.startswith(text)
            ]
            assert wrong == []
            assert [result.is_error for result in results].count(True) == 1
            assert results[4].images == (b"\x89PNG",)
            assert (await session.call("grow", {})).text == "grown"
            await auntil(lambda: session._connections[0].tools_changed)  # over HTTP on another stream
            assert await session.refresh()
            assert (await session.call("extra", {})).text == "new"
        finally:
            await session.close()

    if transport == "stdio":
        run_scenario(scenario, StdioServer("{python}", (OFFERING,), timeout=120.0, **script))
        return
    application = make_server().sse_app() if transport == "sse" else make_server().streamable_http_app()
    with running(application) as url:
        url = url.replace("/mcp", "/sse") if transport == "sse" else url
        run_scenario(lambda: scenario(HttpServer(url, transport=transport, timeout=10.0, **script)))


def test_every_session_of_a_shared_server_follows_a_change_of_its_tools(tmp_path: Path) -> None:
    program = StdioServer("{python}", (OFFERING, "shared"), timeout=120.0, shared=True)

    async def scenario() -> None:
        sessions = [await shared_pool().open([program], workspace=tmp_path) for _ in range(2)]
        try:
            await sessions[0].call("grow", {})
            await auntil(lambda: sessions[0]._connections[0].tools_changed)
            for session in sessions:
                assert await session.refresh()
                assert "extra" in [tool.name for tool in session.tools]
                assert not await session.refresh()
        finally:
            for session in sessions:
                await session.close()

    run_scenario(scenario)


def test_a_server_that_starts_again_goes_on_with_its_script_and_with_its_first_tools(tmp_path: Path) -> None:
    """A model could otherwise make its user enter everything twice."""
    script = {"elicitations": [{"city": "Graz"}, None]}
    program = StdioServer("{python}", (OFFERING,), timeout=120.0, restartable=True, **script)

    async def scenario() -> None:
        session = await shared_pool().open([program], workspace=tmp_path)
        try:
            assert (await session.call("book", {})).text == "accept: Graz"
            await session.call("grow", {})
            await auntil(lambda: session._connections[0].tools_changed)
            assert await session.refresh()
            for process in servers_in(tmp_path):
                process.kill()
            await auntil(lambda: session._connections[0].connection.broken)
            assert (await session.call("book", {})).text == "decline: "
            assert await session.refresh()
            assert "extra" not in [tool.name for tool in session.tools]
        finally:
            await session.close()

    run_scenario(scenario)


def test_a_server_is_not_informed_of_answers_that_it_does_not_get(tmp_path: Path) -> None:
    """A server may offer other tools to a client whose user can be asked."""
    program = StdioServer("{python}", (OFFERING,), timeout=120.0)

    async def scenario() -> list[ToolResult]:
        session = await shared_pool().open([program], workspace=tmp_path)
        try:
            assert [tool.name for tool in session.tools] == ["book", "think", "grow"]
            return [await session.call(name, {}) for name in ("book", "think")]
        finally:
            await session.close()

    book, think = run_scenario(scenario)
    assert (book.text, book.is_error) == ("decline: ", False)
    assert think.is_error


# Servers that misbehave

HELLO = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "x"}}
TOOLS = {"tools": [{"name": "go", "inputSchema": {"type": "object"}}]}


class _Hostile(BaseHTTPRequestHandler):
    """Answers correctly until a tool is called; then misbehaves as the path says."""

    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, dict[str, str]]]
    released: threading.Event
    cut_off: threading.Event

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.note()
        message = json.loads(body)
        result = {"initialize": HELLO, "tools/list": TOOLS}.get(message.get("method", ""))
        with contextlib.suppress(OSError):
            if result is not None:
                self.reply({"jsonrpc": "2.0", "id": message["id"], "result": result})
            elif message.get("method") != "tools/call":
                if self.path == "/delays":
                    self.released.wait()
                self.send_response(202)
                self.send_header("content-length", "0")
                self.end_headers()
            else:
                getattr(self, self.path.strip("/"))(message["id"])

    def do_DELETE(self) -> None:
        self.note()
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        if self.path == "/talks":
            self.note()
            self.events()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b'data: {"jsonrpc": "2.0", "method": "notifications/message"}\n\n' * 10_000)
            self.cut_off.set()
            return
        assert self.headers["last-event-id"] == "e7"
        if self.path == "/loops":
            self.resumes(3)
            return
        self.events()
        self.wfile.write(self.answer(3))

    def note(self) -> None:
        self.seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))

    def answer(self, number: int, text: str = "ok") -> bytes:
        result = {"content": [{"type": "text", "text": text}]}
        return b"data: " + json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode() + b"\n\n"

    def reply(self, message: dict, status: int = 200, **headers: str) -> None:
        data = json.dumps(message).encode()
        self.send_response(status)
        self.send_header("mcp-session-id", "s1")
        for key, value in {"content-type": "application/json", "content-length": str(len(data)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(data)

    def events(self, encoding: str = "identity") -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-encoding", encoding)
        self.end_headers()

    def redirects(self, number: int) -> None:
        self.reply({}, 307, location="http://127.0.0.1:9/elsewhere")

    def huge(self, number: int) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        while True:
            self.wfile.write(b"x" * (1 << 20))

    def endless(self, number: int) -> None:
        self.events()
        while True:
            self.wfile.write(b"data: " + b"x" * (1 << 20))

    def chatters(self, number: int) -> None:
        self.events()
        while True:
            self.wfile.write(b'data: {"jsonrpc": "2.0", "method": "notifications/message"}\n\n' * 10_000)

    def asks(self, number: int) -> None:
        self.events()
        self.wfile.write(b'data: {"jsonrpc": "2.0", "id": "mine", "method": "roots/list"}\n\n' * 1_100)
        self.released.wait()

    def comments(self, number: int) -> None:
        self.events()
        while True:
            self.wfile.write(b": " + b"x" * (1 << 20) + b"\n")

    def hangs(self, number: int) -> None:
        self.events()
        self.released.wait()

    def dies(self, number: int) -> None:
        self.events()
        self.wfile.write(b": thinking\n\n")

    def resumes(self, number: int) -> None:
        self.events()
        self.wfile.write(b"id: e7\nretry: 10\ndata:\n\n")

    loops = resumes

    def bomb(self, number: int) -> None:
        self.events("gzip")
        self.wfile.write(gzip.compress(b"data: " + b"x" * (1 << 20)))

    def unknown(self, number: int) -> None:
        self.reply({"jsonrpc": "2.0", "id": str(number), "result": {"content": [{"type": "future", "text": "ok"}]}})

    def delays(self, number: int) -> None:
        self.events()
        self.wfile.write(self.answer(number))

    def talks(self, number: int) -> None:
        self.cut_off.wait()
        self.delays(number)

    def pings(self, number: int) -> None:
        self.events()
        self.wfile.write(b"event: ping\ndata: now\n\n: still here\n\n" + self.answer(number))

    def cut(self, number: int) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", "1000")
        self.end_headers()
        self.wfile.write(b": thinking\n\n")

    def wordy(self, number: int) -> None:
        self.events()
        self.wfile.write(self.answer(number, "\n\ndata: ok" * 200_000))

    def broken(self, number: int) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "9")
        self.end_headers()
        self.wfile.write(b'{"jsonrpc')

    def broken_event(self, number: int) -> None:
        self.events()
        self.wfile.write(b'id: e7\ndata: {"jsonrpc"\n\n')

    def empty(self, number: int) -> None:
        self.reply({"jsonrpc": "2.0", "id": number, "result": 5})

    def forgets_once(self, number: int) -> None:
        if sum(path == self.path for _, path, _ in self.seen) > 5:
            self.reply({"jsonrpc": "2.0", "id": number, "result": {"content": [{"type": "text", "text": "ok"}]}})
        else:
            self.forgets(number)

    def forgets(self, number: int) -> None:
        self.reply({"jsonrpc": "2.0", "id": number, "error": {"code": -32001, "message": "no session"}}, 404)

    def fails(self, number: int) -> None:
        self.reply({"oops": 1}, 503)

    def refuses(self, number: int) -> None:
        self.reply({"jsonrpc": "2.0", "id": None, "error": {"code": -32602, "message": "bad"}}, 400)

    def wrong_number(self, number: int) -> None:
        self.reply({"jsonrpc": "2.0", "id": number + 1, "result": {}})

    def log_message(self, *_) -> None:
        pass


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(120)


@pytest.fixture
def hostile() -> Iterator[str]:
    _Hostile.seen, _Hostile.released, _Hostile.cut_off = [], threading.Event(), threading.Event()
    with serving(_Hostile) as url:
        yield url
        _Hostile.released.set()


class _Connections(BaseHTTPRequestHandler):
    """Answers every call, and notes on which connection it came."""

    protocol_version = "HTTP/1.1"
    of_calls: list[tuple[str, int]]

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if message["method"] == "tools/call":
            self.of_calls.append(self.client_address)
        done = {"content": [{"type": "text", "text": "done"}]}
        result = {"initialize": HELLO, "tools/list": TOOLS, "tools/call": done}.get(message["method"])
        data = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode() if result else b""
        self.send_response(200 if result else 202)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def test_a_call_after_a_pause_uses_a_new_connection(tmp_path: Path) -> None:
    """A model thinks for seconds between two calls, and servers close connections that are idle for as long."""
    _Connections.of_calls = []

    async def scenario(url: str) -> None:
        session = await shared_pool().open([HttpServer(url)], workspace=tmp_path)
        try:
            assert (await session.call("go", {})).text == "done"
            idle = time.monotonic()
            await auntil(lambda: time.monotonic() - idle > 1.6)
            assert (await session.call("go", {})).text == "done"
        finally:
            await session.close()

    with serving(_Connections) as url:
        run_scenario(scenario, f"{url}/mcp")
    first, second = _Connections.of_calls
    assert first != second


ENDED = "The server ended, or lost the connection, during this call."
SLOW = "The tool timed out after 3 s. Whether the call has had an effect is unknown."
INVALID = "The server's answer to this call is invalid or too large."

RESTARTS = " The server starts again for the next call."

MISBEHAVING = (
    ("redirects", INVALID, "127.0.0.1:9/elsewhere"),
    ("huge", INVALID, "16,777,216"),
    ("endless", INVALID, "bytes and no answer"),
    ("chatters", INVALID, "bytes and no answer"),
    ("asks", INVALID, "bytes and no answer"),
    ("comments", INVALID, "bytes and no answer"),
    ("hangs", SLOW, "within 3 s"),
    ("dies", ENDED, "without an answer"),
    ("cut", ENDED, "RemoteProtocolError"),
    ("loops", INVALID, "more than 5 times without an answer"),
    ("bomb", ENDED, "without an answer"),
    ("broken", INVALID, "invalid JSON-RPC"),
    ("broken_event", INVALID, "invalid JSON-RPC"),
    ("empty", INVALID, "neither a result nor an error"),
    ("forgets", ENDED, "ended the session"),
    ("fails", INVALID, "HTTP 503"),
    ("wrong_number", INVALID, "sent no answer to"),
)


def test_a_server_that_misbehaves_is_an_error_of_the_call(tmp_path: Path, hostile: str, caplog, monkeypatch) -> None:
    # No server here keeps a notice or the list of tools waiting; this process may.
    monkeypatch.setattr("rllm_gym.mcp.streamable_http._NOTICE_S", 120.0)
    monkeypatch.setattr("rllm_gym.mcp.connection._NOTICES_S", 120.0)
    monkeypatch.setattr("rllm_gym.mcp.session._PROBE_S", 120.0)

    async def result(mode: str) -> ToolResult:
        server = HttpServer(f"{hostile}/{mode}", headers={"authorization": "Bearer key"}, name=mode)
        session = await shared_pool().open([server], workspace=tmp_path)
        try:
            return await session.call("go", {}, timeout=3.0 if mode == "hangs" else 120.0)
        finally:
            await session.close()

    async def scenario() -> list[ToolResult]:
        return [await result(mode) for mode, _, _ in MISBEHAVING]

    results, wrong = run_scenario(scenario), []
    for (mode, text, reason), answer in zip(MISBEHAVING, results):
        asked = [(command, headers) for command, path, headers in _Hostile.seen if path == f"/{mode}"]
        first, second = asked[0][1], asked[1][1]
        logged = [record.getMessage() for record in caplog.records if repr(mode) in record.getMessage()]
        right = answer.is_error and answer.text.removesuffix(RESTARTS) == text
        right = right and len(logged) == 1 and reason in logged[0] and len(logged[0]) < 2_000
        right = right and first["authorization"] == "Bearer key" and asked[-1][0] == "DELETE"
        right = right and (second["mcp-session-id"], second["mcp-protocol-version"]) == ("s1", "2025-06-18")
        wrong += [] if right else [(mode, answer, logged, asked)]
    assert wrong == []
    # The SDK logs nothing of what a server sends.
    assert [
        record for record in caplog.records if record.name.startswith("mcp") and record.levelno > logging.INFO
    ] == []
    # The server hears that the call was cancelled, before the end of the session.
    asked = [command for command, path, _ in _Hostile.seen if path == "/hangs"]
    # After the call: the notice and the list of tools, and another notice if a busy machine is too late with the list.
    assert asked in (["POST"] * 6 + ["DELETE"], ["POST"] * 7 + ["DELETE"])


def test_a_server_that_ended_the_session_gets_a_new_one_if_it_keeps_no_state_in_it(
    tmp_path: Path, hostile: str
) -> None:
    async def scenario(restartable: bool) -> list[str]:
        server = HttpServer(f"{hostile}/forgets_once", restartable=restartable)
        session = await shared_pool().open([server], workspace=tmp_path)
        try:
            return [(await session.call("go", {})).text for _ in range(2)]
        finally:
            await session.close()

    assert run_scenario(scenario, True) == [ENDED + RESTARTS, "ok"]
    _Hostile.seen.clear()
    lost = "The server of this tool has ended, and what it kept in memory is lost."
    assert run_scenario(scenario, False) == [ENDED, lost]


def test_what_a_server_may_do_over_http(tmp_path: Path, hostile: str) -> None:
    async def result(mode: str):
        session = await shared_pool().open([HttpServer(f"{hostile}/{mode}")], workspace=tmp_path)
        try:
            return await session.call("go", {})
        finally:
            await session.close()

    for mode, error, text in (
        ("refuses", True, "bad"),
        ("resumes", False, "ok"),
        ("unknown", False, "future"),
        ("wordy", False, "data: ok"),
        ("pings", False, "ok"),
        ("delays", False, "ok"),  # a response to a notification, which nobody needs
    ):
        answer = run_scenario(result, mode)
        assert (answer.is_error, text in answer.text) == (error, True), (mode, answer)


def test_a_flood_between_the_answers_is_cut_off(tmp_path: Path, hostile: str) -> None:
    """The stream for the requests of a server may be used for anything. It costs the episode nothing."""

    async def scenario() -> str:
        session = await shared_pool().open([HttpServer(f"{hostile}/talks", samples=["x"])], workspace=tmp_path)
        try:
            return (await session.call("go", {}, timeout=120)).text
        finally:
            await session.close()

    assert run_scenario(scenario) == "ok"
    assert [command for command, _, _ in _Hostile.seen].count("GET") == 1


class _HostileEvents(BaseHTTPRequestHandler):
    """Answers correctly, over the older transport, until a tool is called; then does what the path says."""

    streams: dict[str, queue.Queue[bytes | None]]

    def do_GET(self) -> None:
        if self.path == "/elsewhere":
            self.send_response(307)
            self.send_header("location", "http://127.0.0.1:9/")
            self.end_headers()
            return
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        events = self.streams[self.path] = queue.Queue()
        self.wfile.write(f"event: endpoint\ndata: {self.path}\n\n".encode())
        with contextlib.suppress(OSError):
            while (event := events.get()) is not None:
                self.wfile.write(event)
                while self.path == "/floods" and event.startswith(b":"):
                    self.wfile.write(event)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, events = message.get("method"), self.streams[self.path]
        result = {"initialize": HELLO, "tools/list": TOOLS}.get(method)
        broken = method == "tools/call"
        self.send_response(500 if broken and self.path == "/refuses" else 202)
        self.send_header("content-length", "0")
        self.end_headers()
        if broken and self.path != "/hangs":
            events.put({"/ends": None, "/floods": b": " + b"x" * (1 << 20) + b"\n"}.get(self.path, b"data: {5\n\n"))
        elif result is not None:
            answer = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
            events.put(f"data: {answer}\n\n".encode())

    def log_message(self, *_) -> None:
        pass


@pytest.mark.long
def test_a_server_that_misbehaves_over_the_older_transport_is_an_error_of_the_call(tmp_path: Path) -> None:
    async def results(url: str, limit: float) -> list[str]:
        session = await shared_pool().open([HttpServer(url, transport="sse")], workspace=tmp_path)
        try:
            return [(await session.call("go", {}, timeout=limit)).text for _ in range(2)]
        finally:
            await session.close()

    _HostileEvents.streams = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), _HostileEvents) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        expected = {"ends": ENDED, "floods": INVALID, "refuses": INVALID, "garbage": INVALID}
        for mode, text in expected.items():
            assert run_scenario(results, f"{url}/{mode}", 120.0) == [text + RESTARTS] * 2, mode
        assert run_scenario(results, f"{url}/hangs", 0.3) == [SLOW.replace("3 s", "0.3 s")] * 2
        fault = run_scenario(lambda: fault_of(results(f"{url}/elsewhere", 1.0)))
        assert (fault.kind, "HTTP 307 and no stream of events" in str(fault)) == ("server_protocol", True)
        for events in _HostileEvents.streams.values():
            events.put(None)
        server.shutdown()


def test_an_unreachable_url_is_a_fault(tmp_path: Path) -> None:
    fault = run_scenario(
        lambda: fault_of(shared_pool().open([HttpServer("http://127.0.0.1:9/mcp")], workspace=tmp_path))
    )
    assert fault.kind == "server_start"
    assert "127.0.0.1:9" in str(fault)


@pytest.mark.parametrize(
    ("restartable", "called", "outcome"),
    [
        (True, True, "The server of this tool has ended, and does not start again."),
        (False, True, "The server of this tool has ended, and what it kept in memory is lost."),
        (True, False, ServerFault),
        (False, False, ServerFault),
    ],
)
def test_a_url_that_cannot_be_reached_any_more_is_a_fault_only_before_a_call(
    tmp_path: Path, restartable: bool, called: bool, outcome: object
) -> None:
    """A model may find a tool that answers and ends its server a second later."""

    async def opened(url: str) -> ToolSession:
        server = HttpServer(url, restartable=restartable)
        session = await shared_pool().open([server], workspace=tmp_path)
        if called:
            assert (await session.call("add", {"a": 1, "b": 2})).text == "3"
        return session

    async def calls(session: ToolSession) -> str:
        try:
            await session.call("add", {"a": 1, "b": 2})
            return (await session.call("add", {"a": 1, "b": 2})).text
        finally:
            await session.close()

    with running(_application(json_response=True)) as url:
        session = run_scenario(opened, url)
    if outcome is ServerFault:
        assert "cannot be reached" in str(run_scenario(fault_of, calls(session)))
    else:
        assert run_scenario(calls, session) == outcome
        assert list(session.lost) == ["server1"]


def test_a_url_without_an_mcp_server_is_a_fault_with_a_hint(tmp_path: Path) -> None:
    class Refusing(BaseHTTPRequestHandler):  # as servers of HTTP+SSE refuse a POST to their stream
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_error(405)

        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/sse"
        fault = run_scenario(lambda: fault_of(shared_pool().open([HttpServer(url)], workspace=tmp_path)))
        server.shutdown()
    assert fault.kind == "server_protocol"
    assert "HTTP 405" in str(fault)
    assert "e.g. …/mcp; for a server of the older HTTP+SSE transport, set transport='sse'" in str(fault)


def test_an_invalid_url_is_refused() -> None:
    for url in ("", "ftp://x/y", "/mcp", "http://", 7):
        with pytest.raises(ValueError, match="url="):
            HttpServer(url)
