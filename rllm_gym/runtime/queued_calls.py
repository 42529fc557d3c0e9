"""Calls for the threads of a pool, and how an event loop hands them over together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

WAITING, RUNNING, DONE, GIVEN_UP = range(4)
"""States of a call."""


class QueuedCall(Protocol):
    """A call, as the threads see it.

    Attributes:
        name: Name of the work, for messages.
        seconds: How long it may run.
        slow: Whether it gets a thread for itself.
        state: One of the states above.
        until: When it is late, in seconds of ``time.monotonic()``; known once it is running.
    """

    seconds: float
    slow: bool
    state: int
    until: float

    @property
    def name(self) -> str: ...
    def run(self) -> None: ...  # in one of the threads
    def deliver(self) -> None: ...  # end with the result of run(), in the same thread
    def end(self, returned: bool, value: Any) -> None: ...
    def expire(self) -> None: ...  # end, because the deadline has passed
    def clean_up(self) -> None: ...  # in the abandoned thread, once run() has returned


class LoopMailbox:
    """Calls and results of one event loop: both are handed over together, not one by one.

    Args:
        submit: Submits calls to the threads.
    """

    def __init__(self, submit: Callable[[Sequence[QueuedCall]], None]) -> None:
        self._submit = submit
        self._calls: list[QueuedCall] = []
        self._ended: deque[asyncio.Future[None]] = deque()
        self._woken = False

    def submit_soon(self, loop: asyncio.AbstractEventLoop, call: QueuedCall) -> None:
        """Submit a call with the others of this iteration of the loop."""
        if not self._calls:
            loop.call_soon(self._submit_all)
        self._calls.append(call)

    def _submit_all(self) -> None:
        calls, self._calls = self._calls, []
        try:
            self._submit(calls)
        except RuntimeError as error:
            for call in calls:
                call.end(False, error)

    def post(self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
        """Resolve a future of the loop, from any thread."""
        self._ended.append(future)
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop is closed: there is no caller left
                loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        self._woken = False  # before emptying: what is posted from here on wakes the loop again
        while self._ended:
            future = self._ended.popleft()
            if not future.done():
                future.set_result(None)
