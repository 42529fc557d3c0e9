"""Every built-in errand on its real pages: the way a person goes is rewarded; nothing, and a near miss, are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rllm_gym.browser.errors import BrowserFault
from rllm_gym.browser.executable import find_chromium
from rllm_gym.envs.web import WebEnv
from rllm_gym.envs.web.demonstrate import play
from rllm_gym.sites import TEMPLATES

pytest.importorskip("playwright", reason="the browser needs playwright: pip install 'rllm-gym[web]'")
try:
    find_chromium()
except BrowserFault as missing:
    pytest.skip(str(missing), allow_module_level=True)

LONG_SEEDS = 20


@pytest.fixture(scope="module")
def env() -> Iterator[WebEnv]:
    env = WebEnv(max_turns=60)
    yield env
    env.close()


def begin(env: WebEnv, name: str, seed: int) -> None:
    levels = tuple(TEMPLATES[name].difficulties)
    env.reset(options={"task": task(env, name, seed, levels[seed % len(levels)])})


def task(env: WebEnv, name: str, seed: int, difficulty: int):
    from rllm_gym.envs.web.rows import errand_task

    return errand_task(f"{name}/{seed}", name, seed, difficulty)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_way_a_person_goes_is_rewarded_and_a_near_miss_is_not(env: WebEnv, name: str) -> None:
    begin(env, name, 1)
    assert play(env, env.errand.moves)[0] == 1
    begin(env, name, 1)
    assert play(env, env.errand.wrong_moves)[0] == 0


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", TEMPLATES)
def test_twenty_seeds(env: WebEnv, name: str) -> None:
    for seed in range(LONG_SEEDS):
        begin(env, name, seed)
        assert play(env, env.errand.moves)[0] == 1, seed
        begin(env, name, seed)
        assert play(env, env.errand.wrong_moves)[0] == 0, seed
        for nothing in ("answer()", *(() if env.errand.infeasible else ("report_infeasible()",))):
            begin(env, name, seed)
            assert env.step(nothing)[1] == 0, (seed, nothing)
