"""The built-in tasks as a task set. A template, a difficulty and a seed are drawn; no site is created for that."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rllm_gym.core import TaskError
from rllm_gym.data import ProceduralTaskset
from rllm_gym.envs.web.rows import site_task_content
from rllm_gym.envs.web.sites.task import WebTaskTemplate

_SEEDS = 2**32


def templates_of(templates: str | WebTaskTemplate | Iterable[str | WebTaskTemplate] | None = None,
                 sites: str | Iterable[str] | None = None) -> dict[str, WebTaskTemplate]:  # fmt: skip
    """Return templates by name, in the order of their table.

    Args:
        templates: Names of built-in ones, such as ``"shop/buy-one"``, and your own templates; ``None`` for all
            built-in. sites: Keep the templates of these sites: the part before the ``/`` of their names.

    Raises:
        TaskError: There is no such template or site; the message names those that exist.
    """
    from rllm_gym.envs.web.sites import TEMPLATES

    if templates is None:
        chosen = dict(TEMPLATES)
    else:
        chosen = {}
        for one in [templates] if isinstance(templates, str | WebTaskTemplate) else templates:
            if isinstance(one, str) and one not in TEMPLATES:
                raise TaskError(f"unknown template {one!r}; choose from {', '.join(TEMPLATES)}")
            template = TEMPLATES[one] if isinstance(one, str) else one
            chosen[template.name] = template
    if sites is not None:
        wanted = [sites] if isinstance(sites, str) else list(sites)
        known = dict.fromkeys(name.partition("/")[0] for name in chosen)
        for site in wanted:
            if site not in known:
                raise TaskError(f"unknown site {site!r}; choose from {', '.join(known)}")
        chosen = {name: template for name, template in chosen.items() if name.partition("/")[0] in wanted}
    if not chosen:
        raise TaskError("the selection contains no templates; select at least one")
    return chosen


def site_tasks(
    templates: Mapping[str, WebTaskTemplate],
    *,
    name: str = "web",
    difficulty: int | tuple[int, int] | None = None,
    split: str | None = "train",
    seed: int = 0,
    size: int | None = None,
) -> ProceduralTaskset:
    """Return tasks of these templates as an unlimited task set.

    Args:
        templates: As returned by :func:`templates_of`.
        name: Prefix of the task ids.
        difficulty: A level of 1 to 5, a pair ``(lowest, highest)``, or ``None`` for every level of a template.
        split: ``"train"``, ``"validation"`` or ``"test"``; ``None`` means ``"train"``.
        seed: A different seed gives different tasks.
        size: Number of tasks, 1,000,000 by default.

    Raises:
        TaskError: No template exists at that difficulty, or another argument is out of range.
    """
    lowest, highest = _levels(difficulty)
    drawn = tuple(
        (template.name, levels)
        for template in templates.values()
        if (levels := tuple(level for level in template.difficulties if lowest <= level <= highest))
    )
    if not drawn:
        raise TaskError(f"difficulty={difficulty!r}: none of {', '.join(templates)} has this level")
    return ProceduralTaskset(
        WebTaskGenerator(drawn), name=name, split=split, seed=seed, size=1_000_000 if size is None else size
    )


@dataclass(frozen=True)
class WebTaskGenerator:
    """A generator of one task at a time.

    Attributes:
        templates: Names, each with the levels to draw from.
    """

    templates: tuple[tuple[str, tuple[int, ...]], ...]

    def __call__(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        name, levels = rng.choice(self.templates)
        return site_task_content(name, rng.randrange(_SEEDS), rng.choice(levels))


def _levels(difficulty: Any) -> tuple[int, int]:
    if difficulty is None:
        return 1, 5
    pair = (difficulty, difficulty) if isinstance(difficulty, int) else difficulty
    if isinstance(difficulty, bool) or not isinstance(pair, tuple | list) or len(pair) != 2:
        raise TaskError(f"difficulty={difficulty!r} must be 1 to 5, a pair (lowest, highest), or None")
    low, high = pair
    if not (isinstance(low, int) and isinstance(high, int) and 1 <= low <= high <= 5):
        raise TaskError(f"difficulty={difficulty!r} must be 1 to 5, a pair (lowest, highest), or None")
    return low, high
