"""Evaluation metrics of episodes: pass@k and its confidence interval."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from rllm_gym.core import Episode


@dataclass(frozen=True, slots=True)
class Estimate:
    """A success rate with its confidence interval.

    Attributes:
        value: Mean over tasks, in [0, 1].
        low: Lower end of the interval.
        high: Upper end of the interval.
        tasks: Number of tasks.
        episodes: Number of episodes, including dropped ones.
        dropped: Number of episodes that were given up (:attr:`~rllm_gym.core.Episode.trainable`). Each counts as an
            unsuccessful attempt.
    """

    value: float
    low: float
    high: float
    tasks: int
    episodes: int
    dropped: int = 0

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def pass_at_k(attempts: int, successes: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of ``k`` attempts at a task succeeds.

    ``1 - C(n - c, k) / C(n, k)``: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", eq. 1.

    >>> pass_at_k(4, 1, 1), pass_at_k(4, 1, 4)
    (0.25, 1.0)

    Raises:
        ValueError: ``k`` is not in 1..attempts, or ``successes`` is not in 0..attempts.
    """
    if not 1 <= k <= attempts:
        raise ValueError(f"pass@{k} needs 1 <= k <= attempts, but this task has {attempts} attempt(s)")
    if not 0 <= successes <= attempts:
        raise ValueError(f"successes={successes!r} must be in 0..{attempts}")
    return 1.0 - math.comb(attempts - successes, k) / math.comb(attempts, k)


def compute_pass_at_k(
    results: Iterable[Any], k: int | Iterable[int] | None = None, *, confidence: float = 0.95
) -> dict[int, Estimate]:
    """Compute pass@k over the tasks of ``results``.

    Dropped episodes count as unsuccessful attempts: if they were left out, a crash could raise the score.

    Args:
        results: Episodes, grouped by ``task_id``; or rLLM's trajectories, grouped by ``task``, which succeed if
            ``reward > 0``. A reward of ``None`` marks a dropped trajectory.
        k: One k or several. ``None``: 1 and the smallest number of attempts of any task.
        confidence: Confidence level of the interval: Wilson's score interval over tasks, with the effective number of
            tasks of Korn & Graubard 1998, so that several attempts at a task narrow it only as far as they agree.

    Raises:
        ValueError: There are no results, or a task has fewer than k attempts.
    """
    attempts = _by_task(results)
    if not attempts:
        raise ValueError("no results: pass@k needs at least one attempt")
    fewest = min(len(outcomes) for outcomes in attempts.values())
    wanted = sorted({1, fewest} if k is None else {k} if isinstance(k, int) else set(k))
    for size in wanted:
        if size < 1:
            raise ValueError(f"k={size!r} must be at least 1")
        if size > fewest:
            name = next(name for name, outcomes in attempts.items() if len(outcomes) < size)
            raise ValueError(
                f"pass@{size} needs {size} attempts per task, but task {name[:200]!r} has {len(attempts[name])}"
            )
    total = sum(len(outcomes) for outcomes in attempts.values())
    dropped = sum(outcome is None for outcomes in attempts.values() for outcome in outcomes)
    table = {}
    for size in wanted:
        values = [pass_at_k(len(outcomes), sum(map(bool, outcomes)), size) for outcomes in attempts.values()]
        low, high = confidence_interval(values, episodes=total, confidence=confidence)
        table[size] = Estimate(math.fsum(values) / len(values), low, high, len(values), total, dropped)
    return table


def confidence_interval(values: Sequence[float], *, episodes: int, confidence: float = 0.95) -> tuple[float, float]:
    """Compute the confidence interval of the mean of one value in [0, 1] per task.

    Wilson's score interval with ``p (1 - p) / variance of the mean`` as the number of trials, which lies between
    the number of tasks and the number of episodes. The width is never 0, not even if all values are equal.

    Raises:
        ValueError: There are no values, or ``confidence`` is not inside (0, 1).
    """
    if not values:
        raise ValueError("no values: a confidence interval needs at least one")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence!r} must be between 0 and 1, exclusive")
    count = len(values)
    mean = math.fsum(values) / count
    effective = float(count)
    if count > 1 and 0 < mean < 1:
        variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count
        most = max(count, episodes)
        effective = min(most, mean * (1 - mean) / variance) if variance > 0 else float(most)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    centre = mean + z * z / (2 * effective)
    spread = z * math.sqrt(mean * (1 - mean) / effective + z * z / (4 * effective * effective))
    scale = 1 + z * z / effective
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def _by_task(results: Iterable[Any]) -> dict[str, list[bool | None]]:
    """Return the outcomes by task: solved, not solved, or ``None`` for dropped."""
    rows = list(results)
    # An episode that failed before its reset may not know its task id; the others of its group do.
    known = {row.group_id: row.task_id for row in rows if isinstance(row, Episode) and row.group_id and row.task_id}
    attempts: dict[str, list[bool | None]] = defaultdict(list)
    for row in rows:
        if isinstance(row, Episode):
            name = row.task_id or known.get(row.group_id) or row.group_id or f"episode {row.episode_id}"
            attempts[name].append(row.success if row.trainable else None)
        else:
            task = row.task
            name = json.dumps(task, sort_keys=True, default=repr) if isinstance(task, Mapping | list) else str(task)
            attempts[name].append(None if row.reward is None else row.reward > 0)
    return dict(attempts)
