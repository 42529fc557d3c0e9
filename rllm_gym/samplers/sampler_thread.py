"""``SamplerThread``: the thread in which a sampler's engine runs, with its inbox, start, failure and end."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from rllm_gym.samplers.protocol import SamplerError

STOP_S = 180.0
"""Seconds that an engine may take to end: vLLM frees its model in ten seconds, on a machine with nothing else to do."""


class Item(Protocol):
    """A request or an operation."""

    @property
    def done(self) -> Callable[[Any], object]:
        """Called from the thread with the result or an exception."""
        ...


class SamplerThread(ABC):
    """Runs an engine in a thread: items that callers put into its inbox are served between the engine's steps.

    Subclasses set their attributes, then call ``super().__init__``, which returns when the engine has started.

    Args:
        name: Name of the thread.
        engine: Name of the engine in messages.
        start_timeout: Seconds that the start may take; ``None`` for any number.

    Raises:
        SamplerError: The engine did not start in time.
        Exception: Raised by :meth:`_opened`.
    """

    def __init__(self, name: str, *, engine: str, start_timeout: float | None = None) -> None:
        self._engine_name = engine
        self._inbox: deque[Any] = deque()
        self._queue: deque[Any] = deque()  # what was taken out of the inbox and waits; used by the thread alone
        self._wake = threading.Condition()
        self._closing = False
        self._failure: BaseException | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        if not self._started.wait(start_timeout):
            self._closing = True
            raise SamplerError(
                f"{engine} did not start within {start_timeout:g} s (start_timeout); a larger model needs more"
            )
        if self._failure is not None:
            raise self._failure

    def put(self, items: Sequence[Item]) -> None:
        """Queue requests or operations, in order.

        Raises:
            SamplerError: The engine is closed or died.
        """
        with self._wake:
            if self._failure is not None:
                raise SamplerError(f"{self._engine_name} died: {self._failure}; make a new sampler") from self._failure
            if self._closing:
                raise SamplerError("this sampler is closed; make a new one")
            self._inbox.extend(items)
            self._wake.notify()

    def stop(self, timeout: float = STOP_S) -> bool:
        """End the thread; replies in progress fail. Return whether it ended in time."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
        return not self._thread.is_alive()

    # Called in the thread

    @abstractmethod
    def _opened(self) -> AbstractContextManager[object]:
        """Return a context manager that starts the engine and frees it at the end."""

    @abstractmethod
    def _has_work(self) -> bool:
        """Return whether there is something to do although nothing was put into the inbox."""

    @abstractmethod
    def _serve(self) -> None:
        """Serve what is in the queue as far as possible, and run one step of the engine."""

    @abstractmethod
    def _in_progress(self) -> Iterable[Item]:
        """Return the items that were taken from the queue and have no result."""

    def _flush(self) -> None:
        """Deliver results; called after the last ones."""
        return

    def _run(self) -> None:
        try:
            with self._opened():
                self._started.set()
                try:
                    self._loop_until_closed()
                except BaseException as error:
                    with self._wake:
                        self._failure = SamplerError(f"{type(error).__name__}: {error}")
                        self._failure.__cause__ = error
                finally:
                    self._end()
        except BaseException as error:
            if self._started.is_set():
                raise
            self._failure = error
            self._started.set()

    def _loop_until_closed(self) -> None:
        while True:
            with self._wake:
                while not (self._inbox or self._queue or self._closing or self._has_work()):
                    self._wake.wait()
                self._queue.extend(self._inbox)
                self._inbox.clear()
                if self._closing:
                    return
            self._serve()

    def _end(self) -> None:
        """Fail everything that has no result."""
        with self._wake:
            self._closing = True
            self._queue.extend(self._inbox)
            self._inbox.clear()
        failed = self._failure
        end = (
            SamplerError("the sampler was closed before this call finished")
            if failed is None
            else SamplerError(f"{self._engine_name} died during this call: {failed}; make a new sampler")
        )
        for item in [*self._in_progress(), *self._queue]:
            item.done(end)
        self._flush()
