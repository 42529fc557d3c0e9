"""SIGTERM handling: stop gracefully and save. A second SIGTERM ends the process immediately."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def on_sigterm(leave: Callable[[], None]) -> Iterator[None]:
    """Call ``leave`` in the signal handler of the first SIGTERM. Does nothing outside the main thread, which alone
    may handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        leave()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
