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

    Its methods raise :class:`OutOfTime` before a run for which no time is left.

    Args:
        pool: The pool.
        parallel: How many programs run at once.
    """

    def __init__(self, pool: SandboxPool, parallel: int = 1) -> None:
        self._pool, self._left = pool, parallel * MAX_RUNS_S

    async def run(self, program: Program) -> ProgramResult:
        self._check()
        result = await self._pool.run(program)
        self._left -= result.wall_s
        return result

    @asynccontextmanager
    async def start(self, *programs: Program) -> AsyncIterator[tuple[RunningProgram, ...]]:
        self._check()
        async with self._pool.start(*programs) as running:
            began = time.monotonic()
            try:
                yield running
            finally:
                self._left -= time.monotonic() - began

    def _check(self) -> None:
        if self._left <= 0:
            raise OutOfTime
