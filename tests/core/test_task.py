"""Tasks: immutable, serializable, and assigned to a split by their content."""

from __future__ import annotations

import copy
import json
import pickle
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rllm_gym.core import SPLITS, Task, split_of, stream_seed

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(), st.text(), st.dictionaries(st.text(), json_values, max_size=4))
def test_a_task_survives_json_pickle_and_copying(task_id, content, data):
    task = Task(task_id, content, data)
    assert Task.from_json(json.loads(json.dumps(task.to_json()))) == task
    assert pickle.loads(pickle.dumps(task)) == task  # noqa: S301  (its own bytes)
    assert copy.deepcopy(task) == task
    assert task.to_json()["data"] == data


def test_tasks_are_immutable():
    rows = {"numbers": [1, 2], "inner": {"x": 1}}
    task = Task("a", "b", rows)
    rows["numbers"].append(3)
    assert task.data["numbers"] == (1, 2)
    with pytest.raises(TypeError):
        task.data["numbers"][0] = 5
    with pytest.raises(TypeError):
        task.data["inner"]["x"] = 2
    with pytest.raises(AttributeError):
        task.content = "other"


def test_slices_of_lists_equal_lists_and_arrays_are_compared_by_item():
    numbers = Task("a", "b", {"numbers": [1, 2, 3]}).data["numbers"]
    assert numbers[:2] == [1, 2]
    assert (numbers != np.array([1, 5, 3])).tolist() == [False, True, False]


@given(json_values, json_values)
def test_values_compare_as_those_that_were_passed(value, other):
    """``json.loads(reply) == self.task.data["answer"]`` is how environments grade."""
    kept = Task("a", "b", {"answer": value}).data["answer"]
    for another in (value, other):
        for left, right in ((kept, another), (another, kept)):
            assert (left == right) == (value == another)
            assert (left != right) == (value != another)


def test_the_split_depends_on_the_content_alone_and_never_changes():
    assert Task("x", "What is 1 + 1?").split == Task("y", "What is 1 + 1?", {"answer": 2}).split
    counts = Counter(split_of(f"problem {i}") for i in range(20_000))
    assert set(counts) == set(SPLITS)
    assert 0.78 < counts["train"] / 20_000 < 0.82
    assert 0.09 < counts["test"] / 20_000 < 0.11
    # Published splits: these must never change.
    splits = [split_of(f"problem {i}") for i in range(40)]
    assert [i for i, split in enumerate(splits) if split == "test"] == [8, 9, 15]
    assert [i for i, split in enumerate(splits) if split == "validation"] == [20, 22, 23, 25, 27, 32, 33]


def test_lone_surrogates_have_a_hash_too():
    assert len(Task("x", "\ud800").content_hash) == 64
    assert split_of("\ud800") in SPLITS


@given(st.lists(st.tuples(st.sampled_from(SPLITS), st.integers(0, 50), st.integers(0, 50)), unique=True, min_size=2))
def test_streams_of_different_parts_differ(parts):
    seeds = [stream_seed(*part) for part in parts]
    assert len(set(seeds)) == len(parts)
    assert all(0 <= seed < 2**128 for seed in seeds)
