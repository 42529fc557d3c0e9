"""Each task is used once per pass, unsolved tasks are replayed, and the entropy weight follows its target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from echo_config import echo_config
from hypothesis import given
from hypothesis import strategies as st

from trainers.config import ConfigError, CurriculumConfig, EntropyConfig, validate
from trainers.entropy import EntropyBonus
from trainers.rollouts.curriculum import TaskCurriculum, shuffled


@given(size=st.integers(1, 300), key=st.integers(0, 2**128 - 1))
def test_a_shuffle_has_every_element_once(size: int, key: int) -> None:
    assert sorted(shuffled(index, size, key) for index in range(size)) == list(range(size))


def test_shuffles_of_billions_need_no_memory_and_differ_by_key() -> None:
    size = 3_000_000_001
    first, second = ([shuffled(index, size, key) for index in range(50)] for key in (1, 2))
    assert len(set(first)) == 50
    assert max(first) < size
    assert first != second


def test_a_pass_contains_every_task_once_and_the_next_has_another_order() -> None:
    curriculum = TaskCurriculum(range(10), None, seed=3)
    indices = [index for step in range(8) for index in curriculum.next_tasks(step, 5)]
    for start in range(0, 40, 10):
        assert sorted(indices[start : start + 10]) == list(range(10))
    assert indices[:10] != indices[10:20]
    assert indices != [
        i for s in range(8) for i in TaskCurriculum(range(10), CurriculumConfig(), seed=4).next_tasks(s, 5)
    ]


def test_unsolved_tasks_are_replayed_until_they_are_solved() -> None:
    curriculum = TaskCurriculum(range(1000), CurriculumConfig(replay_fraction=0.5), seed=0)
    first = curriculum.next_tasks(0, 4)
    curriculum.update({first[0]: 1.0, first[1]: 0.5, first[2]: 0.0, first[3]: 0.0})
    second = curriculum.next_tasks(1, 4)
    assert len(set(second[:2]) & set(first[1:])) == 2
    assert not set(second[2:]) & set(first)
    curriculum.update(dict.fromkeys(first[1:], 1.0))
    assert not set(curriculum.next_tasks(2, 4)) & set(first)


def test_tasks_of_middling_difficulty_are_replayed_most_and_solved_ones_sometimes() -> None:
    config = CurriculumConfig(replay_fraction=0.5, replay_by="difficulty")
    curriculum = TaskCurriculum(range(1_000_000), config, seed=0)
    first = curriculum.next_tasks(0, 300)
    solved, middling, hopeless = first[:100], first[100:200], first[200:]
    rates = dict.fromkeys(solved, 1.0) | dict.fromkeys(middling, 0.5) | dict.fromkeys(hopeless, 0.0)
    curriculum.update(rates)
    drawn = [task for step in range(1, 101) for task in curriculum.next_tasks(step, 40)[:20]]
    assert set(drawn) <= set(first)
    counts = {kind: sum(drawn.count(task) for task in tasks)
              for kind, tasks in (("solved", solved), ("middling", middling), ("hopeless", hopeless))}  # fmt: skip
    # The weights are 0.02, 0.27 and 0.02.
    assert counts["middling"] > 5 * counts["solved"] > 0
    assert counts["middling"] > 5 * counts["hopeless"] > 0
    for step in range(1, 5):
        again = curriculum.next_tasks(step, 40)[:20]
        assert len(set(again)) == 20, "none twice in a step"


@pytest.mark.parametrize("by", ["unsolved", "difficulty"])
def test_its_state_can_be_saved_and_restored_exactly(by: Any) -> None:
    config = CurriculumConfig(replay_fraction=0.3, replay_by=by)

    def new() -> TaskCurriculum:
        return TaskCurriculum(range(50), config, seed=1)

    uninterrupted, interrupted = new(), new()
    for step in range(6):
        if step == 3:
            saved = interrupted.state_dict()
            interrupted = new()
            interrupted.load_state_dict(saved)
        indices = uninterrupted.next_tasks(step, 7)
        assert interrupted.next_tasks(step, 7) == indices
        for item in (uninterrupted, interrupted):
            item.update({index: (index % 3) / 2 for index in indices})
    with pytest.raises(ValueError, match="50 training tasks and the environment has 51"):
        TaskCurriculum(range(51), config, seed=1).load_state_dict(uninterrupted.state_dict())


def test_a_fraction_of_no_group_is_refused(tmp_path: Path) -> None:
    config = echo_config(tmp_path, algorithm={"groups_per_step": 4}, curriculum={"replay_fraction": 0.1})
    with pytest.raises(ConfigError, match="less than half a group, so none is repeated"):
        validate(config)


def test_the_weight_rises_below_the_target_and_falls_above_it() -> None:
    bonus = EntropyBonus(EntropyConfig(bonus=0.01, target=0.5), steps=100)
    assert bonus.target(0) == 0.5
    assert bonus.target(35) == pytest.approx(0.25)
    assert bonus.target(70) == bonus.target(99) == pytest.approx(0.0)
    bonus.observe(0, 0.4)
    assert bonus.weight == pytest.approx(0.0115)
    bonus.observe(0, 0.6)
    assert bonus.weight == pytest.approx(0.01)
    for _ in range(100):
        bonus.observe(0, 0.0)
    assert bonus.weight == 0.1
    for _ in range(200):
        bonus.observe(99, 1.0)
    assert 0 < bonus.weight < 1e-4
    large = EntropyBonus(EntropyConfig(bonus=0.2, target=0.5), steps=100)
    large.observe(0, 0.1)
    assert large.weight == 0.2, "a weight above the usual limit does not grow, and is not cut to the limit"
    large.observe(0, 0.9)
    assert large.weight < 0.2
    fixed = EntropyBonus(EntropyConfig(bonus=0.01), steps=100)
    fixed.observe(0, 0.0)
    assert (fixed.weight, fixed.target(0)) == (0.01, None)
