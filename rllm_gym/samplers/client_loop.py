"""The event loop of a sampler that is the client of a server: connections outlive the callers' event loops."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from rllm_gym.core.background_loop import BackgroundLoop
from rllm_gym.samplers.protocol import SamplerError

_T = TypeVar("_T")


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
        return not self._finalizer.alive

    async def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine and await its result on the caller's event loop; cancelling the call cancels it.

        Raises:
            SamplerError: The loop is closed, was closed meanwhile, or belongs to another process.
        """
        if self.closed:
            work.close()
            raise SamplerError("this sampler is closed; make a new one")
        if os.getpid() != self._pid:
            work.close()
            raise SamplerError(f"this sampler belongs to process {self._pid}; make a new one after a fork")
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
        """Cancel calls in progress, disconnect, and end the thread. Blocks. Safe to call twice, and after a fork."""
        if self._finalizer.detach() is not None and os.getpid() == self._pid:
            self._loop.run(_end(self._disconnect))
            self._loop.close()


async def _end(disconnect: Callable[[], Awaitable[None]]) -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await disconnect()


def _abandon(loop: BackgroundLoop, disconnect: Callable[[], Awaitable[None]], pid: int) -> None:
    async def end() -> None:
        await _end(disconnect)
        asyncio.get_running_loop().stop()

    # Without waiting: this may run in the loop's own thread, which collected the sampler.
    if pid == os.getpid():
        loop.start(end())
