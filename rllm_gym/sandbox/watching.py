"""Watch sockets in a running event loop."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable


def watch(fd: int, events: int, callback: Callable[[int], None]) -> None:
    """Call ``callback(event)`` whenever ``fd`` is ready, in this thread's running loop; ``events=0`` stops watching."""
    loop = asyncio.get_running_loop()
    if events & selectors.EVENT_READ:
        loop.add_reader(fd, callback, selectors.EVENT_READ)
    else:
        loop.remove_reader(fd)
    if events & selectors.EVENT_WRITE:
        loop.add_writer(fd, callback, selectors.EVENT_WRITE)
    else:
        loop.remove_writer(fd)
