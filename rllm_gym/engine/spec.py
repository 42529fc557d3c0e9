"""What the engine is asked to do: which episodes, within which limits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from rllm_gym.core import Task, stream_seed


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """One episode to run.

    Attributes:
        task: Index, id or :class:`~rllm_gym.core.Task`, handed to ``reset(options={"task": …})``; ``None`` lets the
            seed pick the task.
        seed: Seed of the environment's dynamics, and the root of the sampler's seeds. ``None`` derives one from
            the engine's seed and the position of the spec.
        group_id: Names the group whose rewards are compared.
        greedy: Sample at temperature 0; such episodes are never trained on.
        episode_id: Unique within a run; ``""`` lets the engine make one.
    """

    task: int | str | Task | Mapping[str, Any] | None = None
    seed: int | None = None
    group_id: str = ""
    greedy: bool = False
    episode_id: str = ""


def group(
    task: int | str | Task, n: int, *, group_id: str, seed: int = 0, greedy_twin: bool = False
) -> list[EpisodeSpec]:
    """``n`` episodes of one task, each with its own dynamics seed: what GRPO and RLOO compare.

    Args:
        task: The task all of them share.
        n: Episodes, at least 1.
        group_id: Unique within the run, such as ``f"{task_id}@{step}"``.
        seed: Root of the episodes' seeds.
        greedy_twin: Add one greedy episode (ReMax's baseline), with a seed of its own.
    """
    if task is None:
        raise ValueError("the episodes of a group share a task: name it by index, id or Task")
    if n < 1:
        raise ValueError(f"n={n!r} must be at least 1")
    specs = [
        EpisodeSpec(task, _seed(seed, group_id, index), group_id, episode_id=f"{group_id}#{index}")
        for index in range(n)
    ]
    if greedy_twin:
        specs.append(EpisodeSpec(task, _seed(seed, group_id, "greedy"), group_id, True, f"{group_id}#greedy"))
    return specs


def as_spec(
    item: EpisodeSpec | int | str | Task | Mapping[str, Any] | None, *, run_seed: int, index: int
) -> EpisodeSpec:
    """A plain task becomes a spec; a spec without a seed gets the one of its position."""
    spec = item if isinstance(item, EpisodeSpec) else EpisodeSpec(item)
    return spec if spec.seed is not None else replace(spec, seed=_seed(run_seed, "episode", index))


def _seed(*parts: int | str) -> int:
    # 32 bits: what every generator, numpy's oldest included, takes as a seed.
    return stream_seed(*parts) % 2**32


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds each phase of an episode may take; every one is finite.

    Attributes:
        make: Constructing the environment.
        reset: ``reset``.
        step: ``step``, the reward included.
        close: ``close``.
        episode: The whole episode, retries included. What has been played until then is kept, truncated.
        call: A function that a workflow has called in a worker.
    """

    make: float = 120.0
    reset: float = 120.0
    step: float = 60.0
    close: float = 10.0
    episode: float = 1800.0
    call: float = 60.0

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"deadline {entry.name}={value!r} must be a finite number of seconds above 0")


@dataclass(frozen=True, slots=True)
class Budget:
    """Where the engine cuts an episode off, beside the environment's own ``max_turns``. ``None`` is no limit.

    Attributes:
        max_turns: Replies in one episode. It can only lower what the environment allows.
        max_prompt_tokens: Longest first prompt; a longer one ends the episode before anything is sampled.
        max_response_tokens: Tokens sampled in one episode, over all turns.
        max_context_tokens: Prompt and reply together, at any turn. The sampler's own limit holds as well.
    """

    max_turns: int | None = None
    max_prompt_tokens: int | None = None
    max_response_tokens: int | None = None
    max_context_tokens: int | None = None

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{entry.name}={value!r} must be a whole number, at least 1, or None")
