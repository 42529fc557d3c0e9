"""The Hugging Face hub without a network: a folder with the name of a repository replaces it."""

from __future__ import annotations

import json
import pickle
import socket
from importlib.util import find_spec
from pathlib import Path

import pytest
from parsing.checks import assert_all_raise

from rllm_gym.core import TaskError
from rllm_gym.data import Taskset, load_tasks

# Not pytest.importorskip: importing it takes a second and more of every collection, and only workers need it.
pytestmark = pytest.mark.skipif(find_spec("datasets") is None, reason="datasets is not installed")


def test_rows_of_a_hub_data_set_become_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # ``datasets`` takes a local folder for a repository of the same name: the same code, without the network.
    folder = tmp_path / "somebody" / "sums"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        rows = [{"question": f"{split} {n}?", "answer": f"so #### {n}"} for n in range(30)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    tasks = load_tasks("hf:somebody/sums")
    assert len(tasks) == 30
    assert tasks[7].content == "train 7?"
    assert tasks.find("sums/7") == tasks[7]
    assert pickle.loads(pickle.dumps(tasks))[7] == tasks[7]  # noqa: S301 - our own bytes
    assert [task.content for task in load_tasks("hf:somebody/sums@test")] == [f"test {n}?" for n in range(30)]
    by_content = load_tasks("hf:somebody/sums@test", split="train")
    assert 0 < len(by_content) < 30
    # "test" could mean the hub's split or a tenth of the training rows by content: the name is ambiguous.
    with pytest.raises(TaskError, match=r"ambiguous.*'hf:somebody/sums@test'"):
        load_tasks("hf:somebody/sums", split="test")
    with pytest.raises(TaskError, match="cannot load"):
        load_tasks("hf:somebody/sums@nosuch")


def test_being_offline_is_reported_clearly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(TaskError, match=r"hf:openai/gsm8k .*HF_HUB_OFFLINE is set.*local file"):
        load_tasks("hf:openai/gsm8k")


def test_a_hub_that_never_answers_times_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("HF_HUB_OFFLINE", "0")
        monkeypatch.setenv("HF_HOME", str(tmp_path))
        for patience in ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):
            monkeypatch.setenv(patience, "600")
        with pytest.raises(TaskError, match=r"was not downloaded within 0\.5 seconds"):
            Taskset.from_hub("somebody/silent", timeout=0.5)


def test_an_invalid_repository_name_is_an_error() -> None:
    sources = ["hf:", "hf:a/b/c", "hf:../secret", "hf:a b", "hf:a@b@c", "hf:a:", "hf:/etc"]
    assert_all_raise(TaskError, load_tasks, [(source, r"hf:repo\[:config\]\[@split\]") for source in sources])
