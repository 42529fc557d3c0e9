"""The Hugging Face hub: what can be seen of it without a network. A folder named like a repository stands in for it."""

from __future__ import annotations

import json
import pickle
import time
from pathlib import Path

import pytest

from rllm_gym.core import TaskError
from rllm_gym.data import Taskset, hub, load_tasks

pytest.importorskip("datasets", reason="datasets is not installed")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``datasets`` takes a local folder for a repository of the same name: the same code, without the network."""
    folder = tmp_path / "somebody" / "sums"
    folder.mkdir(parents=True)
    for split, count in (("train", 30), ("test", 5)):
        rows = [{"question": f"{split} {n}?", "answer": f"so #### {n}"} for n in range(count)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    hub._fetched.cache_clear()
    return folder


def test_rows_of_the_hub_become_tasks(repository: Path) -> None:
    tasks = load_tasks("hf:somebody/sums")
    assert len(tasks) == 30
    assert tasks[7].content == "train 7?"
    assert tasks.find("sums/7") == tasks[7]
    assert pickle.loads(pickle.dumps(tasks))[7] == tasks[7]  # noqa: S301 - our own bytes
    assert [task.content for task in load_tasks("hf:somebody/sums@test")] == [f"test {n}?" for n in range(5)]
    by_content = load_tasks("hf:somebody/sums@train", split="train")
    assert 0 < len(by_content) < 30
    # "test" could mean the hub's split or a tenth of the training rows by content: neither is guessed.
    with pytest.raises(TaskError, match=r"two things.*'hf:somebody/sums@test'"):
        load_tasks("hf:somebody/sums", split="test")
    with pytest.raises(TaskError, match="cannot load"):
        load_tasks("hf:somebody/sums@nosuch")


def test_offline_is_said_clearly_and_soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    hub._fetched.cache_clear()
    started = time.perf_counter()
    with pytest.raises(TaskError, match=r"hf:openai/gsm8k .*HF_HUB_OFFLINE is set.*local file"):
        load_tasks("hf:openai/gsm8k")
    assert time.perf_counter() - started < 60


def test_a_hub_that_never_answers_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    started = time.perf_counter()
    with pytest.raises(TaskError, match=r"did not arrive in 0\.01 seconds"):
        Taskset.from_hub("somebody/sums@train", timeout=0.01)
    assert time.perf_counter() - started < 30


@pytest.mark.parametrize("source", ["hf:", "hf:a/b/c", "hf:../secret", "hf:a b", "hf:a@b@c", "hf:a:", "hf:/etc"])
def test_what_names_no_repository_is_refused(source: str) -> None:
    with pytest.raises(TaskError, match=r"hf:repo\[:config\]\[@split\]"):
        load_tasks(source)
