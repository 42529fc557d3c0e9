"""Every built-in errand on its real pages: the way a person goes is rewarded; nothing, and a near miss, are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rllm_gym.browser.errors import BrowserFault
from rllm_gym.browser.executable import find_chromium
from rllm_gym.envs.web import WebEnv
from rllm_gym.envs.web.demonstrations import play
from rllm_gym.envs.web.rows import SiteTaskRow, site_task
from rllm_gym.envs.web.task_instance import SiteTaskInstance, WebEpisodeEnd
from rllm_gym.grading.answers import matches
from rllm_gym.sites import TEMPLATES
from tests.browser.long_timeouts import use_long_timeouts
from tests.sites.task_checks import share_of_today

pytest.importorskip("playwright", reason="the browser needs playwright: pip install 'rllm-gym[web]'")
try:
    find_chromium()
except BrowserFault as missing:
    pytest.skip(str(missing), allow_module_level=True)


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    use_long_timeouts(monkeypatch)


@pytest.fixture(scope="module")
def env() -> Iterator[WebEnv]:
    env = WebEnv(max_turns=60)
    yield env
    env.close()


def row(name: str, seed: int) -> SiteTaskRow:
    levels = tuple(TEMPLATES[name].difficulties)
    return SiteTaskRow(name, seed, levels[seed % len(levels)])


def begin(env: WebEnv, name: str, seed: int) -> None:
    env.reset(options={"task": site_task(f"{name}/{seed}", name, seed, row(name, seed).difficulty)})


def judge(env: WebEnv, name: str, seed: int) -> None:
    """The right way is rewarded, and saying something with nothing done is not."""
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


# Together they are on every site and take every kind of move. All errands, near misses and more seeds are in the long
# test, and without a browser in tests/sites.
CHOSEN = (
    *("shop/count", "forum/upvote", "forum/report", "forum/ask-wiki", "wiki/redirect", "wiki/create"),
    *("calendar/reschedule", "mail/latest-invoice", "tracker/close-duplicate", "admin/refund", "desk/pay-back"),
)


@pytest.mark.parametrize("name", CHOSEN)
def test_a_persons_solution_is_rewarded(env: WebEnv, name: str) -> None:
    judge(env, name, 1)


def test_every_site_and_every_kind_of_move_is_among_the_chosen() -> None:
    def kinds(name: str) -> set[tuple[str, str]]:
        moves = SiteTaskInstance(TEMPLATES[name], row(name, 1)).task.moves
        return {("site", name.partition("/")[0]), *((type(move).__name__, getattr(move, "role", "")) for move in moves)}

    assert set().union(*map(kinds, TEMPLATES)) == set().union(*map(kinds, CHOSEN))


@pytest.mark.long
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_seeds_of_today(env: WebEnv, name: str) -> None:
    """Four of twenty; all of them with ``RLLM_GYM_ALL_SEEDS=1``, which takes hours."""
    for seed in share_of_today(range(20), 4):
        judge(env, name, seed)
        begin(env, name, seed)
        assert play(env, env.web_task.wrong_moves)[0] == 0, seed
