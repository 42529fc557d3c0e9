"""Environments of a user that hold objects bound to a thread, in an engine with ``workers="thread"``."""

from __future__ import annotations

import itertools
import sqlite3
import threading

from environments import Tasks

from rllm_gym.core import Outcome, Task, TextEnv
from rllm_gym.engine import AgentExecutionEngine
from rllm_gym.samplers import ScriptedSampler


class Ledger(TextEnv):
    """Keeps its state in an sqlite3 connection, which refuses calls from another thread than the one that opened it."""

    def __init__(self, threads: list[set[int]]) -> None:
        super().__init__(tasks=Tasks(), max_turns=4)
        self._threads = {threading.get_ident()}
        threads.append(self._threads)
        self._database = sqlite3.connect(":memory:")
        self._database.execute("create table entries (text text)")

    def _begin(self, task: Task) -> str:
        self._database.execute("delete from entries")
        return task.content

    def _act(self, action: str) -> Outcome:
        self._threads.add(threading.get_ident())
        for number in range(5_000 * len(action)):  # calls of various length, cheap and slow ones
            self._database.execute("insert into entries values (?)", (str(number),))
        return Outcome("written", {"written": 1.0})


def test_a_connection_opened_in_the_constructor_works_in_every_step() -> None:
    threads: list[set[int]] = []
    lengths = itertools.cycle(range(3))
    sampler = ScriptedSampler(lambda request: "x" * next(lengths))
    engine = AgentExecutionEngine(env=lambda: Ledger(threads), sampler=sampler, n_parallel=4, retries=0)
    episodes = engine.run_sync(range(12))
    assert [(episode.reward, episode.info.get("error")) for episode in episodes] == [(4.0, None)] * 12
    assert [len(used) for used in threads] == [1] * 12
