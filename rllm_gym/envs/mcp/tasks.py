"""The built-in tasks as a task set. A template, a difficulty and a seed are drawn; no backend is created for that."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rllm_gym.core import TaskError
from rllm_gym.data import ProceduralTaskset
from rllm_gym.envs.mcp.rows import builtin_content
from rllm_gym.envs.mcp.worlds import TEMPLATES, ToolTaskTemplate

_SEEDS = 2**32


def templates_of(
    templates: str | ToolTaskTemplate | Iterable[str | ToolTaskTemplate] | None = None,
    worlds: str | Iterable[str] | None = None,
) -> dict[str, ToolTaskTemplate]:
    """Return templates by name, in the order of their table.

    Args:
        templates: Names of built-in ones, such as ``"sqlite/count-orders"``, and your own templates; ``None`` for all
            built-in ones.
        worlds: Keep the templates of these backends: the part before the ``/`` of their names.

    Raises:
        TaskError: There is no such template or backend; the message names those that exist.
    """
    chosen = dict(TEMPLATES) if templates is None else {}
    requested = [templates] if isinstance(templates, str | ToolTaskTemplate) else list(templates or ())
    for one in requested:
        if isinstance(one, str) and one not in TEMPLATES:
            raise TaskError(f"unknown template {one!r}; choose from {', '.join(TEMPLATES)}")
        template = TEMPLATES[one] if isinstance(one, str) else one
        if not isinstance(template, ToolTaskTemplate):
            raise TaskError(
                f"templates contains {one!r:.80}; it must contain names or your own ToolTaskTemplate objects"
            )
        chosen[template.name] = template
    if worlds is not None:
        wanted = [worlds] if isinstance(worlds, str) else list(worlds)
        known = dict.fromkeys(name.partition("/")[0] for name in chosen)
        for world in wanted:
            if world not in known:
                raise TaskError(f"unknown world {world!r}; choose from {', '.join(known)}")
        chosen = {name: template for name, template in chosen.items() if name.partition("/")[0] in wanted}
    if not chosen:
        raise TaskError("the selection contains no templates; select at least one")
    return chosen


def tool_tasks(
    templates: Mapping[str, ToolTaskTemplate],
    *,
    difficulty: int | tuple[int, int] | None = None,
    split: str | None = "train",
    seed: int = 0,
    size: int | None = None,
) -> ProceduralTaskset:
    """Return tasks of these templates as an unlimited task set.

    Args:
        templates: As returned by :func:`templates_of`.
        difficulty: A level, a pair ``(lowest, highest)``, or ``None`` for every level of a template.
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
        ToolTaskGenerator(drawn), name="mcp", split=split, seed=seed, size=1_000_000 if size is None else size
    )


@dataclass(frozen=True)
class ToolTaskGenerator:
    """A generator of one task at a time.

    Attributes:
        templates: Names, each with the levels to draw from.
    """

    templates: tuple[tuple[str, tuple[int, ...]], ...]

    def __call__(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        name, levels = rng.choice(self.templates)
        return builtin_content(name, rng.randrange(_SEEDS), rng.choice(levels))


def _levels(difficulty: Any) -> tuple[int, int]:
    if difficulty is None:
        return 1, 5
    pair = (difficulty, difficulty) if isinstance(difficulty, int) else difficulty
    full = isinstance(pair, tuple | list) and all(isinstance(end, int) and not isinstance(end, bool) for end in pair)
    if not full or len(pair) != 2 or not 1 <= pair[0] <= pair[1] <= 5:
        raise TaskError(f"difficulty={difficulty!r} must be 1 to 5, a pair (lowest, highest), or None")
    return pair[0], pair[1]
