"""A training process that gets SIGTERM or another signal at a chosen step."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from trainers.run.metrics import MetricsLog


@contextmanager
def terminated_at(last: int, number: int = signal.SIGTERM) -> Iterator[None]:
    """Send a signal to this process when the metrics of the step ``last`` have been written."""
    write = MetricsLog.write

    def write_and_stop(log: MetricsLog, step: int, row: Any) -> None:
        write(log, step, row)
        if step == last:
            os.kill(os.getpid(), number)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MetricsLog, "write", write_and_stop)
        yield
