"""A sandbox pool for the runs of one program, which together have a limit.

Each run has one, but a program that sleeps in all of them could take hours. The environment would then be given up as
one that hangs, which is a fault, and no program may cause that.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rllm_gym.sandbox import Program, ProgramResult, SandboxPool
from rllm_gym.sandbox.running_program import RunningProgram

MAX_RUNS_S = 360.0
"""Seconds that the runs of a program may take, one after the other: less than the default deadline of an episode in
training, and several times what the longest gradings take on a busy machine."""

OUT_OF_TIME = "the runs of the program took too long"


class OutOfTime(Exception):
    """The runs of a program have used up their time."""


class TimedPool:
    """Runs programs of one grading, as :class:`~rllm_gym.sandbox.SandboxPool`. To wait for a worker takes no time.

    Its methods raise :class:`OutOfTime` before a run for which no time is left. The time of :meth:`start` is that in
    which any run is in progress, however many there are; that of :meth:`run` is divided by ``parallel``.

    Args:
        pool: The pool.
        parallel: How many programs :meth:`run` runs at once.
    """

    def __init__(self, pool: SandboxPool, parallel: int = 1) -> None:
        self._pool, self._parallel, self._left = pool, parallel, MAX_RUNS_S
        self._running, self._began = 0, 0.0

    async def run(self, program: Program) -> ProgramResult:
        self._check()
        result = await self._pool.run(program)
        self._left -= result.wall_s / self._parallel
        return result

    @asynccontextmanager
    async def start(self, *programs: Program) -> AsyncIterator[tuple[RunningProgram, ...]]:
        self._check()
        async with self._pool.start(*programs) as running:
            if not self._running:
                self._began = time.monotonic()
            self._running += 1
            try:
                yield running
            finally:
                self._running -= 1
                if not self._running:
                    self._left -= time.monotonic() - self._began

    def _check(self) -> None:
        passed = time.monotonic() - self._began if self._running else 0.0
        if self._left <= passed:
            raise OutOfTime
