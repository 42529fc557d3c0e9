"""Rows and templates as tasks: what a row means, what is refused by name, and that tasks are cheap to make."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from rllm_gym.core import EnvironmentFault, Task, TaskError
from rllm_gym.data import load_tasks
from rllm_gym.envs.task_templates import TemplateTaskRow, choose_templates, template_tasks
from rllm_gym.envs.web import WebEnv
from rllm_gym.envs.web.rows import PageRow, read_row, row_to_web_task
from rllm_gym.envs.web.sites import TEMPLATES, WebTaskTemplate
from rllm_gym.envs.web.task_instance import PageTaskInstance

PAGE = {"url": "http://127.0.0.1:8000/shop?x=1", "goal": "Buy a kettle.", "check": "checks:bought"}


def test_a_page_row_reaches_its_own_origin_and_the_named_ones() -> None:
    task = row_to_web_task({**PAGE, "origins": ["HTTPS://Login.Example:443/"], "id": "x", "answer": None}, "x")
    row = read_row(task.data)
    assert isinstance(row, PageRow)
    assert row.origins == ("http://127.0.0.1:8000", "https://login.example")
    assert task.task_id == "x"
    assert "Buy a kettle." in task.content
    again = row_to_web_task(json.loads(json.dumps(task.to_json())), "x")
    assert again == task


def test_a_row_contains_the_files_that_can_be_uploaded() -> None:
    task = row_to_web_task({**PAGE, "files": {"a.txt": "zwölf", "b.bin": {"base64": "AAE="}, "c": None}}, "x")
    assert read_row(json.loads(json.dumps(task.to_json()))["data"]).files == {
        "a.txt": "zwölf".encode(),
        "b.bin": b"\0\1",
    }


def test_a_template_row_is_the_task_that_would_be_sampled() -> None:
    row = {"template": "shop/buy-one", "seed": 7, "difficulty": 2}
    task = row_to_web_task(row, "mine")
    assert read_row(task.data) == TemplateTaskRow("shop/buy-one", 7, 2)
    assert row_to_web_task(task.to_json(), "mine") == task


WRONG = (
    ({"url": None}, "url"),
    ({"url": "file:///etc/passwd"}, "file:"),
    ({"url": "javascript:alert(1)"}, "javascript"),
    ({"url": "http://user:secret@host/"}, "without a user"),
    ({"url": "http://[::1/"}, "Invalid IPv6 URL"),
    ({"goal": "  "}, "goal"),
    ({"goal": "x" * 100_000}, "goal"),
    ({"origins": "http://a.test"}, "list"),
    ({"origins": ["http://a.test/path"]}, "must be only scheme"),
    ({"origins": ["ws://a.test"]}, "ws:"),
    ({"check": "os.system('x')"}, "module:function"),
    ({"check": None}, "cannot be graded"),
    ({"answer": {"type": "number", "value": "many"}}, "many"),
    ({"answer": "12"}, "type"),
    ({"infeasible": "no"}, "true or false"),
    ({"data": [1]}, "object"),
    ({"files": ["a.txt"]}, "files"),
    ({"files": {"../a.txt": "x"}}, "without a folder"),
    ({"files": {"a.txt": 3}}, "a.txt.*base64"),
    ({"files": {"a.png": {"base64": "no!"}}}, "a.png.*base64"),
    ({"files": {"a.txt": "x" * 5_000_001}}, "5000000"),
    ({"chekc": "a:b"}, "chekc"),
    ({"seed": 3}, "seed"),
)


def test_an_invalid_row_is_refused_with_the_name_of_the_field() -> None:
    for change, says in WRONG:
        with pytest.raises(TaskError, match=says):
            load_tasks([PAGE | change], convert=row_to_web_task)


def test_an_impossible_template_row_is_refused() -> None:
    for change in ({"seed": -1}, {"seed": 1.5}, {"difficulty": 6}, {"goal": "x"}):
        with pytest.raises(TaskError):
            read_row({"template": "shop/buy-one", "seed": 1, "difficulty": 1} | change)


def test_a_row_cannot_name_an_arbitrary_function() -> None:
    for name, says in (
        ("os:system", "not a function defined in os"),
        ("json:loads", "does not accept the arguments"),
        ("no_such_module_at_all:f", "cannot be imported"),
        ("json:JSONDecoder", "not a function"),
        ("shutil:nothing", "has no 'nothing'"),
    ):
        with pytest.raises(TaskError, match=says):
            PageTaskInstance(read_row(PAGE | {"check": name}), check_timeout=1)


def test_tasks_are_sampled_without_building_sites() -> None:
    tasks = template_tasks(TEMPLATES, "web", split="train")
    began = time.process_time()
    contents = {tasks[index].content for index in range(7_000)}
    assert time.process_time() - began < 5  # building a site takes milliseconds
    assert len(contents) == 7_000
    assert all(tasks[index].split == "train" for index in range(100))


def test_unknown_templates_and_sites_are_errors_with_their_name() -> None:
    with pytest.raises(TaskError, match=r"shop/nothing.*shop/"):
        choose_templates(TEMPLATES, WebTaskTemplate, "shop/nothing", None, "site")
    with pytest.raises(TaskError, match=r"casino.*shop"):
        choose_templates(TEMPLATES, WebTaskTemplate, None, "casino", "site")
    with pytest.raises(TaskError, match="difficulty"):
        template_tasks(TEMPLATES, "web", difficulty=(2, 1))
    only = choose_templates(TEMPLATES, WebTaskTemplate, None, "shop", "site")
    assert only
    assert all(name.startswith("shop/") for name in only)
    levels = {
        task.data["difficulty"] for task in (template_tasks(only, "web", difficulty=1)[index] for index in range(50))
    }
    assert levels == {1}


def test_a_template_task_of_another_release_is_a_task_error() -> None:
    with pytest.raises(TaskError, match="seed"):
        row_to_web_task(Task("x", "y", {"template": "a", "seed": "b"}).to_json(), "x")


class Session:
    """In place of a browser context."""

    def __init__(self, reachable: bool) -> None:
        self.reachable, self.closed = reachable, 0

    async def goto(self, url: str, cookies: Any) -> None:
        if not self.reachable:
            raise EnvironmentFault(f"{url} cannot be reached", kind="browser")

    async def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("reachable", [False, True])
def test_a_context_is_closed_if_its_episode_cannot_begin(reachable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def shown(self: Any, head: str) -> str:
        return head

    async def broken(self: Any, *arguments: Any) -> None:
        raise EnvironmentFault("the check is broken", kind="check")

    async def open_session(**options: Any) -> Session:
        return session

    monkeypatch.setattr(WebEnv, "_pool", lambda self: SimpleNamespace(open=open_session))
    monkeypatch.setattr(WebEnv, "_shown", shown)
    monkeypatch.setattr(PageTaskInstance, "try_check", broken)
    session, env = Session(reachable), WebEnv(tasks=[PAGE | {"check": f"{__name__}:solved"}])
    with pytest.raises(EnvironmentFault, match="check is broken" if reachable else "cannot be reached"):
        env.reset()
    assert session.closed == 1
    env.close()
    assert session.closed == 1


def solved(page: Any, answer: Any) -> bool:
    return True
