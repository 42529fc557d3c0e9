"""A task set keeps ids, order and splits through all operations."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsing.checks import assert_all_raise

from rllm_gym.core import SPLITS, Task, TaskError, TaskSource, split_of
from rllm_gym.data import Taskset, load_tasks

ROWS = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(200)]


@pytest.fixture
def tasks() -> Taskset:
    return Taskset.from_rows(ROWS, name="sums")


def test_a_task_set_is_accepted_by_environments(tasks: Taskset) -> None:
    assert isinstance(tasks, TaskSource)
    assert len(tasks) == 200
    assert [task.content for task in tasks] == [row["question"] for row in ROWS]
    assert tasks[-1] == tasks[199] == tasks[np.int64(199)]
    assert tasks.find("sums/17") == tasks[17]
    assert tasks[17] in tasks
    assert Task("sums/17", "other") not in tasks
    with pytest.raises(IndexError, match=r"200 is outside 0\.\.199"):
        tasks[200]


def test_an_unknown_id_is_an_error_that_shows_what_ids_look_like(tasks: Taskset) -> None:
    unknown = ["sums/200", "sums/017", "sums/-1", "sums/", "sums/1x", "other/1", "", "sums/" + "9" * 99]
    assert_all_raise(TaskError, tasks.find, [(task_id, "sums/0") for task_id in unknown])


def test_views_keep_ids_and_are_new_sets(tasks: Taskset) -> None:
    view = tasks.shuffle(3).take(50).select([4, 0, -1])
    assert len(view) == 3
    assert all(tasks.find(task.task_id) == task and view.find(task.task_id) == task for task in view)
    outside = next(task for task in tasks if task not in list(view))
    with pytest.raises(TaskError):
        view.find(outside.task_id)
    assert [task.task_id for task in tasks[10:20:3]] == ["sums/10", "sums/13", "sums/16", "sums/19"]
    assert [task.task_id for task in tasks[10:20].select([1, -1])] == ["sums/11", "sums/19"]
    assert [task.task_id for task in tasks.skip(198)] == ["sums/198", "sums/199"]
    assert len(tasks.take(10**9)) == 200
    assert [task.task_id for task in tasks.filter(lambda task: task.content.startswith("7"))][:2] == [
        "sums/7",
        "sums/70",
    ]
    with pytest.raises(TaskError, match="index 200"):
        tasks.select([0, 200])


def test_shuffling_depends_on_the_seed_alone(tasks: Taskset) -> None:
    first, again, other = ([task.task_id for task in tasks.shuffle(seed)] for seed in (42, 42, 43))
    assert first == again != other
    assert sorted(first) == sorted(other) == sorted(task.task_id for task in tasks)
    # Pinned: a shuffled order must not change with the version of NumPy.
    assert [task.task_id for task in tasks.take(5).shuffle(0)] == SHUFFLED


SHUFFLED = ["sums/0", "sums/4", "sums/3", "sums/2", "sums/1"]


def test_splits_are_made_by_content_and_share_none(tasks: Taskset) -> None:
    parts = {name: tasks.split(name) for name in SPLITS}
    assert sum(map(len, parts.values())) == len(tasks)
    assert all(split_of(task.content) == name for name, part in parts.items() for task in part)
    assert all(len(part) for part in parts.values())
    assert [task.task_id for task in tasks.shuffle(1).split("test")] == [
        task.task_id for task in tasks.shuffle(1) if task.split == "test"
    ]
    assert list(Taskset.from_rows(ROWS, name="sums", split="test")) == list(parts["test"])
    with pytest.raises(TaskError, match="'train', 'validation', 'test'"):
        tasks.split("dev")
    with pytest.raises(TaskError, match="split=None"):
        Taskset.from_rows([next(row for row in ROWS if split_of(row["question"]) == "train")], split="test")


def test_equal_problems_are_in_one_split_and_can_be_dropped() -> None:
    tasks = Taskset.from_rows(ROWS + ROWS)
    assert len(tasks) == 400
    assert [task.task_id for task in tasks.unique()] == [f"rows/{n}" for n in range(200)]
    assert not {t.content_hash for t in tasks.split("test")} & {t.content_hash for t in tasks.split("train")}


def test_a_task_set_is_immutable(tasks: Taskset) -> None:
    rows = [{"question": "1?", "answer": {"value": [1]}}]
    kept = Taskset.from_rows(rows)
    rows[0]["answer"]["value"].append(2)
    rows.append({"question": "2?"})
    assert len(kept) == 1
    assert kept[0].data["answer"]["value"] == (1,)
    with pytest.raises(AttributeError):
        tasks._store = None  # type: ignore[assignment]
    with pytest.raises(TypeError):
        tasks[0].data["answer"] = "5"  # type: ignore[index]
    assert copy.deepcopy(tasks) is tasks


def test_a_task_set_can_be_pickled(tasks: Taskset) -> None:
    view = pickle.loads(pickle.dumps(tasks.shuffle(1).take(7)))  # noqa: S301 - our own bytes
    assert list(view) == list(tasks.shuffle(1).take(7))


def test_rows_keep_their_own_ids() -> None:
    tasks = Taskset.from_rows(
        [{"id": 7, "problem": "a"}, {"unique_id": "x/y", "problem": "b"}, {"problem": "c"}], name="n"
    )
    assert [task.task_id for task in tasks] == ["7", "x/y", "n/2"]
    assert [tasks.find(task_id).content for task_id in ("7", "x/y", "n/2")] == ["a", "b", "c"]


def test_duplicate_ids_are_errors_that_name_the_id() -> None:
    with pytest.raises(TaskError, match=r"row 2 of 'n': its id 'a' is already used by row 0"):
        Taskset.from_rows([{"id": "a", "q": 1}, {"id": "b", "q": 2}, {"id": "a", "q": 3}], name="n")
    with pytest.raises(TaskError, match="already used"):
        Taskset.from_rows([{"q": 1}, {"id": "n/0", "q": 2}], name="n")


def test_an_invalid_row_is_an_error_that_names_it() -> None:
    cases: list[tuple[Any, str]] = [
        (7, "an object with named fields"),
        (["a"], "an object with named fields"),
        ({"id": True, "question": "?"}, "'id' is True"),
        ({"id": "", "question": "?"}, "'id' is ''"),
        ({"question": "?", "level": float("nan")}, "nan"),
        ({"question": "?", "level": [float("inf")]}, r"\['level'\]\[0\] is inf"),
        ({"question": "?", "image": b"png"}, "bytes"),
        ({"question": "?", 5: 1}, "keys must be strings"),
    ]
    assert_all_raise(
        TaskError,
        lambda row: Taskset.from_rows([{"question": "fine"}, row], name="n"),
        [(row, f"row 1 of 'n': .*{why}") for row, why in cases],
    )


def test_tasks_and_their_saved_form_come_back_as_they_were() -> None:
    task = Task("t/1", "what?", {"gold": "5", "limits": [1, 2]})
    saved = json.loads(json.dumps(task.to_json()))
    assert Taskset.from_rows([task])[0] == task
    assert Taskset.from_rows([saved])[0] == task


@given(
    st.lists(
        st.dictionaries(st.text(max_size=8), st.text(max_size=8) | st.integers() | st.none(), max_size=4), min_size=1
    )
)
def test_any_rows_of_json_types_become_tasks(rows: list[dict[str, object]]) -> None:
    try:
        tasks = Taskset.from_rows(rows)
    except TaskError:
        return  # ids that are empty or taken
    assert len(tasks) == len(rows)
    assert all(tasks.find(task.task_id) == task for task in tasks)


def test_an_invalid_source_of_tasks_is_an_error_that_lists_the_accepted_ones() -> None:
    sources: list[Any] = [7, None, {"question": "?"}, b"rows"]
    assert_all_raise(TaskError, load_tasks, [(source, "list of") for source in sources])


def test_load_tasks_accepts_all_documented_sources(tasks: Taskset) -> None:
    assert load_tasks(tasks) is tasks
    assert len(load_tasks(tasks, split="test")) == len(tasks.split("test"))
    assert len(load_tasks(ROWS)) == len(load_tasks(tuple(ROWS))) == len(load_tasks(iter(ROWS))) == 200
    assert load_tasks(list(tasks))[3] == tasks[3]
