"""The server of a row: a fresh one for each episode, which ends with it, and a browser that sees no port."""

from __future__ import annotations

import asyncio
import gc
import http.server
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rllm_gym.core import EnvironmentFault, TaskError
from rllm_gym.data import load_tasks
from rllm_gym.envs.web import WebEnv
from rllm_gym.envs.web.browser.storage_state import read_storage_state
from rllm_gym.envs.web.page_server import ServerCommand, start_server
from rllm_gym.envs.web.rows import read_row, row_to_web_task
from rllm_gym.envs.workspace_files import read_workspace
from tests.browser.long_timeouts import require_chromium, use_long_timeouts
from tests.waiting import is_alive, until

require_chromium()

# A shop that keeps its orders in its directory. It stands for any program that serves pages.
SHOP = """
import http.server, os, pathlib, sys
orders, starts = pathlib.Path("orders"), pathlib.Path("starts")
starts.write_text(f"{starts.read_text() if starts.exists() else ''}{os.getpid()}\\n")
warming_up = [503, 500]

class Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/crash":
            print("out of cups", file=sys.stderr, flush=True)
            os._exit(3)
        if self.path == "/order":
            orders.write_text(f"{orders.read_text() if orders.exists() else ''}x")
        body = f'''<title>Shop</title><h1>Shop at {self.headers["Host"]}</h1>
            <p>{self.headers.get("Cookie")}</p><p id=token></p>
            <script>token.textContent = "token " + localStorage.getItem("token")</script>
            <p>{orders.read_text() if orders.exists() else "no orders"}</p>
            <a href=/order>Order</a> <a href=/crash>Crash</a>'''.encode()
        self.send_response(warming_up.pop() if warming_up else 200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Pages).serve_forever()
"""

CHECKS = """
from tests.waiting import until
import urllib.request
states, setups, env = [], [], None
def ordered_one(state, answer):
    states.append(state)
    orders = state.workspace / "orders"
    return orders.exists() and orders.read_text() == "x"
def log_in(url, seed, data, workspace):
    setups.append((url, seed, (workspace / "starts").read_text()))
    assert "Shop at 127.0.0.1" in urllib.request.urlopen(url).read().decode()
    return {"session": data["user"]}
def restore(url, seed, data, workspace):
    assert env._session is None, "the page of the last episode could undo what is restored"
    (workspace / "orders").unlink(missing_ok=True)
    return {
        "cookies": [{"name": "a", "value": "1", "domain": "shop.localhost", "path": "/", "expires": -1}],
        "origins": [{"origin": data["origin"], "localStorage": [{"name": "token", "value": "</script>\\u2028"}]}],
    }
def returned(url, seed, data, workspace):
    return data["state"]
def state_of(url, seed, data):
    return data["state"]
def crash(url, seed, data, workspace):
    try:
        urllib.request.urlopen(url + "crash")
    finally:
        assert until(lambda: env._server.has_ended)
"""

SERVER: dict[str, Any] = {"command": "{python}", "args": ["shop.py"], "env": {"PORT": "{port}"}}
ROW: dict[str, Any] = {
    "id": "order",
    "url": "http://shop.localhost/",
    "goal": "Order one.",
    "server": SERVER,
    "workspace": {"shop.py": SHOP},
    "check": "checks_of_a_shop:ordered_one",
    "data": {"user": "ada", "origin": "http://shop.localhost", "sizes": [1, 2]},
}


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    use_long_timeouts(monkeypatch)


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "checks_of_a_shop.py").write_text(CHECKS)
    monkeypatch.syspath_prepend(tmp_path)
    import checks_of_a_shop

    yield checks_of_a_shop
    del sys.modules["checks_of_a_shop"]


def pid_of(workspace: Path) -> int:
    return int((workspace / "starts").read_text().split()[-1])


def click_on(link: str, shown: str) -> str:
    found = re.search(rf'\[(\d+)\] link "{link}"', shown)
    assert found is not None
    return f"click({found[1]})"


def test_each_episode_has_a_server_of_its_own(checks: Any) -> None:
    first, second = (WebEnv(tasks=[{**ROW, "setup": "checks_of_a_shop:log_in"}]) for _ in range(2))
    try:
        # Two at once: another port, the same observation, and orders that the other does not see.
        shown = [env.reset(seed=5)[0] for env in (first, second)]
        assert shown[0] == shown[1]
        for text in ("http://shop.localhost/", "session=ada", "no orders"):
            assert text in shown[0]
        assert "127.0.0.1" not in shown[0]
        (url, seed, _), (other_url, other_seed, _) = checks.setups
        assert url != other_url
        assert seed == other_seed
        assert "no orders" not in first.step(click_on("Order", shown[0]))[0]
        assert second.step("answer()")[1] == 0
        _, reward, terminated, _, _ = first.step("answer()")
        assert (reward, terminated) == (1, True)
        state = checks.states[-1]
        assert [(taken.action.name, taken.url, taken.error) for taken in state.actions] == [
            ("click", "http://shop.localhost/", "")
        ]
        assert state.server_url == url
        assert state.data == ROW["data"]  # with a list, as in the row
        # The next episode begins with an empty shop, and nothing is left of the last one.
        workspace, pid = state.workspace, pid_of(state.workspace)
        assert "no orders" in first.reset(seed=5)[0]
        assert not workspace.exists()
        assert until(lambda: not is_alive(pid))
        # The model cannot reach the server at its own address.
        assert "outside of this task" in first.step(f'goto("{checks.setups[-1][0]}")')[0]
        workspace, pid = checks.states[-1].workspace, pid_of(checks.states[-1].workspace)
    finally:
        first.close()
        second.close()
    assert not workspace.exists()
    assert until(lambda: not is_alive(pid))


def test_a_server_can_be_used_again_if_a_setup_restores_it(checks: Any) -> None:
    server = {**SERVER, "reuse": True}
    rows = [{**ROW, "id": name, "server": server, "setup": "checks_of_a_shop:restore"} for name in "ab"]
    env = checks.env = WebEnv(tasks=rows)
    try:
        pids = []
        for row in "abb":
            shown, _ = env.reset(options={"task": row})
            for text in ("no orders", "a=1", "token </script>"):
                assert text in shown
            pids.append(pid_of(checks.states[-1].workspace))
            shown = env.step(click_on("Order", shown))[0]
            if len(pids) == 2:
                env.step(click_on("Crash", shown))
                assert until(lambda: env._server.has_ended)
        assert pids[0] == pids[1] != pids[2]  # it had ended
    finally:
        env.close()
    assert until(lambda: not is_alive(pids[2]))


def test_a_setup_returns_cookies_and_local_storage_of_the_site(checks: Any) -> None:
    origins = ("http://shop.localhost", "http://pay.localhost")
    token = [{"name": "token", "value": "1"}]
    for state, says in (
        ("a=1", "not a mapping"),
        ({"cookies": [{"name": "a"}]}, "invalid: KeyError: 'value'"),
        ({"cookies": [], "indexedDB": []}, r"the fields of a storage_state are .* not \['indexedDB'\]"),
        ({"origins": [{"origin": origins[0], "sessionStorage": token}]}, r"origins are .* not \['sessionStorage'\]"),
        (
            {"origins": [{"origin": "http://127.0.0.1:8000", "localStorage": token}]},
            "nothing for http://shop.localhost",
        ),
        ({"cookies": [{"name": "a", "value": "1", "domain": "op.localhost"}]}, "nothing for http://shop.localhost"),
        ({"origins": [{"origin": origins[0], "localStorage": [{"name": "a", "value": "x" * 6_000_000}]}]}, "5,242,880"),
    ):
        with pytest.raises(ValueError, match=says):
            read_storage_state(state, origins)
    read = read_storage_state({"origins": [{"origin": f"{origins[1]}/", "localStorage": token}]}, origins)
    assert read.local_storage == {origins[1]: {"token": "1"}}
    row = {**ROW, "url": "http://shop.localhost/till/start", "setup": "checks_of_a_shop:returned"}
    env = WebEnv(tasks=[{**row, "data": {"state": state}, "id": state["a"]} for state in ({"a": "1"}, {"a": "1;2"})])
    try:
        assert "a=1" in env.reset(options={"task": 0})[0]
        assert "a=1" in env.step('goto("/")')[0]  # a cookie by name is for the whole site
        with pytest.raises(EnvironmentFault, match=r"the cookie .*'1;2'.* cannot be set") as raised:
            env.reset(options={"task": 1})
        assert raised.value.kind == "setup"
    finally:
        env.close()


def test_local_storage_of_further_origins_is_set_without_a_request(checks: Any) -> None:
    page = b"<p id=token></p><script>token.textContent = `${localStorage.token} ${document.cookie}`</script>"
    asked: list[tuple[int, str]] = []

    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.server.server_address[1], self.path))
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-security-policy", "script-src 'unsafe-inline'")
            self.send_header("content-length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) for _ in range(3)]
    for server in servers:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    ports = [server.server_address[1] for server in servers]
    first, second, foreign = (f"http://127.0.0.1:{port}" for port in ports)
    stored = [
        {"origin": origin, "localStorage": [{"name": "token", "value": f"token{index}"}]}
        for index, origin in enumerate((first, second, foreign))
    ]
    cookies = [{"name": "a", "value": "1", "domain": "127.0.0.1", "path": "/"}]
    row = {
        "url": f"{first}/start",
        "goal": "Read the token.",
        "origins": [second],
        "setup": "checks_of_a_shop:state_of",
        "infeasible": True,
        "data": {"state": {"cookies": cookies, "origins": stored}},
    }
    env = WebEnv(tasks=[row])
    try:
        assert "token0 a=1" in env.reset()[0]
        assert asked == [(ports[0], "/start")]
        assert "token1 a=1" in env.step(f'goto("{second}/other")')[0]
        assert f"URL: {first}/start" in env.step("back()")[0]
        assert "There is no page to go back to" in env.step("back()")[0]  # as without a storage
        assert asked[1] == (ports[1], "/other")
        assert ports[2] not in {port for port, _ in asked}
    finally:
        env.close()
        for server in servers:
            server.shutdown()
            server.server_close()


def test_a_model_that_ends_the_server_ends_its_episode_unsolved(checks: Any, caplog: pytest.LogCaptureFixture) -> None:
    env = WebEnv(tasks=[ROW])
    try:
        step = env.step(click_on("Crash", env.reset()[0]))
        assert until(lambda: env._server is None or env._server.has_ended)
        observation, reward, terminated, truncated, info = step if step[2] else env.step("wait(1)")
        assert (reward, terminated, truncated, info["stop_reason"]) == (0, True, False, "server_lost")
        assert observation.startswith("The server of this site has ended")
        assert "out of cups" in caplog.text
        assert "no orders" in env.reset()[0]
    finally:
        env.close()


def test_a_server_that_ends_during_the_setup_is_named_as_the_cause(checks: Any) -> None:
    env = checks.env = WebEnv(tasks=[{**ROW, "setup": "checks_of_a_shop:crash"}])
    with pytest.raises(EnvironmentFault, match=r"before the first action: exit status 3.*\nout of cups") as raised:
        env.reset()
    assert raised.value.kind == "server_died"
    env.close()


@pytest.mark.parametrize(
    ("program", "timeout", "says"),
    [
        ("print('no database'); raise SystemExit(4)", 60, "exit status 4; its output ends with:\nno database"),
        (
            "import time; print('connecting', flush=True); time.sleep(600)",
            3,
            r"within timeout=3 s \(status of the last answer: none\): .*127.0.0.1.*\nconnecting",
        ),
    ],
    ids=["ends", "silent"],
)
def test_a_server_that_does_not_start_is_a_fault(program: str, timeout: float, says: str) -> None:
    env = WebEnv(
        tasks=[{**ROW, "check": None, "infeasible": True, "server": {**SERVER, "timeout": timeout}}
               | {"workspace": {"shop.py": program}}]
    )  # fmt: skip
    with pytest.raises(EnvironmentFault, match=says) as raised:
        env.reset()
    assert raised.value.kind == "server_start"
    env.close()


def test_a_missing_program_and_a_cancelled_start_leave_nothing(tmp_path: Path) -> None:
    program = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    mark = tmp_path / "pid"

    async def check() -> None:
        with pytest.raises(EnvironmentFault, match="no-such-program: No such file"):
            await start_server(ServerCommand("no-such-program"), "http://shop.localhost/", 0, {})
        command = ServerCommand("{python}", ("-c", program, str(mark)))
        starting = asyncio.create_task(start_server(command, "http://shop.localhost/", 0, {}))
        assert await asyncio.to_thread(until, lambda: mark.exists() and mark.read_text())
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(check())
    assert until(lambda: not is_alive(int(mark.read_text())))


# It answers, and keeps the connection open.
OPEN_ENDED = """
import socket, sys, time
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
open("starts", "w").write(str(__import__("os").getpid()))
while True:
    connection, _ = listening.accept()
    connection.recv(1000)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\nhello")
    time.sleep(600)
"""


def test_a_server_whose_answer_does_not_end_is_ready_and_ends_when_its_closing_is_cancelled() -> None:
    async def check() -> None:
        command = ServerCommand("{python}", ("-c", OPEN_ENDED, "{port}"))
        server = await start_server(command, "http://shop.localhost/", 0, {"a": b"x"})
        pid = pid_of(server.workspace)
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert await asyncio.to_thread(until, lambda: not is_alive(pid) and not server.workspace.exists())

    asyncio.run(check())


def test_an_unclosed_server_ends_when_it_is_collected() -> None:
    command = ServerCommand("{python}", ("shop.py",), {"PORT": "{port}"})
    server = asyncio.run(start_server(command, "http://shop.localhost/", 0, {"shop.py": SHOP.encode()}))
    pid = pid_of(server.workspace)
    assert is_alive(pid)
    del server
    gc.collect()
    assert until(lambda: not is_alive(pid))


def test_a_server_ends_with_its_process_even_if_that_is_killed() -> None:
    program = f"""
import asyncio, sys, time
from rllm_gym.envs.web.browser.storage_state import read_storage_state
from rllm_gym.envs.web.page_server import ServerCommand, start_server
command = ServerCommand("{{python}}", ("shop.py",), {{"PORT": "{{port}}"}})
server = asyncio.run(start_server(command, "http://shop.localhost/", 0, {{"shop.py": {SHOP.encode()!r}}}))
print((server.workspace / "starts").read_text(), flush=True)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not is_alive(int(ended.stdout))
    assert ended.stderr == ""
    program += "time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        pid = int(trainer.stdout.readline())
        assert is_alive(pid)
        trainer.send_signal(signal.SIGKILL)
    assert until(lambda: not is_alive(pid))


def test_rows_with_an_unusable_server_are_refused() -> None:
    for change, says in (
        ({"server": ["python"]}, "command"),
        ({"server": {**SERVER, "port": 80}}, r"unknown fields \['port'\]"),
        ({"server": {**SERVER, "args": "shop.py"}}, "must be a list"),
        ({"server": {**SERVER, "args": [8000]}}, "8000"),
        ({"server": {**SERVER, "command": ""}}, "command"),
        ({"server": {**SERVER, "env": {"PORT={port}": ""}}}, "names of variables"),
        ({"server": {**SERVER, "args": ["{seed}"], "reuse": True}}, "later episodes have other seeds"),
        ({"server": {**SERVER, "env": {}}}, r"put \{port\}"),
        ({"server": {**SERVER, "timeout": 0}}, "timeout=0"),
        ({"server": {**SERVER, "reuse": "yes"}}, "reuse='yes'"),
        ({"url": "https://shop.localhost/"}, "http://"),
        ({"workspace": {"../a": "x"}}, "relative paths"),
        ({"server": None}, "workspace has no effect"),
    ):
        with pytest.raises(TaskError, match=says):
            read_row({key: value for key, value in (ROW | change).items() if value is not None and key != "id"})
    for key in ("server", "check"):
        row = {"url": "http://shop.localhost/", "goal": "Look.", "infeasible": True, key: ROW[key]}
        with pytest.raises(TaskError, match=f"names a {key}, which runs code"):
            row_to_web_task(row, "from-the-hub", trusted=False)
    assert len(load_tasks([ROW], convert=row_to_web_task)) == 1
    assert read_workspace({"a": "x", "of another row": None}) == {"a": b"x"}  # from a Parquet file
