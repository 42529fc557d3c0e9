"""A read-write lock for asyncio: many samplers at once, or one weight update alone, in order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

_T = TypeVar("_T")


class ReadWriteLock:
    """A read-write lock for one event loop.

    A writer waits for the current readers, and later readers wait for the writer.
    """

    def __init__(self) -> None:
        self._queue = asyncio.Lock()
        self._readers = 0
        self._no_readers = asyncio.Event()
        self._no_readers.set()

    @asynccontextmanager
    async def read(self, enter: Callable[[], Awaitable[_T]]) -> AsyncIterator[_T]:
        """Hold the lock as a reader, after ``enter``, which no other task runs at the same time."""
        async with self._queue:
            entered = await enter()
            self._readers += 1
            self._no_readers.clear()
        try:
            yield entered
        finally:
            self._readers -= 1
            if not self._readers:
                self._no_readers.set()

    @asynccontextmanager
    async def write(self) -> AsyncIterator[None]:
        """Hold the lock as the only one."""
        async with self._queue:
            await self._no_readers.wait()
            yield
