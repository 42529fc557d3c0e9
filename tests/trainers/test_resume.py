"""A resumed run equals an uninterrupted one: bit-identical where promised, and no task is lost or repeated."""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from echo_config import echo_config
from termination import terminated_at
from transformers import AutoModelForCausalLM

from rllm_gym.core import Episode, StopReason
from trainers.config import ConfigError, TrainConfig
from trainers.config_loading import write_yaml
from trainers.loop import train
from trainers.model import Policy
from trainers.process_group import SINGLE_PROCESS
from trainers.run.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from trainers.run.metrics import read_metrics
from trainers.run.resume import generator_states, set_generator_states
from trainers.run.run_folder import lock_folder, open_folder, save_model
from trainers.run.setup import TrainingRun, open_run
from trainers.run.validation import Validation
from trainers.tiny_model import make_tiny_model

HERE = Path(__file__).resolve().parent


def run_and_kill(folder: Path, *runs: tuple[TrainConfig, int]) -> list[int]:
    """Train with kills at random moments, each run with its own seed; return the number of kills of each."""
    words = []
    for number, (config, seed) in enumerate(runs):
        write_yaml(folder / f"killed-{number}.yaml", config)
        words += [str(folder / f"killed-{number}.yaml"), str(seed)]
    done = subprocess.run(
        [sys.executable, str(HERE / "killed_run.py"), *words],
        capture_output=True,
        text=True,
        timeout=1100,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [int(line) for line in done.stdout.split()[-len(runs) :]]


def to_be_killed(folder: Path, tuning: str) -> TrainConfig:
    return echo_config(
        folder,
        steps=8,
        deterministic=True,
        model={"tuning": tuning},
        algorithm={"groups_per_step": 8},
        entropy={"bonus": 0.01, "target": 5.0},
        curriculum={"replay_fraction": 0.25},
        checkpoint={"every": 2, "keep": 2},
    )


@pytest.mark.long
@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_a_killed_and_resumed_run_is_bit_identical_and_without_replay_every_task_occurs_once_per_pass(
    tmp_path: Path, tuning: str
) -> None:
    """The second run: 30 tasks, 6 per step: 10 steps are two passes, whose order depends only on seed and pass."""
    config = to_be_killed(tmp_path, tuning)
    train(config)
    killed = replace(config, output=str(tmp_path / "killed"))
    passes = echo_config(
        tmp_path, steps=10, algorithm={"groups_per_step": 6}, validation=None, output=str(tmp_path / "passes")
    )
    assert min(run_and_kill(tmp_path, (killed, 5), (passes, 1))) > 1, "a run was hardly killed: nothing was tested"

    rows, again = read_metrics(tmp_path / "run"), read_metrics(tmp_path / "killed")
    assert [row["step"] for row in again] == list(range(9)), "steps are lost or repeated in the log"
    assert [row.get("tasks") for row in again] == [row.get("tasks") for row in rows]
    assert [row.get("reward/mean") for row in again] == [row.get("reward/mean") for row in rows]
    weights = "model.safetensors" if tuning == "full" else "adapter_model.safetensors"
    mine, theirs = tmp_path / "run" / "model" / weights, tmp_path / "killed" / "model" / weights
    assert mine.read_bytes() == theirs.read_bytes()

    rows = read_metrics(tmp_path / "passes")
    assert [row["step"] for row in rows] == list(range(1, 11))
    tasks = [task for row in rows for task in row["tasks"]]
    assert len(set(tasks[:30])) == len(set(tasks[30:])) == 30
    assert tasks[:30] != tasks[30:]


def test_sigterm_saves_and_ends_the_run(tmp_path: Path) -> None:
    config = echo_config(tmp_path, steps=400, checkpoint={"every": 1000}, validation={"every": 1000})
    with terminated_at(2):
        result = train(config)
    assert result.interrupted
    assert result.model is None
    assert 0 < result.steps < 400
    loaded = load_checkpoint(tmp_path / "run" / "checkpoints")
    assert loaded is not None
    assert loaded.step == result.steps
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL, "the signal handler outlived the run"
    with pytest.raises(ConfigError, match="already contains a run"):
        train(config)


def test_a_torn_checkpoint_is_skipped_in_favor_of_the_previous_one(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, {"value": torch.full((1000,), step)}, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    newest = tmp_path / "step-00000003" / "state.pt"
    complete = newest.read_bytes()
    for broken, reason in (
        (complete[: len(complete) // 2], "torn"),
        (complete[:1000] + bytes([complete[1000] ^ 1]) + complete[1001:], "checksum"),
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


def test_a_crash_while_writing_leaves_older_checkpoints_and_no_temporary_files(tmp_path: Path) -> None:
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

    class Malicious:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path}/owned",)

    folder = tmp_path / "step-00000001"
    folder.mkdir()
    torch.save({"value": Malicious()}, folder / "state.pt")
    content = (folder / "state.pt").read_bytes()
    seal = {"schema": 3, "step": 1, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "seal.json").write_text(json.dumps(seal))
    with pytest.raises(CheckpointError):
        load_checkpoint(tmp_path)
    assert not (tmp_path / "owned").exists()
    assert pickle  # the pickle format, which would have executed it


def test_resuming_with_incompatible_options_is_an_error_that_names_them(tmp_path: Path) -> None:
    config = echo_config(tmp_path, steps=1, model={"tuning": "lora", "lora": {"rank": 4}})
    train(config)
    other = make_tiny_model(tmp_path / "other", hidden_size=32, num_heads=1, num_layers=1, vocab_size=300, seed=1)
    lora, four = {"tuning": "lora"}, {"tuning": "lora", "lora": {"rank": 4}}
    for sections, named in (
        ({"model": four, "optimizer": {"name": "adamw8bit"}}, "optimizer.name 'adamw' → 'adamw8bit'"),
        ({"model": {"tuning": "full"}}, "model.tuning 'lora' → 'full'"),
        ({"model": {**lora, "lora": {"rank": 8}}}, "model.lora.rank 4 → 8"),
        ({"model": {**lora, "lora": {"rank": 4, "alpha": 8.0}}}, "model.lora.alpha 32.0 → 8.0"),
        ({"model": {**four, "path": str(other)}}, "frozen weights differ from those"),
        ({"model": four, "env": {"train_kwargs": {"split": "test"}}}, "training tasks differ from those"),
    ):
        with pytest.raises(ConfigError, match="cannot resume from") as refused:
            train(echo_config(tmp_path, steps=2, resume=True, **sections))
        assert named in str(refused.value)
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [0, 1], before
    moved = shutil.move(tmp_path / "tiny", tmp_path / "moved")  # the same model in another folder is the same model
    result = train(echo_config(tmp_path, steps=2, resume=True, model={**four, "path": str(moved)}))
    assert result.steps == 2


def test_changes_since_the_checkpoint_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(echo_config(tmp_path, steps=1))
    train(echo_config(tmp_path, steps=2, resume=True, progress=True, optimizer={"lr": 0.001}))
    shown = capsys.readouterr().err
    assert "resumed after step 1" in shown
    assert "optimizer.lr 0.003 → 0.001" in shown
    assert "steps 1 → 2" in shown
    assert "resume " not in shown


def test_changed_options_of_the_optimizer_apply_after_a_resume(tmp_path: Path) -> None:
    """The state of the optimizer and the weights are those of the checkpoint, all rates and weights the new ones."""

    def config(value_lr: float, **sections: Any) -> TrainConfig:
        model = {"tuning": "lora", "lora": {"rank": 2}}
        ppo = {"name": "ppo", "value_lr": value_lr}
        return echo_config(tmp_path, model=model, algorithm=ppo, validation=None, **sections)

    before = config(0.01, steps=1, entropy={"bonus": 0.02})
    changed = {"optimizer": {"weight_decay": 0.1, "lr": 0.006}, "entropy": {"bonus": 0.05}}
    after = config(0.03, steps=2, **changed)
    train(before)
    with open_run(replace(after, output=str(tmp_path / "new"))) as new:
        expected = groups_of(new)
    with open_run(replace(after, resume=True)) as resumed:
        assert resumed.state.step == 1
        assert groups_of(resumed) == expected
        assert [len(group["params"]) for group in expected] == [14, 2]
        assert [(group["weight_decay"], group["lr_scale"]) for group in expected] == [(0.1, 1.0), (0.0, 5.0)]
        assert resumed.state.entropy_weights == {"": 0.05}
        (learner,) = resumed.state.learners.by_adapter.values()
        steps = {int(state["step"]) for state in learner.optimizer.state_dict()["state"].values()}
        assert min(steps) >= 1, "the moments were restored"


def groups_of(run: TrainingRun) -> list[dict[str, Any]]:
    (learner,) = run.state.learners.by_adapter.values()
    groups: list[dict[str, Any]] = learner.optimizer.state_dict()["param_groups"]
    return [{key: value for key, value in group.items() if key != "lr"} for group in groups]


def test_the_state_of_every_global_generator_is_restored() -> None:
    saved = generator_states()
    drawn = [(random.random(), np.random.rand(), torch.rand(1).item()) for _ in range(3)]  # noqa: NPY002
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    buffer.seek(0)
    set_generator_states(torch.load(buffer, weights_only=True))
    assert drawn == [(random.random(), np.random.rand(), torch.rand(1).item()) for _ in range(3)]  # noqa: NPY002


def test_the_sampler_serves_the_restored_adapter_and_not_the_base(tmp_path: Path) -> None:
    """ms-swift #8275: after a resume the sampler used the base model, without a warning."""
    config = echo_config(tmp_path, steps=3, model={"tuning": "lora"}, optimizer={"lr": 0.05}, deterministic=True)
    train(config)
    train(replace(config, steps=4, resume=True))
    row = read_metrics(tmp_path / "run")[-1]
    assert row["step"] == 4
    assert row["sampling/logprob_difference/max"] < 1e-4, (
        "the sampler's log-probs are not those of the restored adapter"
    )
    loaded = load_checkpoint(tmp_path / "run" / "checkpoints")
    assert loaded is not None
    adapters = {name: value for name, value in loaded.state["learner"]["parameters"].items() if "lora_B" in name}
    assert min(value.abs().max() for value in adapters.values()) > 0.01, "adapters still at zero would show nothing"


def test_a_run_can_be_finished_without_writing_more_checkpoints(tmp_path: Path) -> None:
    config = echo_config(tmp_path, steps=2, checkpoint={"every": 1})
    train(config)
    train(replace(config, steps=3, resume=True, checkpoint=None))
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [0, 1, 2, 3], "step 0 is the validation"
    loaded = load_checkpoint(tmp_path / "run" / "checkpoints")
    assert loaded is not None
    assert loaded.step == 2


def test_the_best_checkpoint_is_kept_and_its_model_is_saved(tmp_path: Path) -> None:
    """Validation is scripted: it is best at step 2 of 6; only the last checkpoint is kept otherwise."""
    config = echo_config(tmp_path, steps=6, checkpoint={"every": 1, "keep": 1}, validation={"every": 1, "samples": 1})
    scores = iter([0.1, 0.2, 0.6, 0.3, 0.6, 0.1, 0.0])

    def scripted(validation: Validation, step: int, *_: object) -> list[Episode]:
        wins = round(10 * next(scores))
        return [
            Episode(f"{i}", f"{i}", group_id=f"{i}", success=i < wins, stop_reason=StopReason.FAILURE)
            for i in range(10)
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Validation, "_episodes", scripted)
        result = train(config)
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["step-00000002", "step-00000006"]
    assert result.best == tmp_path / "run" / "best_model"
    assert json.loads((result.best / "best.json").read_text())["step"] == 2
    best = AutoModelForCausalLM.from_pretrained(result.best).state_dict()
    saved = torch.load(tmp_path / "run" / "checkpoints" / "step-00000002" / "state.pt", weights_only=True)
    for name, tensor in saved["learner"]["parameters"].items():
        assert torch.equal(best[name], tensor), name
    loaded = load_checkpoint(tmp_path / "run" / "checkpoints")
    assert loaded is not None
    assert loaded.step == 6, "a resume goes on from the newest, not from the best"


def test_an_unknown_metric_for_the_best_checkpoint_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"greedy_success.*validation/success"):
        train(echo_config(tmp_path, steps=1, validation={"best": "validation/greedy_success"}))


def test_a_full_disk_is_an_error_that_keeps_the_previous_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"value": torch.zeros(10)}, keep=1)
    # A file size limit fails in the same write(2) as a full disk.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(CheckpointError, match=r"cannot be written[^$]*MiB are free[^$]*step-00000001 is intact"):
            save_checkpoint(tmp_path, 2, {"value": torch.zeros(100_000)}, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    assert loaded.step == 1


def test_checkpoints_later_than_the_resumed_one_are_removed(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, {"value": step}, keep=3)
    (tmp_path / "step-00000003" / "state.pt").write_bytes(b"torn")
    save_checkpoint(tmp_path, 2, {"value": "new"}, keep=3)
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None
    assert (loaded.step, loaded.state, loaded.skipped) == (2, {"value": "new"}, ())


def test_two_runs_cannot_share_a_folder_and_a_killed_run_releases_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    program = (
        "import sys, time; from pathlib import Path; from trainers.run.run_folder import lock_folder\n"
        "with lock_folder(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=rf"in use by another run \(process {holder.pid}\)"):
            train(echo_config(tmp_path))
    finally:
        holder.kill()
        holder.communicate(timeout=200)
    with lock_folder(folder), pytest.raises(ConfigError, match="another run"), lock_folder(folder):
        pass
    with lock_folder(folder):
        pass


class Weights:
    """Stands for a policy: saves one file."""

    def __init__(self, text: str) -> None:
        self.text = text

    def save(self, folder: Path) -> None:
        folder.mkdir()
        (folder / "weights").write_text(self.text)


@pytest.mark.parametrize("completed", [0, 1])
def test_a_crash_while_a_model_is_replaced_does_not_lose_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, completed: int
) -> None:
    class Crash(BaseException):
        pass

    replace_folder, renames = os.replace, itertools.count()

    def crash(*paths: Any) -> None:
        if next(renames) == completed:
            raise Crash
        replace_folder(*paths)

    model = tmp_path / "run" / "best_model"
    model.parent.mkdir()
    save_model(cast(Policy, Weights("old")), model)
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        with pytest.raises(Crash):
            save_model(cast(Policy, Weights("new")), model)
    with open_folder(echo_config(tmp_path, resume=True), SINGLE_PROCESS):
        assert (model / "weights").read_text() == "old"
    save_model(cast(Policy, Weights("last")), model)
    assert (model / "weights").read_text() == "last"
    assert [path.name for path in model.parent.iterdir() if path.is_dir()] == ["best_model"]


def test_files_of_others_in_the_output_folder_are_kept(tmp_path: Path) -> None:
    output = tmp_path / "run"
    (output / "notes").mkdir(parents=True)
    (output / "notes.previous").mkdir()
    (output / "data.txt.previous").write_text("old")
    with open_folder(echo_config(tmp_path, resume=True), SINGLE_PROCESS):
        names = {path.name for path in output.iterdir()}
    assert names >= {"notes", "notes.previous", "data.txt.previous"}
