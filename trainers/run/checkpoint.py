"""Checkpoints that survive a crash at any instant: written aside, synced, checksummed, renamed; the last few and the
best kept.

A checkpoint is a folder ``step-00000010`` with ``state.pt`` (tensors and plain types, read without unpickling
objects) and ``seal.json``, which names its size and SHA-256. What the state holds is the caller's business.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_NAME = re.compile(r"step-(\d{8})")
_SCHEMA = 1


class CheckpointError(RuntimeError):
    """No checkpoint can be used, though there are some, or none could be written; says why and what to do."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checkpoint that was read.

    Attributes:
        step: Steps that were complete when it was written.
        state: What was saved.
        skipped: What was wrong with newer checkpoints that could not be used.
    """

    step: int
    state: dict[str, Any]
    skipped: tuple[str, ...]


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], *, keep: int, spare: Collection[int] = ()) -> Path:
    """Write the state after ``step`` complete steps and forget all but the newest ``keep`` checkpoints.

    A crash at any instant, and a full disk, leave the older checkpoints whole. Those of later steps are forgotten too:
    the run was resumed from before them, because they cannot be used.

    Args:
        folder: Where the checkpoints of the run lie.
        step: Complete steps.
        state: Tensors and plain types.
        keep: Newest checkpoints to keep.
        spare: Steps whose checkpoints are kept however old they are.

    Raises:
        CheckpointError: It cannot be written, for instance because the disk is full; what there was is whole.
    """
    target = folder / f"step-{step:08d}"
    partial = folder / f"{target.name}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob("*.partial"):
            shutil.rmtree(leftover)
        partial.mkdir()
        _write(partial, step, state)
        if target.exists():  # left by a run that was resumed from an older checkpoint
            shutil.rmtree(target)
        os.replace(partial, target)
        _sync_folder(folder)
    except (OSError, RuntimeError) as error:  # RuntimeError: torch's writer, when the file takes no more
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(_not_written(folder, step, error)) from error
    others = [path for path in _checkpoints(folder) if path != target]
    newest = [path for path in others if _step(path) < step][-(keep - 1) :] if keep > 1 else []
    for path in others:
        if path not in newest and (_step(path) not in spare or _step(path) > step):
            shutil.rmtree(path)
    return target


def load_checkpoint(folder: Path) -> Loaded | None:
    """The newest whole checkpoint, or ``None`` where none was ever written.

    A torn or altered one is skipped in favour of the one before it, and reported in :attr:`Loaded.skipped`.

    Raises:
        CheckpointError: There are checkpoints and none is whole.
    """
    skipped: list[str] = []
    for path in reversed(_checkpoints(folder)):
        try:
            return Loaded(_step(path), _read(path), tuple(skipped))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            skipped.append(f"{path} cannot be used: {error}")
    if skipped:
        raise CheckpointError(
            "no checkpoint can be used; start without --resume in a new folder, or restore one of them:\n  - "
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
    left = f"{older[-1]} is intact: go on from it with --resume" if older else "there is no older one"
    free = ""
    if folder.exists():
        free = (
            f" ({shutil.disk_usage(folder).free / 2**20:.0f} MiB are free there; make room, or point output elsewhere)"
        )
    return f"the checkpoint of step {step} cannot be written to {folder}: {cause}{free}. {left}"


def _read(path: Path) -> dict[str, Any]:
    seal = json.loads((path / "seal.json").read_text())
    if seal["schema"] != _SCHEMA:
        raise ValueError(f"it has schema {seal['schema']}, and this version reads {_SCHEMA}")
    if seal["step"] != _step(path):
        raise ValueError(f"it was written as step {seal['step']}")
    found = _fingerprint(path / "state.pt")
    if found["bytes"] != seal["bytes"]:
        raise ValueError(f"state.pt has {found['bytes']} bytes, not {seal['bytes']}: it is torn")
    if found["sha256"] != seal["sha256"]:
        raise ValueError("state.pt does not match its checksum: it was altered")
    # weights_only: a checkpoint from elsewhere cannot run code.
    state: dict[str, Any] = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
    return state


def _fingerprint(file: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    with open(file, "rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    return {"bytes": file.stat().st_size, "sha256": digest.hexdigest()}


def _checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(path for path in folder.glob("step-*") if _NAME.fullmatch(path.name))


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def _sync(descriptor: int) -> None:
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    """Make names durable, where the system knows how to sync a folder."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
