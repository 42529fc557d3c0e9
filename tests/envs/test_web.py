"""rllm/Web-v0 in a real Chromium: what is rewarded and when, and what happens when a page, check or browser breaks."""

from __future__ import annotations

import asyncio
import gc
import http.server
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rllm_gym.core import EnvironmentFault, TaskError
from rllm_gym.envs.web import WebEnv
from rllm_gym.envs.web.browser import shared_pool
from rllm_gym.envs.web.browser.errors import BrowserFault
from rllm_gym.envs.web.demonstrations import play
from rllm_gym.envs.web.sites.http import Handler, Request, Response
from rllm_gym.envs.web.sites.moves import Answer, Click, ReportInfeasible
from rllm_gym.envs.web.sites.task import WebTask, WebTaskTemplate
from tests.browser.browser_processes import browsers
from tests.browser.long_timeouts import require_chromium, use_long_timeouts

require_chromium()


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    use_long_timeouts(monkeypatch)


class Lamps:
    """A site with three lamps that have a switch each, and a guest book."""

    def __init__(self, seed: int) -> None:
        self.on = [bool(seed >> lamp & 1) for lamp in range(3)]
        self.names: list[str] = []

    def handlers(self) -> Mapping[str, Handler]:
        return {"http://lamps.test": self.answer}

    def facts(self) -> Any:
        return {"on": self.on, "names": self.names}

    def answer(self, request: Request) -> Response:
        if request.method == "POST":
            if "lamp" in request.form:
                lamp = int(request.form["lamp"])
                self.on[lamp] = not self.on[lamp]
            else:
                self.names.append(request.form["name"])
            return Response(status=303, headers={"location": "/"})
        if request.path != "/":
            raise RuntimeError("this site is broken")
        lamps = "".join(
            f"<tr><td>Lamp {n}</td><td>{'on' if on else 'off'}</td><td><form method=post>"
            f"<button name=lamp value={n}>Switch</button></form></td></tr>"
            for n, on in enumerate(self.on)
        )
        book = "<form method=post><label>Your name <input name=name></label> <button>Sign</button></form>"
        return Response(f"<title>Lamps</title><table>{lamps}</table>{book}{self.names}<a href=/x>x</a>".encode())


def switch_task(site: Lamps, rng: Any, difficulty: int) -> WebTask:
    return WebTask(
        goal="Switch lamp 1 and change nothing else.",
        start="http://lamps.test/",
        moves=(Click("button", "Switch", "Lamp 1"), Answer("")),
        outcome=lambda expected: expected.on.__setitem__(1, not expected.on[1]),
    )


def count_task(site: Lamps, rng: Any, difficulty: int) -> WebTask:
    return WebTask(
        goal="How many lamps are on?",
        start="http://lamps.test/",
        moves=(Answer(str(sum(site.on))),),
        answer={"type": "number", "value": sum(site.on)},
    )


def infeasible_task(site: Lamps, rng: Any, difficulty: int) -> WebTask:
    return WebTask(
        goal="Switch lamp 9.",
        start="http://lamps.test/",
        moves=(ReportInfeasible("there is no lamp 9"),),
        infeasible=True,
    )


def broken_task(site: Lamps, rng: Any, difficulty: int) -> WebTask:
    raise KeyError("no such lamp")


def nothing_task(site: Lamps, rng: Any, difficulty: int) -> WebTask:
    return WebTask("Look.", "http://lamps.test/", ())


TEMPLATES = [
    WebTaskTemplate(name, lambda seed, difficulty: Lamps(seed), make_task)
    for name, make_task in (
        ("lamps/switch", switch_task),
        ("lamps/count", count_task),
        ("lamps/infeasible", infeasible_task),
        ("lamps/nothing", nothing_task),
        ("lamps/broken", broken_task),
    )
]


def lamps(name: str, **arguments: Any) -> WebEnv:
    return WebEnv(templates=next(one for one in TEMPLATES if one.name == f"lamps/{name}"), **arguments)


@pytest.fixture
def server() -> Iterator[str]:
    """A page on loopback that records the requests it receives."""

    class Pages(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<title>Real</title><h1>A real server</h1><button onclick=\"localStorage.done='1'\">Do it</button>"
            body += b'<button onclick="document.documentElement.remove()">Empty</button>'
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as running:
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of checks as a user writes one."""
    (tmp_path / "web_checks_of_a_user.py").write_text(
        """
import asyncio, threading
over = threading.Event()
seeds = []
def prepare(url, seed, data):
    seeds.append(seed)
    return {"session": f"of {data['word']}"} if url.startswith("http://127") else None
async def prepare_async(url, seed, data):
    return None
def unprepared(url, seed, data):
    raise OSError("no database")
def vague_setup(url, seed, data):
    return {"session": 3}
def logged_in(state, answer):
    return state.evaluate("document.cookie") == "session=of kettle"
def done(state, answer):
    return state.evaluate("localStorage.done") == "1" and answer == state.data["word"]
async def done_async(state, answer):
    await asyncio.sleep(0)
    return "A real server" in state.html and "A real server" in state.text and state.title == "Real" and answer is None
def broken(state, answer):
    return prise
def endless(state, answer):
    over.wait()
    return True
def half_done(state, answer):
    return 0.5, {"word": 0, "click": True}

def vague(state, answer):
    return "yes"
def priced(state, answer):
    return float(answer) == 24.5
def clicked(state, answer):
    if answer == "raise":
        raise KeyError("price")
    if answer == "hang":
        over.wait()
    return "yes" if state.evaluate("localStorage.done") else False
def stored(state, answer):
    return state.evaluate("localStorage.done") is None
def unreadable(state, answer):
    return state.html == ""
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "web_checks_of_a_user"
    if module := sys.modules.pop("web_checks_of_a_user", None):
        module.over.set()


def number_of(env: WebEnv, name: str) -> int:
    return next(number for number, element in env.page.elements.items() if element.name == name)


def test_only_the_solution_is_rewarded_and_not_idling_or_a_side_effect() -> None:
    for name, seed, side_effect in (
        ("switch", 1, Click("button", "Switch", "Lamp 2")),
        ("count", 2, Click("button", "Switch", "Lamp 0")),
        ("infeasible", 3, Click("button", "Sign")),
    ):
        env = lamps(name)
        try:
            env.reset(seed=seed)
            task = env.web_task
            assert play(env, task.moves)[0] == 1, name
            env.reset(seed=seed)
            assert play(env, (*task.moves[:-1], side_effect, task.moves[-1]))[0] == 0, name
            for idle in ("answer()", 'answer("99")', *(["report_infeasible()"] if name != "infeasible" else [])):
                env.reset(seed=seed)
                _, reward, terminated, truncated, info = env.step(idle)
                assert (reward, terminated, truncated, info["stop_reason"]) == (0, True, False, "failure"), (name, idle)
        finally:
            env.close()


def test_the_first_observation_suffices_to_act_and_later_ones_show_only_the_page() -> None:
    env = lamps("switch")
    try:
        first, info = env.reset(seed=0)
        for part in ("Goal: Switch lamp 1", "click(12)", "report_infeasible", "http://lamps.test/", "Lamp 2"):
            assert part in first
        assert '"name": "click"' in info["tools"]
        button = number_of(env, "Sign")
        second = env.step(f"I sign.\n```\nclick({button})\n```")[0]
        assert "Goal: Switch lamp 1" in second
        assert "report_infeasible" not in second
        missing, *_, info = env.step("click(987654)")
        assert "987654" in missing.splitlines()[0]
        assert "987654" in info["action_error"]
        assert not info["invalid_action"]
        refused, *_, info = env.step('goto("file:///etc/hostname")')
        assert info["action_error"]
        assert info["url"] == "http://lamps.test/"
        assert "Lamp 2" in refused
        unreadable, *_, info = env.step("hm")
        assert info["invalid_action"]
        assert info["action_error"] == ""  # that of the turn before
        assert len(unreadable) < 500
    finally:
        env.close()


def test_the_final_state_counts_at_the_turn_limit_if_no_answer_is_asked_for() -> None:
    env = lamps("switch", max_turns=2)
    try:
        env.reset(seed=0)
        env.step("hm")
        switch = [n for n, element in env.page.elements.items() if element.name == "Switch"][1]
        _, reward, terminated, truncated, info = env.step(f"click({switch})")
        assert (reward, terminated, truncated, info["success"]) == (1, True, False, True)
        env.reset(seed=0)
        env.step("wait()")
        _, reward, terminated, truncated, info = env.step("wait()")
        assert (reward, terminated, truncated, info["stop_reason"]) == (0, False, True, "max_turns")
    finally:
        env.close()


def test_a_template_that_accepts_everything_is_refused() -> None:
    env = lamps("nothing")
    with pytest.raises(TaskError, match="lamps/nothing"):
        env.reset(seed=0)


def test_a_template_that_raises_is_a_fault() -> None:
    with pytest.raises(EnvironmentFault, match=r"lamps/broken.*no such lamp") as fault:
        lamps("broken").reset(seed=0)
    assert fault.value.kind == "check"


def test_rows_may_name_templates_of_the_user() -> None:
    env = WebEnv(tasks=[{"template": "lamps/switch", "seed": 5}], templates=TEMPLATES)
    try:
        env.reset()
        assert play(env, env.web_task.moves)[0] == 1
    finally:
        env.close()


def test_a_site_that_raises_is_a_fault_and_the_next_episode_works() -> None:
    env = lamps("switch")
    try:
        env.reset(seed=0)
        with pytest.raises(EnvironmentFault, match="this site is broken"):
            env.step('goto("/x")')
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step("wait()")
        assert "Lamp 1" in env.reset(seed=0)[0]
    finally:
        env.close()


def test_rows_of_the_user_are_graded_by_their_checks(server: str, checks: str) -> None:
    page = {"url": server, "goal": "Do it and say kettle."}
    rows = [
        {**page, "check": f"{checks}:done", "data": {"word": "kettle"}},
        {**page, "check": f"{checks}:done_async"},
        {**page, "answer": {"type": "number", "value": 12.5}},
        {**page, "infeasible": True},
        {**page, "check": f"{checks}:half_done"},
    ]
    env = gymnasium.make("rllm/Web-v0", tasks=rows, max_turns=2).unwrapped
    try:
        env.reset(options={"task": 0})
        env.step(f"click({number_of(env, 'Do it')})")
        assert env.step('answer("kettle")')[1] == 1
        env.reset(options={"task": 0})
        assert env.step('answer("kettle")')[1] == 0  # a new episode has nothing of the last one's storage
        env.reset(options={"task": 1})
        env.step("wait()")
        assert env.step("wait()")[1:3] == (1, True)
        env.reset(options={"task": 2})
        assert env.step('answer("$12.50")')[1] == 1
        env.reset(options={"task": 3})
        assert env.step('answer("no")')[1] == 0
        env.reset(options={"task": 3})
        assert env.step("report_infeasible()")[1] == 1
        assert env.reset(options={"task": 4})[1]["check_components"] == {}
        _, reward, terminated, _, info = env.step("answer()")
        assert (reward, terminated, info["success"]) == (0.5, True, False)
        assert info["check_components"] == {"word": 0.0, "click": 1.0}
    finally:
        env.close()


def test_a_setup_prepares_the_server_and_logs_in(server: str, checks: str) -> None:
    page = {"url": server, "goal": "Look.", "check": f"{checks}:logged_in", "data": {"word": "kettle"}}
    for setup, fault, reward in (
        ("prepare", "", 1),
        ("prepare_async", "", 0),
        ("unprepared", "OSError: no database", 0),
        ("vague_setup", "cookies by name", 0),
    ):
        env = WebEnv(tasks=[{**page, "setup": f"{checks}:{setup}"}])
        try:
            if fault:
                with pytest.raises(EnvironmentFault, match=fault) as raised:
                    env.reset(seed=0)
                assert raised.value.kind == "setup"
                continue
            for _ in range(2):
                env.reset(seed=5)
                assert env.step("answer()")[1] == reward
        finally:
            env.close()
    first, second = sys.modules[checks].seeds
    assert first == second
    with pytest.raises(TaskError, match=r"setup is 'os\.system'"):
        WebEnv(tasks=[{**page, "setup": "os.system"}])


@pytest.mark.parametrize(
    ("check", "says", "seconds"),
    [
        ("broken", "NameError: name 'prise'", 120.0),
        # It waits until this test ends: a check that blocked the event loop could never be cancelled.
        ("endless", "0.5 s", 0.5),
        ("vague", "'yes'.*True, False, a number", 120.0),
    ],
)
def test_a_check_that_is_broken_is_a_fault_before_the_first_action(
    server: str, checks: str, check: str, says: str, seconds: float
) -> None:
    async def run_check() -> None:
        row = {"id": "kettle", "url": server, "goal": "x", "check": f"{checks}:{check}"}
        env = WebEnv(tasks=[row], check_timeout=seconds)
        try:
            with pytest.raises(EnvironmentFault, match=f"(?s)task 'kettle'.*{check}.*{says}") as fault:
                await env.async_reset()
            assert fault.value.kind == "check"
        finally:
            await env.async_close()

    asyncio.run(run_check())


def test_a_model_cannot_make_a_check_a_fault(server: str, checks: str, caplog: pytest.LogCaptureFixture) -> None:
    """Else it could discard every episode that it is about to lose."""
    page = {"url": server, "goal": "x"}
    for check, action, end, seconds, says in (
        ("stored", "new_tab()", "answer()", 120.0, "SecurityError"),
        ("clicked", "click({})", 'answer("raise")', 120.0, "KeyError: 'price'"),
        ("clicked", "click({})", 'answer("hang")', 0.5, "0.5 s"),
        ("clicked", "click({})", "answer()", 120.0, "'yes'"),
        ("clicked", None, 'answer("raise")', 120.0, "KeyError: 'price'"),
        ("priced", None, 'answer("cheap")', 120.0, "could not convert"),
        ("priced", None, "wait()", 120.0, "float"),
    ):
        env = WebEnv(tasks=[{**page, "check": f"{checks}:{check}"}], check_timeout=120.0, max_turns=2 if action else 1)
        try:
            env.reset(seed=0)
            env._instance._timeout = seconds  # not before: the check also runs at reset
            if action:
                env.step(action.format(number_of(env, "Do it")))
            caplog.clear()
            _, reward, terminated, truncated, info = env.step(end)
            assert (reward, terminated or truncated, info["success"]) == (0, True, False), check
            assert f"the check {check} " in caplog.text
            assert says in caplog.text
            assert says in info["check_error"]
        finally:
            env.close()
    env = WebEnv(tasks=[{**page, "check": f"{checks}:unreadable"}])
    try:
        env.reset(seed=0)
        env.step(f"click({number_of(env, 'Empty')})")
        assert env.step("answer()")[1] == 1  # a page without a root element has no markup, and is graded as well
        env.reset(seed=0)
        env.step(f"click({number_of(env, 'Do it')})")
        for process in browsers():
            process.kill()
        with pytest.raises(EnvironmentFault) as fault:
            env.step("answer()")
        assert fault.value.kind == "browser_died"
    finally:
        env.close()


def test_a_missing_check_is_a_task_error(server: str) -> None:
    env = WebEnv(tasks=[{"url": server, "goal": "x", "check": "no_such_module:f", "id": "mine"}])
    with pytest.raises(TaskError, match=r"mine.*no_such_module"):
        env.reset()


def test_observations_contain_screenshots_of_the_viewport() -> None:
    pytest.importorskip("PIL", reason="screenshots need Pillow")
    env = lamps("switch", observation_mode="both", viewport=(320, 200))
    try:
        observation, _ = env.reset(seed=0)
        assert observation in env.observation_space
        assert observation["image"].shape == (200, 320, 3)
        assert "mouse_click" in observation["text"]
        kept = observation["image"].copy()
        switch = next(n for n, element in env.page.elements.items() if element.name == "Switch")
        later, *_ = env.step(f"click({switch})")
        assert later in env.observation_space
        assert not np.array_equal(later["image"], kept)
        assert np.array_equal(observation["image"], kept)  # an observation that was returned does not change
    finally:
        env.close()
    alone = lamps("switch", observation_mode="screenshot", viewport=(320, 200))
    try:
        text = alone.reset(seed=0)[0]["text"]
        assert 'button "Switch"' in text
        assert "URL: http://lamps.test/" in text
        assert 'Lamp 1"' not in text  # the picture shows it
    finally:
        alone.close()
    rendered = lamps("switch", render_mode="rgb_array", viewport=(320, 200))
    try:
        assert isinstance(rendered.reset(seed=0)[0], str)
        assert rendered.render().shape == (200, 320, 3)
    finally:
        rendered.close()


class Locating:
    """A site with a button in a frame, a drawing, and a dialog."""

    inner = "<body style='margin:0'><button style='margin:0;position:absolute;left:7px;top:5px'>In</button>"
    page = f"""<body style="margin:0"><svg width=200 height=90><line x1=10 y1=20 x2=110 y2=70 stroke=red />
    <line x1=150 y1=76 x2=150 y2=88 stroke=cyan onclick="0" /></svg>
    <iframe srcdoc="{inner}" style="position:absolute;left:50px;top:100px;border:3px solid"></iframe>
    <button style="position:absolute;left:10px;top:110px" onclick="answer = confirm('Sure?')">Ask</button>"""

    def handlers(self) -> dict[str, Any]:
        return {"http://located.test": lambda request: Response(self.page.encode())}

    def facts(self) -> Any:
        return 0


LOCATING = WebTaskTemplate(
    "located/in-frame",
    lambda seed, difficulty: Locating(),
    lambda state, rng, difficulty: WebTask(
        "Answer yes.", "http://located.test/", (), answer={"type": "string", "value": "yes"}, files={"a.txt": b"x"}
    ),
)


def test_boxes_and_marks_locate_the_elements() -> None:
    pytest.importorskip("PIL", reason="screenshots need Pillow")
    env = WebEnv(templates=[LOCATING], boxes=True, observation_mode="both", viewport=(320, 200))
    try:
        observation, info = env.reset(seed=0)
        boxes, plain = json.loads(info["boxes"]), observation["image"]
        inside, ask = number_of(env, "In"), number_of(env, "Ask")
        # 50 px to the frame, 3 px border, 7 px in it.
        assert boxes[str(inside)][:2] == [60, 108]
        assert f'button "Ask" box="10,110 {boxes[str(ask)][2]}x{boxes[str(ask)][3]}"' in observation["text"]
        assert 'line box="10,20 100x50" stroke="rgb(255, 0, 0)" points="10,20 110,70"' in observation["text"]
        for said in ("mouse_move", "drag_to", "upload_file", 'Files that can be uploaded: "a.txt"'):
            assert said in observation["text"], said
        assert env.page.elements[inside].box == tuple(boxes[str(inside)])
    finally:
        env.close()
    marked = WebEnv(templates=[LOCATING], marks=True, observation_mode="both", viewport=(320, 200))
    try:
        observation, info = marked.reset(seed=0)
        assert "boxes" not in info
        assert 'button "Ask" box' not in observation["text"]
        assert observation in marked.observation_space
        left, top, width, _ = boxes[str(ask)]
        thin = (slice(76, 88), 150)  # a vertical line, which has no width
        assert not np.array_equal(observation["image"][thin], plain[thin])
        edge = observation["image"][top, left : left + width]
        assert not np.array_equal(edge, plain[top, left : left + width])
        assert np.array_equal(observation["image"][:60], plain[:60])  # nothing is drawn where no element is
        image = marked.step(f"click({number_of(marked, 'Ask')})")[0]["image"]
        # While the dialog is open there is no new picture, and the episode can still be ended and graded.
        assert image.shape == (200, 320, 3)
        assert 'Dialog (confirm): "Sure?"' in marked.page.text
        assert marked.step("answer('yes')")[1] == 1
    finally:
        marked.close()


def test_a_page_is_truncated_to_the_stated_bound() -> None:
    env = lamps("switch", max_observation_chars=4_000)
    try:
        first, _ = env.reset(seed=0)
        assert len(first) <= 4_000
        env.step(f'fill({number_of(env, "Your name")}, "{"x" * 20_000}")')
        long, *_ = env.step(f"click({number_of(env, 'Sign')})")
        assert len(long) <= 4_000
        assert "left out" in long
    finally:
        env.close()
    with pytest.raises(TaskError, match="max_observation_chars"):
        lamps("switch", max_observation_chars=500).reset(seed=0)


def test_concurrent_episodes_do_not_share_state() -> None:
    def states(env: WebEnv) -> list[str]:
        return re.findall(r'"Lamp \d" \| "(on|off)"', env.page.text)

    async def one(seed: int) -> tuple[float, int]:
        env = lamps("switch")
        await env.async_reset(seed=seed)
        before = states(env)
        switch = [n for n, element in env.page.elements.items() if element.name == "Switch"][1]
        await env.async_step(f"click({switch})")
        after = states(env)
        assert len(after) == 3
        reward = (await env.async_step("answer()"))[1]
        await env.async_close()
        return reward, [a != b for a, b in zip(before, after, strict=True)].count(True)

    async def run_all() -> list[tuple[float, int]]:
        return await asyncio.gather(*(one(seed) for seed in range(6)))

    assert asyncio.run(run_all()) == [(1, 1)] * 6


def test_a_browser_that_is_killed_is_a_fault_and_the_next_reset_works() -> None:
    env = lamps("switch")
    try:
        env.reset(seed=0)
        running = browsers()
        assert running
        for process in running:
            process.kill()
        with pytest.raises(EnvironmentFault) as fault:
            env.step("wait()")
        assert fault.value.kind == "browser_died"
        env.reset(seed=0)
        assert play(env, env.web_task.moves)[0] == 1
    finally:
        env.close()


def test_a_fork_cannot_continue_the_episode_but_can_start_one() -> None:
    env = lamps("switch")
    env.reset(seed=0)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(280)  # the step waited for ever
            with pytest.raises(EnvironmentFault, match="fork"):
                env.step("wait()")
            env.reset(seed=0)
            status = 0 if play(env, env.web_task.moves)[0] == 1 else 1
            env.close()
            shared_pool().close()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert play(env, env.web_task.moves)[0] == 1
    env.close()


def test_an_unreferenced_environment_releases_its_page() -> None:
    env = lamps("switch")
    env.reset(seed=0)
    session = env._session
    assert session is not None
    finalizer = session._finalizer
    del env, session
    gc.collect()
    assert not finalizer.alive


def test_invalid_arguments_are_errors_with_their_name() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"observation_mode": "pixels"}, "pixels"),
        ({"viewport": (0, 100)}, "viewport"),
        ({"viewport": "large"}, "large"),
        ({"executable": "/no/such/chromium"}, "no/such/chromium"),
        ({"check_timeout": 0}, "check_timeout"),
        ({"marks": True}, "marks=True.*observation_mode"),
        ({"boxes": 1}, "boxes=1"),
        ({"num_tasks": 0}, "num_tasks"),
        ({"sites": "shop", "tasks": [{"url": "http://a.test", "goal": "x", "infeasible": True}]}, "sites"),
    ]
    for arguments, says in cases:
        with pytest.raises((ValueError, BrowserFault), match=says):
            WebEnv(**arguments)
