"""Every built-in web task on its real pages: the solution is rewarded; doing nothing and a near miss are not."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

import pytest

from rllm_gym.envs.task_templates import TemplateTaskRow
from rllm_gym.envs.web import WebEnv
from rllm_gym.envs.web.demonstrations import play
from rllm_gym.envs.web.rows import site_task
from rllm_gym.envs.web.sites import TEMPLATES
from rllm_gym.envs.web.task_instance import SiteTaskInstance, WebEpisodeEnd
from rllm_gym.grading.answers import matches
from tests.browser.long_timeouts import require_chromium, use_long_timeouts
from tests.sites.task_checks import similar_task

require_chromium()


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    use_long_timeouts(monkeypatch)


@pytest.fixture(scope="module")
def env() -> Iterator[WebEnv]:
    env = WebEnv(max_turns=60)
    yield env
    env.close()


def row(name: str, seed: int) -> TemplateTaskRow:
    levels = tuple(TEMPLATES[name].difficulties)
    return TemplateTaskRow(name, seed, levels[seed % len(levels)])


def begin(env: WebEnv, name: str, seed: int) -> None:
    env.reset(options={"task": site_task(f"{name}/{seed}", name, seed, row(name, seed).difficulty)})


def check_task(env: WebEnv, name: str, seed: int) -> None:
    """Assert that the solution is rewarded and that an answer without any action is not."""
    begin(env, name, seed)
    assert play(env, env.web_task.moves)[0] == 1, seed
    idle = SiteTaskInstance(TEMPLATES[name], row(name, seed))
    endings = [
        WebEpisodeEnd(),
        WebEpisodeEnd(answer=""),
        WebEpisodeEnd(answer="done"),
        WebEpisodeEnd(answer="0"),
        WebEpisodeEnd(answer="yes"),
    ]
    if not idle.task.infeasible:
        endings.append(WebEpisodeEnd(infeasible=""))
    right = idle.task.answer
    for ending in endings:
        reported = right is not None and ending.answer is not None and matches(right, ending.answer)
        assert reported or not idle.is_solved(ending), (seed, ending)


# Together they cover every site and every kind of move. The long test has all tasks, near misses and more seeds;
# tests/sites has them without a browser.
CHOSEN = (
    *("shop/count", "forum/upvote", "forum/report", "forum/ask-wiki", "wiki/redirect", "wiki/create"),
    *(
        "calendar/reschedule",
        "shop/pay-by-card",
        "mail/attach",
        "mail/latest-invoice",
        "tracker/close-duplicate",
        "admin/refund",
        "admin/best-month",
        "desk/pay-back",
    ),
)


@pytest.mark.parametrize("name", CHOSEN)
def test_the_solution_in_a_browser_is_rewarded(env: WebEnv, name: str) -> None:
    check_task(env, name, 1)


def test_the_chosen_tasks_cover_every_site_and_kind_of_move() -> None:
    def kinds(name: str) -> set[tuple[str, str]]:
        moves = SiteTaskInstance(TEMPLATES[name], row(name, 1)).task.moves
        return {("site", name.partition("/")[0]), *((type(move).__name__, getattr(move, "role", "")) for move in moves)}

    assert set().union(*map(kinds, TEMPLATES)) == set().union(*map(kinds, CHOSEN))


def test_a_chart_can_be_used_by_coordinates() -> None:
    env = WebEnv(boxes=True)
    try:
        begin(env, "admin/best-month", 1)
        place = re.search(r'canvas "Invoiced per month.*box="(\d+),(\d+) (\d+)x(\d+)"', env.page.text)
        assert place is not None, env.page.text
        left, top, width, height = map(int, place.groups())
        months = len(TEMPLATES["admin/best-month"].build(1, row("admin/best-month", 1).difficulty).months())
        env.step(f"mouse_click({left + width * 1.5 / months:.0f}, {top + height - 40})")
        assert "/invoices?since=" in env.page.url
        assert env.page.url.endswith(("-28", "-29", "-30", "-31"))
    finally:
        env.close()


@pytest.mark.long
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_solution_in_a_browser_is_rewarded_and_a_near_miss_is_not(env: WebEnv, name: str) -> None:
    """Four seeds of each template, which differ between templates: tests/sites has more without a browser."""
    first = zlib.crc32(name.encode()) % 20
    for seed in range(first, first + 4):
        try:
            check_task(env, name, seed)
            other = similar_task(TEMPLATES[name], seed, row(name, seed).difficulty)
            if other is not None:
                begin(env, name, seed)
                assert play(env, other.moves)[0] == 0, seed
        except Exception as error:
            if "crashed" in str(error):
                # Seen in one of twelve episodes of desk/tell-time on a busy machine, always at the same place in
                # Chromium 156 (a null pointer), also with older versions of this package. The cause is not known yet.
                pytest.xfail(f"Chromium's renderer crashed in {name}/{seed}")
            raise
