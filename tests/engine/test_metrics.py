"""pass@k is the unbiased estimate, crashes cannot raise it, and its confidence interval has the stated coverage."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm_gym.core import Episode, StopReason, Trajectory
from rllm_gym.engine import compute_pass_at_k, pass_at_k
from rllm_gym.engine.metrics import (
    confidence_interval,
    mean_interval,
    paired_permutation_test,
    sign_flip_test,
    student_t,
)


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_fraction_of_subsets_with_a_success(outcomes: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(outcomes)))
    subsets = list(itertools.combinations(outcomes, k))
    expected = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(len(outcomes), sum(outcomes), k) == pytest.approx(expected, abs=1e-12)


def test_many_attempts_do_not_overflow_or_lose_precision() -> None:
    assert pass_at_k(10_000, 0, 100) == 0.0
    assert pass_at_k(10_000, 1, 100) == pytest.approx(0.01)
    for wrong in ((4, 1, 5), (4, 1, 0), (4, 5, 1)):
        with pytest.raises(ValueError):
            pass_at_k(*wrong)


def episode(task: str, success: bool | None, **fields: str) -> Episode:
    stop = StopReason.FAULT if success is None else StopReason.SUCCESS if success else StopReason.FAILURE
    return Episode(f"{task}-{random.random()}", task, success=bool(success), stop_reason=stop, **fields)


def test_episodes_are_distinguished_by_task() -> None:
    results = [episode("a", True), episode("a", False), episode("b", False), episode("b", False)]
    table = compute_pass_at_k(results)
    assert {k: estimate.value for k, estimate in table.items()} == {1: 0.25, 2: 0.5}
    assert (table[1].tasks, table[1].episodes, table[1].dropped) == (2, 4, 0)
    assert table[1].low < 0.25 < table[1].high


def test_an_episode_with_a_fault_counts_as_a_failed_attempt() -> None:
    complete = compute_pass_at_k([episode("a", True), episode("a", False)])[1]
    broken = compute_pass_at_k([episode("a", True), episode("a", None)])[1]
    assert complete.value == broken.value == 0.5
    assert broken.dropped == 1
    # An episode that failed before its task was known belongs to the task of its group.
    lost = [episode("a", True, group_id="g"), episode("", None, group_id="g")]
    assert compute_pass_at_k(lost)[1].value == 0.5
    # If no episode of a group reached its task, the group is the task.
    gone = [episode("", None, group_id="g"), episode("", None, group_id="g")]
    table = compute_pass_at_k([episode("a", True), episode("a", False), *gone], [1, 2])
    assert {k: (estimate.value, estimate.tasks) for k, estimate in table.items()} == {1: (0.25, 2), 2: (0.5, 2)}


def test_a_k_larger_than_the_attempts_is_an_error_that_names_the_task() -> None:
    results = [episode("a", True), episode("a", True), episode("lonely", True)]
    with pytest.raises(ValueError, match="lonely"):
        compute_pass_at_k(results, 2)
    assert set(compute_pass_at_k(results)) == {1}
    with pytest.raises(ValueError, match="no results"):
        compute_pass_at_k([])


def test_trajectories_of_rllm_are_distinguished_by_their_task() -> None:
    rows = [{"question": "a"}, {"question": "a"}, {"question": "b"}, {"question": "b"}]
    results = [Trajectory(task=row, reward=reward) for row, reward in zip(rows, [1.0, 0.0, 0.0, 0.0], strict=True)]
    assert {k: estimate.value for k, estimate in compute_pass_at_k(results).items()} == {1: 0.25, 2: 0.5}


def test_the_interval_is_wilsons_for_single_attempts_and_never_empty() -> None:
    # Newcombe 1998, table I, first row: 81 of 263, 95 %: 0.2553 to 0.3662.
    low, high = confidence_interval([1.0] * 81 + [0.0] * 182, episodes=263)
    assert (round(low, 3), round(high, 3)) == (0.255, 0.366)
    for mean in (0.0, 1.0):
        low, high = confidence_interval([mean] * 10, episodes=40)
        assert 0 <= low < high <= 1
        assert high - low > 0.2


def test_the_interval_has_the_stated_coverage() -> None:
    rng = random.Random(0)
    covered = 0
    for _ in range(1000):
        # Tasks of very different difficulty, four attempts each; the mean difficulty is 1/2.
        results = []
        for task in range(30):
            chance = rng.random()
            results += [episode(str(task), rng.random() < chance) for _ in range(4)]
        estimate = compute_pass_at_k(results)[1]
        covered += estimate.low <= 0.5 <= estimate.high
    assert 0.92 <= covered / 1000 <= 0.98


def test_paired_tests_and_intervals_are_those_of_the_books() -> None:
    # Differences in height of Darwin's 15 pairs of plants, in eighths of an inch: Fisher, The Design of Experiments.
    darwin = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    assert sign_flip_test(darwin) == pytest.approx(1726 / 32768)
    low, high = mean_interval(darwin) or (0, 0)
    assert ((low + high) / 2, low, high) == (
        pytest.approx(314 / 15),
        pytest.approx(0.03, abs=0.1),
        pytest.approx(41.8, abs=0.1),
    )
    quantiles = {1: 12.706, 2: 4.303, 3: 3.182, 9: 2.262, 10: 2.228, 30: 2.042, 200: 1.972, 1000: 1.962, 10**9: 1.960}
    assert {count: round(student_t(0.95, count), 3) for count in quantiles} == quantiles
    # Differences of one size: the sign test.
    assert sign_flip_test([1, 1, 1, 1, 1, 0]) == 2 / 2**5
    assert sign_flip_test([0.0, 0.0]) == 1
    # More than 16: random signs, near the exact value of the sign test for 15 of 20.
    assert sign_flip_test([1.0] * 15 + [-1.0] * 5) == pytest.approx(0.0414, abs=0.005)


def test_two_models_are_compared_on_their_common_tasks() -> None:
    found = paired_permutation_test({"a": 0.0, "b": 0.5, "c": 1.0, "x": 0}, {"a": 1.0, "b": 1.0, "c": 0.5, "y": 1})
    assert (found.tasks, found.better, found.worse) == (3, 2, 1)
    assert found.difference == pytest.approx(1 / 3)
    assert found.p_value == pytest.approx(0.75)  # 6 of 8 sums of ±1 ±0.5 ±0.5 are at least 1 from 0
    # One task, or tasks that all differ alike, do not say how much tasks vary: no interval, rather than one of width 0.
    assert mean_interval([1.0]) is None
    assert paired_permutation_test({"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 1.0}).interval is None
    with pytest.raises(ValueError, match="no task in common"):
        paired_permutation_test({"a": 1.0}, {"b": 1.0})
