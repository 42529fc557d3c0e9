"""Fixtures: the pool of the attack tests, a check that no process is left, and a clock that a stall does not move."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator

import psutil
import pytest
from attack_runs import AT_A_TIME

from rllm_gym.sandbox import Program, SandboxPool, Tier
from tests.sandbox.users import needs, ordinary_user
from tests.sandbox.waiting import alive, processes_below
from tests.waiting import until

_PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(scope="module", params=[Tier.NAMESPACES, Tier.LANDLOCK], ids=["A", "B"])
def pool(request: pytest.FixtureRequest) -> Iterator[SandboxPool]:
    needs(request.param)
    with SandboxPool(request.param, max_workers=AT_A_TIME) as pool:
        yield pool


@pytest.fixture
def nothing_left(pool: SandboxPool) -> Iterator[None]:
    """Check that the test leaves no more processes than before, other than waiting workers of the pool.

    This process adopts orphans meanwhile, so that daemons are counted whatever their parent. Other pools of this
    process are idle meanwhile.
    """

    def here() -> list[psutil.Process]:
        return alive(processes_below(os.getpid()))

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        with pool.start(*[Program("pass")] * pool.max_workers):
            pass  # now every worker of the pool has been started
        before = min(len(here()) for _ in range(5))  # processes of programs may be exiting at this moment
        yield
        assert until(lambda: len(here()) <= before), [(one.pid, one.ppid(), one.cmdline()) for one in here()]
    finally:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def clock_without_stalls(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let deadlines of this process pass in the usual time, but by at most a second while the machine stalls.

    Episodes that hang must reach their deadline, and working ones next to them must not.
    """
    real, over = time.monotonic, threading.Event()
    now = last = real()

    def tick() -> None:
        nonlocal now, last
        while not over.wait(0.05):
            before, last = last, real()
            now += min(last - before, 1.0)

    ticking = threading.Thread(target=tick, name="clock-without-stalls")
    ticking.start()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    yield
    over.set()
    ticking.join()
