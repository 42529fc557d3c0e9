"""``rllm-gym serve-agent`` as a process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def served(*words: str, number: signal.Signals = signal.SIGTERM, **environment: str) -> Iterator[tuple[str, list[str]]]:
    """Serve until the end of the block; yield the address, and afterwards what it wrote to stderr."""
    err: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-m", "rllm_gym", "serve-agent", *words, "--port", "0"],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert " at http://127.0.0.1:" in line, process.communicate()
            yield line.split(" at ")[1].split()[0], err
        finally:
            process.send_signal(number)
            err.append(process.communicate(timeout=120)[1])
    assert process.returncode == 0, err
