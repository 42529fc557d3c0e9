"""What SIGTERM means to a run: leave what can be left, save, end. A second one ends it at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


class Interruption:
    """Whether the run was asked to stop."""

    def __init__(self) -> None:
        self.requested = False

    @contextlib.contextmanager
    def listening(self, on_request: Callable[[], None]) -> Iterator[None]:
        """Listen to SIGTERM. Only the main thread may; in another one this does nothing.

        Args:
            on_request: Called in the signal handler.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self.requested = True
            on_request()

        before = signal.signal(signal.SIGTERM, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)
