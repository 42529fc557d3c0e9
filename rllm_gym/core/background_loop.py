"""An event loop in a separate thread, for objects bound to one loop whose callers run on any loop or none."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")

CLOSE_TIMEOUT = 60.0
"""Seconds that :meth:`BackgroundLoop.close` waits. Generous, for busy machines."""


class BackgroundLoop:
    """Runs coroutines concurrently. Close it; coroutines in progress are then cancelled.

    Waiting for a future of :meth:`start` leaves the main thread open to signals. Running the loop there would not: a
    handler could not know where it interrupts the loop's own code. It does not survive a fork: the child must create
    another.
    """

    def __init__(self, name: str) -> None:
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Start a coroutine without waiting."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and return its result. An exception that ends the waiting (Ctrl-C) cancels the coroutine.

        Raises:
            RuntimeError: The caller runs in the loop's thread, and would wait for itself.
        """
        if self.is_current:
            name = getattr(coroutine, "__qualname__", repr(coroutine))
            coroutine.close()
            raise RuntimeError(
                f"{name} would wait forever: this code runs in the event loop of the thread {self._thread.name!r}; "
                "await the coroutine instead (async_reset, async_step and async_close of an AsyncTextEnv)"
            )
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def arun(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine and await its result on the caller's own loop. Cancelling the caller cancels it."""
        return await asyncio.wrap_future(self.start(coroutine))

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in the loop's thread, where it must not wait for the loop."""
        return threading.current_thread() is self._thread

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function in the loop's thread; safe from any thread and from a signal handler."""
        with suppress(RuntimeError):  # closed
            self._loop.call_soon_threadsafe(function)

    def close(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """Cancel the coroutines in progress, wait for them, and end the thread. Safe to call twice.

        Raises:
            TimeoutError: Not all of it has ended. The thread is left running; it does not keep the process alive.
        """
        if self._closed:
            return
        self._closed = True
        if self.is_current:  # garbage collection may close it there
            self._loop.call_soon(self._loop.stop)
            return
        if self._thread.is_alive():
            deadline = time.monotonic() + timeout
            with suppress(TimeoutError):  # the thread is blocked
                self.start(_cancel_others(deadline)).result(timeout)
            hanging = sorted({_name(task) for task in asyncio.all_tasks(self._loop)} - {_cancel_others.__qualname__})
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(max(0.0, deadline - time.monotonic()))
            if hanging or self._thread.is_alive():
                raise TimeoutError(
                    f"event loop {self._thread.name!r} did not end within {timeout:g} s of close(): "
                    f"{', '.join(hanging) or 'a call in another thread (asyncio.to_thread)'} blocks the thread, or "
                    "does not end when it is cancelled"
                )
        else:  # after a fork
            self._loop.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()


async def _cancel_others(deadline: float) -> None:
    while (others := asyncio.all_tasks() - {asyncio.current_task()}) and (left := deadline - time.monotonic()) > 0:
        for task in others:
            task.cancel()
        ended, _ = await asyncio.wait(others, timeout=left)
        for task in ended:
            if not task.cancelled():
                task.exception()  # otherwise it is logged as never retrieved


def _name(task: asyncio.Task[Any]) -> str:
    return getattr(task.get_coro(), "__qualname__", task.get_name())
