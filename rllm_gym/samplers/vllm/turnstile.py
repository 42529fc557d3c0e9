"""A read-write lock for asyncio: many samplers at once, or one weight update alone, in order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

_T = TypeVar("_T")


class Turnstile:
    """A read-write lock for one event loop.

    A writer waits for the current readers, and later readers wait for the writer.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @asynccontextmanager
    async def together(self, enter: Callable[[], Awaitable[_T]]) -> AsyncIterator[_T]:
        """Hold the lock as a reader, after ``enter``, which no other task runs at the same time."""
        async with self._turn:
            entered = await enter()
            self._inside += 1
            self._empty.clear()
        try:
            yield entered
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Hold the lock as the only one."""
        async with self._turn:
            await self._empty.wait()
            yield
