"""MCP servers of others: their tools reach the model, work, and no arguments void an episode.

Run by ``make test-gauntlet``, which installs them first.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import random
import shutil
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import pytest

import rllm_gym  # noqa: F401 - registers the environments
from rllm_gym.mcp import StdioServer
from tests.browser.long_timeouts import require_chromium
from tests.gauntlet.mcp_servers import SERVERS, McpServer
from tests.gauntlet.test_gauntlet import FOLDER

pytest.importorskip("mcp", reason="pip install 'rllm-gym[mcp]'")
pytestmark = pytest.mark.long

RANDOM_CALLS = 20
TEXTS = ("", "a", "a.txt", "g", "../../x", "caf\u00e9 \U0001f600", "x" * 3_000, "'; --", "{}", "\x00", "\n- finish()")
NUMBERS = (0, 1, 2, -1, 10**9)


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<!doctype html><title>T</title><main><p>A page of the test.</p></main>"
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def a_page() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def installed(server: McpServer, page: str) -> StdioServer:
    """Return the server; skip the test if it is not installed."""
    place = FOLDER / server.place
    if not (place / ".installed").exists():
        pytest.skip(f"{server.name} is not installed in {place}: run scripts/gauntlet.sh")
    if server.place == "npm":
        if shutil.which("node") is None:
            pytest.skip("node is not installed")
        command = ("node", str(place / "node_modules" / server.name / server.program))
    elif server.program.startswith("-m "):
        command = (str(place / "bin/python"), *server.program.split())
    else:
        command = (str(place / "bin" / server.program),)

    def filled(text: str) -> str:
        return text.replace("{page}", page).replace("{chromium}", require_chromium() if "{chromium}" in text else "")

    env = {name: filled(value) for name, value in server.env.items()}
    return StdioServer(command[0], (*command[1:], *map(filled, server.args)), env=env)


def reply(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def random_value(schema: Mapping[str, Any], rng: random.Random) -> Any:
    """Return a value that mostly fits the schema."""
    if rng.random() < 0.05:
        return rng.choice([None, True, -1, "", [], {}])
    if schema.get("enum"):
        return rng.choice(schema["enum"])
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return random_value(rng.choice(schema[key]), rng)
    kind = schema.get("type")
    kind = rng.choice(kind) if isinstance(kind, list) else kind
    if kind == "object":
        return random_arguments(schema, rng)
    if kind == "array":
        return [random_value(schema.get("items") or {}, rng) for _ in range(rng.randrange(3))]
    if kind == "boolean":
        return rng.random() < 0.5
    return rng.choice(NUMBERS if kind in ("integer", "number") else TEXTS)


def random_arguments(schema: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    required = schema.get("required") or ()
    return {
        name: random_value(wanted if isinstance(wanted, dict) else {}, rng)
        for name, wanted in (schema.get("properties") or {}).items()
        if name in required or rng.random() < 0.3
    }


@pytest.mark.parametrize("server", SERVERS, ids=[server.name for server in SERVERS])
def test_a_server_is_usable_and_no_arguments_void_an_episode(server: McpServer) -> None:
    with a_page() as page:
        row = {
            "prompt": "Do something.",
            "servers": [installed(server, page)],
            "workspace": {"a.txt": "one\ntwo\n"},
            "answer": {"type": "string", "value": "done"},
        }
        env = gym.make("rllm/MCP-v0", tasks=[row], max_turns=100, call_timeout=30)
        try:
            observation, info = env.reset(seed=0)
            tools = [tool["function"] for tool in json.loads(info["tools"])][:-2]  # the last two end the episode
            for tool in tools:
                assert f"- {tool['name']}(" in observation
                assert " ".join(tool.get("description", "").split())[:40] in observation
            for name, arguments, text in server.calls:
                filled = json.loads(json.dumps(arguments).replace("{page}", page))
                observation, _, terminated, truncated, info = env.step(reply(name, filled))
                assert text in observation
                assert (terminated, truncated, info["invalid_action"]) == (False, False, False), observation
            env.unwrapped.call_timeout = 3.0
            rng, sent = random.Random(server.name), 0
            for _ in range(RANDOM_CALLS):
                tool = rng.choice(tools)
                call = reply(tool["name"], random_arguments(tool["parameters"], rng))
                observation, _, terminated, truncated, info = env.step(call)  # raises if it is a fault
                if terminated:
                    assert info["stop_reason"] == "server_lost", call
                    break
                assert not truncated
                assert tool["name"] in observation
                sent += not info["invalid_action"]
            else:
                assert env.step("done")[1:3] == (1.0, True)
                assert sent > RANDOM_CALLS // 4, "most random arguments should fit the schemas"
        finally:
            env.close()
