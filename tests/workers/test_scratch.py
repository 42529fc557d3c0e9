"""The directory of temporary files of a process, while other processes remove those of killed ones."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rllm_gym.runtime import scratch


@pytest.mark.parametrize("instant", ["chmod", "open", "flock"])
def test_another_process_that_starts_at_the_same_time_does_not_remove_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, instant: str
) -> None:
    """The other one sweeps at any instant before the new directory is locked; afterwards it leaves it alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scratch, "_root", None)
    sweeps, sweeping = 0, False
    where, name = {"chmod": (Path, "chmod"), "open": (os, "open"), "flock": (scratch.fcntl, "flock")}[instant]
    real = getattr(where, name)

    def raced(*args: Any, **kwargs: Any) -> Any:
        nonlocal sweeps, sweeping
        if not sweeping and sweeps < 2:
            sweeps, sweeping = sweeps + 1, True
            scratch._sweep(tmp_path)
            sweeping = False
        return real(*args, **kwargs)

    monkeypatch.setattr(where, name, raced)
    folder = scratch.scratch_directory("tree-")
    assert sweeps == 2
    scratch._sweep(tmp_path)
    assert folder.is_dir()
    assert [entry.name for entry in tmp_path.iterdir()] == [folder.parent.name]
