"""The event loop of a sampler that is the client of a server: connections outlive the callers' event loops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.samplers.protocol import SamplerError

_T = TypeVar("_T")

CLOSE_TIMEOUT = 30.0
"""Seconds that calls in progress and the connections may take to end."""


class ClientLoop:
    """Runs the requests of a sampler in a thread of their own. Must be closed.

    Args:
        owner: The sampler. If it is never closed, ``disconnect`` runs when it is collected.
        name: Name of the thread.
        disconnect: Closes the connections, in the loop. Must not refer to the sampler.
    """

    def __init__(self, owner: object, name: str, disconnect: Callable[[], Awaitable[None]]) -> None:
        self._loop = BackgroundLoop(name)
        self._disconnect = disconnect
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(owner, _abandon, self._loop, disconnect, self._pid)

    @property
    def closed(self) -> bool:
        """Whether it is closed. In a forked child it counts as closed: the connections are the parent's."""
        return not self._finalizer.alive or os.getpid() != self._pid

    async def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine and await its result on the caller's event loop; cancelling the call cancels it.

        Raises:
            SamplerError: The loop is closed, was closed meanwhile, or belongs to another process.
        """
        if self.closed:
            work.close()
            if os.getpid() != self._pid:
                raise SamplerError(f"this sampler belongs to process {self._pid}; make a new one after a fork")
            raise SamplerError("this sampler is closed; make a new one")
        try:
            return await self._loop.arun(work)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.closed and not (task and task.cancelling()):
                raise SamplerError("the sampler was closed before this call finished") from None
            raise

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine and wait for its result, without an event loop of the caller."""
        return self._loop.run(work)

    def close(self) -> None:
        """Cancel calls in progress, disconnect, and end the thread. Blocks. Safe to call twice, and after a fork.

        Raises:
            SamplerError: A call or the disconnection did not end in time.
        """
        if self.closed:
            return
        self._finalizer.detach()
        try:
            try:
                self._loop.start(_end(self._disconnect)).result(CLOSE_TIMEOUT)
            finally:
                self._loop.close(CLOSE_TIMEOUT)
        except TimeoutError as error:
            raise SamplerError(
                f"the sampler's connections did not close within {CLOSE_TIMEOUT:g} s; they end with the program"
            ) from error


async def _end(disconnect: Callable[[], Awaitable[None]]) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    try:
        if others:
            await asyncio.wait(others, timeout=CLOSE_TIMEOUT / 2)
    finally:  # also after Ctrl-C, which cancels this
        await disconnect()


def _abandon(loop: BackgroundLoop, disconnect: Callable[[], Awaitable[None]], pid: int) -> None:
    async def end() -> None:
        await _end(disconnect)
        asyncio.get_running_loop().stop()

    if pid != os.getpid():
        return
    if threading.main_thread().is_alive():
        # Without waiting: this may run in the loop's own thread, which collected the sampler.
        loop.start(end())
    else:  # the program ends, and the thread with it: connections would be left open
        with contextlib.suppress(TimeoutError):
            loop.start(_end(disconnect)).result(CLOSE_TIMEOUT)
