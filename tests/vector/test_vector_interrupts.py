"""Ctrl-C at any instant of a call: later calls end, with the right results or an error, and so does ``close``."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from gymnasium.error import ClosedEnvironmentError, NoAsyncCallError
from interrupts import interrupt
from vector_environments import LONG, AsyncEcho, Counting

from rllm_gym.runtime import pool
from rllm_gym.runtime.process_worker import ForkServerClient
from rllm_gym.vector import TextVectorEnv


@pytest.fixture
def fast_start(monkeypatch):
    """Fork all workers of the test from one process, which takes a second to start."""
    client = ForkServerClient(["rllm_gym.vector"])
    close = client.close
    monkeypatch.setattr(client, "close", lambda: None)
    monkeypatch.setattr(pool, "ForkServerClient", lambda *_: client)
    yield
    close()


ACTIONS = ["a", "a"]
STEP = (lambda envs: envs.step(ACTIONS), lambda envs: envs.step_wait(timeout=LONG))
SEND_RECV = (
    lambda envs: (envs.send(ACTIONS), envs.recv(min_envs=2)),
    lambda envs: envs.recv(min_envs=2, timeout=LONG),
)
CALL = (lambda envs: envs.call("count"), lambda envs: None)
PROCESS = pytest.param("process", *STEP, marks=pytest.mark.long)


def opened(kind):
    if kind == "asyncio":
        envs = TextVectorEnv(2, env_id=AsyncEcho, workers=kind, max_turns=10**6)
    else:
        envs = TextVectorEnv(2, env_id=Counting, workers=kind, length=10**6)
    envs.reset(seed=0)
    return envs


@pytest.mark.parametrize(
    ("kind", "call", "finish"),
    [("thread", *STEP), ("thread", *SEND_RECV), ("thread", *CALL), ("asyncio", *STEP), PROCESS],
    ids=["thread", "thread-recv", "thread-call", "asyncio", "process"],
)
def test_a_call_interrupted_at_any_instant_is_finished_or_refused_later(kind, call, finish, fast_start):
    outcomes = []
    envs = opened(kind)
    while interrupt(len(outcomes), call, envs):
        try:
            with suppress(NoAsyncCallError):  # it was interrupted before or after everything
                finish(envs)
            envs.send(ACTIONS)
            infos = envs.recv(min_envs=2, timeout=LONG).infos
            steps = infos["turn" if kind == "asyncio" else "count"]
            assert steps[0] == steps[1]  # no environment is ahead of the other
            outcomes.append("finished")
        except ClosedEnvironmentError as error:
            assert "KeyboardInterrupt" in str(error)  # noqa: PT017 - the call may also succeed
            outcomes.append("refused")
            closing = threading.Thread(target=envs.close, daemon=True)
            closing.start()
            closing.join(LONG)
            assert not closing.is_alive()
            envs = opened(kind)
    envs.close()
    assert {"finished", "refused"} == set(outcomes)
