"""The tracker: filters, permissions, and a card that a real browser drags. test_sites_common.py solves the tasks."""

from __future__ import annotations

import asyncio
import re
from functools import partial

import pytest

from rllm_gym.envs.web.sites.errors import FormError
from rllm_gym.envs.web.sites.tracker import ORIGIN, build
from rllm_gym.envs.web.sites.tracker.state import Filter
from tests.browser.long_timeouts import require_chromium, use_long_timeouts


def test_issues_have_distinct_titles_and_creation_days() -> None:
    for seed in range(20):
        site = build(seed, 5)
        assert len({issue.title for issue in site.issues.values()}) == len(site.issues)
        for project in site.projects:
            days = [issue.created for issue in site.of_project(project, sort="oldest")]
            assert days == sorted(set(days))


def test_a_filter_combines_all_of_its_conditions() -> None:
    site = build(3, 4)
    project = next(iter(site.projects.values()))
    for label in project.labels:
        asked = Filter(kind="Bug", label=label, assignee="none")
        found = site.of_project(project.key, asked)
        expected = [
            issue
            for issue in site.issues.values()
            if issue.project == project.key
            and issue.kind == "Bug"
            and label in issue.labels
            and not issue.assignee
            and not issue.closed
        ]
        assert sorted(issue.key for issue in found) == sorted(issue.key for issue in expected)


def test_invalid_operations_are_refused() -> None:
    site = build(1, 2)
    first, second = list(site.projects)
    project = site.projects[first]
    opened = site.of_project(first, Filter())[0].key
    closed = site.of_project(first, Filter(state="closed"))[0].key
    other_project = site.of_project(second, Filter())[0].key
    full = next(name for name in project.milestones if site.of_project(first, Filter(milestone=name)))
    past = next(milestone.name for milestone in project.milestones.values() if milestone.closed)
    before = site.facts()
    for refused in (
        partial(site.close, closed),
        partial(site.close, opened, "duplicate", opened),
        partial(site.close, opened, "duplicate", other_project),
        partial(site.close, opened, "because"),
        partial(site.reopen, opened),
        partial(site.move, closed, "Review"),
        partial(site.move, opened, "Nowhere"),
        partial(site.assign, opened, "stranger@x.test"),
        partial(site.set_labels, opened, ["no such label"]),
        partial(site.set_milestone, opened, past),
        partial(site.close_milestone, first, full),
        partial(site.close_milestone, first, past),
        partial(site.close_milestone, "NO", full),
        partial(site.report, first, "T", "", milestone=past),
        partial(site.comment, "NO-1", "text"),
    ):
        with pytest.raises(FormError):
            refused()
    assert site.facts() == before


def test_a_card_can_be_dragged_to_another_column(monkeypatch: pytest.MonkeyPatch) -> None:
    require_chromium()
    from rllm_gym.envs.web.browser import shared_pool
    from rllm_gym.parsing.browser_actions import parse_browser_action

    use_long_timeouts(monkeypatch)
    site = build(3, 1)
    project = next(iter(site.projects))
    issue = next(i for i in site.of_project(project, Filter(), "oldest") if i.column == "Backlog")

    async def drag() -> str:
        session = await shared_pool().open(sites=site.handlers())
        try:
            await session.goto(f"{ORIGIN}/project/{project}/board")
            text = (await session.observe()).text
            card = re.search(rf'\[(\d+)\] [^\n]*\n +text "{issue.key} ', text)
            done_column = re.search(r'\[(\d+)\] group "Done"', text)
            assert card, text
            assert done_column, text
            return await session.act(parse_browser_action(f"drag({card[1]}, {done_column[1]})"))
        finally:
            await session.close()

    assert asyncio.run(drag()) == ""
    assert site.issues[issue.key].column == "Done"
    assert not site.issues[issue.key].closed
