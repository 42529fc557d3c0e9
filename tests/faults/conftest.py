"""What tests of attacks look at afterwards: is anything of the attacker still there?"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator

import psutil
import pytest

from rllm_gym.sandbox import Program, SandboxPool
from tests.sandbox.users import ordinary_user

_PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture
def nothing_left(pool: SandboxPool) -> Iterator[None]:
    """Within two seconds of the test's end there are as many processes as waiting workers are made of, and no more.

    This process adopts orphans meanwhile, so that a daemon is counted whoever was its parent.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    pool.run_sync(Program("pass"))
    each = _settled(pool, lambda count, workers: count % workers == 0) // _workers(pool)
    yield
    _settled(pool, lambda count, workers: count == each * workers)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _workers(pool: SandboxPool) -> int:
    return len(pool._crew._idle) + len(pool._crew._busy)


def _settled(pool: SandboxPool, right) -> int:
    deadline = time.monotonic() + 2
    while True:
        alive = [p for p in psutil.Process().children(recursive=True) if p.is_running()]
        count = sum(_status(process) != psutil.STATUS_ZOMBIE for process in alive)
        if not pool._crew._busy and right(count, _workers(pool)):
            return count
        assert time.monotonic() < deadline, (_workers(pool), [(p.pid, p.ppid(), _status(p)) for p in alive])
        time.sleep(0.02)


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE
