"""The folder of a run: its settings, its models, and its lock against other runs, which ends with the process, even in
a crash.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm_gym.engine import write_manifest
from trainers.config import ConfigError, DpoConfig, SftConfig, TrainConfig
from trainers.config.mapping import to_mapping
from trainers.config_loading import write_yaml
from trainers.model import Policy
from trainers.process_group import ProcessGroup
from trainers.run.metrics import holds_run

_LOCK = ".lock"
_PREVIOUS = ".previous"
MODEL_FOLDERS = ("model", "best_model")
"""Folders of a run in which a model is saved."""
# The system's lock belongs to the process and does not separate two runs in the same process.
_held: set[Path] = set()


@dataclass(frozen=True, slots=True)
class RunResult:
    """Result of a run.

    Attributes:
        output: Folder of the run.
        model: The final model: a PEFT adapter or a Hugging Face folder. ``None`` if the run was interrupted.
        steps: Number of complete steps.
        validation: Metrics of the last validation.
        interrupted: Whether the run was stopped by a signal, after it saved a checkpoint.
    """

    output: Path
    model: Path | None
    steps: int
    validation: dict[str, float]
    interrupted: bool = False


@contextlib.contextmanager
def open_folder(config: TrainConfig | SftConfig | DpoConfig, ranks: ProcessGroup) -> Iterator[None]:
    """Create the run's folder and lock it, in the main process; in the others, do nothing.

    Raises:
        ConfigError: The folder contains a run and ``resume`` is not set, or another run has locked it.
    """
    if not ranks.is_main_process:
        yield
        return
    check_folder(config)
    folder = Path(config.output)
    with lock_folder(folder):
        for name in MODEL_FOLDERS:
            _restore(folder / name)
        yield


def check_folder(config: TrainConfig | SftConfig | DpoConfig) -> None:
    """Check that the run's folder contains no run, unless it is resumed.

    Raises:
        ConfigError: It contains one.
    """
    if not config.resume and holds_run(Path(config.output)):
        raise ConfigError(
            f"output={config.output!r} already contains a run: resume it (--resume), or choose another folder"
        )


def write_settings(config: TrainConfig | SftConfig | DpoConfig, sandbox_tier: str) -> None:
    """Write the options and the manifest to the run's folder.

    Args:
        config: Options of the run.
        sandbox_tier: Sandbox tier of programs that environments run.
    """
    output = Path(config.output)
    write_yaml(output / "config.yaml", config)
    write_manifest(
        output / "manifest.json",
        config=to_mapping(config),
        seeds={"run": config.seed},
        sandbox_tier=sandbox_tier,
    )


def save_model(policy: Policy, folder: Path, best: Mapping[str, Any] | None = None) -> None:
    """Save the model; an existing folder is replaced once the new one is complete. If the process dies in between, a
    resumed run restores it.

    Args:
        policy: The model.
        folder: Where to save it.
        best: Why it is the best model, for the file ``best.json``.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    policy.save(partial)
    if best is not None:
        (partial / "best.json").write_text(json.dumps(best))
    _restore(folder)
    previous = folder.with_name(folder.name + _PREVIOUS)
    if folder.exists():
        os.replace(folder, previous)  # a folder cannot replace one that is not empty
    os.replace(partial, folder)
    shutil.rmtree(previous, ignore_errors=True)


def _restore(folder: Path) -> None:
    """Undo the replacement of a model's folder that was not completed, and delete what a completed one left."""
    previous = folder.with_name(folder.name + _PREVIOUS)
    if not folder.exists() and previous.exists():
        os.replace(previous, folder)
    shutil.rmtree(previous, ignore_errors=True)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create the folder and lock it for one run.

    Raises:
        ConfigError: Another run has locked it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = (folder / _LOCK).resolve()
    if path in _held:
        raise ConfigError(_held_by(folder, str(os.getpid())))
    with open(path, "a+") as file:
        _lock(file.fileno(), folder, path)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        _held.add(path)
        try:
            yield
        finally:
            _held.discard(path)


def _lock(descriptor: int, folder: Path, path: Path) -> None:
    if sys.platform == "win32":  # pragma: no cover - nothing here is tested there
        return
    import fcntl

    try:
        # Not flock: forked workers would keep that lock after the run was killed.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(_held_by(folder, path.read_text().strip())) from None


def _held_by(folder: Path, pid: str) -> str:
    return (
        f"output={str(folder)!r} is in use by another run (process {pid}): wait for it to end, or choose another folder"
    )
