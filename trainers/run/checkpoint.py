"""Checkpoints that survive a crash at any time. They are written to a temporary folder, synced, checksummed and
renamed; the newest ones and the best one are kept.

A checkpoint is a folder ``step-00000010`` with ``state.pt`` (tensors and plain types, loaded without unpickling
objects) and ``seal.json`` with its size and SHA-256. :class:`Checkpoints` are those of a run, which defines the content
of the state.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from trainers.callbacks import Callback
from trainers.config import ConfigError, DpoConfig, SftConfig, TrainConfig
from trainers.config.mapping import to_mapping
from trainers.run.metrics import PhaseClock
from trainers.run.resume import config_changes, resume_blockers

_NAME = re.compile(r"step-(\d{8})")
_SCHEMA = 3


class CheckpointError(RuntimeError):
    """No existing checkpoint is usable, or a checkpoint could not be written. The message has the cause and the fix."""


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint that was loaded.

    Attributes:
        step: Number of complete steps when it was written.
        state: The saved state.
        skipped: Errors of newer checkpoints that could not be used.
    """

    step: int
    state: dict[str, Any]
    skipped: tuple[str, ...]


class Resumable(Protocol):
    """The state of a run that its checkpoints contain."""

    @property
    def step(self) -> int:
        """Number of complete steps."""

    @property
    def best_step(self) -> int | None:
        """The step whose checkpoint is kept regardless of age, if there is one."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any], step: int) -> None:
        """Restore the state after this many steps.

        Raises:
            ValueError: The state does not match the run.
        """


@dataclass(slots=True)
class Checkpoints:
    """The checkpoints of a run. Only the main process writes them.

    Attributes:
        config: Options of the run, which each checkpoint contains.
        state: The state that is saved and restored.
        fingerprints: Fingerprints of what must be unchanged in a resumed run, by description.
        clock: Measures the seconds of saving.
        is_main_process: Whether this process writes files.
        callbacks: Get each checkpoint that was written.
    """

    config: TrainConfig | SftConfig | DpoConfig
    state: Resumable
    fingerprints: Mapping[str, str]
    clock: PhaseClock
    is_main_process: bool
    callbacks: Sequence[Callback] = ()
    _saved_step: int = field(default=0, init=False)  # without any complete step there is nothing to save

    @property
    def _folder(self) -> Path:
        return Path(self.config.output) / "checkpoints"

    def restore(self) -> list[str]:
        """Resume from the newest complete checkpoint, if requested and there is one. Returns notes for the user.

        Raises:
            CheckpointError: There are checkpoints, but none is complete.
            ConfigError: The checkpoint belongs to another model, other data or other options.
        """
        if not self.config.resume:
            return []
        output = self.config.output
        loaded = load_checkpoint(self._folder)
        if loaded is None:
            return [f"no checkpoint to resume from in {output}: starting from the beginning"]
        options = to_mapping(self.config)
        if blockers := resume_blockers(loaded.state, self.fingerprints, options):
            raise ConfigError(
                f"cannot resume from {output}: {'; '.join(blockers)}. Use the options of the checkpoint (config.yaml "
                "there), or start a new run in another folder"
            )
        try:
            self.state.load_state_dict(loaded.state, loaded.step)
        except ValueError as error:
            raise ConfigError(f"cannot resume from {output}: {error}") from error
        self._saved_step = loaded.step
        notes = [*loaded.skipped, f"resumed after step {loaded.step}"]
        if changed := config_changes(loaded.state["config"], options):
            notes.append(f"changed since the checkpoint: {', '.join(changed)}")
        return notes

    def save_if_due(self) -> None:
        """Save a checkpoint if one is due after this many steps. Raises as :meth:`save`."""
        options = self.config.checkpoint
        if options is not None and self.state.step % options.every == 0:
            self.save()

    def save(self) -> None:
        """Save a checkpoint of the last complete step, unless it exists or checkpoints are disabled.

        Raises:
            CheckpointError: It cannot be written; the previous one is intact.
        """
        options, step, best = self.config.checkpoint, self.state.step, self.state.best_step
        if options is None or not self.is_main_process or step == self._saved_step:
            return
        content = self.state.state_dict() | {
            "fingerprints": dict(self.fingerprints),
            "config": to_mapping(self.config),
        }
        with self.clock("checkpoint"):
            spare = () if best is None else (best,)
            folder = save_checkpoint(self._folder, step, content, keep=options.keep, spare=spare)
        self._saved_step = step
        for callback in self.callbacks:
            callback.on_checkpoint(step, folder)


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], *, keep: int, spare: Collection[int] = ()) -> Path:
    """Write the state after ``step`` complete steps and delete all but the newest ``keep`` checkpoints.

    A crash at any time or a full disk leaves the older checkpoints intact. Checkpoints of later steps are deleted
    too: they exist only if the run was resumed from before them because they were unusable.

    Args:
        folder: Folder of the run's checkpoints.
        step: Number of complete steps.
        state: Tensors and plain types.
        keep: Number of newest checkpoints to keep.
        spare: Steps whose checkpoints are kept regardless of age.

    Raises:
        CheckpointError: The checkpoint cannot be written, for example because the disk is full; older ones are
            intact.
    """
    target = folder / f"step-{step:08d}"
    partial = folder / f"{target.name}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob("*.partial"):
            shutil.rmtree(leftover)
        partial.mkdir()
        _write(partial, step, state)
        if target.exists():  # written before the run was resumed from an older checkpoint
            shutil.rmtree(target)
        os.replace(partial, target)
        _sync_folder(folder)
    except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError if the disk is full
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(_not_written(folder, step, error)) from error
    others = [path for path in _checkpoints(folder) if path != target]
    newest = [path for path in others if _step(path) < step][-(keep - 1) :] if keep > 1 else []
    for path in others:
        if path not in newest and (_step(path) not in spare or _step(path) > step):
            shutil.rmtree(path)
    return target


def load_checkpoint(folder: Path) -> LoadedCheckpoint | None:
    """Load the newest complete checkpoint; ``None`` if none was ever written.

    A truncated or modified checkpoint is skipped in favor of the previous one, and reported in
    :attr:`LoadedCheckpoint.skipped`.

    Raises:
        CheckpointError: There are checkpoints, but none is complete.
    """
    skipped: list[str] = []
    for path in reversed(_checkpoints(folder)):
        try:
            return LoadedCheckpoint(_step(path), _read(path), tuple(skipped))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            skipped.append(f"{path} cannot be used: {error}")
    if skipped:
        raise CheckpointError(
            "no checkpoint is usable; start a new run in another folder, or restore one of them:\n  - "
            + "\n  - ".join(skipped)
        )
    return None


def _write(partial: Path, step: int, state: dict[str, Any]) -> None:
    with open(partial / "state.pt", "wb") as file:
        torch.save(state, file)
        _sync(file.fileno())
    seal = {"schema": _SCHEMA, "step": step, **_fingerprint(partial / "state.pt")}
    with open(partial / "seal.json", "w") as text:
        json.dump(seal, text)
        text.flush()
        _sync(text.fileno())
    _sync_folder(partial)


def _not_written(folder: Path, step: int, error: Exception) -> str:
    cause: BaseException = error
    while not isinstance(cause, OSError) and cause.__context__ is not None:
        cause = cause.__context__
    older = _checkpoints(folder)
    left = f"{older[-1]} is intact: resume from it with --resume" if older else "there is no older checkpoint"
    free = ""
    if folder.exists():
        free = f" ({shutil.disk_usage(folder).free / 2**20:.0f} MiB are free there; free disk space, or change output)"
    return f"the checkpoint of step {step} cannot be written to {folder}: {cause}{free}. {left}"


def _read(path: Path) -> dict[str, Any]:
    seal = json.loads((path / "seal.json").read_text())
    if seal["schema"] != _SCHEMA:
        raise ValueError(f"schema {seal['schema']} is not supported; it must be {_SCHEMA}")
    if seal["step"] != _step(path):
        raise ValueError(f"it was written as step {seal['step']}")
    found = _fingerprint(path / "state.pt")
    if found["bytes"] != seal["bytes"]:
        raise ValueError(f"state.pt has {found['bytes']} bytes, not {seal['bytes']}: it is truncated or corrupt")
    if found["sha256"] != seal["sha256"]:
        raise ValueError("state.pt does not match its checksum: it was modified")
    # weights_only: an untrusted checkpoint cannot run code.
    state: dict[str, Any] = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
    return state


def _fingerprint(file: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    with open(file, "rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    return {"bytes": file.stat().st_size, "sha256": digest.hexdigest()}


def _checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints, oldest first."""
    return sorted(path for path in folder.glob("step-*") if _NAME.fullmatch(path.name))


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _sync(descriptor: int) -> None:
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    """Make file names durable, on systems that can sync a folder."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
