"""Environments of a user that hold objects bound to a thread, in a vector environment with ``workers="thread"``."""

from __future__ import annotations

import sqlite3
import threading

import gymnasium

from rllm_gym.core import Text
from rllm_gym.vector import MultiTaskVectorEnv, TextVectorEnv, WeightedEnv
from tests.waiting import until


class Ledger(gymnasium.Env):
    """Keeps its state in an sqlite3 connection, which refuses calls from another thread than the one that opened it."""

    observation_space, action_space = Text(10), Text(10)

    def __init__(self, closed):
        self.threads = {threading.get_ident()}
        self.closed = closed
        self.database = sqlite3.connect(":memory:")
        self.database.execute("create table entries (text text)")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.database.execute("delete from entries")
        return "", {}

    def step(self, action):
        self.threads.add(threading.get_ident())
        for number in range(2_000 * len(action)):  # calls of various length, cheap and slow ones
            self.database.execute("insert into entries values (?)", (str(number),))
        return "", 1.0, False, False, {}

    def entries(self):
        return self.database.execute("select count(*) from entries").fetchone()[0]

    def close(self):
        self.database.close()
        self.closed.append(len(self.threads))


def test_a_connection_opened_in_the_constructor_works_in_every_call():
    closed = []
    envs = TextVectorEnv(3, env_id=Ledger, closed=closed)
    envs.reset(seed=0)
    for turn in range(12):
        *_, infos = envs.step(["a" * ((turn + index) % 3) for index in range(3)])
        assert "fault" not in infos, infos["fault"]
    assert envs.call("entries") == (24_000,) * 3
    envs.send(["a"], [1])
    assert envs.recv().rewards == [1.0]
    envs.close()
    assert until(lambda: closed == [1, 1, 1])


def test_a_suite_with_one_environment_of_a_user():
    closed = []
    members = {"ours": WeightedEnv("rllm/FrozenLake-v0"), "theirs": WeightedEnv(Ledger, kwargs={"closed": closed})}
    envs = MultiTaskVectorEnv(4, envs=members)
    names = set()
    for seed in range(8):
        _, infos = envs.reset(seed=seed)
        names |= set(infos["env_name"])
        for _ in range(3):
            *_, infos = envs.step(["a"] * 4)
            assert "fault" not in infos, infos["fault"]
    assert names == {"ours", "theirs"}
    envs.close()
    assert until(lambda: set(closed) == {1})
