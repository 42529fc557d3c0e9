"""An MCP server that needs only the standard library, for tests that start many: it counts, and misbehaves on request.

``python counting_server.py [MODE]``; a mode names the fault (see the end of this file).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

MODE = sys.argv[1] if len(sys.argv) > 1 else ""
TOOLS = (
    *("add", "total", "where", "sleep", "hold", "die", "fail", "flood", "ask", "endless_line", "broken_json", "spawn"),
    *("parts", "leave", "hang"),
)
total = 0


def send(message: dict) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(words: object) -> dict:
    return {"content": [{"type": "text", "text": str(words)}]}


def call(name: str, arguments: dict) -> dict | None:
    global total
    if name == "add":
        total += arguments["n"]
        return text(total)
    if name in ("total", "leave"):
        return text(total)
    if name == "where":
        return text(json.dumps({"cwd": os.getcwd(), "env": dict(os.environ), "argv": sys.argv, "pid": os.getpid()}))
    if name == "sleep":
        time.sleep(arguments["s"])
        return text("slept")
    if name == "hold":
        # Reports its start by one file, and waits for another before it answers.
        open(arguments["begun"], "w").close()
        while not os.path.exists(arguments["until"]):
            time.sleep(0.01)
        return text("held")
    if name == "die":
        print("the last words", file=sys.stderr, flush=True)
        os._exit(arguments.get("status", 3))
    if name == "fail":
        return {**text("it does not work"), "isError": True}
    if name == "flood":
        while True:
            send({"method": "notifications/message", "params": {"level": "info", "data": "x" * 10_000}})
    if name == "ask":
        while True:
            send({"id": "mine", "method": "roots/list"})
    if name == "endless_line":
        while True:
            sys.stdout.write('{"jsonrpc": "2.0", "result": "' + "x" * (1 << 20))
    if name == "broken_json":
        print('{"jsonrpc": "2.0", "id": 2, "result": {"content": [', flush=True)
        return None
    if name == "spawn":
        # A grandchild in a session of its own, which keeps the server's output open.
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=True)
        return text(child.pid)
    if name == "hang":
        print("[loading", flush=True)
        time.sleep(600)
    if name == "parts":
        return {"content": arguments["content"], "structuredContent": arguments.get("structured")}
    raise ValueError(name)


def answer(request: dict) -> None:
    method, params = request["method"], request.get("params", {})
    if method == "initialize":
        who = {"name": "counting", "version": "1"}
        result = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": who}
        result["instructions"] = "Count."
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    else:
        try:
            result = call(params["name"], params["arguments"])
        except Exception as error:
            send({"id": request["id"], "error": {"code": -32602, "message": f"{type(error).__name__}: {error}"}})
            return
    if result is not None:
        send({"id": request["id"], "result": result})
    if params.get("name") == "leave":
        end(params["arguments"]["how"])


def end(how: str) -> None:
    if how == "close":
        os.close(1)
    elif how == "exit":
        sys.exit()
    else:
        os.kill(os.getpid(), signal.Signals[how])


if MODE == "banner":
    print("Counting server v1.0 is up!\n", flush=True)
if MODE == "mute":
    time.sleep(600)
if MODE == "exit":
    sys.exit("no configuration")
for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        answer(request)
