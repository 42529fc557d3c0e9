"""Procedural tasks: functions of (split, seed, index), disjoint by content, with constant-time access to any index."""

from __future__ import annotations

import pickle
import random
from typing import Any

import pytest
from parsing.checks import assert_all_raise

from rllm_gym.core import SPLITS, TaskError
from rllm_gym.data import ProceduralTaskset


def sums(rng: random.Random) -> tuple[str, dict[str, Any]]:
    a, b = rng.randrange(10_000), rng.randrange(10_000)
    return f"{a} + {b}?", {"gold": str(a + b)}


def few(rng: random.Random) -> tuple[str, dict[str, Any]]:
    return "always the same", {}


def build(**changes: Any) -> ProceduralTaskset:
    return ProceduralTaskset(sums, **({"name": "sums", "size": 10_000} | changes))


def test_a_task_is_a_pure_function_of_split_seed_and_index() -> None:
    first, second = build(seed=7), build(seed=7, size=50_000)
    assert first[17] == second[17]
    forwards = [first[n] for n in range(50)]
    assert [second[n] for n in reversed(range(50))][::-1] == forwards
    assert random.Random(0).random() == 0.8444218515250481  # the global generator is not what is used
    state = random.getstate()
    first[3]
    assert random.getstate() == state


def test_the_released_tasks_never_change() -> None:
    assert [task.content for task in build(seed=0).take(3)] == PINNED


PINNED = ["1417 + 9477?", "9883 + 3698?", "806 + 6035?"]


def test_neighbouring_seeds_share_no_sequence() -> None:
    a = {task.content for task in build(seed=42).take(5_000)}
    b = {task.content for task in build(seed=43).take(5_000)}
    assert len(a & b) < 10


def test_splits_share_no_content_over_three_thousand_tasks_each_whatever_the_seed() -> None:
    contents = {
        split: {task.content for seed in (0, 1) for task in build(split=split, seed=seed, size=3_000)}
        for split in SPLITS
    }
    assert not contents["train"] & contents["validation"]
    assert not contents["train"] & contents["test"]
    assert not contents["validation"] & contents["test"]
    assert min(map(len, contents.values())) > 5_700


def test_ids_contain_split_seed_and_index_and_identify_their_task() -> None:
    tasks = build(split="test", seed=5)
    assert tasks[17].task_id == "sums/test/5/17"
    assert tasks.find("sums/test/5/17") == tasks[17]
    view = tasks.shuffle(1).take(3)
    assert view.find(view[2].task_id) == view[2]
    for wrong in ("sums/train/5/17", "sums/test/6/17", "sums/test/5/10000", "sums/test/5/017", "sums/test/5/٣", "x"):
        with pytest.raises(TaskError, match="sums/test/5/0"):
            tasks.find(wrong)


def test_the_last_of_a_billion_tasks_costs_as_much_as_the_first() -> None:
    created = []

    def counted(rng: random.Random) -> tuple[str, dict[str, Any]]:
        created.append(sums(rng))
        return created[-1]

    tasks = ProceduralTaskset(counted, name="sums", size=10**9)
    assert tasks[10**9 - 1].task_id.endswith("/999999999")
    assert tasks.find("sums/train/0/999999999") == tasks[-1]
    assert len(created) < 100, "those before it were made too"


def test_the_split_of_a_set_is_fixed() -> None:
    tasks = build(split=None)
    assert tasks.split("train") is tasks
    with pytest.raises(TaskError, match="split='test'"):
        tasks.split("test")
    with pytest.raises(TaskError, match="'train', 'validation', 'test'"):
        build(split="dev")


def test_a_generator_that_never_produces_a_split_is_an_error() -> None:
    outcomes = []
    for split in SPLITS:
        try:
            outcomes.append(ProceduralTaskset(few, name="few", split=split)[0].content)
        except TaskError as error:
            outcomes.append(str(error))
    assert sum("more distinct contents" in outcome for outcome in outcomes) == 2


def test_arguments_out_of_range_are_errors_that_name_them() -> None:
    wrong = [{"size": 0}, {"size": 1.5}, {"size": 2**63}, {"seed": "a"}, {"seed": True}]
    assert_all_raise(TaskError, lambda changes: build(**changes), [(changes, next(iter(changes))) for changes in wrong])


def test_a_task_set_can_be_pickled() -> None:
    tasks = build(split="validation", seed=3)
    copy = pickle.loads(pickle.dumps(tasks))  # noqa: S301 - our own bytes
    assert copy[99] == tasks[99]
    assert copy.find(tasks[5].task_id) == tasks[5]
