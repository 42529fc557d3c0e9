"""Runs the real command line in a process of its own, as a person would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


def rllm_gym(
    *arguments: str,
    stdin: str = "",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """``rllm-gym ARGUMENTS``, with wide plain output."""
    return subprocess.run(
        [sys.executable, "-m", "rllm_gym.commands.main", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", **(env or {})},
        timeout=timeout,
    )


def assert_one_clear_line(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """The command refused with status 2 and one line that has these words."""
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("rllm-gym: error: ")
    for word in words:
        assert word in lines[0], lines[0]
