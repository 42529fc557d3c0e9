"""MiniWoB++ in a real Chromium: every task starts and runs, scripts solve some, no action forges a reward."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import pytest

from rllm_gym.core import SPLITS, TaskError
from rllm_gym.envs import MINIWOB, miniwob_folder, miniwob_tasks
from rllm_gym.envs.web import MiniWoBEnv
from rllm_gym.envs.web.miniwob import site
from rllm_gym.envs.web.sites.http import Request
from tests.browser.long_timeouts import require_chromium, use_long_timeouts

if not miniwob_tasks():
    pytest.skip("the MiniWoB++ pages are not installed: pip install 'rllm-gym[miniwob]'", allow_module_level=True)
require_chromium()


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    use_long_timeouts(monkeypatch, keep_changes_deadline=True)


def named(env: MiniWoBEnv, name: str = "", *roles: str, nth: int = 0) -> int:
    """Return the number of the nth element with this name and role, where given."""
    fitting = [
        number
        for number, element in env.page.elements.items()
        if (not name or element.name.lower() == name.lower()) and (not roles or element.role in roles)
    ]
    return fitting[nth]


def test_ending_the_episode_without_solving_the_task_is_not_rewarded() -> None:
    env = MiniWoBEnv(task="click-test")
    try:
        env.reset(seed=0)
        _, reward, terminated, _, info = env.step("answer()")
        assert (reward, terminated, info["success"]) == (0, True, False)
    finally:
        env.close()


MOVING = ("chase-circle", "moving-items", "simon-says", "stock-market", "terminal")
"""Pages that change by themselves: a seed fixes the goal, but the observation depends on the time."""


async def visit(task: str, resets: int, turns: asyncio.Semaphore) -> tuple[str, str]:
    """Reset a task several times with one seed, act, and return the observations."""
    async with turns:
        env: Any = gymnasium.make(f"rllm/MiniWoB-{task}-v0").unwrapped
        seen = []
        for _ in range(resets):
            observation, _ = await env.async_reset(seed=11)
            seen.append((env.goal, "" if task in MOVING else observation))
        for again in seen[1:]:
            assert again == seen[0], "\n".join(
                [task, *difflib.ndiff(*("\n".join(look).splitlines() for look in (seen[0], again)))]
            )
        for action in (f"click({next(iter(env.page.elements), 1)})", 'press("Tab")')[: 1 + (resets > 1)]:
            observation, *_, terminated, truncated, info = await env.async_step(action)
            assert not info["invalid_action"]
            assert "Time left" not in observation
            assert "Last reward" not in observation
            if terminated or truncated:
                break
        await env.async_close()
        return env.goal, observation


async def visit_all(tasks: Sequence[str], resets: Callable[[int], int]) -> list[tuple[str, str]]:
    turns = asyncio.Semaphore(4)
    return await asyncio.gather(*(visit(task, resets(number), turns) for number, task in enumerate(tasks)))


def test_tasks_start_and_take_actions_and_a_seed_is_reproducible() -> None:
    """Every eighth task; the long test covers all of them."""
    assert len(miniwob_tasks()) == 130
    assert set(MINIWOB) == {f"rllm/MiniWoB-{task}-v0" for task in miniwob_tasks()}
    visited = asyncio.run(visit_all(miniwob_tasks()[::8], lambda number: 2 if number % 6 == 0 else 1))
    assert all(goal for goal, _ in visited)
    assert len({goal for goal, _ in visited}) > 12


@pytest.mark.long
def test_every_task_starts_and_a_seed_is_reproducible() -> None:
    goals = {goal for goal, _ in asyncio.run(visit_all(miniwob_tasks(), lambda number: 3))}
    assert all(goals)
    assert len(goals) > 100


def test_no_action_forges_the_reward_or_opens_another_task() -> None:
    env = MiniWoBEnv(task="click-checkboxes")
    try:
        for url in ("javascript:core.endEpisode(1,false)", "javascript:WOB_DONE_GLOBAL=true,WOB_RAW_REWARD_GLOBAL=1"):
            env.reset(seed=0)
            _, reward, terminated, _, info = env.step(f'goto("{url}")')
            assert (reward, terminated) == (0, False)
            assert info["action_error"]
            assert env.step("wait()")[1:3] == (0, False)
        env.reset(seed=0)
        _, reward, terminated, *_ = env.step('goto("http://miniwob.test/miniwob/click-test.html")')
        assert (reward, terminated) == (0, True)
    finally:
        env.close()


def test_text_typed_into_a_page_is_never_executed() -> None:
    # The terminal writes commands into its markup: without a rule against scripts, each of these was rewarded with 1.
    env = MiniWoBEnv(task="terminal")
    try:
        for typed in (
            "rm <script>core.endEpisode(1,true)</script>",
            "<img src=x onerror=core.endEpisode(1,true)>",
            "<a href=javascript:core.endEpisode(1,true)>here</a>",
        ):
            env.reset(seed=0)
            for action in (f"type({{}}, {typed!r})", 'press({}, "Enter")', "wait()"):
                _, reward, terminated, _, info = env.step(action.format(named(env, "", "textbox")))
                assert (reward, terminated, info["action_error"]) == (0, False, ""), typed
        _, reward, terminated, *_ = env.step(f"click({named(env, 'here', 'link')})")
        assert (reward, terminated) == (0, False)
    finally:
        env.close()


def test_the_site_serves_only_the_files_of_its_task() -> None:
    handler = site(miniwob_folder(), "click-test", 3)
    for path in ("/miniwob/click-test-2.html", "/../__init__.py", "/core/../../__init__.py", "/core/%2e%2e/x",
                 "//etc/passwd", "/common", "/core/", "/flight/AA/index.html", "/"):  # fmt: skip
        assert handler(Request("GET", f"http://miniwob.test{path}")).status == 404, path
    assert handler(Request("GET", "http://miniwob.test/miniwob/click-test.html")).status == 200
    assert b"seedrandom('3')" in handler(Request("GET", "http://miniwob.test/core/core.js")).body


def test_the_splits_of_a_page_share_no_seed() -> None:
    seeds = {}
    for split in SPLITS:
        tasks = MiniWoBEnv(task="click-test", split=split, num_tasks=500).tasks
        seeds[split] = {task.data["seed"] for task in tasks}
        assert len(seeds[split]) == 500
    assert not seeds["train"] & seeds["test"]
    assert not seeds["train"] & seeds["validation"]


def test_an_unknown_task_is_an_error_with_its_name() -> None:
    with pytest.raises(TaskError, match="fly-to-mars"):
        MiniWoBEnv(task="fly-to-mars")
    with pytest.raises(TaskError, match="click-test"):
        MiniWoBEnv(task="click-test").reset(options={"task": MiniWoBEnv(task="click-link").tasks[0]})
