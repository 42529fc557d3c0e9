"""Every built-in errand on its real pages: the way a person goes is rewarded; nothing, and a near miss, are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rllm_gym.browser.errors import BrowserFault
from rllm_gym.browser.executable import find_chromium
from rllm_gym.envs.web import WebEnv
from rllm_gym.envs.web.demonstrate import play
from rllm_gym.envs.web.judging import Ending, ErrandCase
from rllm_gym.envs.web.rows import ErrandRow, errand_task
from rllm_gym.grading.answers import matches
from rllm_gym.sites import TEMPLATES

pytest.importorskip("playwright", reason="the browser needs playwright: pip install 'rllm-gym[web]'")
try:
    find_chromium()
except BrowserFault as missing:
    pytest.skip(str(missing), allow_module_level=True)


@pytest.fixture(scope="module")
def env() -> Iterator[WebEnv]:
    env = WebEnv(max_turns=60)
    yield env
    env.close()


def row(name: str, seed: int) -> ErrandRow:
    levels = tuple(TEMPLATES[name].difficulties)
    return ErrandRow(name, seed, levels[seed % len(levels)])


def begin(env: WebEnv, name: str, seed: int) -> None:
    env.reset(options={"task": errand_task(f"{name}/{seed}", name, seed, row(name, seed).difficulty)})


def judge(env: WebEnv, name: str, seed: int) -> None:
    """The right way is rewarded, and saying something with nothing done is not."""
    begin(env, name, seed)
    assert play(env, env.errand.moves)[0] == 1, seed
    idle = ErrandCase(TEMPLATES[name], row(name, seed))
    endings = [Ending(), Ending(answer=""), Ending(answer="done"), Ending(answer="0"), Ending(answer="yes")]
    if not idle.errand.infeasible:
        endings.append(Ending(infeasible=""))
    right = idle.errand.answer
    for ending in endings:
        told = right is not None and ending.answer is not None and matches(right, ending.answer)
        assert told or not idle.is_solved(ending), (seed, ending)


# Together they take every kind of move on every site. All errands, near misses and more seeds are in the long test,
# and without a browser in tests/sites.
CHOSEN = (
    *("shop/buy", "shop/count", "shop/specification", "shop/cancel"),
    *("forum/message", "forum/upvote", "forum/report", "forum/move-thread", "forum/ask-wiki"),
    *("wiki/create", "wiki/redirect", "wiki/categories", "wiki/count"),
    *("calendar/reschedule", "calendar/book-common-time", "mail/file-invoices", "mail/latest-invoice"),
    *("tracker/new-issue", "tracker/close-duplicate", "tracker/move-on-board"),
    *("admin/refund", "admin/deactivate-unused", "desk/report-fault", "desk/pay-back"),
)


@pytest.mark.parametrize("name", CHOSEN)
def test_the_way_a_person_goes_is_rewarded(env: WebEnv, name: str) -> None:
    judge(env, name, 1)


def test_every_kind_of_move_on_every_site_is_among_the_chosen() -> None:
    def kinds(name: str) -> set[tuple[str, ...]]:
        errand = ErrandCase(TEMPLATES[name], row(name, 1)).errand
        moves = (*errand.moves, *errand.wrong_moves)
        return {(name.partition("/")[0], type(move).__name__, getattr(move, "role", "")) for move in moves}

    assert set().union(*map(kinds, TEMPLATES)) == set().union(*map(kinds, CHOSEN))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TEMPLATES)
def test_twenty_seeds(env: WebEnv, name: str) -> None:
    for seed in range(20):
        judge(env, name, seed)
        begin(env, name, seed)
        assert play(env, env.errand.wrong_moves)[0] == 0, seed
