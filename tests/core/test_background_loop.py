"""The event loop in a thread: closing it ends what runs there, or says what hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from rllm_gym.core.background_loop import BackgroundLoop

started, release = threading.Event(), threading.Event()


async def blocks_the_thread() -> None:
    started.set()
    release.wait()


async def ignores_cancellation() -> None:
    started.set()
    while not release.is_set():
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            continue


async def waits_for_a_thread() -> None:
    started.set()
    await asyncio.to_thread(release.wait)


@pytest.mark.parametrize(
    ("work", "named"),
    [
        (blocks_the_thread, "blocks_the_thread"),
        (ignores_cancellation, "ignores_cancellation"),
        (waits_for_a_thread, "a call in another thread"),
    ],
)
def test_closing_a_loop_that_hangs_says_what_hangs(work: Callable[[], Awaitable[None]], named: str) -> None:
    started.clear()
    release.clear()
    loop = BackgroundLoop("tested")
    loop.start(work())  # type: ignore[arg-type]
    started.wait()
    try:
        with pytest.raises(TimeoutError, match=rf"event loop 'tested' did not end .* {named}"):
            loop.close(timeout=0.3)
        loop.close()  # the second time does nothing
    finally:
        release.set()


def test_closing_ends_every_coroutine_also_those_that_a_cancelled_one_starts() -> None:
    ended: list[str] = []

    async def record(name: str) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(name)

    async def starts_another_one() -> None:
        started.set()
        try:
            await asyncio.sleep(3600)
        finally:
            kept.append(asyncio.get_running_loop().create_task(record("second")))
            await asyncio.sleep(0)  # it begins
            ended.append("first")

    kept: list[asyncio.Task[None]] = []
    started.clear()
    loop = BackgroundLoop("tested")
    running = loop.start(starts_another_one())
    started.wait()
    loop.close()
    assert running.cancelled()
    assert ended == ["first", "second"]
