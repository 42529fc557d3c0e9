"""Task files: real ones, corrupt ones, hostile ones, and files that change while they are read."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from parsing.checks import assert_all_raise

from rllm_gym.core import SPLITS, TaskError, split_of
from rllm_gym.data import Taskset, load_tasks

ROWS = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(100)]


def write_jsonl(path: Path, rows: list[object] = ROWS) -> Path:  # type: ignore[assignment]
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def test_gsm8k_opens_lazily_and_splits_by_content(shared_data: Path) -> None:
    path = shared_data / "gsm8k_train.jsonl"
    tasks = load_tasks(str(path))
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(tasks) == len(lines) == 7473
    assert tasks[4711].content == json.loads(lines[4711])["question"]
    assert tasks.find("gsm8k_train/4711") == tasks[4711]
    parts = [load_tasks(path, split=name) for name in SPLITS]
    assert sum(map(len, parts)) == 7473
    assert all(split_of(task.content) == "test" for task in parts[2])


def test_rows_of_math_keep_the_ids_they_have(shared_data: Path) -> None:
    tasks = Taskset.from_file(shared_data / "math500.jsonl")
    assert tasks.find("test/precalculus/807.json") == tasks[0]


def test_a_file_opened_twice_is_read_once_and_again_after_a_change(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl")
    first = Taskset.from_file(path)
    assert Taskset.from_file(path)._store is first._store
    path.unlink()
    write_jsonl(path, [{"question": "new?"}])
    assert len(Taskset.from_file(path)) == 1
    assert first[99].content == "99 + 1?"  # the file that was opened is still there


def test_a_file_overwritten_in_place_is_detected(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl")
    tasks = Taskset.from_file(path)
    with open(path, "r+b") as file:
        file.truncate(10)
    with pytest.raises(TaskError, match="was changed"):
        tasks[50]


def test_a_task_file_can_be_pickled_without_reading_the_file_again(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "t.jsonl")
    packed = pickle.dumps(Taskset.from_file(path, split="test"))
    code = (
        "import pickle, sys; t = pickle.load(sys.stdin.buffer); "
        "print(len(t), t[-1].task_id, t.find(t[0].task_id) == t[0])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], input=packed, capture_output=True, timeout=240, check=True
    ).stdout
    mine = Taskset.from_file(path, split="test")
    assert out.decode().split() == [str(len(mine)), mine[-1].task_id, "True"]


def test_blank_lines_bom_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"question": "a\xe2\x80\xa8b"}\r\n\r\n   \n{"question": "c"}')
    assert [task.content for task in Taskset.from_file(path)] == ["a\u2028b", "c"]


def test_a_bad_line_is_named_with_its_problem_and_a_fix(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"

    def load_with(line: bytes) -> None:
        path.write_bytes(b'\n{"id": 0, "question": "fine"}\n' + line + b"\n")
        with pytest.raises(TaskError):
            load_tasks(path)
        load_tasks(path)  # again: a failure is not cached as a success

    cases = [
        (b'{"question": "x"', r"not JSON: .* at column 17"),
        (b"nonsense", "not JSON"),
        (b'{"question": "\xff"}', "byte 15 of the line is not UTF-8"),
        (b'{"question": "x", "level": NaN}', "NaN is not JSON"),
        (b'{"question": "x", "level": -Infinity}', "Infinity is not JSON"),
        (b'{"question": "x", "level": ' + b"9" * 5_000 + b"}", "number is too long"),
        (b'{"question": "\\ud800"}', "surrogate"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "levels deep"),
        (b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", "levels deep"),
        (b"[1, 2]", "named fields"),
        (b"null", "named fields"),
        (b'{"id": "0"}', "already used by .*line 2"),
        (b'{"id": [1], "question": "x"}', "'id' is"),
    ]
    assert_all_raise(TaskError, load_with, [(line, rf"bad\.jsonl, line 3: .*{why}") for line, why in cases])


def test_an_endless_line_costs_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "huge.jsonl"
    with open(path, "wb") as file:
        file.write(b'{"question": "')
        file.truncate(2**30)  # sparse: 1 GiB of zeros in one line
    tracemalloc.start()
    with pytest.raises(TaskError, match=r"huge\.jsonl, line 1: longer than 16777216 bytes"):
        load_tasks(path)
    assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    tracemalloc.stop()


def test_a_large_file_is_indexed_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    with open(path, "w") as file:
        for number in range(5_000):
            file.write(json.dumps({"question": f"{number}?", "filler": "x" * 4_000}) + "\n")
    tracemalloc.start()
    tasks = Taskset.from_file(path)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert tasks[4_999].content == "4999?"
    assert held < 3 * 2**18
    assert peak < 8 * 2**20  # of 20 MB


def test_a_file_without_tasks_is_an_error_that_explains_why(tmp_path: Path) -> None:
    cases = [
        ("empty.jsonl", b"", "no rows"),
        ("blank.jsonl", b"\n \n", "no rows"),
        ("object.json", b'{"question": "x"}', "list of rows"),
        ("lines.json", b'{"question": "x"}\n{"question": "y"}\n', r"\.jsonl"),
        ("none.json", b"[]", "non-empty list"),
        ("rows.csv", b"question,answer\n", r"not from '\.csv'"),
        ("rows", b"", "no suffix"),
        ("not.parquet", b"PAR1 but not really", "not a Parquet file"),
    ]
    for name, content, _ in cases:
        (tmp_path / name).write_bytes(content)
    assert_all_raise(TaskError, load_tasks, [(tmp_path / name, why) for name, _, why in cases])


def test_a_missing_file_is_an_error_that_lists_the_accepted_sources(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"hf:repo.*list of rows"):
        load_tasks(str(tmp_path / "none.jsonl"))
    with pytest.raises(TaskError, match="regular file"):
        load_tasks(tmp_path)
    with pytest.raises(TaskError):
        load_tasks("nul\0.jsonl")
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(TaskError, match="regular file"):  # must not wait for a writer forever
        load_tasks(tmp_path / "pipe.jsonl")


def test_a_list_in_a_json_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps(ROWS))
    tasks = load_tasks(tmp_path / "rows.json")
    assert tasks[5].task_id == "rows/5"
    assert len(tasks) == 100


def test_parquet_rows_equal_jsonl_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    pytest.importorskip("pyarrow.parquet")

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "t.parquet", row_group_size=7)
    write_jsonl(tmp_path / "t.jsonl")
    columns, lines = load_tasks(tmp_path / "t.parquet"), load_tasks(tmp_path / "t.jsonl")
    assert list(columns) == list(lines)
    assert columns[50] == lines[50]
    assert columns.find("t/93") == lines.find("t/93")
    assert list(load_tasks(tmp_path / "t.parquet", split="test")) == list(
        load_tasks(tmp_path / "t.jsonl", split="test")
    )
    assert pickle.loads(pickle.dumps(columns))[50] == columns[50]  # noqa: S301 - our own bytes
    damaged = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "d.parquet").write_bytes(damaged[:60] + b"\xff" * 60 + damaged[120:])
    with pytest.raises(TaskError, match=r"d\.parquet"):
        load_tasks(tmp_path / "d.parquet")
    pyarrow.parquet.write_table(
        pyarrow.table({"question": ["a", "b"], "x": [1.0, float("nan")]}), tmp_path / "n.parquet"
    )
    with pytest.raises(TaskError, match=r"n\.parquet, row 1: .*'x'.* is nan"):
        load_tasks(tmp_path / "n.parquet")


def test_the_package_imports_without_pyarrow_and_datasets(tmp_path: Path) -> None:
    """The error names the extra to install when one of them is needed."""
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    code = f"""
import sys
sys.modules["pyarrow"] = None
import rllm_gym.data as data
assert "datasets" not in sys.modules and "torch" not in sys.modules and "pandas" not in sys.modules
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "datasets" else find(name, *rest)
for source in ({str(tmp_path / "t.parquet")!r}, "hf:openai/gsm8k"):
    try:
        data.load_tasks(source)
    except data.taskset.TaskError as error:
        print(error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True).stdout
    assert "pip install 'rllm-gym[parquet]'" in out
    assert "pip install 'rllm-gym[hub]'" in out
