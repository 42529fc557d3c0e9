"""The registry of data sets: registered data is complete, also with concurrent writers."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from parsing.checks import assert_all_raise

from rllm_gym.compat.dataset import Dataset
from rllm_gym.compat.dataset_registry import DatasetRegistry, RegistryError
from rllm_gym.core import TaskError
from rllm_gym.data import load_tasks

ROWS = [{"question": f"{n} + 1?", "answer": str(n + 1), "tags": ["é", None, 1.5]} for n in range(5)]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLLM_GYM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_register_load_repeat() -> None:
    created = DatasetRegistry.register_dataset("openai/gsm8k", ROWS, "train", source="hub", category="math")
    loaded = DatasetRegistry.load_dataset("openai/gsm8k", "train")
    assert loaded is not None
    assert loaded.get_data() == created.get_data() == ROWS
    assert list(loaded) == ROWS
    assert loaded[2] == ROWS[2]
    assert len(loaded[1:3]) == 2
    assert [row["answer"] for row in loaded.repeat(n=3)][:6] == ["1", "1", "1", "2", "2", "2"]
    repeated = loaded.repeat(2)
    repeated[0]["tags"].append("changed")
    assert repeated[1] == loaded[0] == ROWS[0]
    assert Path(str(loaded.get_data_path())).read_text(encoding="utf-8").count("\n") == 5
    assert DatasetRegistry.get_dataset_names() == ["openai/gsm8k"]
    assert DatasetRegistry.get_dataset_splits("openai/gsm8k") == ["train"]
    info = DatasetRegistry.get_dataset_info("openai/gsm8k")
    assert info is not None
    assert info["metadata"] == {"source": "hub", "category": "math"}
    assert info["splits"]["train"]["num_examples"] == 5
    with pytest.raises(ValueError, match="at least 1"):
        loaded.repeat(0)


def test_an_unknown_name_returns_none() -> None:
    assert DatasetRegistry.load_dataset("nothing", "train") is None
    assert DatasetRegistry.get_dataset_names() == []
    DatasetRegistry.register_dataset("sums", ROWS)
    assert DatasetRegistry.load_dataset("sums", "train") is None
    assert DatasetRegistry.dataset_exists("sums")
    assert DatasetRegistry.dataset_exists("sums", "default")
    assert not DatasetRegistry.dataset_exists("sums", "train")
    assert not DatasetRegistry.remove_dataset("other")
    assert not DatasetRegistry.remove_dataset_split("sums", "train")


def test_registering_again_replaces_and_leaves_no_file_behind(home: Path) -> None:
    for rows in (ROWS, ROWS[:2], ROWS[:2], []):
        DatasetRegistry.register_dataset("sums", rows, "train")
        loaded = DatasetRegistry.load_dataset("sums", "train")
        assert loaded is not None
        assert loaded.get_data() == rows
        assert len(list((home / "datasets").glob("*.jsonl"))) == 1
    DatasetRegistry.register_dataset("sums", ROWS, "test")
    assert DatasetRegistry.remove_dataset_split("sums", "train")
    assert DatasetRegistry.get_dataset_splits("sums") == ["test"]
    assert DatasetRegistry.remove_dataset("sums")
    assert sorted(path.name for path in (home / "datasets").iterdir()) == ["registry.json", "registry.lock"]


def test_the_home_folder_can_be_set(tmp_path: Path) -> None:
    DatasetRegistry.register_dataset("sums", ROWS, home=tmp_path / "elsewhere")
    assert DatasetRegistry.load_dataset("sums") is None
    assert len(DatasetRegistry.load_dataset("sums", home=tmp_path / "elsewhere") or ()) == 5


def test_rows_of_a_data_set_are_tasks_of_an_environment() -> None:
    dataset = DatasetRegistry.register_dataset("sums", ROWS, "train")
    assert load_tasks(dataset)[3].content == "3 + 1?"


def test_hostile_names_are_errors(home: Path) -> None:
    names: list[Any] = ["../x", "a/../b", "/etc/passwd", "", ".", "a/b/c", "a b", "a\n", "x" * 200, "-", "a\0b", 5]
    begin = "must begin with a letter or digit"
    assert_all_raise(ValueError, lambda name: DatasetRegistry.register_dataset(name, ROWS), [(n, begin) for n in names])
    assert_all_raise(
        ValueError, lambda name: DatasetRegistry.register_dataset("fine", ROWS, name), [(n, "split") for n in names]
    )
    assert [name for name in names if DatasetRegistry.load_dataset(name, "default") is not None] == []
    assert not home.exists()


def test_rows_that_are_not_json_are_named_and_nothing_is_written(home: Path) -> None:
    rows: list[Any] = [
        {"x": float("nan")},
        {"x": b"bytes"},
        {5: 1},
        {"x": object()},
        {"x": "\ud800"},
        "must be a mapping",
    ]
    assert_all_raise(
        TaskError,
        lambda row: DatasetRegistry.register_dataset("sums", [{"fine": 1}, row]),
        [(row, "row 1") for row in rows],
    )
    assert DatasetRegistry.get_dataset_names() == []
    assert not list(home.glob("datasets/*.tmp"))


def test_a_damaged_index_is_an_error_and_is_never_overwritten(home: Path) -> None:
    DatasetRegistry.register_dataset("sums", ROWS)
    index = home / "datasets" / "registry.json"
    texts = [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"version": 99, "datasets": {}}',
        b'{"version": 1, "datasets": {"a": 5}}',
        b'{"version": 1, "datasets": {"a": {"metadata": {}, "splits": {"b": {"path": "../../etc/passwd"}}}}}',
        b"[" * 100_000,
    ]

    def kept(text: bytes, call: Callable[[], object]) -> None:
        index.write_bytes(text)
        try:
            call()
        finally:
            assert index.read_bytes() == text
            assert not list(home.glob("datasets/*.tmp"))

    for call in (
        lambda: DatasetRegistry.load_dataset("sums"),
        lambda: DatasetRegistry.register_dataset("more", ROWS),
        DatasetRegistry.get_dataset_names,
        lambda: DatasetRegistry.remove_dataset("sums"),
    ):
        assert_all_raise(
            RegistryError, functools.partial(kept, call=call), [(text, r"registry\.json") for text in texts]
        )


def test_a_damaged_or_missing_data_file_is_an_error_that_names_it(home: Path) -> None:
    path = Path(str(DatasetRegistry.register_dataset("sums", ROWS).get_data_path()))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(RegistryError, match=r"'sums'.*line 5.*register it again"):
        DatasetRegistry.load_dataset("sums")
    path.unlink()
    with pytest.raises(RegistryError, match="does not exist"):
        DatasetRegistry.load_dataset("sums")


def test_load_data_reads_files_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    dataset = Dataset.load_data(path)
    assert dataset.get_data() == ROWS
    assert dataset.get_data_path() == str(path)
    with pytest.raises(FileNotFoundError):
        Dataset.load_data(tmp_path / "none.jsonl")


_WRITER = """
import sys
from rllm_gym.compat import DatasetRegistry
number = int(sys.argv[1])
for turn in range(15):
    DatasetRegistry.register_dataset(f"own{number}", [{"turn": turn}], "train")
    rows = [{"writer": number, "turn": turn, "row": row} for row in range(50)]
    DatasetRegistry.register_dataset("shared", rows, "train")
    seen = DatasetRegistry.load_dataset("shared", "train")
    assert len(seen) == 50 and len({(row["writer"], row["turn"]) for row in seen}) == 1, seen.get_data()[:3]
    if turn % 5 == 0:
        DatasetRegistry.register_dataset(f"gone{number}", [{"x": 1}])
        assert DatasetRegistry.remove_dataset(f"gone{number}")
print("done")
"""


def test_concurrent_writers_lose_nothing(home: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(number)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for number in range(4)
    ]
    for writer in writers:
        out, err = writer.communicate(timeout=240)
        assert (writer.returncode, out) == (0, b"done\n"), err.decode()
    assert DatasetRegistry.get_dataset_names() == ["own0", "own1", "own2", "own3", "shared"]
    for number in range(4):
        assert (DatasetRegistry.load_dataset(f"own{number}", "train") or [])[0] == {"turn": 14}
    assert len(list((home / "datasets").glob("*.jsonl"))) == 5
    assert not list((home / "datasets").glob("*.tmp"))


def test_a_killed_writer_leaves_a_valid_registry_and_no_lock(home: Path) -> None:
    DatasetRegistry.register_dataset("sums", ROWS)
    endless = (
        _WRITER.replace("range(15)", "iter(int, 1)")
        .replace("print", "#")
        .replace("    seen =", "    print(1, flush=True)\n    seen =")
    )
    writer = subprocess.Popen([sys.executable, "-c", endless, "7"], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    for _ in range(3):
        writer.stdout.readline()
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait(timeout=120)
    writer.stdout.close()
    assert (DatasetRegistry.load_dataset("sums") or Dataset([])).get_data() == ROWS
    DatasetRegistry.register_dataset("after", ROWS)
    json.loads((home / "datasets" / "registry.json").read_bytes())


def test_datasets_shuffle_and_select_like_the_hubs() -> None:
    dataset = Dataset(ROWS, "sums", "train")
    assert sorted(row["answer"] for row in dataset.shuffle(seed=1)) == [row["answer"] for row in ROWS]
    assert list(dataset.shuffle(seed=1)) == list(dataset.shuffle(seed=1)) != list(dataset.shuffle(seed=2))
    assert [row["answer"] for row in dataset.select([3, 0])] == ["4", "1"]
    with pytest.raises(IndexError):
        dataset.select([5])
