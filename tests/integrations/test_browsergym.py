"""BrowserGym's tasks as ours, and ours as BrowserGym's, played in a real Chromium, and closed to hostile replies."""

from __future__ import annotations

import http.server
import os
import re
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("browsergym.core", reason="not installed (tests/integrations/requirements/browsergym.txt)")
import browsergym.core.env
import gymnasium
import psutil
from browsergym.core.action.highlevel import HighLevelActionSet
from browsergym.experiments import EnvArgs
from browsergym.utils.obs import flatten_axtree_to_str

import rllm_gym  # noqa: F401 - registers the ids
from rllm_gym.core import EnvironmentFault, Task, TaskError
from rllm_gym.envs.web.sites.moves import Answer, Click, Fill, Goto, Move, ReportInfeasible, Select
from rllm_gym.integrations.browsergym import env as ours
from rllm_gym.integrations.browsergym.session import ChatLog, with_action_timeout
from rllm_gym.integrations.browsergym.tasks import register_tasks
from rllm_gym.testing import check_text_env
from tests.waiting import until

ID = "rllm/BrowserGym-v0"
FAST = {"slow_mo": 0, "timeout": 60_000}


def make(task: Any = "miniwob.click-button", **arguments: Any) -> Any:
    return gymnasium.make(ID, task=task, config=FAST, **arguments)


@pytest.fixture(scope="module")
def button() -> Iterator[Any]:
    env = make()
    yield env
    env.close()


def solution(observation: str) -> str:
    """Return the action that solves ``miniwob.click-button``."""
    name = re.search(r'Click on the "(.*)" button', observation)[1]
    bid = re.search(rf"\[(\w+)\] button {re.escape(repr(name))}", observation)[1]
    return f'I press it.\n```\nclick("{bid}")\n```'


# BrowserGym's tasks as environments


def test_a_task_is_solved(button: Any) -> None:
    observation, info = button.reset(seed=1)
    assert observation.startswith("Goal: Click on the")
    assert "fill(bid: str, value: str" in observation
    assert "upload" not in observation
    assert "click-button.html" in info["url"]
    _, reward, terminated, truncated, info = button.step("```\nnoop(1)\n```")
    assert (reward, terminated, truncated, info["action_error"]) == (0.0, False, False, "")
    _, reward, terminated, truncated, info = button.step(solution(observation))
    assert (reward, terminated, truncated, info["success"]) == (1.0, True, False, True)


def test_the_same_seed_gives_the_same_page(button: Any) -> None:
    first, other, again = (button.reset(seed=seed)[0] for seed in (1, 2, 1))
    assert first == again != other


NO_ACTIONS = [
    ("goto('javascript:core.endEpisode(1,false)')", "only http:// and https://"),
    ("goto(' java\\nscript:core.endEpisode(1,false)')", "only http:// and https://"),
    ("goto('file:///etc/passwd')", "only http:// and https://"),
    ("upload_file('13', '/etc/passwd')", "There is no action"),
    ("mouse_upload_file(1, 2, '/etc/passwd')", "There is no action"),
    ("__import__('os')", "There is no action"),
    ("click()", "missing a required argument"),
    ("click('1', nothing='left')", "unexpected keyword"),
    ("scroll('nan', 0)", "not a number"),
    ("noop(1e9)", "at most"),
    ("noop(page.close())", "no number"),
    ("click('1'); click('2')", "more than one"),
    ("I am done.", "no action"),
]


def test_replies_that_are_no_action_change_nothing(button: Any) -> None:
    goal = button.reset(seed=1)[0]
    for reply, message in NO_ACTIONS:
        observation, reward, terminated, _, info = button.step(reply)
        assert message in observation
        assert (reward, terminated, info["invalid_action"]) == (0.0, False, True)
    assert button.step(solution(goal))[1] == 1.0


def test_text_of_a_reply_is_never_code(button: Any, tmp_path: Any) -> None:
    """BrowserGym executes actions as Python; the call is written from checked literals."""
    goal = button.reset(seed=1)[0]
    mark = tmp_path / "mark"
    hostile = f'\\"\\\'); open({str(mark)!r}, \\"w\\") #'
    _, reward, terminated, _, info = button.step(f'fill("999", "{hostile}")')
    assert (reward, terminated, info["invalid_action"]) == (0.0, False, False)
    assert 'Could not find element with bid "999"' in info["action_error"]
    assert not mark.exists()
    assert button.step(solution(goal))[1] == 1.0


def test_tool_calls_and_numbers_are_accepted(button: Any) -> None:
    bid = re.search(r'click\("(\w+)"\)', solution(button.reset(seed=3)[0]))[1]
    call = f'<tool_call>{{"name": "click", "arguments": {{"bid": {bid}}}}}</tool_call>'
    assert button.step(call)[1] == 1.0


def test_reporting_that_a_task_is_infeasible_ends_it(button: Any) -> None:
    button.reset(seed=1)
    _, reward, terminated, _, info = button.step("report_infeasible('no')")
    assert (reward, terminated, info["success"]) == (0.0, True, False)


def test_a_list_of_tasks_is_played_once_each() -> None:
    names = ["miniwob.click-test", "miniwob.click-button"]
    env = make(names)
    assert [task.task_id for task in env.unwrapped.tasks] == names
    for index, name in enumerate(names):
        assert name.removeprefix("miniwob.") in env.reset(seed=0, options={"task": index})[1]["url"]
    with pytest.raises(TaskError, match=r"miniwob\.click-test"):
        env.reset(options={"task": Task("x", "x", {"name": 3})})
    env.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"task": "miniwob.click-buton"}, "similar names: miniwob.click-button"),
        ({"task": "webarena.1"}, "pip install browsergym-webarena"),
        ({"task": "nothing"}, "no task 'nothing'"),
        ({"task": "../os"}, "must be the name of a task"),
        ({"config": {"action_mapping": None}}, "sets itself"),
        ({"config": {"a": object()}}, "JSON types"),
        ({"actions": ["nothing"]}, "nothing"),
    ],
)
def test_invalid_arguments_are_errors_that_name_them(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        gymnasium.make(ID, **arguments)


@pytest.fixture
def page() -> Iterator[Any]:
    """A server of one page; set ``page.html``."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(server.html.encode())

        def log_message(self, *_: Any) -> None:
            pass

    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def open_ended(url: str) -> Any:
    return gymnasium.make(ID, task="openended", config={"task_kwargs": {"start_url": url, "goal": "Look."}, **FAST})


def test_a_page_that_hangs_after_an_action_ends_the_episode_without_reward(
    page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    page.html = '<button onclick="while (true);">go</button>'
    env = open_ended(page.url)
    bid = re.search(r"\[(\w+)\] button 'go'", env.reset(seed=0)[0])[1]
    monkeypatch.setattr(ours, "STEP_SECONDS", 15.0)
    observation, reward, terminated, _, info = env.step(f'click("{bid}")')
    assert (reward, terminated, info["stop_reason"]) == (0.0, True, "server_lost")
    assert "has ended" in observation
    monkeypatch.undo()
    page.html = "<p>well"
    assert "well" in env.reset(seed=0)[0]
    env.close()


def test_a_browser_or_worker_that_is_killed_is_a_fault(page: Any) -> None:
    page.html = "<p>here"
    env = open_ended(page.url)
    for part in ("worker", "browser"):
        env.reset(seed=0)
        worker = psutil.Process(env.unwrapped._actor.pid)
        browser = next(child for child in worker.children(recursive=True) if "--headless" in " ".join(child.cmdline()))
        (worker if part == "worker" else browser).send_signal(signal.SIGKILL)
        assert until(lambda killed=browser: not killed.is_running() or killed.status() == psutil.STATUS_ZOMBIE)
        with pytest.raises(EnvironmentFault):
            env.step("press('1', 'a')")
    env.close()


def test_a_site_that_cannot_be_reached_is_a_fault() -> None:
    env = open_ended("http://127.0.0.1:9/")
    with pytest.raises(EnvironmentFault, match="ERR_"):
        env.reset(seed=0)
    env.close()


def test_everything_ends_with_the_environment() -> None:
    env = make()
    env.reset(seed=0)
    worker = psutil.Process(env.unwrapped._actor.pid)
    processes = [worker, *worker.children(recursive=True)]
    assert len(processes) > 2
    env.close()
    assert until(lambda: not any(os.path.exists(f"/proc/{process.pid}") for process in processes))


@pytest.mark.long
def test_check_text_env_passes() -> None:
    report = check_text_env(make, fuzz=5, deadline=600.0)
    assert report.ok, str(report)


# Our tasks in BrowserGym


def patient_code(action: str) -> str:
    return with_action_timeout(HighLevelActionSet().to_python_code(action))


@pytest.fixture
def gym_env(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes BrowserGym's own environments, without its chat window, which needs a browser of Playwright's."""
    monkeypatch.setattr(browsergym.core.env, "Chat", ChatLog)
    created = []

    def make(task: str, seed: int, **arguments: Any) -> Any:
        arguments = {"disable_env_checker": True, "action_mapping": patient_code} | arguments
        created.append(gymnasium.make(f"browsergym/{task}", **arguments))
        return created[-1], created[-1].reset(seed=seed)[0]

    yield make
    for env in created:
        env.close()


def action_for(move: Move, observation: dict[str, Any]) -> str:
    """Return BrowserGym's action for a move of a reference solution."""
    tree = flatten_axtree_to_str(observation["axtree_object"])

    def bid(roles: str, name: str) -> str:
        return re.search(rf"\[(\w+)\] (?:{roles}) {re.escape(repr(name))}", tree)[1]

    match move:
        case Click(role, name):
            return f"click({bid(role, name)!r})"
        case Fill(name, text):
            return f"fill({bid('textbox|searchbox|spinbutton', name)!r}, {text!r})"
        case Select(name, option):
            return f"select_option({bid('combobox|listbox', name)!r}, {option!r})"
        case Goto(url):
            return f"goto({url!r})"
        case Answer(text):
            return f"send_msg_to_user({text!r})"
        case ReportInfeasible(reason):
            return f"report_infeasible({reason!r})"
    raise AssertionError(move)


@pytest.mark.parametrize("task", ["rllm.shop.buy", "rllm.wiki.fact", "rllm.admin.mark-paid"])
def test_reference_solutions_are_solved_in_browsergym(gym_env: Any, task: str) -> None:
    """Forms that are answered with a redirect, questions, and the browser's dialogs (``mark-paid``)."""
    assert f"browsergym/{task}" in register_tasks()
    env, observation = gym_env(task, 3)
    moves = env.unwrapped.task._instance.task.moves
    for index, move in enumerate(moves):
        observation, reward, terminated, _, _ = env.step(action_for(move, observation))
        assert observation["last_action_error"] == ""
        assert terminated == (index == len(moves) - 1)
    assert reward == 1.0


def test_wrong_answers_get_nothing_and_nothing_else_is_reached(gym_env: Any, page: Any) -> None:
    register_tasks(sites="shop")
    page.html = "secret"
    env, observation = gym_env("rllm.shop.count", 1, task_kwargs={"difficulty": 2})
    observation = env.step(f"goto({page.url!r})")[0]
    assert observation["last_action_error"]
    assert observation["url"].startswith("http://shop.test")
    _, reward, terminated, _, _ = env.step("send_msg_to_user('-1')")
    assert (reward, terminated) == (0.0, True)


def test_the_environment_that_agentlab_makes(gym_env: Any, tmp_path: Any) -> None:
    register_tasks(templates="shop/buy")
    arguments = EnvArgs(task_name="rllm.shop.buy", task_seed=3, max_steps=5, slow_mo=0)
    env = arguments.make_env(action_mapping=HighLevelActionSet().to_python_code, exp_dir=tmp_path)
    observation, _ = env.reset(seed=arguments.task_seed)
    assert observation["url"] == "http://shop.test/"
    assert "Place one order" in observation["goal"]
    env.close()


def test_our_tasks_in_browsergym_are_also_tasks_of_ours() -> None:
    env = gymnasium.make(ID, task="rllm.shop.count", config=FAST)
    assert "shop.test" in env.reset(seed=0)[1]["url"]
    assert env.step("send_msg_to_user('-1')")[1:3] == (0.0, True)
    env.close()
