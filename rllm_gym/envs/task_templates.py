"""Built-in tasks generated from templates: a template, a level and a seed. Nothing is created before the episode."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from rllm_gym.core import TaskError
from rllm_gym.data import ProceduralTaskset
from rllm_gym.envs.task_selection import difficulty_range

_SEEDS = 2**32


TEMPLATE_KEYS = ("template", "seed", "difficulty")


class TaskTemplate(Protocol):
    """A family of tasks: its levels of difficulty, its initial state and its tasks."""

    @property
    def name(self) -> str: ...

    @property
    def difficulties(self) -> Iterable[int]: ...

    @property
    def build(self) -> Callable[[int, int], Any]: ...

    @property
    def make_task(self) -> Callable[[Any, random.Random, int], Any]: ...


@dataclass(frozen=True, slots=True)
class TemplateTaskRow:
    """A built-in task.

    Attributes:
        template: Name of its template.
        seed: Seed of its data.
        difficulty: One of the template's levels, 1 to 5.
    """

    template: str
    seed: int
    difficulty: int


Template = TypeVar("Template", bound=TaskTemplate)


def choose_templates(
    built_in: Mapping[str, Template],
    kind: type[Template],
    templates: str | Template | Iterable[str | Template] | None,
    groups: str | Iterable[str] | None,
    group: str,
) -> dict[str, Template]:
    """Return templates by name, in the order of their table.

    Args:
        built_in: The built-in ones by name.
        kind: Class of the templates.
        templates: Names of built-in ones, such as ``"shop/buy"``, and your own; ``None`` for all built-in ones.
        groups: Keep the templates of these groups: the part before the ``/`` of their names.
        group: Noun for a group: ``"site"``.

    Raises:
        TaskError: There is no such template or group; the message names those that exist.
    """
    chosen = dict(built_in) if templates is None else {}
    requested = [templates] if isinstance(templates, str) or not isinstance(templates, Iterable) else list(templates)
    for one in () if templates is None else requested:
        if isinstance(one, str) and one not in built_in:
            raise TaskError(f"unknown template {one!r}; choose from {', '.join(built_in)}")
        template = built_in[one] if isinstance(one, str) else one
        if not isinstance(template, kind):
            raise TaskError(
                f"templates contains {one!r:.80}; it must contain names or your own {kind.__name__} objects"
            )
        chosen[template.name] = template
    if groups is not None:
        wanted = [groups] if isinstance(groups, str) else list(groups)
        known = dict.fromkeys(name.partition("/")[0] for name in chosen)
        for name in wanted:
            if name not in known:
                raise TaskError(f"unknown {group} {name!r}; choose from {', '.join(known)}")
        chosen = {name: template for name, template in chosen.items() if name.partition("/")[0] in wanted}
    if not chosen:
        raise TaskError("the selection contains no templates; select at least one")
    return chosen


def template_tasks(
    templates: Mapping[str, TaskTemplate],
    name: str,
    *,
    difficulty: int | tuple[int, int] | None = None,
    split: str | None = "train",
    seed: int = 0,
    size: int | None = None,
) -> ProceduralTaskset:
    """Return tasks of these templates as an unlimited task set.

    Args:
        templates: As returned by :func:`choose_templates`.
        name: Prefix of the task ids.
        difficulty: A level of 1 to 5, a pair ``(lowest, highest)``, or ``None`` for every level of a template.
        split: ``"train"``, ``"validation"`` or ``"test"``; ``None`` means ``"train"``.
        seed: A different seed gives different tasks.
        size: Number of tasks, 1,000,000 by default.

    Raises:
        TaskError: No template exists at that difficulty, or another argument is out of range.
    """
    lowest, highest = difficulty_range(difficulty)
    drawn = tuple(
        (template.name, levels)
        for template in templates.values()
        if (levels := tuple(level for level in template.difficulties if lowest <= level <= highest))
    )
    if not drawn:
        raise TaskError(f"difficulty={difficulty!r}: none of {', '.join(templates)} has this level")
    return ProceduralTaskset(
        TemplateTaskGenerator(drawn), name=name, split=split, seed=seed, size=1_000_000 if size is None else size
    )


@dataclass(frozen=True)
class TemplateTaskGenerator:
    """A generator of one task at a time.

    Attributes:
        templates: Names, each with the levels to draw from.
    """

    templates: tuple[tuple[str, tuple[int, ...]], ...]

    def __call__(self, rng: random.Random) -> tuple[str, dict[str, Any]]:
        name, levels = rng.choice(self.templates)
        return template_task_content(name, rng.randrange(_SEEDS), rng.choice(levels))


def template_task_content(template: str, seed: int, difficulty: int) -> tuple[str, dict[str, Any]]:
    """Return content and data of a task; these three values define it completely."""
    # A hash of this text decides the split: any change of its words would move tasks to other splits.
    content = f"{template}, difficulty {difficulty}, world {seed}"
    return content, {"template": template, "seed": seed, "difficulty": difficulty}


def read_template_row(row: Mapping[str, Any]) -> TemplateTaskRow:
    """Return the row in a task's data, which has the key ``"template"``.

    Raises:
        TaskError: A value is unusable; the message names the field.
    """
    template, seed, difficulty = row["template"], row.get("seed", 0), row.get("difficulty", 1)
    if not isinstance(template, str):
        raise TaskError(f"its template is {template!r:.80}; it must be the name of a template")
    for name, value, highest in (("seed", seed, 2**63 - 1), ("difficulty", difficulty, 5)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= highest:
            raise TaskError(f"its {name} is {value!r:.80}; it must be a whole number from 0 to {highest}")
    return TemplateTaskRow(template, seed, difficulty)


def build_template_task(template: TaskTemplate, row: TemplateTaskRow) -> tuple[Any, Any]:
    """Return the initial state of a task, and the task.

    Raises:
        TaskError: The template does not exist at this difficulty, or requests neither a change nor an answer.
    """
    if row.difficulty not in template.difficulties:
        levels = ", ".join(map(str, template.difficulties))
        raise TaskError(f"the template {template.name!r} has no difficulty {row.difficulty}; it has {levels}")
    state = template.build(row.seed, row.difficulty)
    task = template.make_task(state, random.Random(row.seed), row.difficulty)
    if task.outcome is None and task.answer is None and not task.infeasible:
        raise TaskError(
            f"the template {template.name!r} requires neither a change nor an answer, so it cannot be graded"
        )
    return state, task
