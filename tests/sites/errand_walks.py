"""Walks a template's errands: the way a person goes is rewarded; nothing, a refusal and a near miss are not."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from random import Random

from rllm_gym.sites.errand import Answer, ReportInfeasible, Template
from tests.sites.walker import rewarded

FEW_SEEDS = (0, 2, 4)  # the first, the third and the fifth level
MANY_SEEDS = range(25)
STEPS = 30
"""What an episode has by default."""


def walk(template: Template, seeds: Iterable[int]) -> None:
    levels = tuple(template.difficulties)
    for seed in seeds:
        difficulty = levels[seed % len(levels)]
        world = partial(template.build, seed, difficulty)
        errand = template.errand(world(), Random(seed), difficulty)
        assert len(errand.moves) <= STEPS, errand
        assert rewarded(world, errand, errand.moves), errand
        assert not rewarded(world, errand, errand.wrong_moves), errand
        assert not rewarded(world, errand, (Answer("done"),)), errand
        assert errand.infeasible or not rewarded(world, errand, (ReportInfeasible(""),)), errand
