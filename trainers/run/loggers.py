"""Trackers that get the metrics of a run besides ``metrics.jsonl``: TensorBoard, Weights & Biases, Trackio, MLflow.

Each is the library's own client, imported when it is used, and configured by the library's environment variables.
"""

from __future__ import annotations

import importlib
import logging
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

_log = logging.getLogger(__name__)

_PROJECT = "rllm-gym"
LogRow = Mapping[str, Any]


class Logger(Protocol):
    """One tracker: what a run calls."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None: ...

    def completions(self, step: int, rows: Sequence[LogRow]) -> None: ...

    def close(self) -> None: ...


class _TensorBoard:
    def __init__(self, folder: Path, config: LogRow, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step)
        self.close: Callable[[], None] = self._writer.close

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            self._writer.add_scalar(key, value, step)

    def completions(self, step: int, rows: Sequence[LogRow]) -> None:
        """TensorBoard has no tables."""


class _WandB:
    def __init__(self, folder: Path, config: LogRow, first_step: int) -> None:
        wandb: Any = importlib.import_module("wandb")
        self._table = wandb.Table
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=folder.name,
            dir=str(folder),
            id=_kept(folder / "wandb.id", lambda: secrets.token_hex(8)),
            resume="allow",
            config=dict(config),
        )
        # A resumed run repeats steps, which W&B's own step counter would not accept.
        self._run.define_metric("*", step_metric="step")
        self.close: Callable[[], None] = self._run.finish

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def completions(self, step: int, rows: Sequence[LogRow]) -> None:
        table = self._table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
        self._run.log({"step": step, "completions": table})


class _Trackio:
    def __init__(self, folder: Path, config: LogRow, first_step: int) -> None:
        trackio: Any = importlib.import_module("trackio")
        self._trackio = trackio
        name = f"{folder.name}-{_kept(folder / 'trackio.id', lambda: secrets.token_hex(3))}"
        project = os.environ.get("TRACKIO_PROJECT", _PROJECT)
        trackio.init(project=project, name=name, config=dict(config), resume="allow")
        self.close: Callable[[], None] = trackio.finish

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._trackio.log(dict(values), step=step)

    def completions(self, step: int, rows: Sequence[LogRow]) -> None:
        pandas: Any = importlib.import_module("pandas")  # Trackio needs it
        self._trackio.log({"completions": self._trackio.Table(dataframe=pandas.DataFrame(list(rows)))}, step=step)


class _MLflow:
    def __init__(self, folder: Path, config: LogRow, first_step: int) -> None:
        mlflow: Any = importlib.import_module("mlflow")
        self._mlflow = mlflow
        mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT))
        file = folder / "mlflow.id"
        resumed = file.read_text() if file.exists() else None
        run = mlflow.start_run(run_id=resumed, run_name=folder.name)
        _kept(file, lambda: str(run.info.run_id))
        if resumed is None:
            mlflow.log_dict(dict(config), "config.json")
        self.close: Callable[[], None] = mlflow.end_run

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        # MLflow refuses "@" in names, and then the whole row.
        self._mlflow.log_metrics({key.replace("@", "_at_"): value for key, value in values.items()}, step=step)

    def completions(self, step: int, rows: Sequence[LogRow]) -> None:
        self._mlflow.log_dict({"completions": list(rows)}, f"completions/step-{step:06d}.json")


_LOGGERS: dict[str, Callable[[Path, LogRow, int], Logger]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WandB,
    "trackio": _Trackio,
    "mlflow": _MLflow,
}


class Loggers:
    """The trackers of a run. An exception of one of them is a warning: a server that is away does not end a run.

    Args:
        names: Their names.
        folder: The run's folder.
        config: All options.
        first_step: The first step that will be logged.
    """

    def __init__(self, names: Sequence[str] | None, folder: Path, config: LogRow, first_step: int) -> None:
        self._loggers: dict[str, Logger] = {}
        try:
            for name in names or ():
                self._loggers[name] = _LOGGERS[name](folder, config, first_step)
        except BaseException:
            self.close()
            raise

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._each("metrics", step, values)

    def completions(self, step: int, rows: Sequence[LogRow]) -> None:
        self._each("completions", step, rows)

    def close(self) -> None:
        self._each("close")

    def _each(self, method: str, *arguments: Any) -> None:
        for name, logger in self._loggers.items():
            try:
                getattr(logger, method)(*arguments)
            except Exception as error:
                _log.warning("loggers=%s: %s%r failed: %s", name, method, arguments[:1], error)


def _kept(file: Path, new: Callable[[], str]) -> str:
    """Return the content of a file, which is created on first use: the id under which a resumed run continues."""
    if not file.exists():
        file.write_text(new())
    return file.read_text()
