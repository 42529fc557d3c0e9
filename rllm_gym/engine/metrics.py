"""Evaluation metrics of episodes: pass@k, means with confidence intervals, and paired comparisons."""

from __future__ import annotations

import functools
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

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


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """The difference of two models on the tasks that both have attempted.

    Attributes:
        difference: Mean over tasks of the second model's mean minus the first one's.
        interval: 95% confidence interval of the difference (:func:`mean_interval`); ``None`` if all tasks differ alike.
        p_value: Of :func:`sign_flip_test`.
        tasks: Number of common tasks.
        better: Number of tasks on which the second model is better.
        worse: Number of tasks on which it is worse.
    """

    difference: float
    interval: tuple[float, float] | None
    p_value: float
    tasks: int
    better: int
    worse: int


def paired_permutation_test(first: Mapping[str, float], second: Mapping[str, float]) -> PairedComparison:
    """Compare two models by their means per task: difference, confidence interval and p-value.

    The test is ``scipy.stats.permutation_test`` with ``permutation_type="samples"``, without scipy; with one attempt
    per task it is McNemar's exact test.

    Args:
        first: Mean of each task, such as its success rate over several attempts.
        second: The same for the other model.

    Raises:
        ValueError: They have no task in common.
    """
    differences = [second[task] - first[task] for task in first if task in second]
    if not differences:
        raise ValueError("the two models have no task in common")
    return PairedComparison(
        math.fsum(differences) / len(differences),
        mean_interval(differences),
        sign_flip_test(differences),
        len(differences),
        sum(value > 0 for value in differences),
        sum(value < 0 for value in differences),
    )


def mean_interval(values: Sequence[float], *, confidence: float = 0.95) -> tuple[float, float] | None:
    """Return Student's t interval of the mean of one value per task: the interval clustered by task, since several
    attempts at a task enter as their mean. ``None`` if all values are equal: their variance is not known then, and the
    interval would have the width 0.
    """
    if len(set(values)) < 2:
        return None
    mean = math.fsum(values) / len(values)
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
    spread = student_t(confidence, len(values) - 1) * error
    return mean - spread, mean + spread


@functools.lru_cache
def student_t(confidence: float, freedom: int) -> float:
    """Return the t with ``P(|T| <= t) = confidence`` for Student's distribution with ``freedom`` degrees of freedom."""
    if freedom > 200:  # Abramowitz & Stegun 26.7.5
        z = NormalDist().inv_cdf(0.5 + confidence / 2)
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    low, high = 0.0, math.pi / 2  # of atan(t / sqrt(freedom))
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """Return ``P(|T| <= sqrt(freedom) tan(angle))``: Abramowitz & Stegun 26.7.3 and 26.7.4."""
    odd = freedom % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def sign_flip_test(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of the paired permutation test (Fisher 1935): the probability of a sum of the
    differences at least as far from 0 if the sign of each is random.

    All sign vectors are counted if at most 16 differences are not 0. Else 20,000 random ones are drawn, always the
    same, and the observed one is counted with them.
    """
    values = np.array([value for value in differences if value])
    if not len(values):
        return 1.0
    least = abs(values.sum()) - 1e-9 * np.abs(values).sum()
    if len(values) <= 16:
        bits = np.arange(2 ** len(values))[:, None] >> np.arange(len(values)) & 1
        return float(np.mean(np.abs((2 * bits - 1) @ values) >= least))
    generator, extreme, draws = np.random.default_rng(0), 1, 20_000
    for _ in range(0, draws, 100):
        signs = 2 * generator.integers(0, 2, (100, len(values)), dtype=np.int8) - 1
        extreme += int(np.sum(np.abs(signs @ values) >= least))
    return extreme / (draws + 1)


def episodes_by_task(episodes: Iterable[Episode]) -> dict[str, list[Episode]]:
    """Return the episodes of each task."""
    episodes = list(episodes)
    # An episode that failed before its reset may not know its task id; the others of its group do.
    known = {episode.group_id: episode.task_id for episode in episodes if episode.group_id and episode.task_id}
    found: dict[str, list[Episode]] = defaultdict(list)
    for episode in episodes:
        name = episode.task_id or known.get(episode.group_id) or episode.group_id or f"episode {episode.episode_id}"
        found[name].append(episode)
    return dict(found)


def _by_task(results: Iterable[Any]) -> dict[str, list[bool | None]]:
    """Return the outcomes by task: solved, not solved, or ``None`` for dropped."""
    rows = list(results)
    attempts: dict[str, list[bool | None]] = defaultdict(list)
    for name, episodes in episodes_by_task(row for row in rows if isinstance(row, Episode)).items():
        attempts[name] += [episode.success if episode.trainable else None for episode in episodes]
    for row in rows:
        if not isinstance(row, Episode):
            task = row.task
            name = json.dumps(task, sort_keys=True, default=repr) if isinstance(task, Mapping | list) else str(task)
            attempts[name].append(None if row.reward is None else row.reward > 0)
    return dict(attempts)
