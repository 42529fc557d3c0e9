"""Who may pass: many who sample together, or one who changes weights, alone, in the order they came."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

_T = TypeVar("_T")


class Turnstile:
    """For one event loop. Whoever wants to be alone waits for those inside, and those who come later wait behind."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @asynccontextmanager
    async def together(self, enter: Callable[[], Awaitable[_T]]) -> AsyncIterator[_T]:
        """Inside with others, after ``enter``, which nobody else does meanwhile."""
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
        """Inside with nobody else."""
        async with self._turn:
            await self._empty.wait()
            yield
