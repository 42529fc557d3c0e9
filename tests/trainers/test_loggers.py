"""The trackers of a run, with modules that have the interface of their libraries, the completions, and the upload."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from echo_config import echo_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rllm_gym.commands.errors import CommandError
from trainers import ConfigError, commands
from trainers.loop import train
from trainers.run.metrics import read_metrics

Calls = list[tuple[str, dict[str, Any]]]


def library(name: str, calls: Calls) -> ModuleType:
    """Return a module that records its calls. Signatures are those of wandb 0.31, Trackio 0.43 and MLflow 3.17."""

    def note(what: str, result: Any = None) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append((what, {"args": args, **kwargs}))
            return result

        return call

    module: Any = ModuleType(name)
    module.__spec__ = SimpleNamespace(name=name)
    if name == "wandb":
        methods = {"log": note("log"), "finish": note("finish"), "define_metric": note("define_metric")}
        module.init = note("init", SimpleNamespace(**methods))
        module.Table = lambda columns, data: [dict(zip(columns, row, strict=True)) for row in data]
    elif name == "trackio":
        module.init, module.log, module.finish = note("init"), note("log"), note("finish")
        module.Table = lambda dataframe: dataframe.to_dict("records")
    else:
        module.set_experiment, module.end_run = note("set_experiment"), note("finish")
        module.start_run = note("init", SimpleNamespace(info=SimpleNamespace(run_id="abc")))
        module.log_metrics, module.log_dict = note("log"), note("log_dict")
        valid = re.compile(r"[\w .:/-]+")  # as MLflow checks them
        log = module.log_metrics

        def log_valid(values: Any, step: int) -> None:
            assert all(valid.fullmatch(key) for key in values)
            log(values, step=step)

        module.log_metrics = log_valid
    return module


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_a_run_and_its_continuation_go_to_one_run_of_the_tracker(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Calls = []
    monkeypatch.setitem(sys.modules, name, library(name, calls))
    for steps, resume in ((2, False), (3, True)):
        train(echo_config(tmp_path, steps=steps, resume=resume, loggers=["tensorboard", name]))
    started = [arguments for what, arguments in calls if what == "init"]
    assert len(started) == 2
    identity = {"wandb": "id", "trackio": "name", "mlflow": "run_id"}[name]
    assert started[1][identity] == ("abc" if name == "mlflow" else started[0][identity])
    logged: dict[int, dict[str, Any]] = {}
    for what, arguments in calls:
        if what == "log":
            values = arguments["args"][0]
            step = values["step"] if name == "wandb" else arguments["step"]
            logged.setdefault(step, {}).update(values)
    assert sorted(logged) == [0, 1, 2, 3]
    rows = {row["step"]: row for row in read_metrics(tmp_path / "run")}
    for step in (1, 2, 3):
        assert logged[step]["reward/mean"] == rows[step]["reward/mean"]
        assert "tasks" not in logged[step], "not a number"
    tables = [values["completions"] for values in logged.values() if "completions" in values] or [
        arguments["args"][0]["completions"]
        for what, arguments in calls
        if what == "log_dict" and "step-" in str(arguments)
    ]
    assert [len(table) for table in tables] == [8, 8, 8]
    assert calls[-1][0] == "finish"
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("reward/mean")] == [1, 2, 3]


def test_a_tracker_that_fails_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module: Any = library("mlflow", [])

    def log_metrics(values: Any, step: int) -> None:
        raise ConnectionError("no route")

    module.log_metrics = log_metrics
    monkeypatch.setitem(sys.modules, "mlflow", module)
    train(echo_config(tmp_path, steps=1, validation=None, loggers=["mlflow"]))
    assert "loggers=mlflow: metrics(1,) failed: no route" in caplog.text
    assert not (tmp_path / "run" / "tensorboard").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [("trackio", "not installed: pip install trackio"), ("comet", "'comet' is not one of tensorboard, wandb")],
)
def test_a_logger_that_cannot_be_used_is_an_error_before_the_model_is_loaded(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    with pytest.raises(ConfigError, match=message):
        train(echo_config(tmp_path, loggers=[name], model={"path": "nowhere"}))


def test_the_first_completions_of_each_step_are_written_once_and_short(tmp_path: Path) -> None:
    for steps, resume in ((2, False), (3, True)):
        train(echo_config(tmp_path, steps=steps, resume=resume, validation=None, loggers=None))
    rows = [json.loads(line) for line in (tmp_path / "run" / "completions.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1] * 8 + [2] * 8 + [3] * 8
    assert len({row["group"] for row in rows}) == 6, "whole groups of four"
    for row in rows:
        assert row["prompt"].startswith("say ")
        assert "\n> again\n" in row["completion"] or row["completion"].endswith("> again"), "two turns"
        assert row["reward"] == pytest.approx(sum(json.loads(row["rewards"]).values()))


class FakeHub:
    calls: Calls = []  # noqa: RUF012 - of all instances

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
        if repo_id == "me/denied":
            raise OSError("401 Client Error")
        self.calls.append(("create", {"repo": repo_id, "private": private}))

    def upload_folder(self, repo_id: str, *, folder_path: str) -> None:
        self.calls.append(
            ("upload", {"repo": repo_id, "files": sorted(path.name for path in Path(folder_path).iterdir())})
        )


def test_the_model_is_uploaded_to_a_repository_that_was_created_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", FakeHub)
    monkeypatch.setattr(FakeHub, "calls", [])
    model = echo_config(tmp_path).model.path
    words = ["--env.id", "echo_env:test/Echo-v0", "--model.path", model, "--sampling.max-tokens", "3", "--steps", "1"]
    words += ["--algorithm.group-size", "2", "--validation", "none", "--no-progress", "--output", str(tmp_path / "run")]
    with pytest.raises(CommandError, match=r"--push-to-hub me/denied: 401 .*hf auth login"):
        commands.train([*words, "--push-to-hub", "me/denied"])
    with pytest.raises(CommandError, match="write --push-to-hub USER/NAME"):
        commands.train(["--push-to-hub", *words])
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    commands.train(["--push-to-hub=me/model", *words])
    assert FakeHub.calls[0] == ("create", {"repo": "me/model", "private": True})
    assert "adapter_config.json" in FakeHub.calls[1][1]["files"]
    assert "https://huggingface.co/me/model" in capsys.readouterr().out
