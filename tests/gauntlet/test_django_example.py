"""The worked example on Django's admin, played by sixteen episodes at once.

Run by ``make test-gauntlet``, which installs Django.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rllm_gym.envs.web import WebEnv
from tests.browser.long_timeouts import require_chromium, use_long_timeouts
from tests.gauntlet.test_gauntlet import FOLDER

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[2] / "examples" / "django_admin"
EPISODES = 16


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, object]]]:
    require_chromium()
    place = FOLDER / "django-admin"
    if not (place / ".installed").exists():
        pytest.skip(f"django-admin is not installed in {place}: run scripts/gauntlet.sh")
    use_long_timeouts(monkeypatch)
    monkeypatch.syspath_prepend(EXAMPLE)
    import tasks

    yield tasks.rows(str(place / "bin" / "python"))
    del sys.modules["tasks"]


# What a solver does on each page: an action on the element whose line begins like this, or an action as it is.
SOLUTIONS: dict[str, tuple[tuple[str, str], ...]] = {
    "add-group": (
        ('goto("/admin/auth/group/add/")', ""),
        ('fill({}, "Auditors")', 'textbox "Name:"'),
        ("click({})", 'button "Save"'),
    ),
    "deactivate": (
        ("click({})", 'link "Users"'),
        ("click({})", 'link "kim"'),
        ("uncheck({})", 'checkbox "Active"'),
        ("click({})", 'button "Save"'),
    ),
    "join-group": (
        ("click({})", 'link "Users"'),
        ("click({})", 'link "ada"'),
        ('select({}, "Editors")', 'listbox "Available groups'),
        ("click({})", 'button "Choose selected groups"'),
        ("click({})", 'button "Save"'),
    ),
    "count-staff": (('goto("/admin/auth/user/?is_staff__exact=1")', ""),),
}


def solve(env: WebEnv, shown: str, moves: tuple[tuple[str, str], ...]) -> None:
    for action, element in moves:
        found = re.search(rf"\[(\d+)\] {re.escape(element)}", shown)
        assert found is not None, f"no {element} in\n{shown[-4000:]}"
        shown, _, _, _, info = env.step(action.format(found[1]))
        assert info["action_error"] == ""


def test_sixteen_episodes_at_once_are_graded_by_their_own_database(rows: list[dict[str, object]]) -> None:
    def play(index: int) -> tuple[str, bool, float]:
        name = list(SOLUTIONS)[index % len(SOLUTIONS)]
        solves = index < EPISODES // 2
        env = WebEnv(tasks=rows)
        try:
            start, _ = env.reset(seed=index, options={"task": name})
            assert "Site administration" in start  # logged in
            solve(env, start, SOLUTIONS[name] if solves else ())
            return name, solves, env.step('answer("5")')[1]
        finally:
            env.close()

    with ThreadPoolExecutor(EPISODES) as threads:
        played = list(threads.map(play, range(EPISODES)))
    # The question needs no change, so the second half answers it as well.
    assert played == [(name, solves, float(solves or name == "count-staff")) for name, solves, _ in played]
