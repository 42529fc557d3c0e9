"""The tracker: every errand can be done, near misses are seen, and a card can be dragged in a real browser."""

from __future__ import annotations

import asyncio
import re
from functools import partial

import pytest

from rllm_gym.sites.errors import FormError
from rllm_gym.sites.tracker import ORIGIN, TEMPLATES, build
from rllm_gym.sites.tracker.state import Filter
from tests.browser.long_timeouts import use_long_timeouts
from tests.sites.task_checks import FEW_SEEDS, MANY_SEEDS, check_task, share_of_today


def test_the_solution_is_rewarded_and_a_near_miss_is_not() -> None:
    check_task(TEMPLATES, FEW_SEEDS)


@pytest.mark.long
def test_the_solution_of_many_seeds() -> None:
    check_task(TEMPLATES, share_of_today(MANY_SEEDS, 25))


def test_titles_and_days_of_creation_tell_issues_apart() -> None:
    for seed in range(20):
        world = build(seed, 5)
        assert len({issue.title for issue in world.issues.values()}) == len(world.issues)
        for project in world.projects:
            days = [issue.created for issue in world.of_project(project, sort="oldest")]
            assert days == sorted(set(days))


def test_a_filter_asks_for_everything_at_once() -> None:
    world = build(3, 4)
    project = next(iter(world.projects.values()))
    for label in project.labels:
        asked = Filter(kind="Bug", label=label, assignee="none")
        found = world.of_project(project.key, asked)
        expected = [
            issue
            for issue in world.issues.values()
            if issue.project == project.key
            and issue.kind == "Bug"
            and label in issue.labels
            and not issue.assignee
            and not issue.closed
        ]
        assert sorted(issue.key for issue in found) == sorted(issue.key for issue in expected)


def test_what_makes_no_sense_is_refused() -> None:
    world = build(1, 2)
    first, second = list(world.projects)
    project = world.projects[first]
    opened = world.of_project(first, Filter())[0].key
    closed = world.of_project(first, Filter(state="closed"))[0].key
    elsewhere = world.of_project(second, Filter())[0].key
    full = next(name for name in project.milestones if world.of_project(first, Filter(milestone=name)))
    past = next(milestone.name for milestone in project.milestones.values() if milestone.closed)
    before = world.facts()
    for refused in (
        partial(world.close, closed),
        partial(world.close, opened, "duplicate", opened),
        partial(world.close, opened, "duplicate", elsewhere),
        partial(world.close, opened, "because"),
        partial(world.reopen, opened),
        partial(world.move, closed, "Review"),
        partial(world.move, opened, "Nowhere"),
        partial(world.assign, opened, "stranger@x.test"),
        partial(world.set_labels, opened, ["no such label"]),
        partial(world.set_milestone, opened, past),
        partial(world.close_milestone, first, full),
        partial(world.close_milestone, first, past),
        partial(world.close_milestone, "NO", full),
        partial(world.report, first, "T", "", milestone=past),
        partial(world.comment, "NO-1", "text"),
    ):
        with pytest.raises(FormError):
            refused()
    assert world.facts() == before


def test_a_card_is_dragged_to_another_column(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("playwright", reason="the browser needs playwright: pip install 'rllm-gym[web]'")
    from rllm_gym.browser import shared_pool
    from rllm_gym.browser.errors import BrowserFault
    from rllm_gym.browser.executable import find_chromium
    from rllm_gym.parsing.browser_actions import parse_browser_action

    try:
        find_chromium()
    except BrowserFault as missing:
        pytest.skip(str(missing))
    use_long_timeouts(monkeypatch)
    world = build(3, 1)
    project = next(iter(world.projects))
    issue = next(i for i in world.of_project(project, Filter(), "oldest") if i.column == "Backlog")

    async def drag() -> str:
        session = await shared_pool().open(sites=world.handlers())
        try:
            await session.goto(f"{ORIGIN}/project/{project}/board")
            text = (await session.observe()).text
            card = re.search(rf'\[(\d+)\] [^\n]*\n +text "{issue.key} ', text)
            lane = re.search(r'\[(\d+)\] group "Done"', text)
            assert card, text
            assert lane, text
            return await session.act(parse_browser_action(f"drag({card[1]}, {lane[1]})"))
        finally:
            await session.close()

    assert asyncio.run(drag()) == ""
    assert world.issues[issue.key].column == "Done"
    assert not world.issues[issue.key].closed
