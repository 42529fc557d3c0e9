"""``get_state``, ``set_state`` and ``fork`` of web environments, in a real Chromium: a copy goes on as the original."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from rllm_gym.core import EnvironmentFault
from rllm_gym.envs import miniwob_tasks
from rllm_gym.envs.web import MiniWoBEnv, WebEnv
from rllm_gym.envs.web.demonstrations import play, reply_for
from rllm_gym.envs.web.sites.http import Handler, Request, Response
from rllm_gym.envs.web.sites.moves import Answer, Click, Fill
from rllm_gym.envs.web.sites.task import WebTask, WebTaskTemplate
from tests.browser.long_timeouts import require_chromium, use_long_timeouts

require_chromium()

PAGE = """<title>Notes</title><ul>{notes}</ul>
<form method=post><label>Note <input name=note></label><label><input type=checkbox name=big> big</label>
<button>Save</button></form>
<button onclick="localStorage.n = 1 + Number(localStorage.n ?? 0); document.cookie = 'n=' + localStorage.n;
  more.append(localStorage.n + ' ' + document.cookie)">Count</button>
<button onclick="more.append(confirm('Sure?') ? ' yes' : ' no')">Ask</button>
<button onclick="sessionStorage.mark = 'here'; location.hash = 'marked'">Mark</button>
<button onclick="more.append(sessionStorage.mark + location.hash)">Read</button><p id=more></p>"""


class Notes:
    """A site whose page has fields, storage, a dialog, and state of its scripts."""

    def __init__(self, seed: int) -> None:
        self.notes: list[str] = []
        self.visits = 0

    def handlers(self) -> Mapping[str, Handler]:
        return {"http://notes.test": self.answer}

    def facts(self) -> Any:
        return self.notes

    def answer(self, request: Request) -> Response:
        if request.method == "POST":
            self.notes.append(request.form["note"] + " big" * ("big" in request.form))
            return Response(status=303, headers={"location": "/"})
        self.visits += 1
        items = "".join(f"<li>{note}" for note in [f"{self.visits} visits", *self.notes])
        return Response(PAGE.format(notes=items).encode())


def note_task(site: Notes, rng: Any, difficulty: int) -> WebTask:
    return WebTask(
        "Note: milk, in big.", "http://notes.test/", (Answer(""),), outcome=lambda site: site.notes.append("milk big")
    )


TEMPLATE = WebTaskTemplate("notes/add", lambda seed, difficulty: Notes(seed), note_task)


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    use_long_timeouts(monkeypatch)


@pytest.fixture
def opened() -> Iterator[Any]:
    """Makes environments that are closed after the test."""
    with ExitStack() as stack:

        def add(env: Any) -> Any:
            stack.callback(env.close)
            return env

        yield add


def do(env: Any, *moves: Any) -> Any:
    """Make moves, or replies, and return what the last step returned."""
    for move in moves:
        result = env.step(move if isinstance(move, str) else reply_for(move, env.page))
        assert not result[-1]["action_error"]
        assert not result[-1]["invalid_action"]
    return result


def same(one: Any, other: Any) -> bool:
    return one.page.text == other.page.text and one.get_state() == other.get_state()


def test_a_fork_has_the_fields_storage_history_tabs_and_state_of_scripts(opened: Any) -> None:
    env = opened(WebEnv(templates=TEMPLATE))
    env.reset(seed=0)
    do(env, Click("button", "Count"), Click("button", "Count"), Click("button", "Mark"), Fill("Note", "milk"))
    do(env, 'new_tab("/other")', "switch_tab(0)", Click("checkbox", "big"))
    fork = opened(env.fork())
    assert same(env, fork)
    assert 'textbox "Note" value="milk"' in fork.page.text
    assert "2 n=2" in fork.page.text
    for one in (env, fork):
        assert "here#marked" in do(one, Click("button", "Read"))[0]
        assert do(one, Click("button", "Save"), 'answer("")')[1] == 1.0


def test_copies_are_independent(opened: Any) -> None:
    env = opened(WebEnv(templates=TEMPLATE))
    env.reset(seed=0)
    do(env, Fill("Note", "milk"), Click("checkbox", "big"))
    saved = env.get_state()
    fork = opened(env.fork())
    assert do(env, Click("button", "Save"), 'answer("")')[1] == 1.0
    assert do(fork, 'answer("")')[1] == 0.0
    env.set_state(saved)
    assert do(env, 'answer("")')[1] == 0.0
    other = opened(WebEnv(templates=TEMPLATE))
    other.set_state(saved)
    assert do(other, Click("button", "Save"), 'answer("")')[1] == 1.0


def test_a_dialog_that_waits_is_copied(opened: Any) -> None:
    env = opened(WebEnv(templates=TEMPLATE))
    env.reset(seed=0)
    do(env, Click("button", "Ask"))
    fork = opened(env.fork())
    assert fork.page.is_dialog
    assert '"yes"' in do(fork, 'handle_dialog("accept")')[0]
    assert '"no"' in do(env, 'handle_dialog("dismiss")')[0]


def test_a_state_that_is_no_state_or_of_another_page_is_an_error(opened: Any) -> None:
    env = opened(WebEnv(templates=TEMPLATE))
    env.reset(seed=0)
    do(env, Fill("Note", "milk"))
    saved = json.loads(env.get_state())
    for change in ({"actions": [{"name": "nothing"}]}, {"actions": [{}]}, {"actions": [{"name": "click", "no": 1}]}):
        with pytest.raises(ValueError, match="corrupt"):
            env.set_state(json.dumps(saved | {"env_state": saved["env_state"] | change}).encode())
    with pytest.raises(EnvironmentFault, match="lead to another page") as fault:
        env.set_state(json.dumps(saved | {"env_state": saved["env_state"] | {"actions": []}}).encode())
    assert fault.value.kind == "restore"
    env.reset(seed=0)


def test_the_state_after_the_end_is_over(opened: Any) -> None:
    env = opened(WebEnv(templates=TEMPLATE, max_turns=2))
    env.reset(seed=0)
    do(env, Fill("Note", "milk"), Click("button", "Save"))
    fork = opened(env.fork())
    assert fork.get_state() == env.get_state()
    with pytest.raises(Exception, match="the episode is over"):
        fork.step("wait()")


def test_a_site_of_the_package_is_copied_in_the_middle_of_its_solution(opened: Any) -> None:
    env = opened(WebEnv(templates="shop/buy", difficulty=1))
    env.reset(seed=0)
    moves = env.web_task.moves
    play(env, moves[: len(moves) // 2])
    fork = opened(env.fork())
    assert same(env, fork)
    for one in (fork, env):
        assert play(one, moves[len(moves) // 2 :])[0] == 1.0


def test_the_state_of_a_users_server_cannot_be_copied(opened: Any, tmp_path: Any) -> None:
    (tmp_path / "index.html").write_text("<p>here")
    server = {"command": "{python}", "args": ["-m", "http.server", "-d", str(tmp_path), "-b", "127.0.0.1", "{port}"]}
    row = {"url": "http://a.localhost/", "goal": "Look.", "infeasible": True, "server": server}
    env = opened(WebEnv(tasks=[row]))
    env.reset(seed=0)
    with pytest.raises(NotImplementedError, match="user-provided server"):
        env.get_state()


@pytest.mark.skipif(not miniwob_tasks(), reason="the MiniWoB++ pages are not installed")
def test_a_task_of_miniwob_is_copied(opened: Any) -> None:
    env = opened(MiniWoBEnv(task="click-checkboxes"))
    env.reset(seed=3)
    wanted = [
        element for element in env.page.elements.values() if element.role == "checkbox" and element.name in env.goal
    ]
    do(env, *(f"check({element.number})" for element in wanted[:1]))
    fork = opened(env.fork())
    assert same(env, fork)
    for one in (fork, env):
        assert do(one, *(f"check({element.number})" for element in wanted[1:]), Click("button", "Submit"))[1] == 1.0
