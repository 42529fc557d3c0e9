"""Closing a sampler that is the client of a server: within a limit, also at the end of a program, never in a child."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rllm_gym.samplers import SamplerError, client_loop
from rllm_gym.samplers.client_loop import ClientLoop

ROOT = Path(__file__).resolve().parents[2]


class Owner:
    pass


def loop_of(disconnect: Callable[[], Awaitable[None]]) -> tuple[Owner, ClientLoop]:
    owner = Owner()
    return owner, ClientLoop(owner, "client-loop-test", disconnect)


async def nothing() -> None:
    pass


def test_a_disconnection_that_does_not_end_is_an_error_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_loop, "CLOSE_TIMEOUT", 0.1)
    cancelled = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    owner, loop = loop_of(hang)
    with pytest.raises(SamplerError, match=r"did not close within 0\.1 s"):
        loop.close()
    assert cancelled.wait(120)
    loop.close()
    assert loop.closed
    del owner


def test_a_call_that_ignores_its_cancellation_does_not_keep_the_connections_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_loop, "CLOSE_TIMEOUT", 0.2)
    began, disconnected = threading.Event(), threading.Event()

    async def stubborn() -> None:
        began.set()
        released = asyncio.Event()
        while True:
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    async def disconnect() -> None:
        disconnected.set()

    owner, loop = loop_of(disconnect)
    caller = threading.Thread(target=lambda: loop.wait(stubborn()), daemon=True)
    caller.start()
    assert began.wait(120)
    with pytest.raises(SamplerError, match="did not close"):
        loop.close()
    assert disconnected.wait(120)
    del owner


AT_EXIT = """
import asyncio
from rllm_gym.samplers.client_loop import ClientLoop

class Owner: pass

async def disconnect():
    for _ in range(10_000):
        await asyncio.sleep(0)
    print("disconnected", flush=True)

owner = Owner()
loop = ClientLoop(owner, "at-exit", disconnect)
"""


def test_a_program_that_ends_without_close_disconnects_first() -> None:
    """Otherwise aiohttp reports an unclosed client session, and the server sees a lost connection."""
    done = subprocess.run(
        [sys.executable, "-c", AT_EXIT],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert done.stdout == "disconnected\n", done.stderr


def test_a_forked_child_leaves_the_connections_of_its_parent_alone() -> None:
    disconnected = []

    async def disconnect() -> None:
        disconnected.append(os.getpid())

    owner, loop = loop_of(disconnect)
    child = os.fork()
    if not child:
        status = 1
        try:
            loop.close()
            with pytest.raises(SamplerError, match="belongs to process"):
                asyncio.run(loop.call(nothing()))
            status = len(disconnected)
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    asyncio.run(loop.call(nothing()))
    loop.close()
    assert disconnected == [os.getpid()]
    del owner
