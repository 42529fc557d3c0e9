"""The inputs of an engine: episode specs, deadlines and token limits."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from rllm_gym.argument_checks import check_int
from rllm_gym.core import Task, stream_seed
from rllm_gym.runtime.env_worker import EnvDeadlines


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """One episode to run.

    Attributes:
        task: Index, id or :class:`~rllm_gym.core.Task`, passed to ``reset(options={"task": …})``; ``None`` lets the
            seed select the task.
        seed: Seed of the environment's dynamics, and the root of the sampler's seeds. ``None`` derives one from
            the engine's seed and the position of the spec.
        group_id: Name of the group whose rewards are compared.
        greedy: Sample at temperature 0; such episodes are never trained on.
        episode_id: Unique within a run; ``""`` lets the engine create one.
    """

    task: int | str | Task | Mapping[str, Any] | None = None
    seed: int | None = None
    group_id: str = ""
    greedy: bool = False
    episode_id: str = ""


SpecLike = EpisodeSpec | int | str | Task | Mapping[str, Any] | None
Specs = Iterable[SpecLike] | AsyncIterable[SpecLike]


def group(
    task: int | str | Task, n: int, *, group_id: str, seed: int = 0, greedy_baseline: bool = False
) -> list[EpisodeSpec]:
    """Return ``n`` episode specs of one task, each with its own dynamics seed, for GRPO or RLOO.

    Args:
        task: The task that all of them share.
        n: Number of episodes, at least 1.
        group_id: Unique within the run, such as ``f"{task_id}@{step}"``.
        seed: Root of the episodes' seeds.
        greedy_baseline: Add one greedy episode (ReMax's baseline), with a seed of its own.
    """
    if task is None:
        raise ValueError("task=None: the episodes of a group need the same task; pass an index, an id or a Task")
    check_int("n", n)
    specs = [
        EpisodeSpec(task, _seed(seed, group_id, index), group_id, episode_id=f"{group_id}#{index}")
        for index in range(n)
    ]
    if greedy_baseline:
        specs.append(EpisodeSpec(task, _seed(seed, group_id, "greedy"), group_id, True, f"{group_id}#greedy"))
    return specs


def as_spec(item: SpecLike, *, run_seed: int, index: int) -> EpisodeSpec:
    """Convert a plain task to a spec, and derive a seed from the position if the spec has none."""
    spec = item if isinstance(item, EpisodeSpec) else EpisodeSpec(item)
    return spec if spec.seed is not None else replace(spec, seed=_seed(run_seed, "episode", index))


def _seed(*parts: int | str) -> int:
    # 32 bits, because every generator, including numpy's legacy one, accepts such a seed.
    return stream_seed(*parts) % 2**32


@dataclass(frozen=True, slots=True)
class Deadlines(EnvDeadlines):
    """Maximum duration of each phase of an episode, in seconds. All values are finite.

    Attributes:
        make: Constructing the environment.
        reset: ``reset``.
        step: ``step``, including the reward; the environment's :attr:`~rllm_gym.core.TextEnv.max_step_s` is added.
        close: ``close``.
        episode: The whole episode, including retries. When it passes, the episode is kept as truncated.
        call: A function that a workflow runs in a worker.
    """

    episode: float = 1800.0
    call: float = 60.0


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits at which the engine truncates an episode, in addition to the environment's ``max_turns``. ``None``: no
    limit.

    Attributes:
        max_turns: Replies per episode. Can only lower the environment's own limit.
        max_prompt_tokens: Maximum length of the first prompt. A longer one ends the episode before sampling.
        max_response_tokens: Tokens sampled per episode, over all turns.
        max_context_tokens: Prompt and reply together, at any turn. The sampler's own limit applies as well.
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
