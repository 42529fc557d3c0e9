"""SIGTERM and Ctrl-C: stop gracefully and save. The second signal ends the run immediately."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def on_stop_signal(leave: Callable[[], None]) -> Iterator[None]:
    """Call ``leave`` in the signal handler of the first SIGTERM or SIGINT (Ctrl-C). Does nothing outside the main
    thread, which alone may handle signals. SIGINT is left alone where it is ignored or another program handles it.

    Raises:
        KeyboardInterrupt: There was a SIGINT; raised when the body has ended, so that a script with several runs stops.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupted = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if number == signal.SIGINT:
            interrupted = True
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if os.environ.get("RANK", "0") == "0":
                with contextlib.suppress(OSError):  # not print(): the signal may have interrupted one
                    os.write(2, b"\nstopping after the step in progress; Ctrl-C again stops immediately\n")
        leave()

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, stop)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if interrupted:
        raise KeyboardInterrupt
