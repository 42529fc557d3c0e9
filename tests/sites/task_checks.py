"""Check tasks of templates: the solution is rewarded; doing nothing, giving up and near misses are not."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from random import Random
from typing import Any

from rllm_gym.envs.web.sites.moves import Answer, Fill, Move, ReportInfeasible
from rllm_gym.envs.web.sites.task import SiteState, WebTask, WebTaskTemplate
from tests.sites.html_walker import SiteDriver, rewarded

MANY_SEEDS = range(25)
STEPS = {"forum": 60}
"""Turn limits of episodes by site, where it is not the default of 30."""


def check_tasks(site: str, seeds: Sequence[int]) -> None:
    """Check each template of a site with each seed, at the seed's level, and report all failures together."""
    failures = []
    for template in import_module(f"rllm_gym.envs.web.sites.{site}").TEMPLATES:
        for seed in seeds:
            try:
                _check_task(template, seed, STEPS.get(site, 30))
            except Exception as error:
                error.add_note(f"{template.name}, seed {seed}")
                failures.append(error)
    if failures:
        raise ExceptionGroup(f"{len(failures)} tasks", failures)


@lru_cache(maxsize=64)
def _pickled_site(build: Callable[[int, int], SiteState], seed: int, difficulty: int) -> bytes:
    return pickle.dumps(build(seed, difficulty))


def _fresh_site(build: Callable[[int, int], SiteState], seed: int, difficulty: int) -> SiteState:
    """Return a copy of the site, which all templates with the same ``build`` have in common: many times faster."""
    return pickle.loads(_pickled_site(build, seed, difficulty))  # noqa: S301 - our own bytes


def _check_task(template: WebTaskTemplate, seed: int, steps: int) -> None:
    levels = tuple(template.difficulties)
    difficulty = levels[seed % len(levels)]
    build_site = partial(_fresh_site, template.build, seed, difficulty)
    task = template.make_task(build_site(), Random(seed), difficulty)
    assert len(task.moves) <= steps, f"{len(task.moves)} moves: {task}"
    assert rewarded(build_site, task, task.moves), f"the solution is not rewarded: {task}"
    for near_miss in near_misses(template, task, seed, difficulty):
        try:
            got_reward = rewarded(build_site, task, near_miss)
        except AssertionError:  # the site has no such element after the change
            continue
        assert not got_reward, f"a near miss is rewarded: {near_miss}\n{task}"
    assert not rewarded(build_site, task, (Answer("done"),)), f"doing nothing is rewarded: {task}"
    if not task.infeasible:
        assert not rewarded(build_site, task, (ReportInfeasible(""),)), f"giving up is rewarded: {task}"


def near_misses(template: WebTaskTemplate, task: WebTask, seed: int, difficulty: int) -> Iterator[tuple[Move, ...]]:
    """Return the solution of a similar task, the solution without its last step, and with another text in a form."""
    other = similar_task(template, seed, difficulty)
    if other is not None:
        yield other.moves
    if task.outcome is not None:
        yield (*task.moves[:-2], task.moves[-1])
        driver = SiteDriver(_fresh_site(template.build, seed, difficulty), task.start, task.files)
        for move in task.moves:
            driver.do(move)
        last_fills = {move.text: at for at, move in enumerate(task.moves) if isinstance(move, Fill)}
        for at, move in enumerate(task.moves):
            if isinstance(move, Fill) and move.text in driver.sent and last_fills[move.text] == at:
                yield (*task.moves[:at], replace(move, text=f"{move.text} x"), *task.moves[at + 1 :])


def similar_task(template: WebTaskTemplate, seed: int, difficulty: int) -> WebTask | None:
    """Return a task of the template on the same site that requests another end state or answer, if it has one."""
    build_site = partial(_fresh_site, template.build, seed, difficulty)
    task = template.make_task(build_site(), Random(seed), difficulty)
    for other_seed in range(seed + 1, seed + 10):
        other = template.make_task(build_site(), Random(other_seed), difficulty)
        if _requested(build_site, other) != _requested(build_site, task):
            return other
    return None


def _requested(build_site: Callable[[], SiteState], task: WebTask) -> tuple[Any, ...]:
    site = build_site()
    if task.outcome is not None:
        task.outcome(site)
    return site.facts(), unordered(task.answer), task.infeasible


def unordered(answer: Any) -> Any:
    """Return an expected answer, a set in any order as the same."""
    if isinstance(answer, dict) and answer.get("type") == "set":
        return answer | {"value": sorted(answer["value"])}
    return answer
