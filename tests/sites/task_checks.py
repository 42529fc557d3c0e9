"""Walks templates' errands: the way a person goes is rewarded; nothing, a refusal and a near miss are not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import date
from functools import partial
from random import Random

from rllm_gym.sites.task import Answer, ReportInfeasible, WebTaskTemplate
from tests.sites.html_walker import rewarded

FEW_SEEDS = (0, 4)  # the first and the fifth level
MANY_SEEDS = range(100)
STEPS = 30
"""What an episode has by default."""


def share_of_today(seeds: Sequence[int], count: int) -> list[int]:
    """So many of the seeds, others every day, one after the other; all of them with ``RLLM_GYM_ALL_SEEDS=1``."""
    if os.environ.get("RLLM_GYM_ALL_SEEDS"):
        return list(seeds)
    first = date.today().toordinal() * count
    return [seeds[at % len(seeds)] for at in range(first, first + count)]


def check_task(templates: Iterable[WebTaskTemplate], seeds: Sequence[int], steps: int = STEPS) -> None:
    """Each template with each seed, at the seed's level; what fails is told together."""
    failures = []
    for template in templates:
        for seed in seeds:
            try:
                _walk(template, seed, steps)
            except Exception as error:
                error.add_note(f"{template.name}, seed {seed}")
                failures.append(error)
    if failures:
        raise ExceptionGroup(f"{len(failures)} errands", failures)


def _walk(template: WebTaskTemplate, seed: int, steps: int) -> None:
    levels = tuple(template.difficulties)
    difficulty = levels[seed % len(levels)]
    world = partial(template.build, seed, difficulty)
    task = template.make_task(world(), Random(seed), difficulty)
    assert len(task.moves) <= steps, f"{len(task.moves)} moves: {task}"
    assert rewarded(world, task, task.moves), f"the way is not rewarded: {task}"
    assert not rewarded(world, task, task.wrong_moves), f"the near miss is rewarded: {task}"
    assert not rewarded(world, task, (Answer("done"),)), f"doing nothing is rewarded: {task}"
    if not task.infeasible:
        assert not rewarded(world, task, (ReportInfeasible(""),)), f"giving up is rewarded: {task}"
