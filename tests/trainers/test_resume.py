"""A run that was killed goes on as if it had not been: same bits where that is promised, no task lost or repeated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from echo_options import echo_config

from trainers.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from trainers.config import ConfigError, TrainConfig
from trainers.loop import train
from trainers.metrics import read_metrics
from trainers.settings import write_yaml

HERE = Path(__file__).resolve().parent


def run_and_kill(config: TrainConfig, folder: Path, seed: int) -> int:
    """Train with kills at random instants; how many there were."""
    write_yaml(folder / "killed.yaml", config)
    done = subprocess.run(
        [sys.executable, str(HERE / "killed_run.py"), str(folder / "killed.yaml"), str(seed)],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_killed_and_resumed_equals_uninterrupted_bit_for_bit(tmp_path: Path, tuning: Any) -> None:
    config = echo_config(
        tmp_path,
        steps=10,
        deterministic=True,
        model={"tuning": tuning},
        algorithm={"groups_per_step": 8},
        entropy={"bonus": 0.01, "target": 5.0},
        curriculum={"replay_fraction": 0.25},
        checkpoint={"every": 2, "keep": 2},
    )
    train(config)
    killed = replace(config, output=str(tmp_path / "killed"))
    assert run_and_kill(killed, tmp_path, seed=5) > 0, "the run was never killed: nothing was tested"

    rows, again = read_metrics(tmp_path / "run"), read_metrics(tmp_path / "killed")
    assert [row["step"] for row in again] == list(range(11)), "steps are lost or repeated in the log"
    assert [row.get("tasks") for row in again] == [row.get("tasks") for row in rows]
    assert [row.get("reward") for row in again] == [row.get("reward") for row in rows]
    weights = "model.safetensors" if tuning == "full" else "adapter_model.safetensors"
    mine, theirs = tmp_path / "run" / "model" / weights, tmp_path / "killed" / "model" / weights
    assert mine.read_bytes() == theirs.read_bytes()


def test_without_replay_every_task_comes_once_a_pass_across_a_kill(tmp_path: Path) -> None:
    """30 tasks, 4 a step: 15 steps are two passes; the order of each is decided by the seed and the pass alone."""
    config = echo_config(tmp_path, steps=15, validation={"every": 0, "tasks": 64, "samples": 1})
    assert run_and_kill(config, tmp_path, seed=1) > 0, "the run was never killed: nothing was tested"
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == list(range(1, 16))
    tasks = [task for row in read_metrics(tmp_path / "run") for task in row["tasks"]]
    assert len(set(tasks[:30])) == len(set(tasks[30:])) == 30
    assert tasks[:30] != tasks[30:]


def test_sigterm_saves_and_ends_the_run_and_resume_finishes_it(tmp_path: Path) -> None:
    config = echo_config(tmp_path, steps=400, checkpoint={"every": 1000}, validation={"every": 1000})

    class Watch(threading.Thread):
        """Sends SIGTERM once the log has a row of a training step."""

        def run(self) -> None:
            file = tmp_path / "run" / "metrics.jsonl"
            wait = threading.Event()
            for _ in range(1000):
                if file.exists() and len(file.read_text().splitlines()) > 2:
                    break
                wait.wait(0.02)
            os.kill(os.getpid(), signal.SIGTERM)

    watch = Watch()
    watch.start()
    result = train(config)
    watch.join()
    assert result.interrupted
    assert result.model is None
    assert 0 < result.steps < 400
    loaded = load_checkpoint(tmp_path / "run" / "checkpoints")
    assert loaded is not None
    assert loaded.step == result.steps
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "the signal handler outlived the run"
    with pytest.raises(ConfigError, match="already holds a run"):
        train(config)


def test_a_torn_checkpoint_is_skipped_for_the_one_before(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, {"value": torch.full((1000,), step)}, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    newest = tmp_path / "step-00000003" / "state.pt"
    whole = newest.read_bytes()
    for broken, reason in (
        (whole[: len(whole) // 2], "torn"),
        (whole[:1000] + bytes([whole[1000] ^ 1]) + whole[1001:], "checksum"),
        (b"", "torn"),
    ):
        newest.write_bytes(broken)
        loaded = load_checkpoint(tmp_path)
        assert loaded is not None
        assert loaded.step == 2
        assert loaded.state["value"][0] == 2
        assert reason in loaded.skipped[0]
        assert "step-00000003" in loaded.skipped[0]
    (tmp_path / "step-00000003" / "seal.json").unlink()
    (tmp_path / "step-00000002" / "seal.json").write_text("{")
    with pytest.raises(CheckpointError, match="step-00000002"):
        load_checkpoint(tmp_path)


def test_a_crash_while_writing_leaves_the_older_ones_and_no_rubbish(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"value": 1}, keep=2)
    (tmp_path / "step-00000002.partial").mkdir()
    (tmp_path / "step-00000002.partial" / "state.pt").write_bytes(b"half")
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    assert (loaded.step, loaded.skipped) == (1, ())
    save_checkpoint(tmp_path, 2, {"value": 2}, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001", "step-00000002"]


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    import hashlib
    import json
    import pickle

    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path}/owned",)

    folder = tmp_path / "step-00000001"
    folder.mkdir()
    torch.save({"value": Evil()}, folder / "state.pt")
    content = (folder / "state.pt").read_bytes()
    seal = {"schema": 1, "step": 1, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "seal.json").write_text(json.dumps(seal))
    with pytest.raises(CheckpointError):
        load_checkpoint(tmp_path)
    assert not (tmp_path / "owned").exists()
    assert pickle  # the format that would have run it


def test_resuming_with_another_model_is_refused(tmp_path: Path) -> None:
    config = echo_config(tmp_path, steps=1)
    train(config)
    other = echo_config(tmp_path, steps=2, resume=True, model={"tuning": "lora"})
    with pytest.raises(ValueError, match="not this model's"):
        train(other)
