"""What tests of attacks look at afterwards: is anything of the attacker still there?"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import time
from collections.abc import Iterator

import psutil
import pytest

from rllm_gym.sandbox import Program, SandboxPool, Tier
from tests.sandbox.users import ordinary_user

_PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture
def nothing_left(pool: SandboxPool) -> Iterator[None]:
    """Within two seconds of the test's end there are no processes more than waiting workers are made of.

    This process adopts orphans meanwhile, so that a daemon is counted whoever was its parent. Other pools of this
    process wait meanwhile, so that only differences count.
    """
    each = _processes_of_a_worker(pool.tier)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before, workers = len(_alive()), _workers(pool)
    yield
    deadline = time.monotonic() + 2
    while pool._crew._busy or len(_alive()) - before != each * (_workers(pool) - workers):
        assert time.monotonic() < deadline, (each, before, workers, _workers(pool), _alive())
        time.sleep(0.02)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@functools.cache
def _processes_of_a_worker(tier: Tier) -> int:
    before = len(_alive())
    with SandboxPool(tier, max_workers=1) as pool:
        pool.run_sync(Program("pass"))
        return min(len(_alive()) for _ in range(20)) - before  # of the program itself something may end just now


def _workers(pool: SandboxPool) -> int:
    return len(pool._crew._idle) + len(pool._crew._busy)


def _alive() -> list[tuple[int, int, str]]:
    """Id, parent and state of every process below this one that is not a zombie."""
    alive = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append((process.pid, process.ppid(), process.status()))
    return alive
