"""Runs the command line: in this process, or in a separate process as a user would."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from rllm_gym.commands.main import main

# Wide plain output.
_PLAIN = {"COLUMNS": "200", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}


def rllm_gym(
    *arguments: str, stdin: str = "", cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``rllm-gym ARGUMENTS`` in this process, which has already imported what commands need: many times faster."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with (
        mock.patch.dict(os.environ, {**_PLAIN, **(env or {})}),
        mock.patch.object(sys, "path", list(sys.path)),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            status = main(list(arguments))
        except SystemExit as end:
            status = end.code
    output = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return subprocess.CompletedProcess(arguments, int(status or 0), *output)


def rllm_gym_process(
    *arguments: str, stdin: str = "", cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``rllm-gym ARGUMENTS`` in a new process, so that output of libraries during import is included."""
    return subprocess.run(
        [sys.executable, "-m", "rllm_gym", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=cwd,
        env={**os.environ, **_PLAIN, **(env or {})},
        timeout=240,
    )


def only_result(output: str) -> dict[str, Any]:
    """Return the result of the only evaluation in the output of ``rllm-gym eval --json``."""
    (result,) = json.loads(output)["results"]
    return dict(result)


def assert_brief_error(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Assert that the command failed with status 2 and one line, or one per problem, that contain these words."""
    assert result.returncode == 2, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert all(line.startswith("  - ") for line in lines[1:]), result.stderr
    assert lines[0].startswith("rllm-gym: error: ")
    for word in words:
        assert word in result.stderr, result.stderr
