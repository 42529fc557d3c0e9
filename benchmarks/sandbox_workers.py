"""Measure what the sandbox's own scheduler saves: the same programs in the same workers, driven in two ways in one run.

- **scheduler**: ``SandboxPool``, in which one event loop drives all worker processes.
- **WorkerPool**: ``runtime.WorkerPool`` with thread workers, each of which drives one worker process with blocking
  reads. The worker processes, their isolation and the messages are the same.

An episode grades the tests of a program one after another, as ``rllm/Code-v0`` does. CPU time is that of this process,
the trainer's, alone, and with its workers and programs. Both ways alternate; numbers are medians over the rounds.

    python benchmarks/sandbox_workers.py [--rounds 9] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import select
import selectors
import statistics
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil

from rllm_gym.runtime import WorkerPool
from rllm_gym.sandbox import Limits, Program, ProgramResult, SandboxPool, worker
from rllm_gym.sandbox.running_program import RunningProgram
from rllm_gym.sandbox.runtime import Runtime
from rllm_gym.sandbox.tier import Tier

RESULTS = Path(__file__).resolve().parent / "results" / "sandbox_workers.md"
EPISODES = (1, 4, 16)
TESTS = 96
"""Programs per round, divided among the episodes."""
PROGRAM = Program("print(sum(map(int, input().split())))", stdin=b"1 2 3 4\n", limits=Limits(wall_s=120))
Run = Callable[[Program], Awaitable[ProgramResult]]

_watch = worker.watch


def _watch_unless_blocking(fd: int, events: int, callback: Any) -> None:
    if not isinstance(callback.__self__, BlockingWorker):
        _watch(fd, events, callback)


class BlockingWorker(worker.WorkerProcess):
    """A worker process driven by blocking reads in the caller's thread."""

    def __init__(self, tier: Tier) -> None:
        super().__init__(tier, Runtime.default(), (), freed=lambda _: None, died=lambda _: None)

    def run(self, program: Program) -> ProgramResult:
        running = RunningProgram(program)
        self.take(running)
        poller = select.poll()
        while self.running is not None:
            poller.register(self._sock, select.POLLIN | (select.POLLOUT if self._outbox else 0))
            poller.poll(1000 * self._seconds)
            self._ready(selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outbox else 0))
        return running.outcome.result()

    def _set_deadline(self, seconds: float) -> None:
        self._seconds = seconds


class BlockingWorkers:
    """The idle workers of the WorkerPool's threads, the most recently used first."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._lock = threading.Lock()
        self.idle: list[BlockingWorker] = []

    def run(self, program: Program) -> ProgramResult:
        with self._lock:
            found = self.idle.pop() if self.idle else None
        found = found or BlockingWorker(self._tier)
        result = found.run(program)
        with self._lock:
            self.idle.append(found)
        return result

    def close(self) -> None:
        for each in self.idle:
            each.hang_up()
            each.wait(10)


def _total_cpu() -> float:
    """Return the CPU seconds of this process, its workers and their ended programs."""
    own = psutil.Process()
    return sum(sum(process.cpu_times()[:4]) for process in (own, *own.children(recursive=True)))


async def _measure(run: Run, episodes: int) -> tuple[float, float, float, list[float]]:
    """Return CPU seconds of this process and of all, wall seconds, and the seconds of each program."""
    seconds: list[float] = []

    async def episode() -> None:
        for _ in range(TESTS // episodes):
            began = time.perf_counter()
            result = await run(PROGRAM)
            seconds.append(time.perf_counter() - began)
            assert result.stdout == b"10\n"

    await asyncio.gather(*(run(PROGRAM) for _ in range(episodes)))  # warm-up: workers start once
    total, cpu, wall = _total_cpu(), time.process_time(), time.perf_counter()
    await asyncio.gather(*(episode() for _ in range(episodes)))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return cpu, _total_cpu() - total, wall, seconds


async def rows(rounds: int) -> list[str]:
    """Return the rows of the table."""
    lines = []
    with SandboxPool(max_workers=16) as sandbox, WorkerPool("thread", max_workers=16, name="sandbox") as pool:
        workers = BlockingWorkers(sandbox.tier)

        async def through_pool(program: Program) -> ProgramResult:
            result: ProgramResult = await pool.arun(workers.run, program, timeout=600)
            return result

        ways: dict[str, Run] = {"scheduler": sandbox.run, "WorkerPool": through_pool}
        for episodes in EPISODES:
            measured: dict[str, list[tuple[float, float, float, list[float]]]] = {way: [] for way in ways}
            for number in range(rounds):
                for way in list(ways)[:: 1 if number % 2 else -1]:
                    measured[way].append(await _measure(ways[way], episodes))
            for way, of in measured.items():
                cpu, total, wall = (statistics.median(item[column] for item in of) / TESTS for column in range(3))
                if way == "scheduler":
                    own_cpu, own_total = cpu, total
                latency = 1000 * statistics.median(second for item in of for second in item[3])
                lines.append(
                    f"| {episodes} | {way} | {1000 * cpu:.3f} | {cpu / own_cpu:.2f}x | {1000 * total:.2f} | "
                    f"{total / own_total:.2f}x | {1 / wall:.0f} | {latency:.1f} |"
                )
        workers.close()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}")
    options = parser.parse_args()
    worker.watch = _watch_unless_blocking
    load = os.getloadavg()[0]
    lines = [
        "# The sandbox's scheduler against WorkerPool",
        "",
        f"`python benchmarks/sandbox_workers.py --rounds {options.rounds}` on {os.cpu_count()} processors, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}; load {load:.1f} at the start.",
        "The ways are described in the script's docstring.",
        "",
        "| episodes | way | trainer's CPU-ms per program | against scheduler | all CPU-ms per program "
        "| against scheduler | programs/s | p50 ms |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
        *asyncio.run(rows(options.rounds)),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
